"""Comparison of two checkpoints, table by table, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint.manifest import TableEntry
from mpips.checkpoint.reader import Checkpoint, RowBlock

_BLOCK = 1 << 20  # elements


@dataclass
class TableDifference:
    """The difference of a table between two checkpoints. Values are compared bit by bit.

    Attributes:
        table: Name of the table.
        note: Reason for which the table cannot be compared; "": it was compared.
        compared: Number of elements (dense), or of rows with the same key (embedding), in both checkpoints.
        changed: Number of these that differ, by column: "values", "state/NAME", "steps", "uses".
        greatest: Greatest absolute difference of two finite values.
        only_first: Embedding: number of rows whose key only the first checkpoint has.
        only_second: Embedding: number of rows whose key only the second checkpoint has.
        lacks: Embedding: columns that only one of the checkpoints has, in words; the others were compared.
    """

    table: str
    note: str = ""
    compared: int = 0
    changed: dict[str, int] = field(default_factory=dict)
    greatest: float = 0.0
    only_first: int = 0
    only_second: int = 0
    lacks: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """True if nothing differs."""
        rows = self.only_first + self.only_second
        return not self.note and not rows and not self.lacks and not any(self.changed.values())

    def add(self, first: dict[str, NDArray[Any]], second: dict[str, NDArray[Any]]) -> None:
        """Compare arrays of two checkpoints, and add what differs to the counts.

        Args:
            first: Arrays by column, with elements of 32 bits, shape (n,) or (n, dim).
            second: Arrays of the other checkpoint, of the same shapes.
        """
        for role, a in first.items():
            b = second[role]
            bits = a.view(np.uint32) != b.view(np.uint32)
            differs = bits.reshape(len(a), -1).any(axis=1) if len(a) else bits
            self.changed[role] = self.changed.get(role, 0) + int(differs.sum())
            if role == "values" and differs.any():
                with np.errstate(invalid="ignore", over="ignore"):
                    gaps = np.abs(a[differs].astype(np.float64) - b[differs])
                self.greatest = max(self.greatest, float(gaps[np.isfinite(gaps)].max(initial=0.0)))


def compare(first: Checkpoint, second: Checkpoint) -> list[TableDifference]:
    """Compare all tables of two open checkpoints. Local, blocking.

    Raises:
        CheckpointError: A file cannot be read.
    """
    mine = {table.name: table for table in first.manifest.tables}
    others = {table.name: table for table in second.manifest.tables}
    found = []
    for name in {**mine, **others}:
        a, b = mine.get(name), others.get(name)
        if a is None or b is None:
            found.append(TableDifference(name, "only in the " + ("first" if a else "second")))
        else:
            found.append(_compare_table(first, second, a, b))
    return found


def _compare_table(
    first: Checkpoint, second: Checkpoint, a: TableEntry, b: TableEntry
) -> TableDifference:
    found = TableDifference(a.name)
    shapes = [t.shape[1:] if t.kind == "embedding" else t.shape for t in (a, b)]
    for what, one, other in (
        ("kind", a.kind, b.kind),
        ("shape", shapes[0], shapes[1]),
        ("states", a.state, b.state),
        ("hash_buckets", a.hash_buckets, b.hash_buckets),
    ):
        if one != other:
            found.note = f"different {what}: {one} and {other}"
            return found
    if a.kind == "embedding":
        # Tables of bf16 count the updates of their rows, and those with limits note their uses.
        for what, one, other in (
            ("numbers of updates of rows", a.counts_steps, b.counts_steps),
            ("uses of rows", a.notes_uses, b.notes_uses),
        ):
            if one != other:
                found.lacks.append(f"{what} only in the {'first' if one else 'second'}")
        _compare_rows(first, second, found)
    else:
        _compare_elements(first, second, a, found)
    return found


def _compare_elements(
    first: Checkpoint, second: Checkpoint, entry: TableEntry, found: TableDifference
) -> None:
    n = entry.dataset("values").n_units
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        columns = []
        for checkpoint in (first, second):
            values, state = checkpoint.read_dense(entry.name, start, stop)
            columns.append({"values": values, **{f"state/{k}": v for k, v in state.items()}})
        found.add(*columns)
        found.compared += stop - start


class _Rows:
    """The rows of an embedding table, read in blocks and taken up to a given key."""

    def __init__(self, blocks: Iterator[RowBlock]) -> None:
        self._blocks = blocks
        self.arrays: dict[str, NDArray[Any]] | None = None
        self._advance()

    def _advance(self) -> None:
        block = next(self._blocks, None)
        self.arrays = None if block is None else block.arrays

    @property
    def last(self) -> int:
        """Last key that has been read."""
        assert self.arrays is not None
        return int(self.arrays["keys"][-1])

    def take(self, last: int) -> dict[str, NDArray[Any]]:
        """Return and remove the rows up to this key, among those that have been read."""
        assert self.arrays is not None
        n = int(np.searchsorted(self.arrays["keys"], last, side="right"))
        taken = {role: array[:n] for role, array in self.arrays.items()}
        self.arrays = {role: array[n:] for role, array in self.arrays.items()}
        if len(self.arrays["keys"]) == 0:
            self._advance()
        return taken


def _compare_rows(first: Checkpoint, second: Checkpoint, found: TableDifference) -> None:
    # Merge the rows: both are ascending by key. Take rows up to the lower of the two last keys.
    a, b = (_Rows(checkpoint.iter_rows(found.table)) for checkpoint in (first, second))
    while a.arrays is not None and b.arrays is not None:
        last = min(a.last, b.last)
        mine, others = a.take(last), b.take(last)
        common, i, j = np.intersect1d(
            mine["keys"], others["keys"], assume_unique=True, return_indices=True
        )
        roles = [role for role in mine if role != "keys" and role in others]
        found.add({r: mine[r][i] for r in roles}, {r: others[r][j] for r in roles})
        found.compared += len(common)
        found.only_first += len(mine["keys"]) - len(common)
        found.only_second += len(others["keys"]) - len(common)
    while a.arrays is not None:
        found.only_first += len(a.take(a.last)["keys"])
    while b.arrays is not None:
        found.only_second += len(b.take(b.last)["keys"])
