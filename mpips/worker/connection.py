"""The connection of one worker to its servers and to the scheduler: channels, clock, waits, staging memory.

Handles and the worker use it; programs see the worker. One thread uses it, the worker's.

Every wait is `wait_until`. It alternates short waits with looks at the scheduler's messages. At its deadline
it raises StallError with the name of the late server and of the rank for which that server waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mpips import _native
from mpips.checkpoint.position import Position
from mpips.errors import EndedError, MpipsError
from mpips.model.consistency import BSP, Switch
from mpips.model.stages import clock_tables, n_stages
from mpips.process import forked
from mpips.process.refusing import Refusing
from mpips.snapshot.worker_part import WorkerPart
from mpips.worker import counts, waits
from mpips.worker.agreed_bound import AgreedBound, agreed_bound
from mpips.worker.agreed_switch import AgreedSwitch, agreed_switch
from mpips.worker.arrivals import Arrivals
from mpips.worker.collectives import Collectives
from mpips.worker.connection_options import (
    AskedValues,
    ConnectionOptions,
    Disowning,
    needs_common_clock,
)
from mpips.worker.cut_records import CutRecords
from mpips.worker.feedback.residuals import Residuals, settled
from mpips.worker.forgotten_clock import ForgottenClock, effect
from mpips.worker.groups.tables import GroupedTables
from mpips.worker.image.files import ImageFiles
from mpips.worker.local.tables import LocalTables
from mpips.worker.messages import ArrayMessages
from mpips.worker.replicated.tables import ReplicatedTables
from mpips.worker.spent import TimeSpent
from mpips.worker.staging import Staging
from mpips.worker.start import MadeParts
from mpips.worker.table_part import TablePart
from mpips.worker.ticks import Ticks
from mpips.worker.whole import Whole, cut_off_error

if TYPE_CHECKING:
    from mpips.model.table import Table
    from mpips.mpi.array_mail import ArrayMail
    from mpips.mpi.messages import Figures, ReportDetails
    from mpips.mpi.tree import WorkerTree
    from mpips.transport.channel import Channel
    from mpips.transport.progress import ProgressThread
    from mpips.worker.control_plane import ControlPlane
    from mpips.worker.groups.node_pulls import NodePulls
    from mpips.worker.node_rows.part import NodeRowsPart
    from mpips.worker.recorded import WorkerRecord

FAULTS = _native.FAULTS  # True where a test ends this process at a fault point


class Connection:
    """One worker's connection. Not thread-safe.

    Attributes:
        index: Index of the worker.
        n_workers: Number of workers of the job.
        channels: One channel for each server.
        control: Messages to and from the scheduler.
        timeout_s: Bound of every wait, in seconds.
        clock_state: The worker's clock, which native code reads.
        spent: The time that the worker has spent on waits, pushes and pulls.
        position: The worker's start, its random stream and its cursor.
        snapshot: The worker's part in checkpoints.
        staging: The worker's staging memory.
        collectives: Gathers, reductions and barriers.
        messages: Arrays to and from single workers.
        replicated: The tables that every worker holds; None: the job has none.
        local: The tables under LocalSGD and DiLoCo; None: the job has none.
        grouped: The group that sums updates of this worker; None: it is in none.
        node_pulls: Pulls that the workers of this node share; None: no such pulls.
        node_rows: Memory for rows that they read for each other; None: no such memory.
        residuals: The parts of updates that pushes have not sent; None: no table has error feedback.
        parts: The objects that take part in clocks, cuts and the end: grouped, replicated, local, residuals.
        images: The files of the worker's image for checkpoints; None: it has no image, or nothing is saved.
        progress: Advances transfers while the program computes; None: nothing does.
        coming: The values that the worker has asked for in advance; None: no such values.
        record: The worker's part in a record or in a replay; None: the job has none.
        agreed_bound: The bound of SSP("auto") at this worker's clock; None: no table has such a bound.
        agreed_switch: The clock of a Switch that server 0 decides on; None: no table is under one.
        n_stages: Number of stages of the model; 1: no table belongs to one.
        clock_tables: Tables whose lowest clocks together are that of all workers.
        without_clock: Effect of a program that ended without a clock, after `finish`; "": none.
        is_refused: Every use raises, because an operation was cut off; see mpips.worker.whole.
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
        tree: WorkerTree | None = None,
        made: MadeParts | None = None,
        progress: ProgressThread | None = None,
        record: WorkerRecord | None = None,
        mail: ArrayMail | None = None,
        refuse_memory: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a connection.

        Args:
            index: Index of the worker.
            names: Names of all workers, for errors.
            tables: All tables of the job.
            channels: One channel for each server.
            control: Messages to and from the scheduler.
            staging: Staging memory of this worker, or None.
            timeout_s: Bound of every wait, in seconds.
            start: Start of the worker; None: at clock 0, without duties.
            tree: Messages to other workers; None: gathers contain this worker alone.
            made: The parts that start-up has made for its tables; None: no parts.
            progress: The progress thread, which is not started yet; None: no such thread.
            record: The worker's part in a record or in a replay; None: the job has none.
            mail: Arrays to and from single workers; None: this worker is the only one.
            refuse_memory: See ArrayMessages.
        """
        self.progress = progress
        self.record = record
        start, made = start or ConnectionOptions(), made or MadeParts()
        self.index = index
        self.n_workers = len(names)
        self.clock_state = _native.WorkerClock()
        self.clock_state.now = start.first_clock
        self.spent = TimeSpent(self.clock_state)
        control.clock = start.first_step if made.local is not None else start.first_clock
        self.arrivals = Arrivals(self, start.partners, start.writes_position)
        self.residuals: Residuals | None = settled(made.residuals, channels)
        self.channels: list[Channel] = list(channels)
        for i, table in enumerate(tables):
            if isinstance(table.consistency, BSP | Switch):
                for channel in channels:
                    channel.counting_writer.require_whole(i, table.name)
        self.control = control
        self.timeout_s = timeout_s
        self._names = list(names)
        self.collectives = Collectives(self, tree, self._names)
        common_clock = needs_common_clock(tables, start.groups)
        cuts_apart = start.folder is not None and not common_clock
        self.messages = ArrayMessages(self, mail, self._names, cuts_apart, refuse_memory)
        control.cut.repeats_until = self._end_of_repetition()
        self.staging = Staging(staging)
        self.replicated: ReplicatedTables | None = None
        self.grouped: GroupedTables | None = None
        self.local: LocalTables | None = None
        if made.replicated is not None:
            of = start.partners.of
            self.replicated = ReplicatedTables(self, made.replicated, self._names, of)
        if made.grouped is not None:
            self.grouped = GroupedTables(self, made.grouped, self._names, self.arrivals)
        if made.local is not None:
            self.local = LocalTables(self, made.local, start.first_step)
        parts = (self.grouped, self.replicated, self.local, self.residuals)
        self.parts: list[TablePart] = [part for part in parts if part is not None]
        keeps = [part for part in (self.local, self.residuals) if part is not None]
        self.images: ImageFiles | None = None
        if keeps and start.folder is not None:
            self.images = ImageFiles(start.folder, index, keeps)
        self.node_pulls: NodePulls | None = made.node_pulls
        self.node_rows: NodeRowsPart | None = made.node_rows
        self._groups, self._behind = start.groups, start.behind
        self.coming: AskedValues | None = None
        for channel in self.channels:
            if channel.orders is not None:
                channel.orders.finish = self.finish_orders
        self._finished = False
        self.without_clock = ""
        self.is_refused = False
        self._samples = 0
        self.position: Position = start.position or Position(0, index, len(names))
        cuts = CutRecords(self)
        self.snapshot = WorkerPart(
            index,
            self.position,
            control,
            cuts.write,
            cuts.is_behind,
            common_clock,
            start.ask_every,
            min((c.layout.geometry.payload_capacity for c in channels), default=0),
            self.images.write if self.images is not None else None,
            self.local is not None,
        )
        is_replay = record is not None and record.is_replay
        is_fixed = is_replay or self.n_workers == 1
        self.agreed_bound: AgreedBound | None = agreed_bound(self, tables, is_fixed)
        self.agreed_switch: AgreedSwitch | None = agreed_switch(
            self, tables, self.spent, self.position
        )
        self.n_stages: int = n_stages(tables)
        self.clock_tables: tuple[int, ...] = clock_tables(tables)
        self._destinations = waits.Destinations()
        self._handles: list[Disowning] = []
        self._ticks = Ticks(self, tables, start.writes_position)
        self._tables, self._ask_every = tables, start.ask_every
        self._forgotten_clock: ForgottenClock | None = None
        forked.register(self)

    def disown(self) -> None:
        """Let every use in a forked child raise ForkError; see mpips.process.forked."""
        self._refuse(lambda: forked.used_in_child(f"worker {self.index}"))

    def retire(self) -> None:
        """Let every later use raise EndedError, and drop the memory of the job. The job calls it at its end.

        Without it the references between this connection and its handles would hold the tables of a job in
        one process until Python's cyclic garbage collector runs.
        """
        forked.forget(self)
        self._refuse(
            lambda: EndedError(
                f"worker {self.index} or one of its tables was used after the end of its job: read values "
                "before the worker function returns"
            )
        )
        self._destinations.clear()
        self._handles.clear()

    def _refuse(self, error: Callable[[], MpipsError]) -> None:
        refusing: Any = Refusing(error)
        self.channels = self.control = self.staging = self.snapshot = refusing
        self.collectives = self.messages = refusing
        for name in ("local", "replicated", "grouped", "residuals"):
            if getattr(self, name) is not None:
                setattr(self, name, refusing)
        self.parts = []
        self.images = self.node_pulls = self.node_rows = None
        for handle in self._handles:
            handle.disown()

    def written(self) -> list[int]:
        """Return how much is written to each server, or ordered: records of pulls also count."""
        return [self.written_to(server) for server in range(len(self.channels))]

    def written_to(self, server: int) -> int:
        """Return how much is written to a server, or ordered: records of pulls also count."""
        channel = self.channels[server]
        ordered = channel.orders.n_added if channel.orders is not None else 0
        return channel.counting_writer.next_sequence + ordered

    def pushed(self, servers: Iterable[int]) -> list[Callable[[int], int]]:
        """Return functions of a table: how much of it is pushed to each of these servers, or ordered.

        Only complete parts count. A server drops a part that is not complete, or the ring refuses what would
        follow it (BSP).
        """

        def counter(channel: Channel) -> Callable[[int], int]:
            orders = channel.orders
            if orders is None:
                return channel.writer.pushed_before
            return lambda table: channel.counting_writer.pushed_before(table) + orders.n_added

        return [counter(self.channels[server]) for server in servers]

    def refuse_after(self, what: str) -> None:
        """Let every later use raise MpipsError: the operation `what` was cut off. See mpips.worker.whole."""
        self.is_refused = True
        self._refuse(lambda: cut_off_error(self.index, what))

    def add(self, handle: Disowning) -> None:
        """Register a handle, whose `disown` every forked child calls."""
        self._handles.append(handle)

    @property
    def now(self) -> int:
        """The worker's clock at the servers, the number of their clocks that it has ended."""
        return self.clock_state.now

    @property
    def step(self) -> int:
        """Number of clocks that the worker's program has ended.

        It differs from `now` only with tables under LocalSGD and DiLoCo: an outer step is a clock of servers.
        """
        return self.clock_state.now if self.local is None else self.local.steps

    def describe(self) -> str:
        """Return index and clock of the worker for a repr. Reads nothing from servers."""
        name = f"worker {self.index} of {self.n_workers}"
        if isinstance(self.control, Refusing):
            return f"{name}, no longer in use"
        return f"{name} at clock {self.step}"

    def begin_progress(self) -> None:
        """Let transfers go on while the program computes, to the end of the job; see transport.progress."""
        if self.progress is not None:
            for channel in self.channels:
                channel.stream(True)
            self.progress.begin_use()

    def end_clock_behind(self) -> None:
        """Send the tick of the clock before this one to the servers that lack it; see mpips.recovery.memory.

        The session calls it before the program starts. Does not block: where a ring is full, the tick is
        written when there is room, before any other record, and sent by the next wait at the latest.
        """
        if self._behind and self.agreed_switch is not None:
            self.agreed_switch.end_of_bsp()  # the ticks name a decision of an earlier launch
        for server in self._behind:
            self.channels[server].writer.owe_tick(self.now - 1)
        if self._behind:
            self._send_ticks_behind()

    def write_tick_behind(self, server: int) -> None:
        """Wait for room until no tick is owed to a server: the next record then has `next_sequence`."""
        while server in self._behind and self.channels[server].writer.owes_tick:
            self.wait_credit(server)

    def _send_ticks_behind(self) -> None:
        """Send the ticks of `end_clock_behind` for which there is room."""
        for server in self._behind:
            channel = self.channels[server]
            if channel.writer.owes_tick:
                channel.wait_credit(0.0)
        sent = [s for s in self._behind if not self.channels[s].writer.owes_tick]
        self._behind = tuple(s for s in self._behind if s not in sent)
        self.publish(sent)

    def leave(self) -> None:
        """Return to the program: let the progress thread go on, if anything uses it. Cheap."""
        if self.progress is not None:
            self.progress.open()

    def clock(self) -> None:
        """End the worker's clock; see Worker.clock."""
        if self.coming is not None:
            self.coming.finish()
        if self.local is None:
            self._tick()
            return
        self.local.settle()
        with Whole(self, "clock()"):
            if self.local.step():
                self._tick()
                return
            self.control.clock = self.step
            self.snapshot.note_inner_step(self.now, self.step)
            self.control.poll()
            self.collectives.poll()
            self.messages.poll()

    def _tick(self) -> None:
        self._ticks.tick()
        if self.agreed_bound is not None and not self._finished:
            self.agreed_bound.advance()

    def synchronize(self) -> None:
        """See Worker.synchronize."""
        if self.coming is not None:
            self.coming.finish()
        if self.local is not None and self.local.begin_synchronize():
            with Whole(self, "synchronize()"):
                self.local.push_all()
                self._tick()

    @property
    def skips_clocks(self) -> bool:
        """True if there are backup workers, so that this worker may skip clocks."""
        return self._ticks.skips_clocks

    @property
    def repeats(self) -> bool:
        """True if a server has records of this worker from beyond its clock; then no cut may be here."""
        return any(channel.writer.is_ahead_of(self.now) for channel in self.channels)

    def _end_of_repetition(self) -> int:
        """Return the first clock from the worker's own on of which no server has records.

        0: a server has its end, so all that it does is a repetition.
        """
        clock = self.now
        while any(channel.writer.is_ahead_of(clock) for channel in self.channels):
            if any(channel.writer.is_ahead_of(_native.FINISHED_CLOCK) for channel in self.channels):
                return 0
            clock += 1
        return clock

    @property
    def has_pushed(self) -> bool:
        """True if there may be pushes of the current clock, so that the worker is not between clocks."""
        is_local = self.local is not None and self.local.has_pushed
        return is_local or self.clock_state.pushed_at == self.now or self.repeats

    def _cut_while_waiting(self) -> bool:
        """Take part in a pending cut during a wait; see WorkerPart.while_waiting."""
        if self.control.cut.pending is None:
            return False
        return self.snapshot.while_waiting(self.has_pushed)

    def watch_clock(self) -> None:
        """Warn about a program that begins here and never ends a clock; see mpips.worker.forgotten_clock."""
        found = effect(self._tables, self._ask_every > 0)
        if found and self.grouped is None and self.channels:
            self._forgotten_clock = ForgottenClock(self, found, self._tables)

    def finish(self) -> None:
        """End the worker's pushes; from then on no server waits for its clock. The session calls this.

        Blocks until every server has consumed all records. A second call does nothing.
        """
        if self._finished:
            return
        self._finished = True
        if self._forgotten_clock is not None:
            self.without_clock = self._forgotten_clock.at_end()
        if self.coming is not None:
            self.coming.finish()
        self.collectives.end()
        self.messages.end()
        if self.local is not None and self.local.has_pushed:
            self.clock()
        self.synchronize()
        if self.clock_state.pushed_at == self.now:
            self.clock()
        for part in self.parts:
            part.finish()
        self.control.state = "finishing"
        self.snapshot.leave(self.now, self.step)
        if self.record is not None:
            own = [channel.writer.next_sequence for channel in self.channels]
            self.record.tick(self.now, own, is_end=True)
        for server, channel in enumerate(self.channels):
            self.write(server, lambda c=channel: c.writer.finish(self.now))  # type: ignore[misc]
        self.publish(range(len(self.channels)))
        for server, channel in enumerate(self.channels):
            self.wait_applied(server, channel.writer.next_sequence)
            waits.settled(self, server)
        for part in self.parts:
            part.leave()

    def flush(self) -> None:
        """Wait until every server has consumed all records of this worker."""
        for server, channel in enumerate(self.channels):
            self.wait_applied(server, channel.writer.next_sequence)

    def check_cut_in_gather(self) -> None:
        """Take part in a pending cut while the worker waits in a gather, or report that it cannot."""
        self.snapshot.check_in_gather(self.has_pushed)

    def check_cut_in_wait(self) -> None:
        """Take part in a pending cut while the worker waits for pushes of others.

        Call it every few ms at best; see WorkerPart.check_in_wait.
        """
        self.poll()
        self.snapshot.check_in_wait(self.has_pushed)

    def report(
        self,
        epoch: int,
        step: int,
        samples: int,
        loss_sum: float,
        details: ReportDetails | None = None,
    ) -> None:
        """Count samples and report them to the scheduler; see Worker.report."""
        self._samples += samples
        self.control.report(epoch, step, samples, loss_sum, details)

    def counters(self) -> dict[str, int]:
        """Return the numbers of this worker's pushes by outcome, summed over servers."""
        return counts.outcomes(self.channels, self.parts)

    def figures(self) -> Figures:
        """Return this worker's counts, as last read from the servers. Cheap; allowed during a wait."""
        found = counts.figures(self.channels, self.parts, self._samples)
        self.spent.add_to(found)
        return found

    def ticks_within(self, steps: int) -> int:
        """Return the most clocks of the servers by which a worker that is so many steps behind may be."""
        return steps if self.local is None else self.local.ticks_within(steps)

    def keep_pace(self, bound: int) -> None:
        """Wait for workers that are more than `bound` clocks of the servers behind; see Worker.keep_pace."""
        waits.keep_pace(self, self._cut_while_waiting, bound)

    def keep(self, server: int, before: int, rows: object) -> None:
        """Hold references to the plan and destination of a pull; see Destinations.add."""
        self._destinations.add(self.channels, server, before, rows)

    def note_push(self) -> None:
        """Note that the current clock contains a push."""
        self.clock_state.pushed_at = self.now

    def minimum_clock(self, table: Table) -> tuple[int, int]:
        """Return (version, minimum clock) that a pull of this table must see at this clock; 0: any."""
        return waits.minimum_clock(self, table)

    def write(self, server: int, attempt: Callable[[], bool]) -> None:
        """Call `attempt`, which writes a record, until there was room in the ring. `publish` sends it."""
        while not attempt():
            self.wait_credit(server)

    def send(self, servers: Iterable[int]) -> None:
        """Start to send all written records to these servers; see Channel.send."""
        for server in servers:
            self.channels[server].send()

    def publish(self, servers: Iterable[int]) -> None:
        """Send all written records to these servers; see Channel.publish."""
        for channel in (chosen := [self.channels[server] for server in servers]):
            if FAULTS:
                _native.fault_point("sending")
            channel.send()
        for channel in chosen:
            channel.publish()

    @property
    def may_order(self) -> bool:
        """True if updates to other nodes may leave in another order than that of the program."""
        is_free = not self._ticks.writes_position and not self._ticks.skips_clocks
        is_free = is_free and self.grouped is None
        return is_free and any(channel.orders is not None for channel in self.channels)

    def finish_orders(self) -> None:
        """Have all orders written and sent, at all servers: another worker may wait for any of them. Blocks.

        Raises:
            StallError: A server has taken no update for the job's timeout.
        """
        waits.ordered(self)

    def wait_credit(self, server: int) -> None:
        """Wait until this worker's ring at a server has room for a record."""
        waits.credit(self, server)

    def wait_applied(self, server: int, count: int) -> None:
        """Wait until a server has consumed `count` records."""
        waits.applied(self, server, count)

    def wait_until(self, done: Callable[[], bool], late: Callable[[], str]) -> None:
        """Call `done`, which may block briefly, until it returns True.

        Raises:
            StallError: It was not True within `timeout_s`; the message is that of `late()`.
        """
        waits.until(self, done, late)

    def poll(self) -> None:
        """Take control messages during a wait, and let orders go on. Cheap; call it every few ms at best.

        Whatever this worker waits for may need another worker, and that one an order of this worker.
        """
        self.control.poll()
        if self._forgotten_clock is not None and self._forgotten_clock.poll():
            self._forgotten_clock = None
        self.poll_workers()
        self.snapshot.report_wait()
        waits.advance_orders(self)
        if self._behind:
            self._send_ticks_behind()

    def poll_workers(self) -> None:
        """Take messages of other workers, also after `finish`, until the job ends. Cheap.

        After `finish` it also writes the file for the last checkpoint, if it could not be written before.
        """
        if self.images is not None:
            self.images.try_again()
        self.collectives.poll()
        self.messages.poll()
        for part in self.parts:
            part.poll()

    def settle_workers(self) -> None:
        """Wait until no message of another worker is under way, when all have finished; or StallError."""
        self.collectives.settle()
        self.messages.settle()
        for part in self.parts:
            part.end()

    def blame(self, server: int, table: Table | None = None) -> str:
        """Return the clause of an error that names the rank for which this server waits; "" if unknown.

        `table`: the table whose values are missing; None: the wait is for something else.
        """
        late = waits.blame(self, self._names, server, self._groups, table)
        return late or self.arrivals.blame(server)
