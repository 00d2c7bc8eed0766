"""Dense tables whose updates and next values travel in the order in which the values are used.

`Worker.push_pull` hands over the updates of a clock, with the order in which the program will use the new
values. The worker requests these values at once, orders the updates (mpips.transport.orders) and ends its
clock. Each push is the last one to its table, so under BSP servers apply the sum of a table as soon as all
workers have closed it, and send its values while later updates are still on their way. This is the schedule
of P3 (A. Jayarajan et al., "Priority-based parameter propagation for distributed DNN training", MLSys 2019)
with one order for all workers, and the credits of ByteScheduler (Y. Peng et al., SOSP 2019).

With a journal (`mpips run`) a worker may have to repeat the clock, with the values before it and with its
pushes in the same order. Then nothing is ordered: pushes are sent at once, in the given order, and servers
apply them when the clock ends. Only the values come in the order of their use.

A table takes the general way where it cannot be ordered: on this node, in a group, with error feedback, and
under other models than BSP without backup workers. It is pushed before the orders, and pulled in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.transport.waiting import wait_for
from mpips.worker.whole import is_cut_off

if TYPE_CHECKING:
    from mpips.transport.orders import Orders
    from mpips.transport.remote_memory import Awaited
    from mpips.worker.connection import Connection
    from mpips.worker.requests import PushResult, Request

Float32 = NDArray[np.float32]


class UsedTable(Protocol):
    """A handle of a dense table."""

    name: str

    def push(self, update: Float32, *, closes: bool = False) -> Request[PushResult]:
        """Push an update; see DenseHandle.push."""

    def pull(self, out: Float32 | None = None) -> Float32:
        """Return the values; see DenseHandle.pull."""


class OrderedTable(UsedTable, Protocol):
    """A DenseHandle."""

    def empty(self) -> Float32:
        """Return an array for values."""

    def expect(self, out: Float32, clock: int) -> dict[int, Awaited]:
        """Ask for the values of a clock; see DenseHandle.expect."""

    def check_order(self, update: Float32) -> Float32 | None:
        """Check an update; see DenseHandle.check_order."""

    def order_checked(self, update: Float32, place: int) -> None:
        """Push an update as an order; see DenseHandle.order_checked."""

    def fill(self, out: Float32, without: Sequence[int]) -> None:
        """Read what is not asked for; see DenseHandle.fill."""


class _Coming:
    """The next values of one table."""

    def __init__(self, handle: UsedTable, out: Float32 | None) -> None:
        self.handle, self.out = handle, out
        self.incoming: dict[int, Awaited] = {}  # by server
        self.is_complete = False

    def missing(self) -> list[int]:
        """Return the servers whose values have not arrived."""
        return [server for server, values in self.incoming.items() if not values.is_there()]


class PullsByUse:
    """The next values of tables, on their way: the result of `Worker.push_pull`. Not thread-safe."""

    def __init__(self, connection: Connection, handles: Sequence[UsedTable]) -> None:
        """Ask for nothing yet. `handles`: in the order of their use."""
        self._connection = connection
        self._coming = {handle.name: _Coming(handle, None) for handle in handles}
        self._remote = [c for c in connection.channels if c.orders is not None]
        self._is_finished = False

    @classmethod
    def asked(
        cls, connection: Connection, wanted: Mapping[str, tuple[OrderedTable, Float32]]
    ) -> PullsByUse:
        """Ask for the values of this clock, of tables under BSP, in this order.

        Blocks only for values that were asked for before.

        Args:
            connection: Connection of the worker.
            wanted: By name, the table and the array for its values.
        """
        if connection.coming is not None:
            connection.coming.finish()
        pulls = cls(connection, [handle for handle, _ in wanted.values()])
        pulls._begin()
        connection.coming = pulls
        for name, (handle, out) in wanted.items():
            coming = pulls._coming[name]
            coming.out, coming.incoming = out, handle.expect(out, connection.now)
        return pulls

    def push_pull(
        self,
        updates: Mapping[str, Float32],
        outs: Mapping[str, Float32],
        ordered: Sequence[OrderedTable],
    ) -> None:
        """Push the updates, ask for the values and end the worker's clock.

        Updates that can be ordered are checked before anything is sent. The other tables come next: an update
        that `push` does not take leaves the pushes before it, as the program expects. Whatever else cuts this
        off behind the first push refuses the worker; see mpips.worker.whole.

        Args:
            updates: By table, in the order of their use.
            outs: Arrays for the values; others are allocated.
            ordered: Tables that are not replicated, nor under LocalSGD or DiLoCo.
        """
        connection = self._connection
        by_name = {handle.name: handle for handle in ordered}
        checked = {
            name: found
            for name, handle in by_name.items()
            if (found := handle.check_order(updates[name])) is not None
        }
        has_begun = False
        try:
            for name, update in updates.items():
                if name not in checked:
                    self._coming[name].handle.push(update, closes=True)
                    has_begun = True
            has_begun = True
            self._end_clock(outs, by_name, checked)
        except BaseException as error:
            is_use = isinstance(error, (ConfigError, TypeError, ValueError))
            if has_begun and not is_use and is_cut_off(connection, error):
                connection.refuse_after("push_pull")
            raise

    def _end_clock(
        self,
        outs: Mapping[str, Float32],
        by_name: Mapping[str, OrderedTable],
        checked: Mapping[str, Float32],
    ) -> None:
        """Ask for the values, order the checked updates and end the worker's clock; see `push_pull`."""
        connection = self._connection
        self._begin()
        for name, coming in self._coming.items():
            coming.out = outs.get(name)
            if name in by_name:
                handle = by_name[name]
                coming.out = coming.out if coming.out is not None else handle.empty()
                coming.incoming = handle.expect(coming.out, connection.now + 1)
        for place, name in enumerate(self._coming):
            if name in checked:
                by_name[name].order_checked(checked[name], place)
        connection.clock()
        connection.coming = self
        connection.leave()

    def _begin(self) -> None:
        """Let transfers go on between calls of mpips, until `finish`."""
        if self._remote and self._connection.progress is not None:
            self._connection.progress.begin_use()

    def wait(self, name: str) -> Float32:
        """Return the values of a table after this clock. Not collective; blocks until they are there.

        Args:
            name: Name of the table.

        Returns:
            The array that was given for the table, or a new one; float32, of the table's shape. The caller
            owns it from here on.

        Raises:
            ConfigError: The table was not among the updates.
            StallError: A worker or server was late for the job's timeout; the message names it.
        """
        coming = self._named("wait", name)
        if not coming.is_complete:
            self._wait_for(coming)
            if not self._is_finished and all(c.is_complete for c in self._coming.values()):
                self.finish()
        self._connection.leave()
        assert coming.out is not None
        return coming.out

    def test(self, name: str) -> bool:
        """Return True if `wait` would not wait for values from another node. Does not block.

        Raises:
            ConfigError: The table was not among the updates.
        """
        coming = self._named("test", name)
        if not coming.is_complete:
            self._connection.poll()
            self._advance()
        is_there = coming.is_complete or not coming.missing()
        self._connection.leave()
        return is_there

    def _named(self, what: str, name: str) -> _Coming:
        if name not in self._coming:
            raise ConfigError(
                f"{what}({name!r}): must be one of the tables of push_pull: {', '.join(self._coming)}"
            )
        return self._coming[name]

    def finish(self) -> None:
        """Wait until all updates are sent and all values are there. Blocks; further calls do nothing.

        The worker calls it before its next clock ends and before its next push with `closes`.

        Raises:
            StallError: As `wait`.
        """
        if self._is_finished:
            return
        for coming in self._coming.values():
            if not coming.is_complete:
                self._wait_for(coming)
        self._connection.finish_orders()
        self._is_finished = True
        self._connection.coming = None
        if self._remote and self._connection.progress is not None:
            self._connection.progress.end_use()

    def _wait_for(self, coming: _Coming) -> None:
        """Wait until the values of a table are there, and orders go on meanwhile."""
        connection, name = self._connection, coming.handle.name
        connection.control.state = f"pulling {name!r}"

        def is_there() -> bool:
            self._advance()
            return not coming.missing()

        def late() -> str:
            server = next(iter(coming.missing()), 0)
            return (
                f"server {server} has not brought table {name!r} to clock {connection.now}"
                f"{connection.blame(server)}"
            )

        if coming.incoming:
            with ExitStack() as stack:
                for orders in self._orders():
                    stack.enter_context(orders.inside())
                connection.wait_until(lambda: wait_for(is_there, 0.02), late)
            handle: OrderedTable = coming.handle  # type: ignore[assignment]
            assert coming.out is not None
            handle.fill(coming.out, list(coming.incoming))
        else:
            coming.out = coming.handle.pull(coming.out)
        coming.is_complete = True
        connection.control.state = "computing"

    def _advance(self) -> None:
        for channel in self._remote:
            channel.advance_orders(0.0)

    def _orders(self) -> list[Orders]:
        return [channel.orders for channel in self._remote if channel.orders is not None]


def check_outs(outs: Mapping[str, Float32] | None, updates: Mapping[str, Float32]) -> None:
    """Raise ConfigError for arrays of tables that have no update."""
    others = [name for name in outs or {} if name not in updates]
    if others:
        raise ConfigError(
            f"push_pull: out has {others[0]!r}, which has no update: give one for each table"
        )


def check_apart(outs: Mapping[str, Float32]) -> None:
    """Raise ConfigError for two arrays that share memory. `outs`: C-contiguous."""
    spans = sorted(
        (out.__array_interface__["data"][0], out.nbytes, name) for name, out in outs.items()
    )
    for (start, n_bytes, name), (next_start, _, other) in pairwise(spans):
        if start + n_bytes > next_start:
            raise ConfigError(
                f"push_pull: out[{name!r}] and out[{other!r}] share memory: give each table its own array"
            )
