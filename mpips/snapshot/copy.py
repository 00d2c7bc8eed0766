"""What a server holds, as arrays: in place, and copied into memory that is kept from cut to cut.

New memory costs several times a copy, because the kernel clears each page at its first touch; so the
memory for the copy is taken and touched before the rings are held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint import DenseShardData, EmbeddingShardData
from mpips.checkpoint.shards import ShardData, counts_steps
from mpips.model.placement import Placement, ShardRange
from mpips.model.table import EmbeddingTable, Table
from mpips.server.server import Server

Array = NDArray[Any]

_TOUCH_BYTES = 4 << 20  # between looks at the rings
ROOM = 1.25  # rows that a table may grow by until the next look, as a factor
_FULL = 0.9  # of the room: time for more
_FEW_ROWS = 4096
_PAGE_BYTES = 4096


def shards_in_place(
    server: Server, placement: Placement, tables: Sequence[Table]
) -> list[ShardData]:
    """All shards of a server without a copy: read-only, and good until the next drain."""
    return _shards(server, placement, tables, _arrays(server, placement, tables))


def _part(placement: Placement, table: Table, server: int) -> ShardRange | None:
    return next((p for p in placement.dense[table.name] if p.server == server), None)


def _arrays(
    server: Server, placement: Placement, tables: Sequence[Table]
) -> list[tuple[Array, ...]]:
    """By table: values and states of a dense one, keys and rows of an embedding, () if absent."""
    core = server.core
    found: list[tuple[Array, ...]] = []
    for i, table in enumerate(tables):
        if isinstance(table, EmbeddingTable):
            found.append(core.embedding_arrays(i))
        elif _part(placement, table, server.index) is None:
            found.append(())
        else:
            slots = range(1 + len(table.optimizer.state_names))
            found.append(tuple(core.dense_array(i, slot) for slot in slots))
    return found


def _shards(
    server: Server, placement: Placement, tables: Sequence[Table], arrays: list[tuple[Array, ...]]
) -> list[ShardData]:
    shards: list[ShardData] = []
    for i, (table, found) in enumerate(zip(tables, arrays, strict=True)):
        names = table.optimizer.state_names
        steps_done = server.core.steps(i)
        if isinstance(table, EmbeddingTable):
            keys, rows = found
            dim = table.dim
            state = {name: rows[:, (1 + k) * dim : (2 + k) * dim] for k, name in enumerate(names)}
            steps = None
            if counts_steps(table):
                steps = np.ascontiguousarray(rows[:, -1]).view(np.uint32)
            shards.append(
                EmbeddingShardData(table.name, keys, rows[:, :dim], state, steps, steps_done)
            )
        elif found:
            part = _part(placement, table, server.index)
            assert part is not None
            states = dict(zip(names, found[1:], strict=True))
            shards.append(DenseShardData(table.name, part.start, found[0], states, steps_done))
    return shards


class ServerCopy:
    """Memory for one copy of a server's shards. Not thread-safe: the server's loop uses it.

    The writer of a checkpoint owns the copy until the next `copy`.
    """

    def __init__(self, server: Server, placement: Placement, tables: Sequence[Table]) -> None:
        """Nothing is taken yet."""
        self._server = server
        self._placement = placement
        self._tables = list(tables)
        self._memory: list[tuple[Array, ...]] = [() for _ in tables]

    def _room(self, table: int) -> int:
        memory = self._memory[table]
        return len(memory[0]) if memory else 0

    def lacks_room(self) -> bool:
        """Whether a table has outgrown what was touched for it, or nearly so."""
        there = _arrays(self._server, self._placement, self._tables)
        return any(
            arrays
            and len(arrays[0]) > self._room(i) * (_FULL if isinstance(table, EmbeddingTable) else 1)
            for i, (table, arrays) in enumerate(zip(self._tables, there, strict=True))
        )

    def make_room(self) -> Iterator[None]:
        """Take and touch what is missing, in short steps."""
        there = _arrays(self._server, self._placement, self._tables)
        for i, (table, arrays) in enumerate(zip(self._tables, there, strict=True)):
            if not arrays or (self._memory[i] and len(arrays[0]) <= self._room(i)):
                continue
            grows = isinstance(table, EmbeddingTable)
            n = int(len(arrays[0]) * ROOM) + _FEW_ROWS if grows else len(arrays[0])
            self._memory[i] = ()
            memory = tuple(np.empty((n, *a.shape[1:]), a.dtype) for a in arrays)
            for array in memory:
                flat = array.reshape(-1).view(np.uint8)
                for start in range(0, len(flat), _TOUCH_BYTES):
                    flat[start : start + _TOUCH_BYTES : _PAGE_BYTES] = 0
                    yield
            self._memory[i] = memory

    def copy(self) -> list[ShardData]:
        """The shards as they are now. Blocks for the time of a memcpy, if there was room."""
        for _ in self.make_room():
            pass
        there = _arrays(self._server, self._placement, self._tables)
        copies = []
        for arrays, memory in zip(there, self._memory, strict=True):
            part = tuple(m[: len(a)] for a, m in zip(arrays, memory, strict=True))
            for to, array in zip(part, arrays, strict=True):
                np.copyto(to, array)
            copies.append(part)
        return _shards(self._server, self._placement, self._tables, copies)
