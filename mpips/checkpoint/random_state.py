"""States of random generators as plain JSON values, in checkpoints."""

from __future__ import annotations

import re
from typing import Any

import numpy as np


def pack_random(state: dict[str, Any]) -> dict[str, Any]:
    """Return a bit generator's state (`generator.bit_generator.state`) as plain JSON values.

    Whole numbers become text, because JSON readers treat large ones differently. Arrays become lists of such
    text.
    """
    return {key: _pack(value) for key, value in state.items()}


def unpack_random(packed: dict[str, Any]) -> dict[str, Any]:
    """Return the state from which `pack_random` made `packed`; arrays are uint64, which NumPy casts."""
    return {key: _unpack(value) for key, value in packed.items()}


def _pack(value: Any) -> Any:
    if isinstance(value, dict):
        return pack_random(value)
    if isinstance(value, np.ndarray):
        return [_pack(item) for item in value.tolist()]
    if isinstance(value, int | np.integer):
        return f"int:{int(value)}"
    return value


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        return unpack_random(value)
    if isinstance(value, list):
        return np.array([_unpack(item) for item in value], np.uint64)
    if isinstance(value, str) and re.fullmatch(r"int:-?\d+", value):
        return int(value[4:])
    return value
