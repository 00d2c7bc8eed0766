"""The parts of a torch script, as its job and its models see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mpips.worker.worker import Worker


class Pulled(Protocol):
    """A table whose values a forward pass needs."""

    def open(self, worker: Worker) -> None:
        """Take the table's handle at the start of the job."""

    def pull(self) -> None:
        """Fetch the values. Blocks."""


class Pushed(Protocol):
    """A layer or table that has something to push at a step."""

    def push(self) -> None:
        """Push what the step has brought."""


class Restored(Protocol):
    """A part whose place is in the cursor."""

    def position(self) -> Any:
        """Return the place after the current step: numbers, text, lists and dicts."""

    def resume(self, position: Any) -> None:
        """Continue at a place that `position` returned."""


class PlacedLoader(Restored, Protocol):
    """A prepared loader: a restart continues when all of them are at their places."""

    @property
    def epoch(self) -> int:
        """Number of the current epoch."""

    @property
    def has_arrived(self) -> bool:
        """True from the beginning of the epoch of the restart on."""

    def resume_among(self, own: Any, everyone: Sequence[Any]) -> None:
        """Continue where the workers of a run stood; see StartingLoader."""
