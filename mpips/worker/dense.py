"""The handle of a dense table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import ConfigError
from mpips.model.arrays import as_float32, check_out
from mpips.model.codec import Biased, SharedInt8
from mpips.model.consistency import BSP, Switch, needs_base
from mpips.model.grouping import can_sum
from mpips.model.optimizer import Optimizer
from mpips.model.table import DenseTable, native_codec
from mpips.transport.channel import MemoryChannel
from mpips.worker.ordering import OrderedAccess
from mpips.worker.paths import choose_path
from mpips.worker.paths.direct import direct_path
from mpips.worker.paths.encoded import EncodedPath
from mpips.worker.paths.feedback import FeedbackPath
from mpips.worker.paths.ring import closing
from mpips.worker.paths.shared_scales import SharedScales, SharedScalesPath
from mpips.worker.requests import PolledRequest, PushResult, Request
from mpips.worker.whole import Whole

if TYPE_CHECKING:
    from mpips.model.placement import ShardRange
    from mpips.worker.connection import Connection

Float32 = NDArray[np.float32]


class DenseHandle(OrderedAccess):
    """A worker's access to one dense table. Not thread-safe.

    Attributes:
        name: Name of the table.
        shape: Shape of the tensor.
    """

    def __init__(
        self,
        connection: Connection,
        index: int,
        table: DenseTable,
        shards: Sequence[ShardRange],
        scales: SharedScales | None = None,
    ) -> None:
        """Choose the paths of updates.

        Args:
            connection: Connection of the worker.
            index: Index of the table.
            table: The table.
            shards: The servers' ranges of the flattened tensor.
            scales: Its scales, if its codec is SharedInt8.
        """
        super().__init__(connection, index, table, shards)
        grouped = connection.grouped
        self._grouped = grouped if grouped is not None and grouped.has(index) else None
        self._direct = (
            direct_path(connection, index, shards, table) if self._grouped is None else None
        )
        codec = native_codec(table)
        if isinstance(table.compression, Biased):
            residuals = connection.residuals
            assert residuals is not None, "a job makes residuals for such tables"
            self._encoded_paths = [
                self._feedback_path(table, part, residuals.feedback(index, part.server), scales)
                for part in shards
            ]
        elif codec is None:
            self._paths = [choose_path(connection, index, part, table) for part in shards]
        else:
            self._encoded_paths = [EncodedPath(connection, index, part, codec) for part in shards]
        # A path may look for NaN while it copies only if no other server has a record by then.
        self._path_checks = (
            table.check_finite
            and table.clip_norm == 0
            and len(self._paths) == 1
            and self._paths[0].checks
            and self._grouped is None
        )
        if self._grouped is not None:
            self._grouped.add(index, self._push_sum)

    def _feedback_path(
        self,
        table: DenseTable,
        part: ShardRange,
        feedback: _native.Feedback,
        scales: SharedScales | None,
    ) -> FeedbackPath:
        connection, index, codec = self._connection, self._index, table.compression
        if not isinstance(codec, SharedInt8):
            return FeedbackPath(connection, index, part, feedback)
        assert scales is not None, "a job has a table of scales for such a table"
        plain = choose_path(connection, index, part, table)
        return SharedScalesPath(connection, index, part, feedback, scales, codec.block, plain)

    def _check_optimizer(self, optimizer: object) -> None:
        """See Handle. Under SSP and ASP a group can sum only what keeps a step linear."""
        super()._check_optimizer(optimizer)
        assert isinstance(optimizer, Optimizer)
        if self._grouped is not None and not can_sum(self._table.consistency, optimizer):
            raise ConfigError(
                f"set_optimizer of table {self.name!r}: {optimizer!r}: must have no weight_decay and no "
                f"clip_value under {self._table.consistency.name.upper()} in a job with groups "
                "(cluster.topology)"
            )

    def _write_change(self, ordinal: int, config: _native.OptimizerConfig) -> None:
        """See Handle. Under SSP and ASP the sum of the clock before may not be written yet."""
        write = super()._write_change
        if self._grouped is None or isinstance(self._table.consistency, BSP):
            write(ordinal, config)
        else:
            self._grouped.lead(lambda: write(ordinal, config))

    def disown(self) -> None:
        """Leave the direct path to the parent; in a forked child what follows it raises."""
        self._direct = self._grouped = None

    @property
    def paths(self) -> list[str]:
        """Names of the paths that updates take, one per server, or "direct" alone; see mpips.worker.paths."""
        if self._direct is not None:
            return [self._direct.name]
        return [p.name for p in self._paths] + [p.name for p in self._encoded_paths]

    def pull(self, out: Float32 | None = None) -> Float32:
        """Fetch the current values. Not collective; blocks until they satisfy the consistency model.

        The values contain this worker's own earlier pushes (under BSP, and with `cluster.topology` where a
        group sums them, those of earlier clocks). Under BSP they are the values after all workers' previous
        clocks. Under SSP they contain all updates that are more than `bound` clocks old.

        Args:
            out: float32, C-contiguous, of the table's shape; allocated if None. The caller owns it.

        Returns:
            `out`.

        Raises:
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        if out is None:
            out = np.empty(self.shape, np.float32)
        if self._direct is not None and self._direct.port.pull(out, self._direct):
            if self._noted is not None:
                self._noted.note(out, self._versions())
            return out
        self._check_open("a pull of")
        check_out(out, self.shape, True)
        self._connection.control.state = self._pulling
        self._reader.read(out.reshape(-1))
        self._connection.control.state = "computing"
        if self._noted is not None:
            self._noted.note(out, self._versions())
        if self._connection.progress is not None:
            self._connection.leave()
        return out

    def optimizer_state(self, slot: int, out: Float32 | None = None) -> Float32:
        """Fetch a state of the table's rule, such as the momentum. Not collective; blocks like `pull`.

        Under BSP without backup workers it is that after all workers' previous clocks, as the values of a
        pull in the same clock are. Under other models servers apply updates meanwhile, so parts of the state,
        other states and values can be of different updates.

        Args:
            slot: Number of the state, in the order of `optimizer.state_names`.
            out: As in `pull`.

        Returns:
            `out`.

        Raises:
            ConfigError: The table was closed in this clock.
            IndexError: The rule has no such state.
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        self._check_state(slot)
        self._refuse_recorded("the optimizer state of", "leave it out")
        if out is None:
            out = np.empty(self.shape, np.float32)
        check_out(out, self.shape, True)
        # In a forked child this assignment raises ForkError.
        self._connection.control.state = f"reading the optimizer state of {self.name!r}"
        self._reader.read_state(slot, out.reshape(-1))
        self._connection.control.state = "computing"
        self._connection.leave()
        return out

    def n_updates(self) -> int:
        """Return how many updates the table's rule has applied since the beginning of the run.

        Not collective; blocks like `optimizer_state` and belongs to the same clock. Adam's bias correction
        counts them. Under BSP a clock without a push adds no update. Loaded state begins with its own number.

        Raises:
            ConfigError: The table was closed in this clock.
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        self._check_open("the optimizer state of")
        self._refuse_recorded("the number of updates of", "leave it out")
        self._connection.control.state = f"reading the optimizer state of {self.name!r}"
        found = self._reader.updates()
        self._connection.control.state = "computing"
        self._connection.leave()
        return found

    def residual(self) -> Float32:
        """Return what this worker's pushes have not sent yet. Not collective; does not block.

        The next push adds it to its update; see `mpips.model.codec`. Values of servers and the residuals of
        all workers together contain every update.

        Returns:
            A copy, float32, of the table's shape.

        Raises:
            ConfigError: The table has no codec with error feedback.
        """
        residuals = self._connection.residuals
        if residuals is None or not isinstance(self._table.compression, Biased):
            raise ConfigError(
                f"table {self.name!r} has compression = {self._table.compression}, which keeps no residual: "
                "TopK, RandomK, OneBit and SharedInt8 do"
            )
        return residuals.values([self.name])[self.name].reshape(self.shape)

    @property
    def _is_recorded(self) -> bool:
        """True if what pulls of this table see is recorded or repeated."""
        return self._connection.record is not None and not isinstance(self._table.consistency, BSP)

    def _refuse_recorded(self, what: str, instead: str) -> None:
        """Raise ConfigError for a read under SSP or ASP that a record does not contain."""
        if self._is_recorded:
            raise ConfigError(
                f"{what} table {self.name!r}: a job with monitor.record = true cannot repeat it under "
                f"{self._table.consistency.name.upper()}; {instead}, or set monitor.record = false"
            )

    def _versions(self) -> dict[int, int]:
        """Return the versions that the newest pull has fetched, by server."""
        channels = self._connection.channels
        return {s: channels[s].writer.base_version(self._index) for s in self._servers}

    def prefetch(self, out: Float32 | None = None) -> Request[Float32]:
        """Start a pull; `wait` returns the values. Not collective; returns at once.

        The read itself is one-sided. It happens in `test` or `wait`, as soon as the consistency model
        allows it.

        Args:
            out: As in `pull`. It belongs to the request until `wait` returns.
        """
        self._check_open("a pull of")
        if out is not None:
            check_out(out, self.shape, contiguous=True)
        reader = self._reader
        # In a forked child this assignment raises ForkError.
        self._connection.control.state = "computing"

        return PolledRequest(
            reader.is_settled,
            lambda: self.pull(out),
            reader.late,
            self._connection.timeout_s,
            self._connection.poll,
            self._connection.spent.waited,
        )

    def view(self) -> Float32:
        """Return the values as a read-only array in the server's memory, without a copy.

        Blocks like `pull`. The array is valid until the job ends. Under BSP without backup workers its
        values do not change before this worker's next `clock`, or its next push with `closes`. Under SSP and
        ASP servers may change them at any time. Use `views` where the tensor lies on several servers of this
        node.

        Raises:
            ConfigError: The tensor lies on several servers or on another node.
        """
        parts = self.views()
        if len(parts) != 1:
            raise ConfigError(
                f"table {self.name!r} lies on {len(parts)} servers, so there is no one view of it: use "
                "views(), or partition='layer' for the table"
            )
        return parts[0][2].reshape(self.shape)  # its memory is the memory that `views` has noted

    def views(self) -> list[tuple[int, int, Float32]]:
        """Return (start, stop, read-only values) of each server's part of the flat tensor; see `view`."""
        self._check_open("a view of")
        self._refuse_recorded("a view of", "use pull()")
        if self._table.pull_compression is not None:
            raise ConfigError(
                f"table {self.name!r} has pull_compression = {self._table.pull_compression}: its values "
                "cannot be viewed; use pull()"
            )
        self._reader.settle()
        result = []
        for part in self._shards:
            values = self._connection.channels[part.server].view(self._index)
            if values is None:
                raise ConfigError(
                    f"part of table {self.name!r} lies on server {part.server} on another node, where its "
                    "memory cannot be viewed: use pull()"
                )
            if self._noted is not None:
                version = self._connection.channels[part.server].writer.base_version(self._index)
                self._noted.note(values, {part.server: version})
            result.append((part.start, part.stop, values))
        return result

    def ready_views(self) -> list[tuple[int, int, Float32]] | None:
        """Return `views()`; None if that would wait, or if a server is on another node. Does not block."""
        self._check_open("a view of")
        nodes = [self._connection.channels[part.server] for part in self._shards]
        is_here = all(isinstance(channel, MemoryChannel) for channel in nodes)
        is_here = is_here and self._table.pull_compression is None
        is_here = is_here and not self._is_recorded
        return self.views() if is_here and self._reader.is_settled(0.0) else None

    def push(
        self, update: Float32, base: Float32 | None = None, *, closes: bool = False
    ) -> Request[PushResult]:
        """Send an update (a gradient). Not collective; blocks only while a ring is full.

        Args:
            update: Array of the table's shape. float32 is sent without conversion, other numbers are rounded
                to it. Free again at return, unless it comes from `Worker.allocate`: then after `wait`.
            base: The values that the update was computed on: the array that a pull filled, or a part or view
                of it. The update's staleness counts from that pull, even if newer values have been pulled
                since. Without `base`, and if it is a copy, it counts from the newest pull; also under
                Accept(), where nothing depends on it. Delay compensation needs it.
            closes: This is the worker's last push to the table in this clock, and it does not pull the table
                again before `clock`. Under BSP servers then take the next workers' pushes to the table
                without waiting for this worker's clock; they apply the sum as soon as all workers have closed
                the table, unless the job can restart from memory. Values do not depend on it. Without effect
                under SSP and ASP, and with backup workers.

        Raises:
            ConfigError: The table was closed in this clock.
            MpipsError: With error feedback: an earlier push was interrupted when it was partly sent.
            TypeError: The update contains no real numbers (complex, text, objects), or is a masked array.
            ValueError: Wrong shape, NaN or infinity, or a number beyond float32.
            StallError: A server has taken no records for the job's timeout.
        """
        if closes:
            return self._push_closing(update, base)
        # A Python call here takes 4 % of a small push.
        is_named = base is not None and self._name_base(base)
        try:
            request = self._direct.push(update) if self._direct is not None else None
            return request if request is not None else self._push_by_parts(update, base)
        finally:
            if is_named:
                self._unname_base()

    def _push_closing(self, update: Float32, base: Float32 | None) -> Request[PushResult]:
        """Push an update whose records close the table, and send them at once."""
        if self._connection.coming is not None:
            self._connection.coming.finish()
        with ExitStack() as stack:
            for server in self._servers:
                stack.enter_context(closing(self._connection.channels[server].writer))
            request = self.push(update, base)
        if isinstance(self._table.consistency, BSP) and self._table.consistency.backup == 0:
            self._closed_at = self._connection.now
            if self._grouped is not None:
                self._grouped.close(self._index)
            elif self._direct is not None:
                self._direct.port.close()
            else:
                self._connection.send(self._servers)
                self._connection.leave()
        return request

    def _push_by_parts(self, update: Float32, base: Float32 | None) -> Request[PushResult]:
        """Convert, check and clip an update, and push its part to each server."""
        self._check_open("a push to")
        converted = as_float32("the update", update, self.shape)
        if converted is not update and self._direct is not None:
            request = self._direct.push(converted)
            if request is not None:
                return request
        update = converted
        if isinstance(self._table.compression, Biased):
            assert self._connection.residuals is not None
            self._connection.residuals.check_complete(self._index, self.name)
        if base is not None:
            base = (
                as_float32("base", base, self.shape)
                if needs_base(self._table.consistency)
                else None
            )
        path_checks = self._path_checks and (
            self._paths[0].checks_staged or self._connection.staging.offset_of(update) is None
        )
        if not path_checks:
            update = self._checked(update, base)
        self._connection.control.state = self._pushing
        self._connection.clock_state.begin()
        before = self._pushed() if self._grouped is None else None
        try:
            if self._grouped is not None:
                self._grouped.push(self._index, update)
                request = self._noted_request(len(self._shards))
            else:
                request = self._request(self._write(update, base, path_checks))
        except BaseException as error:
            self._cut_off(error, before)
            raise
        self._connection.control.state = "computing"
        self._connection.clock_state.end_push()
        self._connection.leave()
        return request

    def _write(self, update: Float32, base: Float32 | None, path_checks: bool) -> dict[int, int]:
        """Write the records of an update; return the number of the last record at each server."""
        values = update.reshape(-1)
        if self._encoded_paths:
            key = self._random_key()
            return {path.server: path.push(values, key) for path in self._encoded_paths}
        base_values = base.reshape(-1) if base is not None else None
        return self._push_parts(values, base_values, path_checks)

    def _push_sum(self, values: Float32) -> None:
        """Push the sum of the updates of this worker's group; see mpips.worker.groups.tables."""
        if self._encoded_paths:
            self._check_finite("the sum of the updates of this worker's group", values)
        self._write(values, None, False)
        self._connection.note_push()

    def _push_parts(
        self, values: Float32, base: Float32 | None, path_checks: bool
    ) -> dict[int, int]:
        """Push the part of each server; return the number of the last record at each of them."""
        ends = {}
        for part, path in zip(self._shards, self._paths, strict=True):
            low = base[part.start : part.stop] if base is not None else None
            end = path.push(values[part.start : part.stop], low, path_checks)
            if end is None:
                self._connection.control.state = "computing"
                self._connection.clock_state.end_push()
                self._check_finite("the update", values)
                raise ValueError(f"table {self.name!r}: the update changed while it was pushed")
            ends[part.server] = end
        return ends

    def push_pull(self, update: Float32, out: Float32 | None = None) -> Float32:
        """Push an update, end the clock under BSP and Switch, and pull the new values. Blocks like `pull`.

        The update counts as computed on the newest pull. Arguments and errors are those of `push` and `pull`.
        """
        if out is not None:
            check_out(out, self.shape, contiguous=True)
        self.push(update)
        with Whole(self._connection, f"push_pull of table {self.name!r}"):
            if isinstance(self._table.consistency, (BSP, Switch)):
                self._connection.clock()
            return self.pull(out)
