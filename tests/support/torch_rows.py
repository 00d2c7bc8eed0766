"""Ids of an embedding layer, whose rows tests compare with those of a layer of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch_rig import pulled

N, DIM = 11, 3
# Rows of torch's table and the ids under which the layer of mpips has them.
IDS = torch.tensor([0, 1, 2, -1, -5, 2**63 - 1, -(2**63), 10**12, 7, 2**31, 2**40])


def rows_of(script: Any, name: str = "embedding") -> torch.Tensor:
    """Return the current rows of IDS."""
    return pulled(script, name, IDS.numpy())
