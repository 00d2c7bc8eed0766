"""The direct path: one native call carries an update to all servers of a table, which share this node.

The call (native/src/ring/dense_port.hpp) checks the update, writes one record into each server's ring and
makes the request. A small update is copied into the records. A large one is read in place by the servers:
it lies in staging memory already (`Worker.allocate`), or it is copied once into a buffer there, a bounce
buffer. Where a table needs more of a worker than that (base values, clip_norm), there is no direct path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpips import _native
from mpips.errors import RegionError
from mpips.model.consistency import BSP, SSP, is_adaptive
from mpips.transport.channel import ShmChannel
from mpips.worker.paths import has_direct_path
from mpips.worker.paths.path import Float32
from mpips.worker.requests import PushResult, Request, stalled_after
from mpips.worker.waits import end_of_bsp

if TYPE_CHECKING:
    from mpips.model.placement import ShardRange
    from mpips.model.table import DenseTable
    from mpips.worker.connection import Connection

BOUNCE_BYTES = 256 << 10  # a larger update is copied into a bounce buffer instead of into records


class DirectPath:
    """Pushes and pulls of one dense table. Not thread-safe.

    Attributes:
        port: The native end. `port.pull(out, path)` returns False where the general way must be taken.
    """

    name = "direct"

    def __init__(
        self,
        connection: Connection,
        shards: Sequence[ShardRange],
        name: str,
        port: _native.DensePort,
    ) -> None:
        """`name`: of the table; `shards`: where its tensor lies."""
        self.port = port
        self._connection = connection
        self._shards = shards
        self._name = name
        self._is_waiting = False  # for room; it stays True where an exception ends the wait
        self._wants_bounces = 4 * sum(s.stop - s.start for s in shards) > BOUNCE_BYTES

    def push(self, update: Float32) -> Request[PushResult] | None:
        """Send an update; blocks only while a ring is full.

        Returns:
            The request; None if the update must be converted or is not finite: nothing is sent then.
        """
        try:
            request = self.port.push(update, self)
            if request is None and self._wants_bounces:
                self._wants_bounces = False
                self._add_bounces()
                request = self.port.push(update, self)
            while request is False:
                self._wait_for_room()
                request = self.port.push(update, self)
            return request
        except (KeyboardInterrupt, SystemExit):
            # It comes during a wait, when nothing is sent, or behind the native call, when all is.
            was_waiting, self._is_waiting = self._is_waiting, False
            if not was_waiting:
                self._connection.refuse_after(f"push to table {self._name!r}")
            raise

    def _add_bounces(self) -> None:
        """Reserve bounce buffers. Without room for them large updates take the shared path, in segments."""
        n_bytes = 4 * sum(s.stop - s.start for s in self._shards)
        with contextlib.suppress(RegionError):
            for _ in range(2):
                offset = self._connection.staging.reserve(n_bytes, 0.5)
                if offset is not None:
                    self.port.add_bounce(offset)

    def _wait_for_room(self) -> None:
        connection, port = self._connection, self.port
        connection.control.state = f"pushing {self._name!r}"
        for part in self._shards:
            connection.channels[part.server].writer.count_credit_stall()

        def late() -> str:
            for part in self._shards:
                if connection.channels[part.server].writer.credits == 0:
                    return (
                        f"server {part.server} has taken no record from its full ring"
                        f"{connection.blame(part.server)}"
                    )
            server = self._shards[port.waits_for()].server
            return (
                f"server {server} has not taken the push of table {self._name!r} before the last"
                f"{connection.blame(server)}"
            )

        self._is_waiting = True
        connection.wait_until(lambda: port.wait_room(0.02), late)
        self._is_waiting = False
        connection.control.state = "computing"

    # The native end calls these two.

    def poll(self) -> None:
        """Take control messages and signals while a push or pull waits."""
        control = self._connection.control
        before, control.state = control.state, f"waiting for {self._name!r}"
        self._connection.poll()
        control.state = before

    def wait_for_push(self, request: _native.PushRequest, timeout: float | None) -> PushResult:
        """Wait until the servers have taken a push; see Request.wait."""
        connection = self._connection
        limit_s = connection.timeout_s if timeout is None else timeout
        connection.control.state = f"waiting for a push of {self._name!r}"

        def late() -> str:
            server = self._shards[request.missing()].server
            return (
                f"server {server} has not taken a push of table {self._name!r}"
                + connection.blame(server)
            )

        stalled_after(limit_s, request.advance, late, connection.poll)
        connection.control.state = "computing"
        result: PushResult = request.result()
        return result


def direct_path(
    connection: Connection, index: int, shards: Sequence[ShardRange], table: DenseTable
) -> DirectPath | None:
    """Return the direct path of a table; None where updates must take a path to each server.

    Args:
        connection: Connection of the worker.
        index: Index of the table.
        shards: Where the flattened tensor lies.
        table: The table.
    """
    channels = [connection.channels[part.server] for part in shards]
    is_remote = [not isinstance(channel, ShmChannel) for channel in channels]
    if not has_direct_path(table, shards, is_remote):
        return None
    model = table.consistency
    parts = []
    oversubscribed = False
    for part, channel in zip(shards, channels, strict=True):
        assert isinstance(channel, ShmChannel)
        oversubscribed = channel.oversubscribed
        parts.append((channel.memory, channel.layout, channel.writer, part.start, part.stop))
    port = _native.DensePort(
        connection.clock_state,
        index,
        list(table.shape),
        parts,
        end_of_bsp(connection, table),
        model.most_bound if isinstance(model, SSP) else -1,
        table.check_finite,
        oversubscribed,
        connection.staging.memory,
        PushResult,
    )
    if connection.agreed_bound is not None and is_adaptive(model):
        connection.agreed_bound.join(port)
    if connection.agreed_switch is not None:
        connection.agreed_switch.join(port)
    if connection.record is not None and not isinstance(model, BSP):
        connection.record.join_port(port, [part.server for part in shards])
    return DirectPath(connection, shards, table.name, port)
