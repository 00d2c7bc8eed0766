"""The shards of a server as arrays: in place, or copied into memory that is used again for every cut.

To allocate new memory takes several times as long as to copy into it, because the kernel clears each page at
its first access. So the server allocates the memory of the copy and accesses all its pages before the rings
are held.

Until the next cut this memory has the bytes of the last one. So the copy compares the shards with it in the
same pass, and finds all changes since then. Pushes need not note which rows they change, and no change of a
row, its state or its count is missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint import DenseShardData, EmbeddingShardData
from mpips.checkpoint.changes import Changed
from mpips.checkpoint.manifest import PIECE
from mpips.checkpoint.row_columns import RowBlocks
from mpips.checkpoint.shards import ShardData, counts_steps, notes_uses
from mpips.model.common_copy import stored_states
from mpips.model.placement import Placement, ShardRange
from mpips.model.table import EmbeddingTable, Table
from mpips.server.server import Server
from mpips.snapshot.cut_rows import CutRows

Array = NDArray[Any]

_TOUCH_BYTES = 4 << 20  # bytes that one step of `make_room` accesses between two drains
ROOM = 1.25  # rows that there is memory for, as a multiple of the rows at the last allocation
_FULL = 0.9  # share of these rows above which memory for more is allocated
_FEW_ROWS = 4096  # rows that there is memory for in addition, so that small tables seldom need more
_PAGE_BYTES = 4096


def shards_in_place(
    server: Server, placement: Placement, tables: Sequence[Table]
) -> list[ShardData]:
    """Return all shards of a server without a copy.

    The arrays are read-only views of the server's memory. They are valid until its next drain.
    """
    _begin_views(server, tables)
    return _shards(server, placement, tables, _arrays(server, placement, tables))


def _begin_views(server: Server, tables: Sequence[Table]) -> None:
    """Let the rows of tables with storage that lie in files stay readable as they are now."""
    for i, table in enumerate(tables):
        if _has_storage(table):
            server.core.begin_view(i)


def _has_storage(table: Table) -> bool:
    return isinstance(table, EmbeddingTable) and table.storage is not None


def _part(placement: Placement, table: Table, server: int) -> ShardRange | None:
    """Return the elements of a dense table that lie on a server; None if the server has none."""
    return next((p for p in placement.dense[table.name] if p.server == server), None)


def _arrays(
    server: Server, placement: Placement, tables: Sequence[Table]
) -> list[tuple[Array, ...]]:
    """Return views of the server's memory, a tuple for each table.

    A dense table has its values and then each stored state, float32, shape (n,). An embedding table has
    its keys, int64, shape (n,), its rows, float32, shape (n, floats per row), and, if it evicts rows, their
    uses, uint32, shape (n, 2). One with storage has its keys, the places of its rows, uint32, shape (n,), and
    the rows in memory, float32, shape (frames, floats per row). A table of which the server has no part has
    ().
    """
    core = server.core
    found: list[tuple[Array, ...]] = []
    for i, table in enumerate(tables):
        if _has_storage(table):
            found.append(core.stored_arrays(i))
        elif isinstance(table, EmbeddingTable):
            arrays = core.embedding_arrays(i)  # first: rows may move in it
            found.append((*arrays, core.embedding_uses(i)) if notes_uses(table) else arrays)
        elif _part(placement, table, server.index) is None:
            found.append(())
        else:
            slots = range(1 + len(stored_states(table)))
            found.append(tuple(core.dense_array(i, slot) for slot in slots))
    return found


def _shards(
    server: Server, placement: Placement, tables: Sequence[Table], arrays: list[tuple[Array, ...]]
) -> list[ShardData]:
    """Return the shards that these arrays hold; they share memory with the arrays."""
    shards: list[ShardData] = []
    for i, (table, found) in enumerate(zip(tables, arrays, strict=True)):
        names = stored_states(table)
        steps_done = server.core.steps(i)
        if isinstance(table, EmbeddingTable) and table.storage is not None:
            shards.append(_stored(server, i, table, names, found, steps_done))
        elif isinstance(table, EmbeddingTable):
            keys, rows, *uses = found
            values, state, steps = _columns(table, names, rows)
            shards.append(
                EmbeddingShardData(table.name, keys, values, state, steps, steps_done, *uses)
            )
        elif found:
            part = _part(placement, table, server.index)
            assert part is not None
            states = dict(zip(names, found[1:], strict=True))
            shards.append(DenseShardData(table.name, part.start, found[0], states, steps_done))
    return shards


def _stored(
    server: Server,
    i: int,
    table: EmbeddingTable,
    names: Sequence[str],
    arrays: tuple[Array, ...],
    steps_done: int,
) -> EmbeddingShardData:
    """Return the shard of table `i`, which has storage; its rows are read when they are written."""
    keys, places, memory = arrays
    stored = CutRows(server.core, i, server.core.view(i), keys, places, memory)

    def read(rows: NDArray[np.intp]) -> dict[str, Array]:
        values, state, steps = _columns(table, names, stored.read(rows))
        found = {"values": values, **{f"state/{name}": array for name, array in state.items()}}
        return found if steps is None else {**found, "steps": steps}

    columns = RowBlocks(len(keys), read).columns
    return EmbeddingShardData(
        table.name,
        keys,
        columns["values"],
        {name: columns[f"state/{name}"] for name in names},
        columns.get("steps"),
        steps_done,
    )


def _columns(
    table: EmbeddingTable, names: Sequence[str], rows: Array
) -> tuple[Array, dict[str, Array], NDArray[np.uint32] | None]:
    """Return values, states by name, and counts of stored rows, float32, shape (n, floats per row).

    A row holds its values (two numbers of bf16 in each float), each state, that of the whole row, and the
    count of its updates, if it has them.
    """
    dim, values = table.dim, rows[:, : table.dim]
    if table.row_dtype == "bf16":
        values = rows[:, : (dim + 1) // 2].view(np.uint16)[:, :dim]
    at, state = rows.shape[1] - table.row_floats + dim, {}
    for name in names:
        if name in table.optimizer.row_state_names:
            state[name] = np.ascontiguousarray(rows[:, at])
            at += 1
        else:
            state[name] = rows[:, at : at + dim]
            at += dim
    steps = np.ascontiguousarray(rows[:, -1]).view(np.uint32) if counts_steps(table) else None
    return values, state, steps


def _memory_for(array: Array, length: int) -> Array:
    """Return memory for a copy of an array with this many rows, not initialised and not accessed.

    Its address is half a page from that of the array, modulo the size of a page. A load whose address agrees
    with that of a recent store in these bits waits for the store (4K aliasing). A copy to NumPy's own places,
    which are a few bytes behind those of a server's memory, takes twice the time.
    """
    shape = (length, *array.shape[1:])
    n_bytes = array.itemsize * math.prod(shape)
    memory = np.empty(n_bytes + _PAGE_BYTES, np.uint8)
    start = (array.ctypes.data + _PAGE_BYTES // 2 - memory.ctypes.data) % _PAGE_BYTES
    return memory[start : start + n_bytes].view(array.dtype).reshape(shape)


class ServerCopy:
    """The memory of one copy of a server's shards. Not thread-safe: only the server's loop uses it.

    The writer of a checkpoint may read the copy until the next `copy`.

    Attributes:
        changed: Changes of the last copy against the previous one, by name of the table; None: `compares` is
            False, it was the first copy, or the memory of a table was allocated anew since the previous one.
    """

    def __init__(
        self,
        server: Server,
        placement: Placement,
        tables: Sequence[Table],
        compares: bool = False,
    ) -> None:
        """Allocate nothing yet.

        Args:
            server: The server whose shards are copied.
            placement: The parts of tables on each server.
            tables: All tables of the job.
            compares: Find the changes of each copy against the previous one.
        """
        self.changed: dict[str, Changed] | None = None
        self._compares = compares
        # Number of rows or elements of the last copy, by table; None: memory does not hold that copy.
        self._lengths: list[int | None] = [None for _ in tables]
        self._server = server
        self._placement = placement
        self._tables = list(tables)
        self._memory: list[tuple[Array, ...]] = [() for _ in tables]

    def lacks_room(self) -> bool:
        """Return True if the memory of a table is too small for its rows, or soon will be."""
        there = _arrays(self._server, self._placement, self._tables)
        return any(self._is_short(i, arrays, _FULL) for i, arrays in enumerate(there))

    def _is_short(self, table: int, arrays: tuple[Array, ...], full: float) -> bool:
        """Return True if a table fills more than this share of its memory, or has none.

        A dense table does not grow, so it may fill its memory.
        """
        grows = isinstance(self._tables[table], EmbeddingTable)
        memory = self._memory[table]
        if not memory:
            return bool(arrays) and len(arrays[0]) > 0
        share = full if grows else 1
        return any(len(a) > len(m) * share for a, m in zip(arrays, memory, strict=True))

    def make_room(self, full: float = _FULL) -> Iterator[None]:
        """Allocate the memory that is missing and access its pages, in short steps: one for each `yield`.

        Args:
            full: Share of its memory above which a growing table gets more.
        """
        there = _arrays(self._server, self._placement, self._tables)
        for i, (table, arrays) in enumerate(zip(self._tables, there, strict=True)):
            if not arrays or (self._memory[i] and not self._is_short(i, arrays, full)):
                continue
            # Release the old memory before the new one is allocated.
            grows = isinstance(table, EmbeddingTable)
            self._memory[i], self._lengths[i] = (), None
            memory = tuple(
                _memory_for(a, int(len(a) * ROOM) + _FEW_ROWS if grows else len(a)) for a in arrays
            )
            for array in memory:
                flat = array.reshape(-1).view(np.uint8)
                for start in range(0, len(flat), _TOUCH_BYTES):
                    flat[start : start + _TOUCH_BYTES : _PAGE_BYTES] = 0
                    yield
            self._memory[i] = memory

    def release(self) -> None:
        """Let servers write what they held for the copy; it is not read any more."""
        for i, table in enumerate(self._tables):
            if _has_storage(table):
                self._server.core.end_view(i)

    def copy(self) -> list[ShardData]:
        """Return a copy of the shards as they are now.

        Blocks for the time of the copy, and of `make_room` if a table does not fit into its memory.

        Raises:
            MemoryError: There is not enough memory for the copy.
        """
        for _ in self.make_room(full=1):
            pass
        _begin_views(self._server, self._tables)
        there = _arrays(self._server, self._placement, self._tables)
        copies, changed = [], {}
        for i, (arrays, memory) in enumerate(zip(there, self._memory, strict=True)):
            # Copy into the beginning of the memory, which may have room for more rows.
            part = tuple(m[: len(a)] for a, m in zip(arrays, memory, strict=True))
            before, self._lengths[i] = self._lengths[i], None
            if not self._compares or before is None:
                for to, array in zip(part, arrays, strict=True):
                    np.copyto(to, array)
            elif arrays:
                table = self._tables[i]
                copy = _copy_rows if isinstance(table, EmbeddingTable) else _copy_elements
                changed[table.name] = copy(memory, arrays, before)
            self._lengths[i] = len(arrays[0]) if arrays else 0
            copies.append(part)
        n_held = sum(bool(arrays) for arrays in there)
        self.changed = changed if self._compares and len(changed) == n_held else None
        return _shards(self._server, self._placement, self._tables, copies)


def _copy_elements(memory: tuple[Array, ...], arrays: tuple[Array, ...], before: int) -> Changed:
    """Copy the values and states of a dense table; return which pieces have changed."""
    marks = np.zeros(-(-before // PIECE), np.uint8)
    for to, array in zip(memory, arrays, strict=True):
        _copy_units(to, array, PIECE * array.itemsize, marks)
    return Changed(np.flatnonzero(marks))


def _copy_rows(memory: tuple[Array, ...], arrays: tuple[Array, ...], before: int) -> Changed:
    """Copy keys, rows and uses of an embedding table; return which rows have changed, and removed keys.

    A row at the former place of another key counts as changed.

    Args:
        memory: Arrays of the previous copy, with room for all rows.
        arrays: Arrays of the server.
        before: Number of rows of the previous copy.
    """
    old, new = memory[0][:before], arrays[0]
    n = min(len(old), len(new))
    moved = old[:n] != new[:n]
    marks = np.ones(len(new), np.uint8)
    marks[:n] = moved
    gone = np.concatenate([old[:n][moved], old[n:]])
    come = np.concatenate([new[:n][moved], new[n:]])
    removed = np.setdiff1d(gone, come, assume_unique=True)
    np.copyto(memory[0][: len(new)], new)
    for to, array in zip(memory[1:], arrays[1:], strict=True):
        _copy_units(to[:n], array[:n], array.itemsize * array.shape[1], marks[:n])
        np.copyto(to[n : len(new)], array[n:])
    return Changed(np.flatnonzero(marks), removed)


def _copy_units(to: Array, array: Array, unit: int, marks: NDArray[np.uint8]) -> None:
    """Copy an array in units of `unit` bytes, and set the marks of those that differ."""
    flat = to.reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8)
    _native.copy_changed(*flat, unit, marks)
