"""A declared stream, as its producers and readers use it."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from mpips.insitu.layout import SampleLayout
from mpips.insitu.moments import MomentsLayout
from mpips.insitu.slots import SampleSlots
from mpips.worker.worker import Worker


class DeclaredStream(Protocol):
    """The form and the places of the samples of a stream: a `StreamTable`."""

    @property
    def name(self) -> str:
        """Name of the stream."""

    @property
    def producers(self) -> int:
        """Number of producers."""

    @property
    def invalid(self) -> Literal["error", "drop"]:
        """Treatment of a sample that contains NaN or infinity."""

    @property
    def layout(self) -> SampleLayout:
        """The form in which a sample is stored."""

    @property
    def moments_layout(self) -> MomentsLayout:
        """The moments that are taken."""

    @property
    def slots(self) -> SampleSlots:
        """The slots of each producer."""

    @property
    def declaration(self) -> int:
        """A checksum of all from which the place and form of a sample follow."""

    def check_declared(self, rows: NDArray[np.float32]) -> None:
        """Raise ConfigError for rows of NAME.counts that come from another declaration."""

    def handles(self, worker: Worker) -> tuple[Any, Any]:
        """Return the handles of samples and counts."""
