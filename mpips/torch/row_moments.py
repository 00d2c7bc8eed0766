"""The optimizer state of embedding rows in the state dict of a torch optimizer.

Rows have their rule on the servers, and an optimizer of torch has no part in it. But a script that goes on
needs their state as it needs that of parameters. `optimizer.state_dict()["state"]` has one entry for each
layer whose rule has state, behind those of parameters. Its key is a text, not the index of a parameter: torch
leaves such entries as they are in `load_state_dict` and in the next state dict. An entry is a dict:

    keys     int64, shape (n,), ascending
    step     int64, shape (n,): number of updates of each row; only of rules that count them
    STATE    float32, shape (n, dim), for each state of the rule by its name, such as m and v;
             shape (n,) for a state of whole rows

The values of the rows are in the state dict of the model (row_state.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.model.optimizer import Optimizer
from mpips.model.table import EmbeddingTable
from mpips.torch.row_state import LoadedRows
from mpips.worker.embedding import EmbeddingHandle

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

PREFIX = "mpips rows of "  # of the keys of entries; the name of the table follows
_KEYS, _STEP = "keys", "step"
_MOST_STEPS = 2**32 - 1


class RowStates:
    """The optimizer state of rows of a table, in this process. It never changes.

    Attributes:
        keys: int64, shape (n,), ascending.
        states: float32, shape (n, dim), or (n,) for states of whole rows, by the name of the state.
        steps: int64, shape (n,): number of updates of each row; None: the rule counts none.
    """

    def __init__(self, keys: Int64, states: Mapping[str, Float32], steps: Int64 | None) -> None:
        """Take the state."""
        self.keys = keys
        self.states = states
        self.steps = steps

    @classmethod
    def of(cls, handle: EmbeddingHandle, table: EmbeddingTable) -> RowStates | None:
        """Return the state of all rows of a table on servers; None: its rule has none.

        Not collective; blocks like EmbeddingHandle.all_rows. Besides the result it takes 16 bytes for each
        row and a block of 4 MiB.
        """
        names = (*table.optimizer.state_names, *table.optimizer.row_state_names)
        if not names:
            return None
        keys, states, steps = handle.all_states()
        return cls(keys, dict(zip(names, states, strict=True)), steps)

    @classmethod
    def of_entry(cls, table: EmbeddingTable, entry: Any) -> RowStates:
        """Return the state of an entry of a state dict.

        Raises:
            ConfigError: It does not fit the table.
        """
        of_rows = table.optimizer.row_state_names
        names = (*table.optimizer.state_names, *of_rows)
        wanted = {*names, _KEYS, *([_STEP] if _counts(table) else [])}
        if not isinstance(entry, Mapping) or set(entry) != wanted:
            found = sorted(map(str, entry)) if isinstance(entry, Mapping) else type(entry).__name__
            raise ConfigError(
                f"the optimizer's state of the rows of {table.name!r} has {found}: must have "
                f"{sorted(wanted)}, since the layer's rule is {table.optimizer.name}"
            )
        keys = _array(table, entry, _KEYS, torch.int64, ())
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        if (ordered[1:] == ordered[:-1]).any():
            raise ConfigError(
                f"the optimizer's state of the rows of {table.name!r} has a key twice: each must have one row"
            )
        states = {
            name: _array(
                table,
                entry,
                name,
                torch.float32,
                () if name in of_rows else (table.dim,),
                len(keys),
            )[order]
            for name in names
        }
        steps = None
        if _counts(table):
            steps = _array(table, entry, _STEP, torch.int64, (), len(keys))[order]
            if len(steps) and not 0 <= steps.min() <= steps.max() <= _MOST_STEPS:
                raise ConfigError(
                    f"the optimizer's state of the rows of {table.name!r} has the step "
                    f"{steps.min() if steps.min() < 0 else steps.max()}: must be from 0 to {_MOST_STEPS}"
                )
        return cls(ordered, states, steps)

    def entry(self) -> dict[str, torch.Tensor]:
        """Return the entry of a state dict, which shares memory with this."""
        found = {_KEYS: torch.from_numpy(self.keys)}
        if self.steps is not None:
            found[_STEP] = torch.from_numpy(self.steps)
        return {**found, **{name: torch.from_numpy(one) for name, one in self.states.items()}}

    def joined(self, rows: LoadedRows | None, table: EmbeddingTable) -> tuple[Int64, Float32]:
        """Return keys and whole rows: values, states, and count of updates as the bits of a float.

        A row without state here has that of a new row. State of other rows is left out: their values would
        be those of new rows.

        Args:
            rows: The values; None: no rows are loaded.
            table: The table.

        Raises:
            ConfigError: There is state, and there are no values.
        """
        if rows is None or (len(self.keys) and not len(rows.keys)):
            raise ConfigError(
                f"the optimizer has state of the rows of {table.name!r}, and the model has no rows there: "
                "load the state dict of the model of that time as well"
            )
        dim, rule = table.dim, table.optimizer
        whole = np.zeros((len(rows.keys), table.row_floats), np.float32)
        whole[:, :dim] = rows.values
        places = np.searchsorted(rows.keys, self.keys)
        places[places == len(rows.keys)] = 0
        has_row = rows.keys[places] == self.keys if len(rows.keys) else np.zeros(0, bool)
        places = places[has_row]
        for k, name in enumerate(rule.state_names):
            own = whole[:, (1 + k) * dim : (2 + k) * dim]
            if isinstance(rule, Optimizer):
                own[...] = rule.native().initial_state(k)
            own[places] = self.states[name][has_row]
        for k, name in enumerate(rule.row_state_names):
            at = dim * (1 + rule.n_state) + k
            if isinstance(rule, Optimizer):
                whole[:, at] = rule.native().initial_state(k)
            whole[places, at] = self.states[name][has_row]
        if self.steps is not None:
            whole[places, -1] = self.steps[has_row].astype(np.uint32).view(np.float32)
        return rows.keys, whole


def row_states(states: Mapping[Any, Any], tables: Sequence[EmbeddingTable]) -> dict[str, RowStates]:
    """Return the entries of rows in the state of an optimizer, by the name of the table.

    Args:
        states: `optimizer.state` of a plain optimizer.
        tables: Tables of the layers that the optimizer has.

    Raises:
        ConfigError: An entry fits no table.
    """
    by_name = {table.name: table for table in tables}
    found = {}
    for key, entry in states.items():
        if not isinstance(key, str) or not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX)
        if name not in by_name:
            raise ConfigError(
                f"the optimizer has state of the rows of {name!r}, which is no embedding of the model; its "
                f"embeddings are {', '.join(map(repr, by_name)) or 'none'}: prepare the model of that time"
            )
        found[name] = RowStates.of_entry(by_name[name], entry)
    return found


def _counts(table: EmbeddingTable) -> bool:
    return table.counts_updates


def _array(
    table: EmbeddingTable,
    entry: Mapping[str, Any],
    name: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    n: int | None = None,
) -> NDArray[Any]:
    """Return a tensor of an entry as an array.

    Raises:
        ConfigError: It has another dtype than `dtype`, or another shape than (n, *shape); n = None: any n.
    """
    one = entry[name]
    fits = isinstance(one, torch.Tensor) and one.device.type != "meta" and one.ndim > 0
    if not fits or one.dtype != dtype or one.shape != (len(one) if n is None else n, *shape):
        what = f"{one.dtype} of shape {tuple(one.shape)}" if isinstance(one, torch.Tensor) else one
        raise ConfigError(
            f"{name!r} in the optimizer's state of the rows of {table.name!r} is {what}: must be {dtype} of "
            f"shape {('n' if n is None else n, *shape)}"
        )
    found: NDArray[Any] = one.detach().cpu().numpy()
    return found
