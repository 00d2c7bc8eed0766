"""Embedded mode: scheduler, server and worker in one process, one thread, no MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpips import _native
from mpips.checkpoint.start import newest_name
from mpips.config.options import SessionOptions
from mpips.model.placement import Placement, place
from mpips.model.table import Table
from mpips.mpi.messages import (
    Agreed,
    Ask,
    Evaluated,
    Figures,
    Heartbeat,
    Message,
    Saved,
    Taken,
    ToWorker,
)
from mpips.mpi.pending import PendingCut
from mpips.mpi.signals import SignalRequests, TerminatedError
from mpips.mpi.watchdog import watching
from mpips.process import forked
from mpips.recovery.restore import restore
from mpips.recovery.saving import Saving
from mpips.rundir.directory import Supervised
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.recorder import RunRecorder
from mpips.server.server import Server
from mpips.session.calling import call
from mpips.snapshot.coordinator import Coordinator
from mpips.snapshot.server_part import ServerPart
from mpips.transport.channel import LocalChannel
from mpips.transport.region import Regions, new_token
from mpips.worker.connection import Connection, ConnectionOptions, needs_common_clock
from mpips.worker.worker import Worker


class LocalControl:
    """The scheduler's part where there is one worker: a gather is what that worker gave."""

    def __init__(
        self,
        on_report: Callable[[int, int, int, float], None] | None = None,
        recorder: RunRecorder | None = None,
        rank_table: RankTable | None = None,
    ) -> None:
        """`on_report(epoch, clock, samples, loss_sum)` shows progress; `recorder` records it."""
        self.state = "computing"
        self.clock = 0
        self.cut = PendingCut()
        self.coordinator: Coordinator | None = None
        self._on_report = on_report
        self._recorder = recorder
        self._rank_table = rank_table
        self._parts: dict[str, bytes] = {}

    def poll(self) -> None:
        """Nothing arrives from anywhere; checkpoints become due."""
        if self.coordinator is not None:
            self.coordinator.hear(0, self.clock)
            self.coordinator.poll()
        if self._rank_table is not None:
            self._rank_table.look()
        if self._recorder is not None:
            if self.coordinator is not None:
                self._recorder.saved(self.coordinator.statistics.get("path", ""))
            self._recorder.look({0: self.clock})

    def hurry(self) -> None:
        """See mpips.worker.connection.ControlPlane."""

    def tell(self, message: Message) -> None:
        """See mpips.worker.connection.ControlPlane."""
        if isinstance(message, Evaluated) and self._rank_table is not None:
            self._rank_table.evaluated(message)
        if self.coordinator is None:
            return
        if isinstance(message, Ask):
            self.coordinator.ask(message)
        elif isinstance(message, Agreed):
            self.coordinator.agreed(0, message)

    def take(self, worker: int, message: ToWorker) -> None:
        """A message of the coordinator to the worker."""
        answer = self.cut.take(message, self.clock)
        if answer is not None:
            self.tell(answer)

    def contribute(self, name: str, payload: bytes, everyone: bool) -> None:
        """See mpips.worker.connection.ControlPlane."""
        self._parts[name] = payload

    def take_gathered(self, name: str) -> list[bytes] | None:
        """See mpips.worker.connection.ControlPlane."""
        return [self._parts.pop(name)]

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """See mpips.worker.connection.ControlPlane."""
        if self._recorder is not None:
            self._recorder.report(epoch, samples, loss_sum)
        if self._on_report is not None:
            self._on_report(epoch, self.clock, samples, loss_sum)


