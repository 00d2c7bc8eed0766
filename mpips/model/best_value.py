"""The value of a metric for which a checkpoint is kept as the best one of a run."""

from __future__ import annotations

import msgspec


class BestValue(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the watched metric for which a checkpoint was written as the best one of its run.

    Attributes:
        metric: Name of the metric.
        value: Its value, which the tables of the checkpoint have; finite.
        higher: Higher values of the metric are better.
        epoch: Epochs that were complete.
        data: The data of the metric, in words; "": unknown, as in checkpoints of earlier versions.
    """

    metric: str
    value: float
    higher: bool
    epoch: int
    data: str = ""

    def is_comparable(self, other: BestValue) -> bool:
        """Return True for another value of the same metric, on the same data as far as that is known."""
        known = self.data and other.data
        return self.metric == other.metric and (not known or self.data == other.data)

    def is_better(self, other: BestValue) -> bool:
        """Return True if this value is better than another one of the same metric."""
        return self.value > other.value if self.higher else self.value < other.value
