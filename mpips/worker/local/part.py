"""The tables under LocalSGD and DiLoCo of one worker, as start-up makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpips.checkpoint.worker_image import PartImage
    from mpips.model.table import DenseTable
    from mpips.worker.image.memory import ImageHalves


@dataclass(frozen=True)
class LocalPart:
    """The tables under LocalSGD and DiLoCo of one worker, as start-up makes them.

    Attributes:
        tables: These tables by their index in the job, with the inner rules.
        memory: Persistent memory, if a later launch can continue in memory; else None.
        image: The share of an image to start from; None: from the servers' values and new states.
        is_own: `image` is that of this worker, and not of one of a job with other workers.
        is_warm: `image` lies in `memory`: the job continues in memory.
    """

    tables: Mapping[int, DenseTable]
    memory: ImageHalves | None = None
    image: PartImage | None = None
    is_own: bool = True
    is_warm: bool = False
