"""The look-ahead of one embedding table: which rows of the cache are valid, and what is fetched when.

See mpips.worker.ahead.lookahead for the protocol and its argument.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.consistency import BSP, SSP, Switch
from mpips.transport.waiting import wait_for
from mpips.worker import waits
from mpips.worker.ahead.row_cache import NEVER, Numbers, RowCache
from mpips.worker.node_rows.rows import NodeRows
from mpips.worker.requests import Request
from mpips.worker.row_access import RowAccess

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Seconds to wait for rows that other workers of the node read: as long as for others, within these bounds.
_LEAST_PATIENCE_S, _MOST_PATIENCE_S = 0.001, 0.1
_ANY_STAMP = 2**62


def end_of_patience(began: float) -> float:
    """Return until when to wait for rows that others read.

    `began`: when the batch began; both are values of `time.monotonic`.
    """
    now = time.monotonic()
    return now + min(max(now - began, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)


class TableAhead:
    """The cache of one table and the requests that fill it. Not thread-safe."""

    def __init__(self, access: RowAccess, depth: int, held: NodeRows | None = None) -> None:
        """Hold nothing.

        Args:
            access: Access to the table's rows.
            depth: Clocks for which a row may be used under SSP and ASP.
            held: Rows that the workers of this node read for each other; None: this worker reads all.
        """
        self._access = access
        # Stamps are clocks of servers, which say nothing of a row's age beside local tables.
        self._held = held if access.connection.local is None else None
        self._lag = 0  # clocks of this worker before the slowest one, when rows were last read
        self._connection = access.connection
        consistency = access.table.consistency
        self._is_bsp = isinstance(consistency, BSP)
        self._ssp = consistency if isinstance(consistency, SSP | Switch) else None
        self._depth = depth
        # Only this worker changes rows: no other one pushes, and the table removes none.
        self._alone = self._connection.n_workers == 1 and access.table.evict is None
        # The clock in which the worker has pushed rows before now, which nothing has noted; or NEVER.
        now = self._connection.now
        self._unnoted = now if self._connection.clock_state.pushed_at == now else NEVER
        self._cache = RowCache(access.table.dim)
        self._announced: dict[int, Int64] = {}  # unique keys of batches that are not used yet
        self._current: Int64 = np.empty(0, np.int64)
        self._unsure: Int64 = self._current  # keys whose rows are valid if nobody has changed them
        self._coming: list[Request[Float32]] = []  # requests of rows of the next batch
        self._requests: list[Request[Float32]] = []  # requests that `take` waits for

    @property
    def _bound(self) -> int | None:
        """Bound of SSP or Switch that is in force at the worker's clock; None: another model."""
        return None if self._ssp is None else waits.bound(self._connection, self._ssp)

    @property
    def _now(self) -> int:
        """Clock by which rows age: under BSP that of the servers, else that of the worker's program.

        They differ beside tables under LocalSGD and DiLoCo, where servers end fewer clocks.
        """
        return self._connection.now if self._is_bsp else self._connection.step

    @property
    def fetches_early(self) -> bool:
        """True if rows of the next batch are requested before those of this one have arrived.

        Where other workers change rows under BSP, what they have changed is requested first: it is needed
        sooner, and replies come in the order of their requests.
        """
        return self._alone or not self._is_bsp

    def announce(self, number: int, keys: Int64) -> None:
        """Note the keys of a batch that will be used; batches are numbered in order."""
        unique = self._access.unique(keys)
        self._announced[number] = unique
        numbers = self._cache.add(unique)
        self._cache.wanted[numbers] = number

    def begin(self, number: int) -> None:
        """Begin a batch, and drop what no batch needs."""
        self._current = self._announced.pop(number)
        wanted = len(self._current) + sum(len(keys) for keys in self._announced.values())
        self._cache.compact(number, self._now, wanted)

    def request_missing(self) -> None:
        """Ask for the rows of this batch that are neither valid nor under way, and for changes of the others.

        `take` waits for them.
        """
        now = self._now
        numbers, _ = self._cache.find(self._current)
        valid = self._will_be_valid(numbers, now)
        self._requests += self._coming
        self._coming.clear()
        if self._is_bsp:
            since = self._will_be_since(numbers)
            clean = ~valid & (since != NEVER) & (self._cache.pushed[numbers] < since)
            if self._alone:
                clean &= since > self._unnoted
            self._unsure = self._current[clean]
            valid |= clean
            if len(self._unsure) and not self._alone:
                self._requests.append(self._ask(self._unsure, int(since[clean].min())))
        if not valid.all():
            self._read(self._current[~valid], now, self._requests)

    def take(self) -> None:
        """Wait for all that has been requested for this batch."""
        for request in self._requests:
            request.wait()
        self._requests.clear()
        if self._alone and len(self._unsure):
            # No other worker changes rows, and this one has not pushed these.
            numbers, _ = self._cache.find(self._unsure)
            self._cache.since[numbers] = self._now
            self._unsure = self._unsure[:0]

    def request_changed(self) -> None:
        """Ask for rows of this batch that have turned out not to be valid. `take` waits for them."""
        missing = self._missing()
        if len(missing):
            self._read(missing, self._now, self._requests)

    def request_rest(self, until: float) -> None:
        """Wait for rows of this batch that other workers of the node read, and ask for the rest.

        `take` waits for these. `until`: end of the wait, a value of `time.monotonic`.
        """
        if self._held is None or not len(left := self._missing()):
            return
        now = self._now

        def is_there() -> bool:
            nonlocal left
            absent, claimed = self._copy(left, now, claims=False)
            left = np.concatenate((absent, claimed))
            return not len(claimed)

        wait_for(is_there, until - time.monotonic())
        if len(left):
            self._requests.append(self._fetch(left, publishes=True))

    def _missing(self) -> Int64:
        """Return the keys of this batch whose rows are not valid."""
        numbers, _ = self._cache.find(self._current)
        return self._current[~self._is_valid(numbers, self._now)]

    def fetch_next(self, number: int) -> None:
        """Start to fetch the rows of a batch while another one computes, as many as the rings have room for.

        Under BSP rows of the present batch are left out: this worker is about to change them.
        """
        if number not in self._announced or self._bound == 0:
            return
        keys, cache, now = self._announced[number], self._cache, self._now
        numbers, _ = cache.find(keys)
        if self._is_bsp:
            present, known = cache.find(self._current)
            used = np.zeros(len(cache), bool)
            used[present[known]] = True
            since = self._will_be_since(numbers)
            held = (since == now) | ((since != NEVER) & (cache.pushed[numbers] < since))
            wanted = ~(held | used[numbers])
        else:
            wanted = ~self._will_be_valid(numbers, now + 1)
        keys = keys[wanted][: self._access.room()]
        if not len(keys):
            return
        if self._is_bsp:
            # These rows are for the next clock. Rows that others have read at this one would have to be
            # confirmed then, and most of them are about to be changed by the workers that have read them.
            self._coming.append(self._fetch(keys, publishes=False))
        else:
            self._read(keys, now + 1, self._coming)

    def note_push(self, keys: Int64) -> None:
        """Note that this worker pushes rows in this clock."""
        numbers = self._cache.add(keys)
        self._cache.pushed[numbers] = self._now

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
        valid = known & self._is_valid(numbers, self._now)
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
        if (bound := self._bound) is not None:
            valid &= self._cache.least[numbers] >= now - bound
        return valid

    def _will_be_since(self, numbers: Numbers) -> Int64:
        """Return the clock at which each row is read, including rows under way; or NEVER."""
        since: Int64 = np.maximum(self._cache.since[numbers], self._cache.requested[numbers])
        return since

    def _will_be_valid(self, numbers: Numbers, now: int) -> Flags:
        """Return which rows a pull at clock `now` may return when those under way have arrived.

        Under SSP their clocks are not known yet: `request_changed` finds those that are too old.
        """
        valid = self._is_valid(numbers, now)
        requested = self._cache.requested[numbers]
        under_way = requested > self._cache.since[numbers]
        if self._is_bsp:
            under_way &= requested == now
        else:
            under_way &= now - requested <= self._depth
        return valid | under_way

    def _read(self, keys: Int64, use: int, requests: list[Request[Float32]]) -> None:
        """Copy rows that other workers of the node have read, and request those that none of them reads.

        Args:
            keys: int64, shape (n,), each once.
            use: Clock at which the rows are used: that of the worker or the next one.
            requests: Gets the request.
        """
        if self._held is not None:
            keys, _ = self._copy(keys, use)
        if len(keys):
            requests.append(self._fetch(keys, publishes=True))

    def _copy(self, keys: Int64, use: int, claims: bool = True) -> tuple[Int64, Int64]:
        """Copy rows that other workers of the node have read; return the keys of those absent and claimed."""
        assert self._held is not None
        now = self._now
        if self._is_bsp:
            usable, trusts = (now, now), now
        else:
            # Servers answer a worker further before than the bound only when this one has ended its clock.
            age, last = self._depth, _ANY_STAMP
            if (bound := self._bound) is not None:
                age, last = min(self._depth, bound), now + bound
            usable, trusts = (use - age, last), now - 1
            if self._lag > age:
                # Rows that others read now will be too old for this worker.
                trusts, claims = _ANY_STAMP, False
        found = self._held.look(keys, usable, trusts, claims)
        if len(found.stamps):
            copied, stamps = keys[found.copied], found.stamps
            # An earlier request has arrived, maybe at a later clock than these stamps.
            numbers, _ = self._cache.find(copied)
            self._cache.requested[numbers] = NEVER
            self._cache.put(copied, found.rows, stamps, stamps, found.versions)
        return keys[~found.copied & ~found.claimed], keys[found.claimed]

    def _fetch(self, keys: Int64, publishes: bool) -> Request[Float32]:
        """Request rows; `publishes`: give them to other workers of the node when they have arrived."""
        clock = self._now
        numbers, _ = self._cache.find(keys)
        self._cache.requested[numbers] = clock
        held = self._held if publishes else None

        def arrived(rows: Float32, least: int, versions: Int64) -> None:
            self._cache.put(keys, rows, clock, least, versions)
            self._lag = max(0, clock - least)
            if held is not None:
                held.publish(keys, rows, clock if self._is_bsp else min(least, clock), versions)

        return self._access.fetch(keys, arrived)

    def _ask(self, keys: Int64, since: int) -> Request[Float32]:
        clock = self._now

        def arrived(changes: Float32, least: int, versions: Int64) -> None:
            numbers, known = self._cache.find(keys)
            unchanged = numbers[known & (changes[:, 0] == 0)]
            self._cache.since[unchanged] = clock

        return self._access.fetch(keys, arrived, since)
