"""The scheduler of a job that has all roles in one process: its messages are calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpips.mpi.messages import (
    Agreed,
    Ask,
    Attachment,
    Evaluated,
    Message,
    Report,
    ReportDetails,
    Saved,
    Taken,
    ToServer,
    ToWorker,
)
from mpips.mpi.pending import PendingCut
from mpips.scheduler.recorder import OnReport, RunRecorder, recorded
from mpips.snapshot.coordinator import Coordinator
from mpips.worker.connection_options import needs_common_clock

if TYPE_CHECKING:
    from mpips.model.table import Table
    from mpips.recovery.saving import Saving
    from mpips.scheduler.observed import ObservedRun
    from mpips.scheduler.rank_table import RankTable
    from mpips.scheduler.trace_orders import TraceOrders
    from mpips.snapshot.server_part import ServerPart


class LocalScheduler:
    """The scheduler of one worker and one server. The worker uses it as its control plane.

    Nothing arrives by itself: `poll` begins checkpoints that are due and writes the record of the run.

    Attributes:
        state: Current activity of the worker.
        clock: The worker's clock.
        cut: The worker's next cut, if there is one.
        speed, fastest: See mpips.worker.control_plane.ControlPlane.
    """

    def __init__(
        self,
        on_report: OnReport | None = None,
        recorder: RunRecorder | ObservedRun | None = None,
        rank_table: RankTable | None = None,
    ) -> None:
        """Make a scheduler.

        Args:
            on_report: Called with 0 and each progress report.
            recorder: Writes the record of a supervised run, or shows another one.
            rank_table: Shows the activity of this process.
        """
        self.state = "computing"
        self.clock = 0
        self.speed = self.fastest = 0.0
        self.cut = PendingCut()
        self._on_report = recorded(on_report, recorder)
        self._recorder = recorder
        self._rank_table = rank_table
        self._orders: TraceOrders | None = None
        self._coordinator: Coordinator | None = None
        self._attach: Callable[[ToServer], None] | None = None

    def coordinate(
        self, saving: Saving, tables: Sequence[Table], server_part: ServerPart, timeout_s: float
    ) -> None:
        """Take checkpoints from here on, where the job has a folder for them. Called once.

        Args:
            saving: Folder and triggers.
            tables: All tables of the job.
            server_part: The server's part in checkpoints; it sends its answers to `take_from_server`.
            timeout_s: Bound of each step of a checkpoint, in seconds.
        """
        if saving.folder is None:
            return
        self._attach = server_part.take
        self._coordinator = Coordinator(
            saving.triggers,
            needs_common_clock(tables),
            saving.steps_before,
            1,
            1,
            self._to_worker,
            server_part.take,
            timeout_s,
        )

    def trace(self, orders: TraceOrders | None) -> None:
        """Order traces from here on; None: no longer."""
        self._orders = orders

    def poll(self) -> None:
        """See mpips.worker.control_plane.ControlPlane."""
        if self._coordinator is not None:
            self._coordinator.note_clock(0, self.clock)
            self._coordinator.poll()
        if self._rank_table is not None:
            self._rank_table.look()
        if self._recorder is not None:
            self._recorder.look_at(self._coordinator, {0: self.clock})
        if self._orders is not None:
            self._orders.poll()

    def hurry(self) -> None:
        """See mpips.worker.control_plane.ControlPlane."""

    def beat(self) -> None:
        """See mpips.worker.control_plane.ControlPlane."""
        self.poll()

    def tell(self, message: Message) -> None:
        """See mpips.worker.control_plane.ControlPlane."""
        if isinstance(message, Evaluated) and self._rank_table is not None:
            self._rank_table.evaluated(message)
        if isinstance(message, Attachment) and self._attach is not None:
            self._attach(message)
        if isinstance(message, Ask):
            self.ask(message)
        elif isinstance(message, Agreed) and self._coordinator is not None:
            self._coordinator.agreed(0, message)

    def ask(self, message: Ask) -> None:
        """Take a request for a checkpoint, of the worker or of a signal."""
        if self._coordinator is not None:
            self._coordinator.ask(message)

    def take_from_server(self, message: Message) -> None:
        """Take a message of the server's part in a checkpoint."""
        assert self._coordinator is not None
        if isinstance(message, Taken):
            self._coordinator.taken(0, message)
        elif isinstance(message, Saved):
            self._coordinator.saved(0, message)

    def _to_worker(self, worker: int, message: ToWorker) -> None:
        answer = self.cut.take(message, self.clock)
        if answer is not None:
            self.tell(answer)

    def report(
        self,
        epoch: int,
        step: int,
        samples: int,
        loss_sum: float,
        details: ReportDetails | None = None,
    ) -> None:
        """See mpips.worker.control_plane.ControlPlane."""
        if self._on_report is not None:
            self._on_report(0, Report(epoch, step, samples, loss_sum, self.clock, details))

    def end_cuts(self, server_part: ServerPart) -> None:
        """Note that the worker has finished, and complete the checkpoint that is under way."""
        if self._coordinator is None:
            return
        self._coordinator.worker_done(0)
        while self._coordinator.busy:
            server_part.poll()

    def close(self) -> None:
        """Drop what refers to the server and its tables. Call it when all is saved."""
        self._coordinator = self._attach = None

    def statistics(self) -> dict[str, Any]:
        """Return the scheduler's part of the job's statistics."""
        cuts = {} if self._coordinator is None else {"checkpoints": self._coordinator.statistics}
        return {"messages": 0, "polls": 0, **cuts}
