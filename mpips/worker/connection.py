"""The connection of one worker to its servers and to the scheduler: channels, clock, waits, staging memory.

Handles and the worker use it; programs see the worker. One thread uses it, the worker's.

Every wait is `wait_until`: it looks at the scheduler's messages between short waits, and in the end raises
StallError with the name of the server that is late, and of whom that server waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint.position import Position
from mpips.errors import StallError
from mpips.model.consistency import BSP, SSP
from mpips.model.table import Table
from mpips.mpi.messages import Figures, Message
from mpips.mpi.pending import PendingCut
from mpips.process import forked
from mpips.recovery.replica import Partners
from mpips.snapshot.worker_part import WorkerPart
from mpips.transport.channel import Channel
from mpips.transport.region import as_region_error

Float32 = NDArray[np.float32]
NO_PARTNERS = Partners()
FAULTS = _native.FAULTS  # whether a test ends this process at a fault point


def needs_common_clock(tables: Sequence[Table]) -> bool:
    """Return whether workers wait for each other's clocks, so that all must be cut at the same one."""
    return any(isinstance(t.consistency, BSP | SSP) for t in tables)


class ControlPlane(Protocol):
    """The scheduler as a worker sees it; one process needs no scheduler for it."""

    state: str
    clock: int
    cut: PendingCut

    def poll(self) -> None:
        """Take messages; raises if the job has failed."""

    def hurry(self) -> None:
        """Let the next `poll` look at once."""

    def tell(self, message: Message) -> None:
        """Send the scheduler a message."""

    def contribute(self, name: str, payload: bytes, everyone: bool) -> None:
        """Give this worker's part of a gather."""

    def take_gathered(self, name: str) -> list[bytes] | None:
        """All parts, if they are in."""

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Tell of progress."""


@dataclass(frozen=True)
class ConnectionOptions:
    """Where a worker starts and what it does beside its program.

    Attributes:
        position: What it starts from, with random stream and cursor; None: nothing.
        ask_every: It asks for a checkpoint at each multiple of so many steps of the run; 0: never.
        first_clock: It continues at this clock.
        says_place: It tells servers where it is, so that a later launch can continue there; see
            `mpips.recovery.memory`.
        partners: Of the servers; see `mpips.recovery.replica`.
    """

    position: Position | None = None
    ask_every: int = 0
    first_clock: int = 0
    says_place: bool = False
    partners: Partners = NO_PARTNERS


class Disowning(Protocol):
    """A handle, which may hold what belongs to the parent of a forked child."""

    def disown(self) -> None:
        """Give it up. Called in the child."""


class Connection:
    """One worker's connection. Not thread-safe.

    Attributes:
        index: Of the worker.
        n_workers: Number of workers.
        channels: One a server.
        control: To the scheduler.
        timeout_s: Bounds every wait.
        clock_state: The worker's clock, which native code reads.
        position: What the worker started from, its random stream and its cursor.
        snapshot: The worker's part in checkpoints.
    """

    def __init__(
        self,
        index: int,
        names: Sequence[str],
        tables: Sequence[Table],
        channels: Sequence[Channel],
        control: ControlPlane,
        staging: _native.SharedMemory | None,
        timeout_s: float,
        start: ConnectionOptions | None = None,
    ) -> None:
        """`names`: how errors call each worker; `channels`: one a server."""
        start = start or ConnectionOptions()
        self.index = index
        self.n_workers = len(names)
        self.clock_state = _native.WorkerClock()
        self.clock_state.now = start.first_clock
        control.clock = start.first_clock
        self._says_place = start.says_place
        self._partners = start.partners
        self.channels = list(channels)
        self.control = control
        self.timeout_s = timeout_s
        self._names = list(names)
        self._staging = staging
        self._staged = 0
        self._finished = False
        self._samples = 0
        self.position = start.position or Position(0, index, len(names))
        self.snapshot = WorkerPart(
            index,
            self.position,
            control,
            self._write_cut,
            self._is_behind_cut,
            needs_common_clock(tables),
            start.ask_every,
        )
        self._cut_ends = [0] * len(self.channels)  # records up to the last cut record, by server
        self._destinations: list[tuple[int, int, object]] = []
        self._handles: list[Disowning] = []
        backup = [t.consistency.backup for t in tables if isinstance(t.consistency, BSP)]
        self._skips_clocks = bool(backup) and backup[0] > 0
        self._bsp_table = next(
            (i for i, t in enumerate(tables) if isinstance(t.consistency, BSP)), None
        )
        forked.register(self)

    def disown(self) -> None:
        """Let every use in a forked child raise ForkError. See mpips.process.forked."""
        refusing: Any = forked.Refusing(f"worker {self.index}")
        self.channels = self.control = self._staging = self.snapshot = refusing
        for handle in self._handles:
            handle.disown()

    def add(self, handle: Disowning) -> None:
        """Let a handle give up what is under way in every forked child."""
        self._handles.append(handle)

    @property
    def now(self) -> int:
        """The worker's clock."""
        return self.clock_state.now

    def clock(self) -> None:
        """End the worker's clock; see Worker.clock."""
        self.control.state = "between clocks"
        if FAULTS:
            _native.fault_point("clock-begun")
        if self._says_place:
            self.snapshot.say_place(self.now)
            self._wait_until_arrived()
            if FAULTS:
                _native.fault_point("placed")
        if self._partners.waits:
            self._wait_for_partners()
        for server, channel in enumerate(self.channels):
            if FAULTS:
                _native.fault_point("ticking")
            self.write(server, lambda c=channel: c.writer.tick(self.now))  # type: ignore[misc]
        if FAULTS:
            _native.fault_point("ticked")
        self.publish(range(len(self.channels)))
        if FAULTS:
            _native.fault_point("clock-ended")
        self.clock_state.now += 1
        if self._skips_clocks and self._bsp_table is not None:
            closed = [c.read_version(self._bsp_table) for c in self.channels]
            self.clock_state.now = max(self.now, min(closed))
        self.control.clock = self.now
        self.snapshot.note_tick(self.now)
        self.control.state = "computing"
        self.control.poll()
        if self.control.cut.pending is not None and not self._repeats:
            self.snapshot.at_tick(self.now, self.wait_until)

    @property
    def _repeats(self) -> bool:
        """True if a server has more of this worker than it stands for, so that no cut may be here."""
        return any(channel.writer.is_ahead_of(self.now) for channel in self.channels)

    @property
    def _has_pushed(self) -> bool:
        """True if servers may have pushes of this worker's clock, so that it does not stand at its tick."""
        return self.clock_state.pushed_at == self.now or self._repeats

    def _write_cut(self, number: int, clock: int, payload: bytes) -> None:
        for server, channel in enumerate(self.channels):
            self.write(
                server,
                lambda c=channel: c.writer.cut(self.now, number, clock, payload),  # type: ignore[misc]
            )
            self._cut_ends[server] = channel.writer.next_sequence
        self.publish(range(len(self.channels)))

    def _is_behind_cut(self) -> bool:
        """Return whether some server has not consumed the last cut record, as far as this worker knows."""
        ends = zip(self.channels, self._cut_ends, strict=True)
        return any(channel.writer.applied < end for channel, end in ends)

    def _cut_while_waiting(self) -> bool:
        """See WorkerPart.while_waiting."""
        if self.control.cut.pending is None:
            return False
        return self.snapshot.while_waiting(self._has_pushed)

    def finish(self) -> None:
        """Leave: the worker pushes no more, and nobody waits for its clock any longer.

        Blocks until every server has consumed what was sent. Called by the session.
        """
        if self._finished:
            return
        self._finished = True
        if self.clock_state.pushed_at == self.now:
            self.clock()
        self.control.state = "finishing"
        self.snapshot.leave(self.now)
        for server, channel in enumerate(self.channels):
            self.write(server, lambda c=channel: c.writer.finish(self.now))  # type: ignore[misc]
        self.publish(range(len(self.channels)))
        for server, channel in enumerate(self.channels):
            self.wait_applied(server, channel.writer.next_sequence)

    def flush(self) -> None:
        """Wait until every server has consumed everything that the worker has sent."""
        for server, channel in enumerate(self.channels):
            self.wait_applied(server, channel.writer.next_sequence)

    def gather(self, name: str, payload: bytes, everyone: bool) -> list[bytes]:
        """Exchange payloads with all workers; see Worker.gather."""
        self.control.contribute(name, payload, everyone)
        if not everyone and self.index != 0:
            return []
        self.control.state = f"gathering {name!r}"
        found: list[list[bytes]] = []

        def arrived() -> bool:
            self.control.poll()
            parts = self.control.take_gathered(name)
            if parts is not None:
                found.append(parts)
            else:
                self.snapshot.look_in_gather(self._has_pushed)
                time.sleep(0.001)
            return bool(found)

        self.wait_until(arrived, lambda: f"not all workers have come to {name!r}")
        self.snapshot.end_gather()
        self.control.state = "computing"
        return found[0]

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Count samples and tell the scheduler; see Worker.report."""
        self._samples += samples
        self.control.report(epoch, step, samples, loss_sum)

    def counters(self) -> dict[str, int]:
        """Pushes of this worker by what became of them, summed over servers."""
        total: dict[str, int] = {}
        for channel in self.channels:
            for key, value in channel.writer.counters().items():
                merge = max if key == "max_staleness" else int.__add__
                total[key] = merge(total.get(key, 0), value)
        return total

    def figures(self) -> Figures:
        """Return this worker's counts, as of its last looks at the servers. Cheap; allowed at any time."""
        f = Figures(at=time.monotonic(), samples=self._samples)
        for channel in self.channels:
            writer = channel.writer
            c = writer.known_counters()
            f.records += writer.next_sequence
            f.queue += writer.known_queue
            f.pushed_bytes += c["pushed_bytes"]
            f.pulled_bytes += c["pulled_bytes"]
            f.judged += c["applied"] + c["rejected"] + c["late"]
            f.staleness_sum += c["staleness_sum"]
            f.max_staleness = max(f.max_staleness, c["max_staleness"])
        return f

    def keep_pace(self, bound: int) -> None:
        """Wait for slower workers; see Worker.keep_pace."""
        target = self.now - bound
        if target <= 0:
            return
        self.control.state = "waiting for slower workers"
        # The clocks of workers that are held at a cut do not move before this worker has come to it.
        self.wait_until(
            lambda: self._cut_while_waiting() or self.channels[0].wait_head(0, 0, target, 0.02),
            lambda: f"workers are more than {bound} clocks behind{self.blame(0)}",
        )
        self.control.state = "computing"

    def reserve_staging(self, n_bytes: int, share: float) -> int | None:
        """Offset of `n_bytes` of staging memory, for good; None if more than `share` would be in use.

        Raises:
            RegionError: /dev/shm is too small for it.
        """
        if self._staging is None:
            return None
        whole_lines = -(-n_bytes // _native.LINE_BYTES) * _native.LINE_BYTES
        if self._staged + whole_lines > share * self._staging.n_bytes:
            return None
        with as_region_error():
            self._staging.commit(self._staged, whole_lines)
        offset = self._staged
        self._staged += whole_lines
        return offset

    @property
    def staging(self) -> _native.SharedMemory | None:
        """The memory that `allocate` gives out."""
        return self._staging

    def staged_offset(self, array: Float32) -> int | None:
        """Offset in the staging region of an array that lies wholly in it, else None."""
        if self._staging is None:
            return None
        offset = array.ctypes.data - self._staging.address
        if 0 <= offset <= self._staging.n_bytes - array.nbytes:
            return int(offset)
        return None

    def keep(self, server: int, before: int, rows: object) -> None:
        """Keep plan and destination of a pull alive until its replies are copied into it.

        The C++ writer holds their addresses; the request that the caller has may be dropped earlier.
        """
        self._destinations = [
            (s, b, r)
            for s, b, r in self._destinations
            if self.channels[s].writer.collected_before() < b
        ]
        self._destinations.append((server, before, rows))

    def note_push(self) -> None:
        """Remember that the current clock holds a push."""
        self.clock_state.pushed_at = self.now

    def minimum_clock(self, table: Table) -> tuple[int, int]:
        """(version, minimum clock) that a pull of this table must see at the worker's clock."""
        if isinstance(table.consistency, BSP):
            return self.now, 0
        if isinstance(table.consistency, SSP):
            return 0, max(0, self.now - table.consistency.bound)
        return 0, 0

    def write(self, server: int, attempt: Callable[[], bool]) -> None:
        """Write a record, waiting for room in the ring. `publish` sends it."""
        while not attempt():
            self.wait_credit(server)

    def send(self, servers: Iterable[int]) -> None:
        """Start sending what has been written."""
        for server in servers:
            self.channels[server].send()

    def publish(self, servers: Iterable[int]) -> None:
        """Send what has been written, to all these servers at once."""
        chosen = [self.channels[server] for server in servers]
        for channel in chosen:
            if FAULTS:
                _native.fault_point("sending")
            channel.send()
        for channel in chosen:
            channel.publish()

    def wait_credit(self, server: int) -> None:
        """Wait for room in a ring."""
        channel = self.channels[server]
        channel.writer.count_credit_stall()
        self.wait_until(
            lambda: channel.wait_credit(0.02),
            lambda: f"server {server} has taken no record from its full ring{self.blame(server)}",
        )

    def wait_applied(self, server: int, count: int) -> None:
        """Wait until a server has consumed `count` records."""
        channel = self.channels[server]
        self.wait_until(
            lambda: channel.wait_applied(count, 0.02),
            lambda: (
                f"server {server} has consumed {channel.writer.applied} of {count} records"
                f"{self.blame(server)}"
            ),
        )

    def _wait_until_arrived(self) -> None:
        """Wait until all that was written is in the servers' memory, where memory outlives this launch.

        The first tick of a clock leaves only then: whoever goes on in memory that has a tick relies on
        all servers having what stands before it (mpips.recovery.memory). Records may wait there for others;
        to wait until they are consumed would let only one worker at a time compute. With one server the
        ring's own order is enough. Of a server with a partner more is asked (`_wait_for_partners`).
        """
        if len(self.channels) < 2:
            return
        covered = self._partners.of if self._partners.waits else {}
        late = [s for s in range(len(self.channels)) if s not in covered]
        for server in late:
            self.channels[server].begin_fence()
        for server in late:
            self.wait_until(
                lambda s=server: self.channels[s].wait_fence(0.02),  # type: ignore[misc]
                lambda s=server: (  # type: ignore[misc]
                    f"server {s} has not confirmed that records of worker {self.index} have arrived"
                    f"{self.blame(s)}"
                ),
            )

    def _wait_for_partners(self) -> None:
        """Wait until all that was written has arrived at the partners. It waits for no worker."""
        self.publish(self._partners.of)
        for server in self._partners.of:
            channel = self.channels[server]
            count = channel.writer.next_sequence
            self.wait_until(
                lambda c=channel, n=count: c.wait_received(n, 0.02),  # type: ignore[misc]
                lambda s=server, n=count: (  # type: ignore[misc]
                    f"server {s} has taken {self.channels[s].writer.applied} of {n} records"
                    f"{self._blame_partner(s)}"
                ),
            )

    def _blame_partner(self, server: int) -> str:
        """That a server waits for its partner, if it does."""
        partner = self._partners.of.get(server)
        writer = self.channels[server].writer
        if partner is None or writer.received >= writer.next_sequence:
            return ""
        return (
            f"; it waits for its partner, server {partner}, which has {writer.received} of "
            f"{writer.next_sequence}"
        )

    def wait_until(self, done: Callable[[], bool], late: Callable[[], str]) -> None:
        """Call `done` (which may block briefly) until it is True; raise StallError in the end."""
        deadline = time.monotonic() + self.timeout_s
        while not done():
            self.poll()
            if time.monotonic() >= deadline:
                raise StallError(f"{late()} (waited {self.timeout_s:g} s)")

    def poll(self) -> None:
        """Take control messages while this worker waits. Cheap; call it a few times a second at least."""
        self.control.poll()
        self.snapshot.look_while_waiting()

    def blame(self, server: int) -> str:
        """Who this server itself waits for, as far as its region tells."""
        channel = self.channels[server]
        clocks = channel.clocks()
        behind = [w for w, c in enumerate(clocks) if c <= self.now and w != self.index]
        turn = channel.turn()
        if turn < len(clocks) and turn != self.index and clocks[turn] <= self.now:
            behind = [turn]
        if not behind:
            return self._blame_partner(server)
        least = min(clocks[w] for w in behind)
        late = [self._names[w] for w in behind if clocks[w] == least]
        return f"; it waits for {', '.join(late)} at clock {least}, this worker is at {self.now}"
