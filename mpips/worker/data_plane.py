"""A worker's connection as the parts that it consists of use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from mpips.worker.whole import Refusable

if TYPE_CHECKING:
    from mpips import _native
    from mpips.snapshot.worker_part import WorkerPart
    from mpips.transport.channel import Channel
    from mpips.worker.control_plane import ControlPlane


class DataPlane(Refusable, Protocol):
    """One worker's channels to its servers, its clock and its waits: the `Connection`.

    Parts of the connection take this interface, since the connection makes them. Handles take the connection.

    Attributes:
        index: Index of the worker.
        channels: One channel for each server.
        control: Messages to and from the scheduler.
        timeout_s: Bound of every wait, in seconds.
        clock_state: The worker's clock, which native code reads.
    """

    index: int
    channels: list[Channel]
    control: ControlPlane
    timeout_s: float
    clock_state: _native.WorkerClock

    @property
    def now(self) -> int:
        """The worker's clock at the servers, the number of their clocks that it has ended."""

    @property
    def step(self) -> int:
        """Number of clocks that the worker's program has ended."""

    def leave(self) -> None:
        """Return to the program: let the progress thread go on, if anything uses it. Cheap."""

    def poll(self) -> None:
        """Take control messages during a wait, and let orders go on. Cheap; call it every few ms at best."""

    def publish(self, servers: Iterable[int]) -> None:
        """Send all written records to these servers; see Channel.publish."""

    def write(self, server: int, attempt: Callable[[], bool]) -> None:
        """Call `attempt`, which writes a record, until there was room in the ring. `publish` sends it."""

    def wait_credit(self, server: int) -> None:
        """Wait until this worker's ring at a server has room for a record."""

    def wait_until(self, done: Callable[[], bool], late: Callable[[], str]) -> None:
        """Call `done`, which may block briefly, until it returns True; or StallError with `late()`."""

    def flush(self) -> None:
        """Wait until every server has consumed all records of this worker."""

    def keep_pace(self, bound: int) -> None:
        """Wait for workers that are more than `bound` clocks of the servers behind."""

    def blame(self, server: int) -> str:
        """Return the clause of an error that names the rank for which this server waits; "" if unknown."""


class WorkerWaits(DataPlane, Protocol):
    """The same for waits for programs of other workers, which may wait at the cut of a checkpoint.

    Attributes:
        snapshot: The worker's part in checkpoints.
    """

    snapshot: WorkerPart

    def check_cut_in_gather(self) -> None:
        """Take part in a pending cut while the worker waits in a gather, or report that it cannot."""
