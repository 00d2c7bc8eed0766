"""The look-ahead of one embedding table: which rows of the cache are valid, and what is fetched when.

See mpips.worker.lookahead for the protocol and its argument.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.consistency import BSP, SSP
from mpips.worker.requests import Request
from mpips.worker.row_access import RowAccess
from mpips.worker.row_cache import NEVER, Numbers, RowCache

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


class TableAhead:
    """The cache of one table and the requests that fill it. Not thread-safe."""

    def __init__(self, access: RowAccess, depth: int) -> None:
        """Hold nothing. `depth`: clocks for which a row may be used under SSP and ASP."""
        self._access = access
        self._connection = access.connection
        consistency = access.table.consistency
        self._is_bsp = isinstance(consistency, BSP)
        self._bound = consistency.bound if isinstance(consistency, SSP) else None
        self._depth = depth
        self._alone = self._connection.n_workers == 1
        self._cache = RowCache(access.table.dim)
        self._announced: dict[int, Int64] = {}  # unique keys of batches that are not used yet
        self._current: Int64 = np.empty(0, np.int64)
        self._coming: list[Request[Float32]] = []

    def announce(self, number: int, keys: Int64) -> None:
        """Note the keys of a batch that will be used; batches are numbered in order."""
        unique = self._access.unique(keys)
        self._announced[number] = unique
        numbers = self._cache.add(unique)
        self._cache.wanted[numbers] = number

    def begin(self, number: int) -> None:
        """Begin a batch: take what has been fetched for it, and drop what no batch needs."""
        for request in self._coming:
            request.wait()
        self._coming.clear()
        self._current = self._announced.pop(number)
        wanted = len(self._current) + sum(len(keys) for keys in self._announced.values())
        self._cache.compact(number, self._connection.now, wanted)

    def request_current(self) -> tuple[Request[Float32] | None, Request[Float32] | None]:
        """Ask for the rows of this batch that are not valid; return the requests of rows and of changes."""
        numbers, _ = self._cache.find(self._current)
        missing, unsure = ~self._is_valid(numbers, self._connection.now), None
        if self._is_bsp:
            maybe = missing & self._is_clean(numbers)
            missing &= ~maybe
            if self._alone:
                # No other worker changes rows, and this one has not pushed these.
                self._cache.since[numbers[maybe]] = self._connection.now
            elif maybe.any():
                unsure = self._ask(
                    self._current[maybe], int(self._cache.since[numbers[maybe]].min())
                )
        rows = self._fetch(self._current[missing]) if missing.any() else None
        return rows, unsure

    def request_changed(self) -> Request[Float32] | None:
        """Ask for the rows that others have changed, when the request of changes is complete."""
        numbers, _ = self._cache.find(self._current)
        missing = ~self._is_valid(numbers, self._connection.now)
        return self._fetch(self._current[missing]) if missing.any() else None

    def fetch_next(self, number: int) -> None:
        """Start to fetch the rows of a batch while another one computes, as many as the rings have room for.

        Under BSP rows of the present batch are left out: this worker is about to change them.
        """
        if number not in self._announced or self._bound == 0:
            return
        keys, cache = self._announced[number], self._cache
        numbers, _ = cache.find(keys)
        if self._is_bsp:
            present, known = cache.find(self._current)
            used = np.zeros(len(cache), bool)
            used[present[known]] = True
            held = self._is_valid(numbers, self._connection.now) | self._is_clean(numbers)
            wanted = ~(held | used[numbers])
        else:
            wanted = ~self._is_valid(numbers, self._connection.now + 1)
        keys = keys[wanted][: self._access.room()]
        if len(keys):
            self._coming.append(self._fetch(keys))
            for channel in self._connection.channels:
                channel.expect_replies()

    def _begin_collect(self) -> None:
        """Start to take replies that have arrived at servers, so that they travel while a push is sent."""
        if self._coming:
            for channel in self._connection.channels:
                channel.begin_collect()

    def note_push(self, keys: Int64) -> None:
        """Note that this worker pushes rows in this clock."""
        self._begin_collect()
        numbers = self._cache.add(keys)
        self._cache.pushed[numbers] = self._connection.now

    def pull(
        self, plan: _native.KeyPlan, out: Float32 | None
    ) -> tuple[Float32, dict[int, int]] | None:
        """Return the rows of a plan's keys from the cache, and those that it lacks from servers; may block.

        Returns:
            `out`, or new memory if it is None, and the oldest version of its rows by server; None if the
            cache has no valid row of these keys.
        """
        keys = plan.unique_keys
        numbers, known = self._cache.find(keys)
        valid = known & self._is_valid(numbers, self._connection.now)
        if not valid.any():
            return None
        unique, versions = self._cache.rows[numbers], self._cache.version[numbers]
        if not valid.all():

            def taken(rows: Float32, least: int, found: Int64) -> None:
                # Not into the cache, which holds rows of announced batches only.
                unique[~valid], versions[~valid] = rows, found

            self._access.fetch(keys[~valid], taken).wait()
        if out is None:
            out = np.empty((len(plan), unique.shape[1]), np.float32)
        plan.scatter_rows(unique, out)
        return out, self._access.oldest(plan, versions)

    def _is_valid(self, numbers: Numbers, now: int) -> Flags:
        """Return which rows a pull at clock `now` may return."""
        since = self._cache.since[numbers]
        if self._is_bsp:
            equal: Flags = since == now
            return equal
        valid: Flags = (since != NEVER) & (now - since <= self._depth)
        if self._bound is not None:
            valid &= self._cache.least[numbers] >= now - self._bound
        return valid

    def _is_clean(self, numbers: Numbers) -> Flags:
        """Return which rows are held and were not pushed by this worker since they were read."""
        since = self._cache.since[numbers]
        clean: Flags = (since != NEVER) & (self._cache.pushed[numbers] < since)
        return clean

    def _fetch(self, keys: Int64) -> Request[Float32]:
        clock = self._connection.now

        def arrived(rows: Float32, least: int, versions: Int64) -> None:
            self._cache.put(keys, rows, clock, least, versions)

        return self._access.fetch(keys, arrived)

    def _ask(self, keys: Int64, since: int) -> Request[Float32]:
        clock = self._connection.now

        def arrived(changes: Float32, least: int, versions: Int64) -> None:
            numbers, known = self._cache.find(keys)
            unchanged = numbers[known & (changes[:, 0] == 0)]
            self._cache.since[unchanged] = clock

        return self._access.fetch(keys, arrived, since)
