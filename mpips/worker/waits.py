"""Waits of one worker's connection: for slower workers, for replies, and the name of a late rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from mpips import _native
from mpips.errors import StallError
from mpips.model.consistency import SSP, Consistency, Switch, bsp_until
from mpips.model.grouping import Groups
from mpips.model.stages import takes_part
from mpips.model.table import Table
from mpips.process.patience import Patience
from mpips.transport.channel import Channel
from mpips.transport.waiting import wait_for
from mpips.worker.data_plane import DataPlane

if TYPE_CHECKING:
    from mpips.checkpoint.position import Position
    from mpips.worker.agreed_bound import AgreedBound
    from mpips.worker.agreed_switch import AgreedSwitch

BETWEEN_POLLS_S = 0.0002  # of a wait in which messages of other workers must be taken


class PacedWorker(DataPlane, Protocol):
    """A worker's connection with what decides for which clocks of other workers it waits.

    Attributes:
        position: The worker's start, its random stream and its cursor.
        agreed_bound: The bound of SSP("auto") at this worker's clock; None: no table has such a bound.
        agreed_switch: The clock of a Switch that server 0 decides on; None: no table is under one.
        n_stages: Number of stages of the model; 1: no table belongs to one.
        clock_tables: Tables whose lowest clocks together are that of all workers.
    """

    position: Position
    agreed_bound: AgreedBound | None
    agreed_switch: AgreedSwitch | None
    n_stages: int
    clock_tables: tuple[int, ...]

    @property
    def skips_clocks(self) -> bool:
        """True if there are backup workers, so that this worker may skip clocks."""


class Destinations:
    """References to the destinations of pulls, until their replies are copied.

    The C++ writer stores their addresses, and the caller of a pull may drop its request earlier.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        # (server, sequence number after the pull, its destination) of pulls under way.
        self._held: list[tuple[int, int, object]] = []

    def add(self, channels: Sequence[Channel], server: int, before: int, rows: object) -> None:
        """Hold `rows` until a server's replies before a sequence number are copied; drop those that are.

        Args:
            channels: The worker's channel to each server.
            server: Index of the server.
            before: Sequence number after the pull's last record.
            rows: The objects to hold.
        """
        self._held = [
            (s, b, r) for s, b, r in self._held if channels[s].writer.collected_before() < b
        ]
        self._held.append((server, before, rows))

    def clear(self) -> None:
        """Drop all references."""
        self._held.clear()


def until(connection: DataPlane, done: Callable[[], bool], late: Callable[[], str]) -> None:
    """Call `done`, which may block briefly, until it returns True, and count the time.

    Raises:
        StallError: It was not True within the job's timeout; the message is that of `late()`.
    """
    began, wait = time.monotonic(), Patience(connection.timeout_s)
    before_s = connection.clock_state.wait_s
    while not done():
        connection.poll()
        if wait.is_over:
            raise StallError(f"{late()} (waited {connection.timeout_s:g} s)")
    # `done` may have waited as well: that is part of this wait.
    connection.clock_state.wait_s = before_s + time.monotonic() - began


def polled(
    connection: DataPlane, done: Callable[[], bool], state: str, late: Callable[[], str]
) -> None:
    """Call `done`, which takes messages and does not block, with short pauses until it returns True.

    Args:
        connection: The worker's connection.
        done: The condition that is waited for.
        state: The worker's activity meanwhile.
        late: Returns the message of an error.

    Raises:
        StallError: It was not True within the job's timeout.
    """
    if done():
        return
    control = connection.control
    before, control.state = control.state, state

    def pausing() -> bool:
        if done():
            return True
        time.sleep(BETWEEN_POLLS_S)
        return False

    connection.wait_until(pausing, late)
    control.state = before


def credit(connection: DataPlane, server: int) -> None:
    """Wait until the worker's ring at a server has room for a record."""
    channel = connection.channels[server]
    channel.writer.count_credit_stall()
    connection.wait_until(
        lambda: channel.wait_credit(0.02),
        lambda: f"server {server} has taken no record from its full ring{connection.blame(server)}",
    )


def applied(connection: DataPlane, server: int, count: int) -> None:
    """Wait until a server has consumed `count` records of the worker."""
    channel = connection.channels[server]
    connection.wait_until(
        lambda: channel.wait_applied(count, 0.02),
        lambda: (
            f"server {server} has consumed {channel.writer.applied} of {count} records"
            f"{connection.blame(server)}"
        ),
    )


def advance_orders(connection: DataPlane) -> None:
    """Let orders go on during a wait for something else: here, and by the progress thread. Cheap."""
    channels = [c for c in connection.channels if c.orders is not None and not c.orders.is_empty]
    for channel in channels:
        channel.advance_orders(0.0)
    if channels:
        connection.leave()


