"""Evaluate samples that come block by block: sums of each batch, and the scores where a metric ranks them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mpips.data import Batch, Dataset
from mpips.data.dataset import join_batches
from mpips.data.metrics import EvalShare, Float64, Totals
from mpips.data.quotients import Quotients
from mpips.data.ranking import Pairs, pairs_of
from mpips.errors import DataError
from mpips.tasks import Task
from mpips.tasks.base import Worker
from mpips.training.evaluation import (
    BATCH,
    has_scores,
    measured_batch,
    metrics_of,
    own_names,
    scored,
)


def batches_in(blocks: Iterable[Dataset], source: str, size: int = BATCH) -> Iterator[Batch]:
    """Yield the samples of blocks in the batches that they would have as one data set.

    So predictions have the same bits for blocks of any size: a product of matrices has other last bits for
    other numbers of rows.

    Args:
        blocks: The blocks, each of which is used before the next is asked for.
        source: Name of the file in the error.
        size: Samples of a batch; the last one may have fewer.

    Raises:
        DataError: There are no samples.
    """
    parts: list[Batch] = []
    n, n_batches = 0, 0
    for block in blocks:
        start = 0
        while start < block.n:
            stop = min(start + size - n, block.n)
            parts.append(block.take(np.arange(start, stop)))
            n, start = n + stop - start, stop
            if n == size:
                yield parts[0] if len(parts) == 1 else join_batches(parts, 1.0)
                parts, n, n_batches = [], 0, n_batches + 1
    if parts:
        yield join_batches(parts, 1.0)
    elif not n_batches:
        raise DataError(f"{source}: contains no samples")


def evaluated(
    tables: Worker, task: Task, batches: Iterable[Any], more: Sequence[str] = ()
) -> dict[str, float]:
    """Return the metrics of samples.

    Args:
        tables: The values of the tables.
        task: The task, prepared for prediction.
        batches: The samples, in one batch at least.
        more: Names of metrics to add to those of the task.

    Returns:
        The value of each metric by its name, equal to that of `mpips.training.evaluation.evaluate`.
    """
    own = own_names(task, more)
    totals: list[Totals] = []
    scores: list[_Scores] = []
    sums, more = Quotients.zero(own), (*more, *task.metrics)
    share: EvalShare | None = None
    for batch in batches:
        if has_scores(task):
            share = scored(tables, task, batch)
            columns = share.columns()
            if not totals:
                totals, scores = [Totals() for _ in columns], [_Scores() for _ in columns]
            for i, column in enumerate(columns):
                totals[i] += Totals.of(column)
                scores[i].add(column)
        if own and batch.n:
            sums += measured_batch(tables, task, batch, own)
    if share is None:
        return sums.values()
    pairs = [own_scores.pairs() for own_scores in scores]
    return metrics_of(share, totals, pairs, more) | sums.values()


class _Scores:
    """The scores of two classes, 8 bytes a sample."""

    def __init__(self) -> None:
        self._positive: list[Float64] = []
        self._negative: list[Float64] = []

    def add(self, share: EvalShare) -> None:
        """Add the scores of samples, but for those that are nan; none if there is no area to compute."""
        if share.ranked:
            scores = share.scores.astype(np.float64)
            known, positive = ~np.isnan(scores), share.labels == 1
            self._positive.append(scores[known & positive])
            self._negative.append(scores[known & ~positive])

    def pairs(self) -> Pairs:
        """Return the pairs of all samples; the scores are forgotten."""
        sides = []
        for parts in (self._positive, self._negative):
            sides.append(np.concatenate([np.zeros(0), *parts]))
            parts.clear()
        return pairs_of(*sides)
