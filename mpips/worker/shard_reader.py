"""Reads of the shards of one dense table, with the waits in front of them.

Values and states of the rule lie in the server's region, and the server is their only writer. It changes a
block of values together with the same elements of all states while the version of the block is odd. So
states are read as values are: each block again until its version is even, and the same before and after.

Under BSP without backup workers nothing of a table changes between the waits of `settle` and the end of this
worker's clock, since the server applies the next sum only when this worker has ended the clock or closed the
table. So values, states and the number of updates that a worker reads within one clock are those of one
update, in any order of the reads. A server publishes the number of updates before the version for which
`settle` waits. Under other models it may apply updates between two reads, and between two blocks of one: a
block of a state is whole, and different reads can be of different updates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips.model.common_copy import has_common
from mpips.model.consistency import BSP
from mpips.model.table import DenseTable
from mpips.transport.batched_reads import TABLE_BYTES
from mpips.transport.channel import MemoryChannel
from mpips.worker.waits import end_of_bsp

if TYPE_CHECKING:
    from mpips.model.placement import ShardRange
    from mpips.transport.channel import Channel
    from mpips.worker.connection import Connection
    from mpips.worker.groups.node_pulls import NodePulls

Float32 = NDArray[np.float32]

_WAIT_S = 0.02  # of one look at a server


class ShardReader:
    """One worker's reads of a dense table on servers. Not thread-safe."""

    def __init__(
        self, connection: Connection, index: int, table: DenseTable, shards: Sequence[ShardRange]
    ) -> None:
        """`shards`: the servers' ranges of the flattened tensor, at least one."""
        self._connection = connection
        self._index = index
        self._table = table
        self._shards = shards
        self._ranges = _ranges(shards)
        pulls = connection.node_pulls
        self._shared = [s for s in shards if pulls is not None and pulls.has(index, s.server)]
        bsp = table.consistency
        self._is_bsp = isinstance(bsp, BSP)
        grouped = connection.grouped
        is_carried = grouped is not None and grouped.has(index) and not isinstance(bsp, BSP)
        self._applied = grouped.applied if grouped is not None and is_carried else None
        self._is_batched = (
            isinstance(bsp, BSP)
            and bsp.backup == 0
            and not has_common(table)
            and all(4 * (part.stop - part.start) <= TABLE_BYTES for part in shards)
            and not all(isinstance(connection.channels[p.server], MemoryChannel) for p in shards)
        )

    def read(self, flat: Float32) -> None:
        """Fill `flat`, of the tensor's length, with values that satisfy the consistency model. Blocks.

        Raises:
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        if self._shared and self._connection.node_pulls is not None:
            self._read_once(self._connection.node_pulls, flat)
        elif self._is_batched:
            missing = [r for r in self._ranges if not self._take(flat, *r)]
            if missing:
                self.settle()
                self._read(flat, [r for r in missing if not self._fetch(flat, *r)])
        else:
            self.settle()
            self._read(flat, self._ranges)

    def read_parts(self, flat: Float32, parts: Sequence[ShardRange]) -> None:
        """Fill the places of some servers' parts in `flat`. Blocks like `read`."""
        self.settle(parts)
        self._read(flat, _ranges(parts))

    def _take(self, flat: Float32, server: int, start: int, stop: int) -> bool:
        """Take a part that came with an earlier pull of this clock; return False if it is not there."""
        channel = self._connection.channels[server]
        return channel.take_dense(self._index, self._connection.now, flat[start:stop])

    def _fetch(self, flat: Float32, server: int, start: int, stop: int) -> bool:
        """Read a part from another node with other tables; return False if it is not read."""
        channel, spent = self._connection.channels[server], self._connection.spent
        began = time.monotonic()
        is_read = channel.fetch_dense(self._index, self._connection.now, flat[start:stop])
        spent.fetched(time.monotonic() - began)
        return is_read

    def _read(self, flat: Float32, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Read parts that satisfy the consistency model, given as server, start and stop in `flat`."""
        if (record := self._connection.record) is not None and not self._is_bsp:
            clock, index = self._connection.now, self._index
            self._repeat(
                flat,
                ranges,
                lambda s, out: record.read_dense(s, index, clock, out, 0.05),
                "values",
            )
            return
        self._repeat(
            flat,
            ranges,
            lambda s, out: self._channel(s).read_dense(self._index, out, 0.05),
            "values",
        )

    def _channel(self, server: int) -> Channel:
        return self._connection.channels[server]

    def read_state(self, slot: int, flat: Float32) -> None:
        """Fill `flat`, of the tensor's length, with a state of the rule. Blocks and raises like `read`."""
        self.settle()
        self._repeat(
            flat,
            self._ranges,
            lambda s, out: self._channel(s).read_state(self._index, slot, out, 0.05),
            "optimizer state",
        )

    def updates(self) -> int:
        """Return the number of updates of the table, the highest of its servers. Blocks like `read`."""
        self.settle()
        return max(
            self._connection.channels[p.server].read_updates(self._index) for p in self._shards
        )

    def _repeat(
        self,
        flat: Float32,
        ranges: Sequence[tuple[int, int, int]],
        read: Callable[[int, Float32], bool],
        what: str,
    ) -> None:
        """Read parts, given as server, start and stop in `flat`, until `read` returns True for each."""
        connection = self._connection
        began, waited = time.monotonic(), connection.clock_state.wait_s
        for server, start, stop in ranges:
            target = flat[start:stop]
            connection.wait_until(
                lambda s=server, t=target: read(s, t),  # type: ignore[misc]
                lambda: (
                    f"the {what} of table {self._table.name!r} changed during every attempt to read them"
                ),
            )
        # The loop above reads: it waits for nobody.
        connection.clock_state.wait_s = waited
        connection.spent.fetched(time.monotonic() - began)

    def _read_once(self, pulls: NodePulls, flat: Float32) -> None:
        """Fill `flat`; of the shards that the node shares, read those that no worker of it reads yet."""
        connection, clock, index = self._connection, self._connection.now, self._index
        shared = self._shared if pulls.serves(connection) else []
        claimed: dict[ShardRange, Float32] = {}
        for part in shared:
            memory = pulls.claim(index, part.server, clock)
            if memory is not None:
                claimed[part] = memory
        common = [
            part
            for part in shared
            if part in claimed or not pulls.is_passed(index, part.server, clock)
        ]
        self.settle(list(claimed))
        for part, memory in claimed.items():
            self._read(memory, [(part.server, 0, len(memory))])
        for part in claimed:
            version = connection.channels[part.server].writer.base_version(index)
            pulls.publish(index, part.server, clock, version)
        own = [part for part in self._shards if part not in common]
        self.settle(own)
        self._read(flat, _ranges(own))
        for part in common:
            target = flat[part.start : part.stop]
            pulls.take(
                connection,
                index,
                part.server,
                target,
                lambda worker, s=part.server: self._claim_text(s, worker),  # type: ignore[misc]
            )

    def _claim_text(self, server: int, worker: int) -> str:
        return (
            f"worker {worker}, which pulls table {self._table.name!r} from server {server} for this node, "
            f"has not brought it to clock {self._connection.now}{self._connection.blame(server)}"
        )

    def is_settled(self, max_s: float, shards: Sequence[ShardRange] | None = None) -> bool:
        """Return whether servers have applied this worker's pushes and satisfy the consistency model.

        Under SSP and ASP, pushes of earlier clocks that its group has summed are among them.

        Args:
            max_s: Seconds to wait for each server.
            shards: Those that are looked at; None: all.
        """
        return self._unsettled(max_s, self._shards if shards is None else shards) is None

    def settle(self, shards: Sequence[ShardRange] | None = None) -> None:
        """Wait until `is_settled`. Blocks."""
        asked = self._shards if shards is None else shards
        self._connection.wait_until(
            lambda: self._unsettled(_WAIT_S, asked) is None, lambda: self._late(asked)
        )

    def late(self) -> str:
        """Return the message that the values are not there, with the server and the worker that are late."""
        return self._late(self._shards)

    def _unsettled(self, max_s: float, shards: Sequence[ShardRange]) -> ShardRange | None:
        """Return the first of these parts that is not settled after `max_s` seconds; None: all are."""
        version, clock = self._connection.minimum_clock(self._table)
        bsp = self._connection.now < end_of_bsp(self._connection, self._table)
        for part in shards:
            channel = self._connection.channels[part.server]
            pushed = channel.writer.pushed_before(self._index)
            if pushed and not bsp and not channel.wait_applied(pushed, max_s):
                return part
            if self._applied is not None and not self._applied.is_applied(part.server, max_s):
                return part
            if (version or clock) and not channel.wait_head(self._index, version, clock, max_s):
                return part
        return None

    def _late(self, shards: Sequence[ShardRange]) -> str:
        # The late values may have arrived since the last look: then the first server is named.
        server = (self._unsettled(0.0, shards) or shards[0]).server
        if self._applied is not None and not self._applied.is_applied(server, 0.0):
            return self._applied.late_at(server)
        return (
            f"server {server} has not brought table {self._table.name!r} to clock {self._connection.now}"
            f"{self._connection.blame(server, self._table)}"
        )


def _ranges(shards: Sequence[ShardRange]) -> list[tuple[int, int, int]]:
    return [(part.server, part.start, part.stop) for part in shards]