class LocalKeeping:
    """Checkpoints where all roles are in one process: the same parts, called one by the other."""

    def __init__(
        self,
        saving: Saving,
        options: SessionOptions,
        tables: Sequence[Table],
        control: LocalControl,
        run: Supervised | None,
    ) -> None:
        """`connect` comes before anything else; `run`: the supervised run of this process."""
        self._saving = saving
        self._options = options
        self._tables = tables
        self._control = control
        self._run = run

    def connect(self, server: Server, placement: Placement) -> None:
        """Make the server's part, and the scheduler's if checkpoints are wanted."""
        timeout_s = self._options.timeout_s
        self.server_part = ServerPart(
            self._saving,
            server,
            placement,
            self._tables,
            1,
            None,
            timeout_s,
            self._deliver,
            self._run,
        )
        if self._saving.folder is None:
            return
        self._control.coordinator = Coordinator(
            self._saving.triggers,
            needs_common_clock(self._tables),
            self._saving.steps_before,
            1,
            1,
            self._control.take,
            self.server_part.take,
            timeout_s,
        )

    def _deliver(self, message: Message) -> None:
        coordinator = self._control.coordinator
        assert coordinator is not None
        if isinstance(message, Taken):
            coordinator.taken(0, message)
        elif isinstance(message, Saved):
            coordinator.saved(0, message)

    def poll(self, ask: Ask | None) -> bool:
        """A bounded piece of what there is to do; True: it did something."""
        coordinator = self._control.coordinator
        if coordinator is None:
            return False
        if ask is not None:
            coordinator.ask(ask)
        return self.server_part.poll()

    def end(self) -> dict[str, Any]:
        """The worker has finished: write what is under way, then the end; statistics of the server."""
        coordinator = self._control.coordinator
        if coordinator is not None:
            coordinator.worker_done(0)
            while coordinator.busy:
                self.server_part.poll()
        self.server_part.save(self._control.poll)
        return self.server_part.statistics()


def _figures(connection: Connection, server: Server) -> Figures:
    """The worker's figures, with the memory of the server."""
    found = connection.figures()
    found.memory_bytes = server.figures().memory_bytes
    return found


def run_local(
    main: Callable[[Worker], Any],
    tables: Sequence[Table],
    options: SessionOptions,
    on_report: Callable[[int, int, int, float], None] | None = None,
    saving: Saving | None = None,
    recorder: RunRecorder | None = None,
    rank_table: RankTable | None = None,
    run: Supervised | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Run `main` with a worker and a server of this process; returns its value and statistics.

    Args:
        main: The worker's work.
        tables: Of the job.
        options: Of the session.
        on_report: Called with (epoch, clock, samples, loss_sum).
        saving: Where to save and what to start from.
        recorder: Records a supervised run.
        rank_table: Shows what this process does.
        run: The supervised run of this process.
    """
    placement = place(tables, 1, 1, options.ring_slots, options.slot_kib * 1024)
    regions = Regions(new_token(), shared=False)
    server = Server(0, tables, placement, regions, options.seed, True, None)
    saving = saving or Saving(None, regions.token)
    if saving.start is not None:
        restore(server, placement, tables, saving.start)
    layout = placement.layouts[0]
    writer = _native.RingWriter(
        server.region,
        layout.mailbox_offset(0),
        layout.geometry,
        0,
        0,
        options.checksums,
        len(tables),
    )
    staging = regions.create_sparse("w0", options.staging_mib << 20)
    server.core.set_staging(0, staging)
    control = LocalControl(on_report, recorder, rank_table)
    keeping = LocalKeeping(saving, options, tables, control, run)
    keeping.connect(server, placement)
    with (
        SignalRequests(saving.folder is not None, saving.triggers.grace_s, run) as requests,
        watching(requests),
    ):

        def drain() -> int:
            consumed = server.drain()
            if keeping.poll(requests.take()):
                consumed += server.drain()  # what stood behind a cut
            return consumed

        channel = LocalChannel(server.region, layout, writer, 1, drain)
        start = ConnectionOptions(
            saving.position(options.seed, 0, 1),
            saving.triggers.every_steps if saving.folder is not None else 0,
        )
        connection = Connection(
            0, ["worker 0"], tables, [channel], control, staging, options.timeout_s, start
        )
        worker = Worker(connection, tables, placement)
        if rank_table is not None:
            rank_table.own = lambda: Heartbeat(
                control.state, worker.now, _figures(connection, server)
            )
        try:
            with forked.children_end_here("the job"):
                with forked.children_end_here("main"):
                    value = call(main, worker, alone=True)
                connection.finish()
                saved = keeping.end()
        except (TerminatedError, KeyboardInterrupt) as error:
            code = error.code if isinstance(error, TerminatedError) else 130
            requests.say_end(code, newest_name(saving.folder))
            raise
    cuts = {} if control.coordinator is None else {"checkpoints": control.coordinator.statistics}
    statistics = {
        "servers": [{**server.statistics(), **saved}],
        "workers": [{"worker": 0, "clock": worker.now, "pushes": worker.counters()}],
        "scheduler": {"messages": 0, "polls": 0, **cuts},
    }
    if recorder is not None:
        recorder.finish(statistics)
    return value, statistics
