"""The handle of a dense table."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import ConfigError, RegionError
from mpips.model.arrays import as_float32, check_out
from mpips.model.consistency import BSP, SSP, needs_base
from mpips.model.table import DenseTable
from mpips.transport.area_push import area_push
from mpips.transport.channel import ShmChannel
from mpips.worker.base import Handle
from mpips.worker.requests import PolledRequest, PushResult, Request, stalled_after

if TYPE_CHECKING:
    from mpips.model.placement import ShardRange
    from mpips.worker.connection import Connection

Float32 = NDArray[np.float32]

_ONE_RECORD = (1 << 32) - 1  # most elements of a push that lies in one record
BOUNCE_BYTES = 256 << 10  # larger updates than this are worth a buffer of their own
Int64 = NDArray[np.int64]


class DenseHandle(Handle):
    """A dense table as a worker sees it."""

    def __init__(
        self, connection: Connection, index: int, table: DenseTable, shards: Sequence[ShardRange]
    ) -> None:
        """`shards`: where the flattened tensor lies."""
        super().__init__(connection, index, table)
        self.shape = table.shape
        self._shards = shards
        self._writers = [(s.server, connection.channels[s.server].writer) for s in shards]
        self._port = self._make_port(table)
        ways = ((part.server, area_push(connection, part, table)) for part in shards)
        self._straight = {server: way for server, way in ways if way is not None}
        # The look for NaN happens on the way only where it comes before any record.
        self._checks_on_the_way = (
            table.check_finite and table.clip_norm == 0 and len(shards) == len(self._straight) == 1
        )
        self._wants_bounces = 4 * math.prod(self.shape) > BOUNCE_BYTES

    def disown(self) -> None:
        """Leave the short way to the parent; in a forked child what follows it raises."""
        self._port = None
        self._writers = []

    def _make_port(self, table: DenseTable) -> _native.DensePort | None:
        """The short way, where all servers share this node and pushes go as they are."""
        connection, model = self._connection, table.consistency
        parts = []
        oversubscribed = False
        for part in self._shards:
            channel = connection.channels[part.server]
            if not isinstance(channel, ShmChannel):
                return None
            if part.stop - part.start > _ONE_RECORD:
                return None
            oversubscribed = channel.oversubscribed
            parts.append((channel.memory, channel.layout, channel.writer, part.start, part.stop))
        if needs_base(model) or table.clip_norm > 0:
            return None
        return _native.DensePort(
            connection.clock_state,
            self._index,
            list(self.shape),
            parts,
            isinstance(model, BSP),
            model.bound if isinstance(model, SSP) else -1,
            table.check_finite,
            oversubscribed,
            connection.staging,
            PushResult,
        )

    def _push_by_port(self, update: Float32) -> Request[PushResult] | None:
        assert self._port is not None
        request = self._port.push(update, self)
        if request is None and self._wants_bounces:
            self._wants_bounces = False
            self._add_bounces()
            request = self._port.push(update, self)
        while request is False:
            self._wait_for_room()
            request = self._port.push(update, self)
        return request

    def _add_bounces(self) -> None:
        """Staging memory for updates from ordinary memory, which are copied there to be read in place.

        Where there is no room for it, such updates go through the ring in segments, which is slower.
        """
        assert self._port is not None
        n_bytes = 4 * math.prod(self.shape)
        with contextlib.suppress(RegionError):
            for _ in range(2):
                offset = self._connection.reserve_staging(n_bytes, 0.5)
                if offset is not None:
                    self._port.add_bounce(offset)

    def _wait_for_room(self) -> None:
        assert self._port is not None
        connection, port = self._connection, self._port
        connection.control.state = f"pushing {self.name!r}"
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
                f"server {server} has not taken the push of table {self.name!r} before the last"
                f"{connection.blame(server)}"
            )

        connection.wait_until(lambda: port.wait_room(0.02), late)
        connection.control.state = "computing"

    def pull(self, out: Float32 | None = None) -> Float32:
        """Fetch the current values. Not collective; blocks until they satisfy the consistency model.

        BSP: the values after all workers' previous clocks. SSP: all updates up to `bound` clocks ago.
        Always: this worker's own pushes that were made before.

        Args:
            out: float32, C-contiguous, the table's shape; made if None. Owned by the caller.

        Returns:
            `out`.

        Raises:
            StallError: Who is late did not come within the job's timeout.
        """
        if out is None:
            out = np.empty(self.shape, np.float32)
        if self._port is not None and self._port.pull(out, self):
            if self._noted is not None:
                self._noted.note(out, self._versions())
            return out
        check_out(out, self.shape, True)
        self._connection.control.state = f"pulling {self.name!r}"
        self._settle()
        flat = out.reshape(-1)
        for part in self._shards:
            channel = self._connection.channels[part.server]
            target = flat[part.start : part.stop]
            self._connection.wait_until(
                lambda c=channel, t=target: c.read_dense(self._index, t, 0.05),  # type: ignore[misc]
                lambda: f"the values of table {self.name!r} kept changing while they were read",
            )
        self._connection.control.state = "computing"
        if self._noted is not None:
            self._noted.note(out, self._versions())
        return out

    def _versions(self) -> dict[int, int]:
        """The versions that the newest pull has brought, by server."""
        return {server: writer.base_version(self._index) for server, writer in self._writers}

    def prefetch(self, out: Float32 | None = None) -> Request[Float32]:
        """Start a pull; `wait` returns the values. The read itself is one-sided and happens in
        `test` or `wait`, as soon as the consistency model allows it.
        """
        if out is not None:
            check_out(out, self.shape, contiguous=True)
        ready = self._settled
        # A forked child of the worker's process is refused here.
        self._connection.control.state = "computing"

        def late() -> str:
            return self._late_text(self._shards[0].server)

        return PolledRequest(
            ready, lambda: self.pull(out), late, self._connection.timeout_s, self._connection.poll
        )

    def view(self) -> Float32:
        """The values as a read-only array in the server's memory, without a copy.

        Blocks like `pull`. Under BSP (without backup workers) the values do not change until this
        worker's next `clock`; under
        SSP and ASP they change while one looks at them. Only where one server of this node (or process)
        holds the whole tensor; `views` gives the parts otherwise.

        Raises:
            ConfigError: The tensor lies on several servers or on another node.
        """
        parts = self.views()
        if len(parts) != 1:
            raise ConfigError(
                f"table {self.name!r} lies on {len(parts)} servers; use views(), or partition='layer'"
            )
        return parts[0][2].reshape(self.shape)  # a view of what `views` has noted

    def views(self) -> list[tuple[int, int, Float32]]:
        """(start, stop, read-only values) of each server's part of the flattened tensor; see `view`."""
        self._settle()
        result = []
        for part in self._shards:
            values = self._connection.channels[part.server].view(self._index)
            if values is None:
                raise ConfigError(
                    f"part of table {self.name!r} lies on server {part.server} on another node; "
                    "pull it instead"
                )
            if self._noted is not None:
                version = self._connection.channels[part.server].writer.base_version(self._index)
                self._noted.note(values, {part.server: version})
            result.append((part.start, part.stop, values))
        return result

    def push(self, update: Float32, base: Float32 | None = None) -> Request[PushResult]:
        """Send an update (a gradient). Not collective; blocks only while a ring is full.

        Args:
            update: The table's shape; float32 is sent without conversion, other floats are rounded. Free
                again at return, unless it comes from `Worker.allocate`: then after `wait`.
            base: The values that it was computed on, as they were pulled: the array itself, a part or a view
                of it. Its staleness counts from that pull, also where newer values have been pulled since.
                Without it, or if it is a copy, it counts from the newest pull; likewise under Accept(), where
                nothing depends on it. Delay compensation needs it.

        Raises:
            TypeError: No real numbers (complex, text, objects), or a masked array.
            ValueError: Wrong shape, NaN or infinity, or a number that float32 cannot hold.
            StallError: A server has not taken records for the job's timeout.
        """
        # Not a call more than needed on the short way: each takes 4 % of a small push.
        is_named = base is not None and self._name_base(base)
        try:
            request = self._push_by_port(update) if self._port is not None else None
            return request if request is not None else self._push_by_parts(update, base)
        finally:
            if is_named:
                self._unname_base()

    def _push_by_parts(self, update: Float32, base: Float32 | None) -> Request[PushResult]:
        plain = as_float32("the update", update, self.shape)
        if plain is not update and self._port is not None:
            request = self._push_by_port(plain)
            if request is not None:
                return request
        update = plain
        if base is not None:
            base = (
                as_float32("base", base, self.shape)
                if needs_base(self._table.consistency)
                else None
            )
        staged = self._connection.staged_offset(update) is not None
        if staged or not self._checks_on_the_way:
            update = self._checked(update, base)
        self._connection.control.state = f"pushing {self.name!r}"
        ends = {}
        for part in self._shards:
            segment = update.reshape(-1)[part.start : part.stop]
            low = base.reshape(-1)[part.start : part.stop] if base is not None else None
            ends[part.server] = self._push_part(part.server, segment, low)
        self._connection.control.state = "computing"
        return self._request(ends)

    def push_pull(self, update: Float32, out: Float32 | None = None) -> Float32:
        """Push, end the clock under BSP, and pull the new values. Blocks like `pull`.

        The push counts as computed on the newest pull.
        """
        if out is not None:
            check_out(out, self.shape, contiguous=True)
        self.push(update)
        if isinstance(self._table.consistency, BSP):
            self._connection.clock()
        return self.pull(out)

    def _push_part(self, server: int, update: Float32, base: Float32 | None) -> int:
        channel = self._connection.channels[server]
        writer = channel.writer
        where = None
        if channel.name in ("shm", "local") and update.size <= _ONE_RECORD:
            where = self._connection.staged_offset(update)
        low = self._connection.staged_offset(base) if base is not None else None
        if where is not None and (base is None or low is not None):
            self._connection.write(
                server,
                lambda: writer.push_staged(
                    self._index, self._connection.now, where, low, update.size
                ),
            )
            return writer.next_sequence - 1
        if server in self._straight and not writer.replays:
            if self._connection.staged_offset(update) is not None:
                self._straight[server].push_staged(self._index, update)
            elif not self._straight[server].push(self._index, update, self._checks_on_the_way):
                self._checked(update, None)
            return writer.next_sequence - 1
        if self._checks_on_the_way:
            update = self._checked(update, None)
        done = 0
        while True:
            done = writer.push_dense(self._index, self._connection.now, update, base, done)
            if done == update.size:
                return writer.next_sequence - 1
            self._connection.wait_credit(server)

    def _settled(self, max_s: float) -> bool:
        """Own pushes applied and the consistency model satisfied on all servers?"""
        version, clock = self._connection.minimum_clock(self._table)
        for part in self._shards:
            channel = self._connection.channels[part.server]
            pushed = channel.writer.pushed_before(self._index)
            bsp = isinstance(self._table.consistency, BSP)
            if pushed and not bsp and not channel.wait_applied(pushed, max_s):
                return False
            if (version or clock) and not channel.wait_head(self._index, version, clock, max_s):
                return False
        return True

    def _settle(self) -> None:
        self._connection.wait_until(
            lambda: self._settled(0.02), lambda: self._late_text(self._shards[0].server)
        )

    # What follows serves the port.

    def poll(self) -> None:
        """Look at signals and the scheduler: a pull or push has been waiting for a while."""
        control = self._connection.control
        before, control.state = control.state, f"waiting for {self.name!r}"
        self._connection.poll()
        control.state = before

    def wait_for_push(self, request: _native.PushRequest, timeout: float | None) -> PushResult:
        """Wait for a push of the port as long as it takes; see Request.wait."""
        connection = self._connection
        limit_s = connection.timeout_s if timeout is None else timeout
        connection.control.state = f"waiting for a push of {self.name!r}"

        def late() -> str:
            server = self._shards[request.missing()].server
            return (
                f"server {server} has not taken a push of table {self.name!r}"
                + connection.blame(server)
            )

        stalled_after(limit_s, request.advance, late, connection.poll)
        connection.control.state = "computing"
        result: PushResult = request.result()
        return result

    def _late_text(self, server: int) -> str:
        for part in self._shards:
            version, clock = self._connection.minimum_clock(self._table)
            channel = self._connection.channels[part.server]
            if not channel.wait_head(self._index, version, clock, 0.0):
                server = part.server
        return (
            f"server {server} has not brought table {self.name!r} to clock {self._connection.now}"
            f"{self._connection.blame(server)}"
        )
