"""The samples of a worker's epoch, one batch after the other: from memory, or from windows of a cache.

While a batch of one window is used, a thread reads the next window. The two windows in memory belong to
different threads: the reading thread hands over a finished window by its future and keeps no reference to it,
so no array is written after the training thread has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Batch, Dataset, join_batches
from mpips.data.rows import Samples

Int64: TypeAlias = npt.NDArray[np.int64]


@runtime_checkable
class WindowedData(Protocol):
    """A worker's share of data that is too large for its memory.

    Attributes:
        n: Samples of the share.
    """

    n: int

    def read(self, samples: Int64) -> tuple[Dataset, Int64]:
        """Read samples into memory. Blocks; thread-safe.

        Args:
            samples: Numbers in the whole data, int64, shape (n,), in any order; most of some blocks.

        Returns:
            Samples that contain these, and the row in them of each, int64, shape (n,).
        """


class Feed(Protocol):
    """The samples that are left of an epoch."""

    @property
    def n_left(self) -> int:
        """Their number."""

    def take(self, n: int, weight: float) -> Batch:
        """Return the next `n` samples, at most `n_left`, as a batch. Blocks if they are not read yet."""

    def close(self) -> None:
        """End the reading."""


class MemoryFeed:
    """Samples in memory; see Feed."""

    def __init__(self, data: Samples, rows: Int64) -> None:
        """Serve `rows` of the data, int64, shape (n,)."""
        self._data = data
        self._rows = rows
        self._next = 0

    @property
    def n_left(self) -> int:
        """Number of samples that are left."""
        return len(self._rows) - self._next

    def take(self, n: int, weight: float) -> Batch:
        """Return the next samples as a batch."""
        rows = self._rows[self._next : self._next + n]
        self._next += n
        batch: Batch = self._data.take(rows, weight)
        return batch

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


class WindowFeed:
    """Samples that are read in windows; see Feed."""

    def __init__(
        self, data: WindowedData, windows: Iterator[Int64], n: int, n_skipped: int
    ) -> None:
        """Begin to read.

        Args:
            data: The data.
            windows: Samples of the epoch, in order, window by window.
            n: Samples in all windows.
            n_skipped: Samples at the beginning that are not served.
        """
        self.n_left = n - n_skipped
        self._data = data
        self._windows = windows
        self._n_skipped = n_skipped
        self._memory = MemoryFeed(*data.read(np.empty(0, np.int64)))
        self._reader = ThreadPoolExecutor(1, "mpips-read")
        self._next: Future[MemoryFeed] | None = None
        self._begin_next()

    def take(self, n: int, weight: float) -> Batch:
        """Return the next samples as a batch."""
        parts: list[Batch] = []
        self.n_left -= n
        while n or not parts:
            if n and not self._memory.n_left:
                self._take_next()
            part = self._memory.take(min(n, self._memory.n_left), weight)
            n -= part.n
            parts.append(part)
        return parts[0] if len(parts) == 1 else join_batches(parts, weight)

    def close(self) -> None:
        """End the reading. Waits for the end of a window that is being read."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _take_next(self) -> None:
        """Replace the window in memory by the next one."""
        assert self._next is not None
        del self._memory  # free the memory before another window is read into it
        self._memory = self._next.result()
        self._begin_next()

    def _begin_next(self) -> None:
        """Let the thread read the next window that is not skipped; `_next` is None behind the last one."""
        self._next = None
        for window in self._windows:
            if len(window) <= self._n_skipped:
                self._n_skipped -= len(window)
                continue
            rows = window[self._n_skipped :]
            self._n_skipped = 0
            self._next = self._reader.submit(self._read, rows)
            return

    def _read(self, samples: Int64) -> MemoryFeed:
        return MemoryFeed(*self._data.read(samples))
