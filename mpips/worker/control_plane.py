"""The scheduler as a worker uses it."""

from __future__ import annotations

from typing import Protocol

from mpips.mpi.messages import Message
from mpips.mpi.pending import PendingCut


class ControlPlane(Protocol):
    """A worker's messages to and from the scheduler. Over MPI it is mpips.mpi.control.Client.

    Attributes:
        state: Current activity of the worker, for heartbeats and errors.
        clock: The worker's clock, for heartbeats.
        cut: The worker's next cut, if the scheduler has announced one.
    """

    state: str
    clock: int
    cut: PendingCut

    def poll(self) -> None:
        """Take messages; raises if the job has failed. Cheap: it enters MPI every few milliseconds only."""

    def hurry(self) -> None:
        """Let the next `poll` look at the network at once."""

    def tell(self, message: Message) -> None:
        """Send the scheduler a message; returns at once."""

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Report progress; returns at once."""
