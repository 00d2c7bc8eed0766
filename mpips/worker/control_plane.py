"""The scheduler as a worker uses it."""

from __future__ import annotations

from typing import Protocol

from mpips.mpi.messages import Message, ReportDetails
from mpips.mpi.pending import PendingCut


class ControlPlane(Protocol):
    """A worker's messages to and from the scheduler. Over MPI it is mpips.mpi.control.Client.

    Attributes:
        state: Current activity of the worker, for heartbeats and errors.
        clock: The worker's clock, for heartbeats.
        cut: The worker's next cut, if the scheduler has announced one.
        speed: The worker's inner steps per second, for heartbeats; 0: not needed.
        fastest: Those of the fastest worker, by the scheduler's last answer; 0: not known.
    """

    state: str
    clock: int
    cut: PendingCut
    speed: float
    fastest: float

    def poll(self) -> None:
        """Take messages; raises if the job has failed. Cheap: it enters MPI every few milliseconds only."""

    def hurry(self) -> None:
        """Let the next `poll` look at the network at once."""

    def beat(self) -> None:
        """Take messages as `poll` does, and show the present `state`, before a call that may last long."""

    def tell(self, message: Message) -> None:
        """Send the scheduler a message; returns at once."""

    def report(
        self,
        epoch: int,
        step: int,
        samples: int,
        loss_sum: float,
        details: ReportDetails | None = None,
    ) -> None:
        """Report progress; returns at once."""
