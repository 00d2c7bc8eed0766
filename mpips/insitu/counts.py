"""The counts of a producer, as a row of float32 values that only it writes."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.insitu.layout import joined, split
from mpips.insitu.moments import bytes_of, words_of


class ProducerCounts(msgspec.Struct):
    """The counts of one producer, from the first launch of the job on.

    Attributes:
        produced: Samples that it has pushed, those that are left out or dropped included.
        trained: Samples of them that are for training, held or not.
        held_out: Samples that are held out.
        thinned: Samples that the reservoir has left out.
        dropped: Samples that were not taken because they contain NaN or infinity.
        is_closed: The producer has ended.
    """

    produced: int = 0
    trained: int = 0
    held_out: int = 0
    thinned: int = 0
    dropped: int = 0
    is_closed: bool = False


_NUMBERS = ("produced", "trained", "held_out", "thinned", "dropped")
_SIZE = 2 * len(_NUMBERS) + 1  # values of counts
DIM = 2 * _SIZE + 6  # values of a row, without moments
DECLARATION_KEY = -1  # of the row that has the declaration of the stream, and no counts of its own
AGREED_KEY = -2  # of the row that has the moments on which readers have agreed


class CountsRow(msgspec.Struct):
    """The row that a producer pushes with its counts. A reader pushes one with the moments that are agreed.

    A worker that continues in memory repeats the pushes of its last clock. So its producers must begin at the
    counts with which that clock began.

    Attributes:
        counts: The counts.
        before: Counts with which the clock began in which they were pushed.
        owed: In that clock the first push was that of counts for a sample of an earlier one.
        clock: That clock, as servers count it.
        worker: Index of the worker.
        declaration: `StreamTable.declaration` of the stream; 0: the row was never written.
        moments: Moments of the samples for training that `counts` count, as `MomentsLayout.stored` has them.
        moments_before: Those of `before`.
    """

    counts: ProducerCounts
    before: ProducerCounts
    owed: bool
    clock: int
    worker: int
    declaration: int
    moments: bytes = b""
    moments_before: bytes = b""

    def values(self) -> NDArray[np.float32]:
        """Return the row, shape (1, DIM + values of both moments)."""
        rest = (self.owed, *split(self.clock), self.worker, *split(self.declaration))
        head = np.array([*_values(self.counts), *_values(self.before), *rest], np.float32)
        return np.concatenate([head, words_of(self.moments + self.moments_before)])[None]


def _values(counts: ProducerCounts) -> list[int]:
    numbers = [part for name in _NUMBERS for part in split(getattr(counts, name))]
    return [*numbers, counts.is_closed]


def counts_of(rows: NDArray[np.float32]) -> list[ProducerCounts]:
    """Return the counts in rows, float32, shape (n, DIM or more)."""
    numbers = joined(rows[:, : _SIZE - 1].reshape(len(rows), len(_NUMBERS), 2))
    return [
        ProducerCounts(**dict(zip(_NUMBERS, map(int, row), strict=True)), is_closed=bool(closed))
        for row, closed in zip(numbers, rows[:, _SIZE - 1], strict=True)
    ]


def row_of(row: NDArray[np.float32]) -> CountsRow:
    """Return what is in a row, float32, shape (DIM or more,)."""
    counts, before = counts_of(row[: 2 * _SIZE].reshape(2, _SIZE))
    owed, *clock, worker = row[2 * _SIZE : DIM - 2]
    at, declaration = joined(np.array([clock, row[DIM - 2 : DIM]], np.float32))
    stored = bytes_of(row[DIM:])
    half = len(stored) // 2
    return CountsRow(
        counts,
        before,
        bool(owed),
        int(at),
        int(worker),
        int(declaration),
        stored[:half],
        stored[half:],
    )


def declarations_of(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the declarations in rows, float32, shape (n, DIM or more); 0: the row was never written."""
    return joined(rows[:, DIM - 2 : DIM])


def moments_of(row: NDArray[np.float32]) -> bytes:
    """Return the moments in a row, float32, shape (DIM or more,)."""
    return bytes_of(row[DIM : DIM + (len(row) - DIM) // 2])
