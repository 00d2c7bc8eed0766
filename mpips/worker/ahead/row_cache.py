"""The rows of one embedding table that a worker holds for a look-ahead; see mpips.worker.ahead.lookahead."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpips import _native

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Numbers = NDArray[np.intp]

NEVER = -1  # a clock or batch that has not been
_LEAST = 1024  # numbers below which memory is never compacted
_MOST_CLOCK = 2**62  # the lowest clock of all workers counts as this if all have finished


class RowCache:
    """Rows by key. A key gets a number, and all that is known of it lies at that number.

    Memory: at most twice the rows of the keys that announced batches have, and of those pushed in this clock.

    Attributes:
        since: Clock of the worker when the row was read or confirmed, or NEVER: the row is not held.
        requested: Clock of the worker when the row was last requested, or NEVER. It is after `since` while
            the row is under way.
        least: Lowest clock of all workers when the row was read.
        version: Version of the table's shard when the row was read.
        pushed: Clock of the worker's newest push of the row, or NEVER.
        wanted: Number of the last announced batch that has the key, or NEVER.
        rows: float32, shape (capacity, dim).
    """

    def __init__(self, dim: int) -> None:
        """Hold nothing."""
        self._map = _native.RowMap(_LEAST)
        self._keys: Int64 = np.empty(0, np.int64)
        self.since = self.least = self.version = self.pushed = self.wanted = self._keys
        self.requested = self._keys
        self.rows: Float32 = np.empty((0, dim), np.float32)
        self._resize(_LEAST)

    def __len__(self) -> int:
        """Return how many keys have a number."""
        return len(self._map)

    def find(self, keys: Int64) -> tuple[Numbers, NDArray[np.bool_]]:
        """Return the number of each key, and which keys have one; the number is 0 for other keys."""
        found = self._map.find(keys)
        known = found != _native.RowMap.npos
        return np.where(known, found, 0).astype(np.intp), known

    def add(self, keys: Int64) -> Numbers:
        """Return the number of each key; keys without one get one."""
        found, new = self._map.find_or_insert(keys)
        numbers: Numbers = found.astype(np.intp)
        if new:
            if len(self._map) > len(self._keys):
                self._resize(max(len(self._map), len(self._keys) * 3 // 2))
            # Numbers are given in order of first appearance: only the new ones are written twice or more.
            self._keys[numbers] = keys
        return numbers

    def put(
        self, keys: Int64, rows: Float32, clock: int | Int64, least: int | Int64, versions: Int64
    ) -> None:
        """Take rows that have been read at a worker's clock. Keys that have been dropped are ignored.

        Args:
            keys: int64, shape (n,), each once.
            rows: float32, shape (n, dim).
            clock: The clock of the worker, or one for each row.
            least: The lowest clock of all workers when they were read, or one for each row.
            versions: Version of each row's shard, int64, shape (n,).
        """
        numbers, known = self.find(keys)
        if not known.all():
            numbers, rows, versions = numbers[known], rows[known], versions[known]
            clock = clock[known] if isinstance(clock, np.ndarray) else clock
            least = least[known] if isinstance(least, np.ndarray) else least
        self.rows[numbers] = rows
        self.since[numbers] = clock
        self.least[numbers] = np.minimum(least, _MOST_CLOCK)
        self.version[numbers] = versions

    def compact(self, batch: int, clock: int, n_wanted: int) -> None:
        """Drop keys that no batch from `batch` on has, if they are more than the others.

        Args:
            batch: Number of the batch that is used next.
            clock: Clock of the worker. Keys that it has pushed in this clock must not be forgotten.
            n_wanted: Keys of announced batches, counted once for each batch.
        """
        n = len(self)
        if n <= max(_LEAST, 2 * n_wanted):
            return
        stays = np.flatnonzero((self.wanted[:n] >= batch) | (self.pushed[:n] >= clock))
        held = self._keys, *self._columns
        keys, *words = [array[stays] for array in held]
        rows = self.rows[stays]
        self._map = _native.RowMap(max(_LEAST, len(keys)))
        self._keys = np.empty(0, np.int64)
        self._resize(max(_LEAST, len(keys) * 3 // 2), empty=True)
        numbers = self.add(keys)
        assert len(numbers) == len(stays)
        for array, values in zip(self._columns, words, strict=True):
            array[numbers] = values
        self.rows[numbers] = rows

    @property
    def _columns(self) -> tuple[Int64, ...]:
        """The columns of the cache beside the rows, one value for each key."""
        return self.since, self.requested, self.least, self.version, self.pushed, self.wanted

    def _resize(self, capacity: int, empty: bool = False) -> None:
        def grown(old: Int64) -> Int64:
            new = np.full(capacity, NEVER, np.int64)
            if not empty:
                new[: len(old)] = old
            return new

        self._keys = grown(self._keys)
        self.since, self.least = grown(self.since), grown(self.least)
        self.version, self.pushed = grown(self.version), grown(self.pushed)
        self.wanted, self.requested = grown(self.wanted), grown(self.requested)
        rows = np.empty((capacity, self.rows.shape[1]), np.float32)
        if not empty:
            rows[: len(self.rows)] = self.rows
        self.rows = rows
