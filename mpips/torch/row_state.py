"""The rows of embedding layers in state dicts, in pickles, and in models without a job.

A state dict has two entries for a layer: NAME.rows.keys, int64, shape (n,), ascending, and NAME.rows.values,
float32, shape (n, dim). Both are on the CPU. An id without a row has its initial row, which is a function of
the id, the table's name and the job's seed. The state dict has these two in its metadata, as torch has a
version there. A dict without metadata, such as a copy of the entries, means the layer's path in the model and
seed 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mpips.model.initial_rows import initial_rows
from mpips.model.table import EmbeddingTable

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

KEYS, VALUES = "rows.keys", "rows.values"
_ORIGIN = "mpips_rows"  # of the metadata: what initial rows depend on


class LoadedRows:
    """The rows of an embedding table, in this process. They never change.

    Attributes:
        keys: int64, shape (n,), ascending.
        values: float32, shape (n, dim), of these keys.
        table: Name of the table on which initial rows depend.
        seed: Seed of the job on which they depend.
    """

    def __init__(self, keys: Int64, values: Float32, table: EmbeddingTable, seed: int) -> None:
        """Take the rows. All other keys have initial rows by `table`, its name and `seed`."""
        self.keys = keys
        self.values = values
        self.table = table.name
        self.seed = seed
        self._table = table

    def pull(self, keys: Int64) -> Float32:
        """Return the rows of keys, float32, shape (n, dim), the caller's; initial rows for unknown keys.

        Args:
            keys: int64, shape (n,).
        """
        rows = np.empty((len(keys), self.values.shape[1]), np.float32)
        places = np.searchsorted(self.keys, keys)
        places[places == len(self.keys)] = 0
        is_known = np.zeros(len(keys), bool)
        if len(self.keys):
            is_known = self.keys[places] == keys
        rows[is_known] = self.values[places[is_known]]
        rows[~is_known] = initial_rows(self._table, self.seed, keys[~is_known])
        return rows

    def save(self, destination: dict[str, Any], prefix: str) -> None:
        """Put the rows into a state dict, which shares their memory.

        Args:
            destination: The state dict.
            prefix: Path of the layer, with a dot behind it; "" for the model itself.
        """
        destination[prefix + KEYS] = torch.from_numpy(self.keys)
        destination[prefix + VALUES] = torch.from_numpy(self.values)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            origin = {"table": self.table, "seed": self.seed}
            metadata.setdefault(prefix[:-1], {})[_ORIGIN] = origin


def repeat_rows(destination: dict[str, Any], first: str, prefix: str) -> None:
    """Put the rows of a layer into a state dict at a second path.

    Args:
        destination: The state dict.
        first: The path where they are, with a dot behind it.
        prefix: The second path, likewise.
    """
    for name in (KEYS, VALUES):
        destination[prefix + name] = destination[first + name]
    metadata = getattr(destination, "_metadata", None)
    if metadata is not None:
        metadata.setdefault(prefix[:-1], {})[_ORIGIN] = metadata[first[:-1]][_ORIGIN]


class RefusedRowsError(Exception):
    """The rows of a state dict do not fit the layer; the text is one sentence."""


def rows_of_state(
    state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any], dim: int, assign: bool
) -> tuple[Int64, Float32, str, int]:
    """Return keys and rows of a state dict that has both entries, and the origin of initial rows.

    Args:
        state: The state dict.
        prefix: Path of the layer, with a dot behind it.
        metadata: The layer's metadata.
        dim: Length of a row of the layer.
        assign: Share the memory of the entries, where they have the form of LoadedRows already.

    Returns:
        Keys and rows as in LoadedRows, name of the table, and seed of the job.

    Raises:
        RefusedRowsError: They do not fit the layer.
    """
    keys, values = state[prefix + KEYS], state[prefix + VALUES]
    _check(prefix, keys, values, dim)
    found = keys.detach().cpu().numpy()
    rows = values.detach().to("cpu", torch.float32).contiguous().numpy()
    if not (found[1:] > found[:-1]).all():
        order = np.argsort(found, kind="stable")
        found, rows = found[order], rows[order]
        if (repeated := np.flatnonzero(found[1:] == found[:-1])).size:
            raise RefusedRowsError(
                f"{prefix}{KEYS} has the key {found[repeated[0]]} twice: each key must have one row"
            )
    elif not assign:
        # The layer must not change with the tensors of the script.
        found, rows = found.copy(), rows.copy()
    origin = metadata.get(_ORIGIN, {})
    path = prefix.removesuffix(".") or "embedding"
    return found, rows, str(origin.get("table", path)), int(origin.get("seed", 0))


def _check(prefix: str, keys: Any, values: Any, dim: int) -> None:
    for name, one in ((KEYS, keys), (VALUES, values)):
        if not isinstance(one, torch.Tensor) or one.device.type == "meta":
            what = "on the meta device" if isinstance(one, torch.Tensor) else type(one).__name__
            raise RefusedRowsError(f"{prefix}{name} is {what}: must be a tensor with values")
    if keys.dtype != torch.int64 or keys.ndim != 1:
        raise RefusedRowsError(
            f"{prefix}{KEYS} is {keys.dtype} of shape {tuple(keys.shape)}: must be int64 of shape (n,)"
        )
    if not values.dtype.is_floating_point or tuple(values.shape) != (len(keys), dim):
        raise RefusedRowsError(
            f"{prefix}{VALUES} is {values.dtype} of shape {tuple(values.shape)}: must be floats of shape "
            f"({len(keys)}, {dim}), one row of the layer's dim = {dim} for each key"
        )
