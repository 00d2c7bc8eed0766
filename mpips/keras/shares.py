"""The share of a worker in a batch of `fit`.

Each worker reads the whole batch and computes its share: as many rows as the others, the first workers one
more where the number does not divide. So the batch size is that of all workers together, and the steps of an
epoch are those of one process.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch

from mpips import _native
from mpips.errors import ConfigError


def n_rows(data: Any) -> int:
    """Return the number of rows of a batch.

    Raises:
        ConfigError: Its arrays have no common number of rows.
    """
    found = {array.shape[0] if array.ndim else 0 for array in _arrays(data)}
    if len(found) != 1:
        raise ConfigError(
            f"a batch has arrays of {sorted(found) or 'no'} rows: fit can divide a batch among workers if "
            "all its arrays have the same number of rows"
        )
    return found.pop()


def share(data: Any, first: int, last: int) -> Any:
    """Return the rows [first, last) of each array of a batch; views where the arrays have them."""
    return keras.tree.map_structure(
        lambda array: None if array is None else array[first:last], data, none_is_leaf=True
    )


def add_to_hash(hashing: _native.Xxh3, data: Any) -> None:
    """Add all elements of a batch to a hash."""
    for array in _arrays(data):
        host = array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array
        hashing.update(np.ascontiguousarray(host).reshape(-1).view(np.uint8))


def _arrays(data: Any) -> list[Any]:
    return [array for array in keras.tree.flatten(data) if array is not None]
