"""The size of local tables and their updates."""

from __future__ import annotations

import numpy as np

N = 300


def noise(step: int, i: int = 0) -> np.ndarray:
    return np.random.default_rng([step, i]).standard_normal(N).astype(np.float32)
