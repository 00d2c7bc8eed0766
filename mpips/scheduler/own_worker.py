"""The worker on the scheduler's rank: its messages to and from the scheduler are calls."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mpips.errors import ProtocolError
from mpips.mpi.clock_offset import ClockOffset
from mpips.mpi.messages import (
    Abandon,
    BestProgress,
    Commit,
    Done,
    Heartbeat,
    Message,
    Propose,
    Report,
    ReportDetails,
)
from mpips.mpi.pending import PendingCut
from mpips.mpi.role_work import RoleWork

if TYPE_CHECKING:
    from mpips.scheduler.scheduler import Scheduler

_POLL_S = 0.005  # s between two polls of a scheduler that has nothing to decide


class OwnWorker:
    """The control plane of the worker on the scheduler's rank, and the scheduler's way to it.

    For the worker it is what mpips.mpi.control.Client is on another rank, for the scheduler what Endpoint is.
    There is no other process, so the scheduler runs only while the worker polls. The worker's thread uses it.

    Attributes:
        state: Current activity of the worker.
        clock: The worker's clock.
        cut: The worker's next cut, if there is one.
        speed, fastest: See mpips.worker.control_plane.ControlPlane.
        scheduler: The scheduler; None: messages are dropped.
        offset: Difference to the scheduler's clock, which is this one.
        final_statistics: None: the scheduler on this rank has them.
    """

    stopped = False
    final_statistics: bytes | None = None

    def __init__(self, rank: int = 0) -> None:
        """Make the control plane of a worker without a scheduler, which drops messages, until `join`."""
        self.state = "starting"
        self.clock = 0
        self.speed = self.fastest = 0.0
        self.cut = PendingCut()
        self.offset = ClockOffset()
        self._rank = rank
        self.scheduler: Scheduler | None = None
        self._next_poll = self._pause_s = 0.0  # monotonic s; s
        self._work = RoleWork()

    def join(self, scheduler: Scheduler, decides: bool) -> None:
        """Exchange messages with this scheduler from here on.

        Args:
            scheduler: The scheduler, whose endpoint is this object.
            decides: It decides on checkpoints, or records the run: then every `poll` of the worker polls it,
                so that checkpoints come at the clock at which they are due.
        """
        self.scheduler = scheduler
        self._pause_s = 0.0 if decides else _POLL_S

    def leave(self) -> None:
        """Drop the scheduler, which refers to the server and its tables. Call it when all is saved."""
        self.scheduler = None

    def begin(self, work: RoleWork) -> None:
        """Serve the work of this rank's role from here on."""
        self._work = work

    def poll(self) -> None:
        """Let the scheduler work, if it is time.

        Raises:
            LeavingError: The checkpoint after which the job was to end is durable.
        """
        if self.scheduler is None:
            return
        if self._pause_s:
            now = time.monotonic()
            if now < self._next_poll:
                return
            self._next_poll = now + self._pause_s
        self.scheduler.poll_for(self._rank, self.state, self.clock)

    def hurry(self) -> None:
        """Make the next `poll` reach the scheduler."""
        self._next_poll = 0.0

    def beat(self) -> None:
        """See mpips.worker.control_plane.ControlPlane."""
        self.hurry()
        self.poll()

    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat of this moment."""
        return Heartbeat(self.state, self.clock, self._work.figures(), self.speed)

    def tell(self, message: Message) -> None:
        """Let the scheduler take a message of the worker."""
        if self.scheduler is not None:
            self.scheduler.take(self._rank, message)

    def report(
        self,
        epoch: int,
        step: int,
        samples: int,
        loss_sum: float,
        details: ReportDetails | None = None,
    ) -> None:
        """See mpips.worker.control_plane.ControlPlane."""
        self.tell(Report(epoch, step, samples, loss_sum, self.clock, details))

    def done(self, statistics: bytes) -> None:
        """Let the scheduler take the worker's statistics, as JSON: the worker has finished."""
        self.tell(Done(statistics))

    def send(self, rank: int, message: Message) -> None:
        """Let the worker take a message of the scheduler. `rank`: this rank.

        Raises:
            ProtocolError: No worker takes such a message.
        """
        if isinstance(message, Propose | Commit | Abandon | BestProgress):
            answer = self.cut.take(message, self.clock)
            if answer is not None:
                self.tell(answer)
        else:
            raise ProtocolError(
                f"the scheduler sent rank {rank}, its own, a {type(message).__name__}"
            )

    def send_to_all(self, ranks: Iterable[int], message: Message) -> None:
        """Send a message to each of these ranks."""
        for rank in ranks:
            self.send(rank, message)

    def receive(self) -> list[tuple[int, Message]]:
        """Return no messages: those of this rank come by calls, and there is no other rank."""
        return []
