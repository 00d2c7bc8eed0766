"""The actions of a part of a worker's tables while the job is at work."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from mpips.checkpoint.worker_image import PartImage
    from mpips.mpi.messages import Figures


class TablePart:
    """A part of what one worker's tables do together; see mpips.worker.parts.

    The connection calls all parts in one order, `Connection.parts`. Here every method does nothing: a part
    defines those that it needs. One thread calls them, the worker's.

    Attributes:
        changes_clock: The end of a clock does more than to write the tick's records, so that a clock that is
            cut off cannot be ended again.
    """

    changes_clock: ClassVar[bool] = False

    def before_tick(self) -> None:
        """Do what belongs into the clock that ends, before its position and tick are written. May block."""

    def after_tick(self) -> None:
        """Do what follows when the tick is sent to all servers, still in the clock that ends. May block."""

    def before_cut(self, number: int) -> bool:
        """Write what belongs into checkpoint `number`, before the cut record. May block.

        Returns:
            False if the cut was given up meanwhile: then no record is written.
        """
        return True

    def finish(self) -> None:
        """End the worker's share, when it has ended its last clock. May block."""

    def image(self) -> dict[str, PartImage]:
        """Return the share of the part in the worker's image (mpips.worker.image); {}: nothing. May block."""
        return {}

    def leave(self) -> None:
        """Let other workers go on without this one, when all servers have the worker's end. May block."""

    def poll(self) -> None:
        """Take messages of other workers, and do what can be done now. Does not block."""

    def end(self) -> None:
        """Wait until no message of another worker is under way, when all have finished; or StallError."""

    def count(self, counters: dict[str, int]) -> None:
        """Add pushes that no ring has counted to the worker's counters."""

    def add_figures(self, figures: Figures) -> None:
        """Add bytes and pushes that no ring has counted to the worker's figures. Cheap."""
