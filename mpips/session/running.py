"""A job at work on one rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpips.worker.worker import Worker


@dataclass
class RunningJob:
    """A job at work on this rank: what the block of `at_work` gets, and what it leaves.

    Attributes:
        worker: The worker of this rank; None on other ranks.
        statistics: Statistics of the job; set when the block has ended.
    """

    worker: Worker | None = None
    statistics: dict[str, Any] = field(default_factory=dict)
