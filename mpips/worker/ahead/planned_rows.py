"""Pushes and pulls of rows by plan: the records at each server, and the request for the rows.

A plan (native/src/keys/key_plan.hpp) has the keys of one call: each key once, grouped by its server. Making a
plan costs more than a batch, so plans are used again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.model.table import EmbeddingTable, native_codec, native_pull_codec
from mpips.worker.noted import NotedPulls
from mpips.worker.requests import PolledRequest, Request

if TYPE_CHECKING:
    from mpips.worker.connection import Connection

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
# Called with the plan of a pull, its rows, and its first record at each server.
Arrived = Callable[[_native.KeyPlan, Float32, Mapping[int, int]], None]


class PlannedRows:
    """The rows of one embedding table by plan. Not thread-safe.

    Attributes:
        codec: Codec of pushes; None: they are not encoded.
        pull_codec: Codec of pulls; None: they are not encoded.
        plans: Plans that no request uses.
    """

    def __init__(
        self,
        connection: Connection,
        index: int,
        table: EmbeddingTable,
        partitioner: _native.Partitioner,
        noted: NotedPulls | None,
    ) -> None:
        """Take the table.

        Args:
            connection: The worker's connection.
            index: Number of the table.
            table: The table.
            partitioner: Maps keys to servers.
            noted: Notes the versions of what a pull has brought; None: nothing depends on them.
        """
        self.codec = native_codec(table)
        self.pull_codec = native_pull_codec(table)
        self.plans: list[_native.KeyPlan] = []
        self._connection = connection
        self._index = index
        self._table, self._name = table, table.name
        self._dim = table.dim
        self._partitioner = partitioner
        self._noted = noted
        self._pulling = f"pulling {table.name!r}"  # activity

    def planned(self, keys: Int64) -> _native.KeyPlan:
        """Return a plan of these keys; it reuses one that no request owns."""
        plan = self.plans.pop() if self.plans else _native.KeyPlan()
        plan.build(keys, self._partitioner)
        return plan

    @staticmethod
    def groups(plan: _native.KeyPlan) -> list[tuple[int, int]]:
        """Return (server, number of keys) for each server that owns any of the plan's keys."""
        return [(s, n) for s, n in enumerate(np.diff(plan.group_starts).tolist()) if n]

    def start_pull(
        self,
        plan: _native.KeyPlan,
        out: Float32 | None,
        arrived: Arrived | None = None,
        since: int | None = None,
    ) -> Request[Float32]:
        """Request the rows of a plan. The request owns the plan and returns it to `plans` at its end.

        `arrived`: called with the rows and the first record at each server; the rows are for a look-ahead.
        `since`: request, in place of rows, which of them have changed after this version; shape (n, 1).
        """
        connection = self._connection
        connection.control.state = self._pulling
        connection.clock_state.begin()
        dim = self._dim if since is None else 1
        codec = self.pull_codec if since is None else None
        rows = np.empty((len(plan), dim), np.float32) if out is None else out
        more = () if arrived is None else (True, since)
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for server, count in self.groups(plan):
            done, channel = 0, connection.channels[server]
            while True:
                if done == 0:
                    connection.write_tick_behind(server)
                    starts[server] = channel.writer.next_sequence
                try:
                    done = channel.writer.pull_planned(
                        self._index, connection.now, plan, server, rows, done, codec, *more
                    )
                finally:
                    # Ctrl-C may come here: the writer has the addresses of what it must not lose.
                    ends[server] = channel.writer.next_sequence
                    connection.keep(server, ends[server], (plan, rows))
                if done == count:
                    break
                connection.wait_credit(server)
        connection.send(ends)
        connection.control.state = "computing"
        connection.clock_state.end_pull()
        missing = dict(ends)

        def advance(max_s: float) -> bool:
            for server, before in list(missing.items()):
                if not connection.channels[server].wait_collected(before, max_s):
                    return False
                del missing[server]
            return True

        def finish() -> Float32:
            if arrived is not None:
                arrived(plan, rows, starts)
            elif self._noted is not None:
                self._noted.note(rows, self._versions(starts))
            self.plans.append(plan)
            return rows

        def late() -> str:
            server = next(iter(missing))
            return (
                f"server {server} has not answered a pull of table {self._name!r}"
                + connection.blame(server, self._table)
            )

        return PolledRequest(
            advance,
            finish,
            late,
            connection.timeout_s,
            self._poll,
            self._waited,
        )

    def _poll(self) -> None:
        """Take messages while rows have not come, and show the activity, in waits of more than 20 ms."""
        self._connection.control.state = self._pulling
        self._connection.poll()

    def _waited(self, seconds: float) -> None:
        """Add the time of a wait for rows, and end its activity."""
        self._connection.control.state = "computing"
        self._connection.spent.fetched(seconds)

    def _versions(self, starts: dict[int, int]) -> dict[int, int]:
        """Return the versions that a pull has fetched, by server; `starts`: its first records."""
        found = {
            s: self._connection.channels[s].writer.pulled_version(q) for s, q in starts.items()
        }
        return {server: version for server, version in found.items() if version is not None}

    def write(
        self, plan: _native.KeyPlan, rows: Float32, base: Float32 | None, key: int
    ) -> dict[int, int]:
        """Write the records of a push; return the number of the last record at each server."""
        return {
            server: self._push_group(server, count, plan, rows, base, key)
            for server, count in self.groups(plan)
        }

    def _push_group(
        self,
        server: int,
        count: int,
        plan: _native.KeyPlan,
        rows: Float32,
        base: Float32 | None,
        random_key: int,
    ) -> int:
        writer, done = self._connection.channels[server].writer, 0
        while True:
            done = writer.push_planned(
                self._index,
                self._connection.now,
                plan,
                server,
                rows,
                base,
                done,
                self.codec,
                random_key,
            )
            if done == count:
                return writer.next_sequence - 1
            self._connection.wait_credit(server)
