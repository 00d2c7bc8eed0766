"""Values of optimizers and schedulers as a worker's cursor can hold them; see Worker.set_cursor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

NOT_PLAIN: Any = object()  # of a value that a cursor cannot hold


def to_plain(value: Any) -> Any:
    """Return int, float, bool, str, None or a list of them; infinity and NaN become {"float": text}.

    Tensors and NumPy scalars are their numbers. NOT_PLAIN: a cursor cannot hold the value.
    """
    if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.numel() == 1):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, list | tuple):
        items = [to_plain(item) for item in value]
        return NOT_PLAIN if any(item is NOT_PLAIN for item in items) else items
    return NOT_PLAIN


def from_plain(value: Any) -> Any:
    """Return the value that `to_plain` was given, lists for tuples."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return float(value["float"]) if isinstance(value, Mapping) else value
