"""The counts of a producer, as a row of float32 values that only it writes."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.insitu.layout import joined, split


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

    def row(self, declaration: int) -> NDArray[np.float32]:
        """Return the row, shape (1, DIM). `declaration`: `StreamTable.declaration` of the stream."""
        numbers = [split(getattr(self, name)) for name in _NUMBERS]
        return np.array([[*np.ravel(numbers), *split(declaration), self.is_closed]], np.float32)


_NUMBERS = ("produced", "trained", "held_out", "thinned", "dropped")
DIM = 2 * len(_NUMBERS) + 3  # values of a row
DECLARATION_KEY = -1  # of the row that has the declaration of the stream and no counts


def counts_of(rows: NDArray[np.float32]) -> list[ProducerCounts]:
    """Return the counts in rows, float32, shape (n, DIM)."""
    numbers = joined(rows[:, :-3].reshape(len(rows), len(_NUMBERS), 2))
    return [
        ProducerCounts(**dict(zip(_NUMBERS, map(int, row), strict=True)), is_closed=bool(closed))
        for row, closed in zip(numbers, rows[:, -1], strict=True)
    ]


def declarations_of(rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the declarations in rows, float32, shape (n, DIM); 0: the row was never written."""
    return joined(rows[:, -3:-1])