def ordered(connection: DataPlane) -> None:
    """Wait until all orders at all servers are written and sent."""
    channels = [c for c in connection.channels if c.orders is not None and not c.orders.is_empty]
    if not channels:
        return

    def is_done() -> bool:
        # Advance all of them, also behind one that is not done.
        return sum(not channel.advance_orders(0.0) for channel in channels) == 0

    def late() -> str:
        # Messages that were taken since the last look may have let the last order go.
        behind = (
            s
            for s, c in enumerate(connection.channels)
            if c.orders is not None and not c.orders.is_empty
        )
        server = next(behind, 0)
        return f"server {server} has taken no update of this worker{connection.blame(server)}"

    with ExitStack() as stack:
        for channel in channels:
            assert channel.orders is not None
            stack.enter_context(channel.orders.inside())
        connection.wait_until(lambda: wait_for(is_done, 0.02), late)


def settled(connection: DataPlane, server: int) -> None:
    """Wait until no reply of a server to a look-ahead is under way."""
    connection.wait_until(
        lambda: connection.channels[server].settle(0.02),
        lambda: f"server {server} has not sent the rows that a look-ahead has requested",
    )


def minimum_clock(connection: PacedWorker, table: Table) -> tuple[int, int]:
    """Return (version, minimum clock) that a pull of a table must see at this clock; 0: any."""
    version = min(connection.now, end_of_bsp(connection, table))
    if isinstance(table.consistency, SSP):
        return version, max(0, connection.now - bound(connection, table.consistency))
    return version, 0


def end_of_bsp(connection: PacedWorker, table: Table) -> int:
    """Return the clock at which BSP ends for a table; see `bsp_until`."""
    return _end_of(connection, table.consistency)


def _end_of(connection: PacedWorker, consistency: Consistency) -> int:
    # A job with a decision on the switch has all tables under it.
    if connection.agreed_switch is not None:
        return connection.agreed_switch.end_of_bsp()
    return bsp_until(consistency, connection.position.steps_before)


def bound(connection: PacedWorker, consistency: SSP | Switch) -> int:
    """Return the bound that is in force at the worker's clock. After a switch that is its distance."""
    if isinstance(consistency, Switch):
        return max(0, connection.now - _end_of(connection, consistency))
    if connection.agreed_bound is not None and consistency.is_adaptive:
        return connection.agreed_bound.bound
    return consistency.most_bound


def keep_pace(connection: PacedWorker, cut_while_waiting: Callable[[], bool], bound: int) -> None:
    """Wait for slower workers; see Worker.keep_pace.

    Args:
        connection: The worker's connection.
        cut_while_waiting: Takes part in a pending cut; see WorkerPart.while_waiting.
        bound: Clocks that another worker may be behind.
    """
    target = connection.now - bound
    if target <= 0:
        return
    # With backup workers, servers learn only from a worker's next record that it has skipped clocks. So wait
    # until they have closed the clocks; workers that are behind then skip them.
    version, clock = (target, 0) if connection.skips_clocks else (0, target)
    connection.control.state = "waiting for slower workers"
    # Workers that wait at a cut do not advance until this worker has come to the cut, too.
    channel, tables = connection.channels[0], connection.clock_tables
    connection.wait_until(
        lambda: (
            cut_while_waiting()
            or all(channel.wait_head(table, version, clock, 0.02) for table in tables)
        ),
        lambda: f"workers are more than {bound} clocks behind{connection.blame(0)}",
    )
    connection.control.state = "computing"


def blame(
    connection: PacedWorker,
    names: Sequence[str],
    server: int,
    groups: Groups = (),
    table: Table | None = None,
) -> str:
    """Return the clause of an error that names the worker for which a server waits; "" if it waits for none.

    A worker that pushes the sums of a group may wait for another one of the group, so all are named. The
    values of a table under SSP wait for the workers of its stage only.
    """
    channel, now = connection.channels[server], connection.now
    clocks = channel.clocks()
    of = table if table is not None and isinstance(table.consistency, SSP) else None
    behind = [
        w
        for w, c in enumerate(clocks)
        if c <= now
        and w != connection.index
        and (of is None or takes_part(of, w, connection.n_stages))
    ]
    expected = channel.awaited_worker()
    if expected in behind:
        behind = [expected]
    if not behind:
        return ""
    least = min(clocks[w] for w in behind)
    late = [_led(w, names, groups, clocks) for w in behind if clocks[w] == least]
    return f"; it waits for {', '.join(late)} at clock {least}, this worker is at {now}"


def _led(worker: int, names: Sequence[str], groups: Groups, clocks: Sequence[int]) -> str:
    """Return the name of a worker, with the workers of the group whose sums it pushes.

    `clocks`: clocks of all workers at a server.
    """
    group = next((group for group in groups if worker in group), ())
    working = [w for w in group if clocks[w] != _native.FINISHED_CLOCK]
    if working[:1] != [worker] or len(working) == 1:
        return names[worker]
    summed = ", ".join(names[w] for w in working[1:])
    return f"{names[worker]}, or a worker whose updates that one sums ({summed}),"
