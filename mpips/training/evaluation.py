"""Evaluate the test data: each worker its share, sums and ranks along the tree of the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpips.data.label_metrics import label_metrics
from mpips.data.metrics import EvalShare, Kind, Scores, Totals, pack, unpack
from mpips.data.quotients import Quotients
from mpips.data.ranking import Pairs, Ranking
from mpips.data.rows import PART, Samples
from mpips.errors import ConfigError
from mpips.training.halving import spread_ranking, sum_above
from mpips.worker.worker import Worker, connection_of

if TYPE_CHECKING:
    from mpips.data import Batch
    from mpips.tasks import Task
    from mpips.tasks.base import Worker as TaskWorker
    from mpips.worker.collectives import AnyArray, Collectives

BATCH = PART
# Samples whose scores worker 0 alone may rank: at most 24 MiB. More are divided by score among all workers.
_ONE_RANK = 1 << 20


def evaluate(
    worker: Worker,
    task: Task,
    test: Samples,
    n_total: int,
    name: str,
    more: Sequence[str] = (),
    tables: TaskWorker | None = None,
) -> dict[str, float] | None:
    """Return the metrics over all workers' shares of some data on worker 0; None on other workers.

    Collective over workers. Worker 0 waits for all shares. The others do not wait, unless there is an AUC of
    more than 2**20 samples: then all workers exchange scores (`mpips.training.halving`). For an AUC a worker
    needs memory for the scores of a few shares, or of 2**20 samples; for other metrics, of one batch.

    Args:
        worker: The worker.
        task: The task.
        test: This worker's share of the data.
        n_total: Number of samples of all workers.
        name: Unique name of the evaluation.
        more: Names of metrics to add to those of the task.
        tables: The values that are evaluated; None: those of the job's servers.
    """
    collectives = connection_of(worker).collectives
    values: TaskWorker = tables if tables is not None else worker
    own = own_names(task, more)
    more = (*more, *task.metrics)
    found: dict[str, float] | None = None
    if has_scores(task):
        shares = (scored(values, task, batch) for batch in batches_of(test))
        found = combine(collectives, shares, n_total, f"evaluation {name}", more)
    if own:
        local = measured(values, task, test, own)
        packed = collectives.reduce(
            f"evaluation {name}, own metrics",
            local.pack(),
            lambda low, high: (Quotients.unpack(own, low) + Quotients.unpack(own, high)).pack(),
            everyone=False,
        )
        if packed is not None:
            found = (found or {}) | Quotients.unpack(own, packed).values()
    return found


def batches_of(test: Samples, size: int = BATCH) -> Iterator[Any]:
    """Yield all samples in batches; one empty batch if there are no samples."""
    for start in range(0, max(test.n, 1), size):
        yield test.take(np.arange(start, min(start + size, test.n)))


def has_scores(task: Task) -> bool:
    """Return True if the metrics of scores and labels apply to a task."""
    return getattr(task, "labels", "classes") != "none"


def own_names(task: Task, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the task's own metrics that an evaluation computes.

    Args:
        task: The task.
        more: Names of metrics that were asked for.
    """
    own = getattr(task, "own_metrics", {})
    return tuple(name for name in own if name in task.metrics or name in more)


def measured(worker: TaskWorker, task: Task, test: Samples, names: Sequence[str]) -> Quotients:
    """Return the sums of the task's own metrics over this worker's samples.

    Raises:
        ConfigError: `measure` returned something else than its interface requires.
    """
    total = Quotients.zero(names)
    for batch in batches_of(test):
        if batch.n:
            total += measured_batch(worker, task, batch, names)
    return total


def measured_batch(worker: TaskWorker, task: Task, batch: Any, names: Sequence[str]) -> Quotients:
    """Return the sums of the task's own metrics over a batch of one sample or more; see `measured`."""
    found = task.measure(worker, batch)
    try:
        return Quotients.of(names, found)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{type(task).__name__}.measure: {error}") from error


def combine(
    collectives: Collectives,
    shares: Iterator[EvalShare],
    n_total: int,
    name: str,
    more: Sequence[str] = (),
) -> dict[str, float] | None:
    """Return the metrics over the samples of all workers on worker 0; None on others. Collective.

    Args:
        collectives: Gathers and reductions of this worker.
        shares: This worker's samples in parts, one at least, each of which is used before the next is made.
        n_total: Number of samples of all workers.
        name: Name of the reductions.
        more: Names of metrics to add.
    """
    totals: list[Totals] = []
    scores: list[list[Scores]] = []
    positive: list[list[Any]] = []
    for share in shares:
        columns = share.columns()
        if not totals:
            totals = [Totals() for _ in columns]
            scores, positive = [[] for _ in columns], [[] for _ in columns]
        for i, column in enumerate(columns):
            totals[i] += Totals.of(column)
            if column.ranked:
                scores[i].append(column.scores.astype(np.float64))
                positive[i].append(column.labels == 1)
    name = f"{name}, {share.form}"
    pairs = [Pairs() for _ in columns]
    for i, column in enumerate(columns):
        if column.ranked:
            own = Ranking.of(np.concatenate(scores[i]), np.concatenate(positive[i]))
            scores[i], positive[i] = [], []
            each = f"{name}, label {i}" if len(columns) > 1 else name
            pairs[i] = _pairs(collectives, own, n_total, each)
    packed = collectives.reduce(name, pack(totals, pairs), _add, everyone=False)
    if packed is None:
        return None
    return metrics_of(share, *unpack(packed), more)


def metrics_of(
    share: EvalShare, totals: Sequence[Totals], pairs: Sequence[Pairs], more: Sequence[str]
) -> dict[str, float]:
    """Return the metrics of all samples.

    Args:
        share: Any share; its kind and shape are used.
        totals: Totals of each of `share.columns()`.
        pairs: Pairs of each of them.
        more: Names of metrics to add; see `Totals.metrics`.
    """
    if share.kind == "labels":
        return label_metrics(totals, pairs)
    return totals[0].metrics(share, pairs[0], more)


def _pairs(collectives: Collectives, own: Ranking, n_total: int, name: str) -> Pairs:
    """Return the pairs of a range of scores, which is higher on workers with greater indices. Collective."""
    if n_total > _ONE_RANK:
        own = spread_ranking(collectives, name, own)
        counts = np.array([own.positives.sum(), own.negatives.sum()])
        positives, negatives = sum_above(collectives, name, counts).tolist()
        return own.pairs((positives, negatives))
    found = collectives.reduce(f"{name}: scores", own.to_array(), _merge, everyone=False)
    return Ranking.from_array(found).pairs() if found is not None else Pairs()


def _merge(low: AnyArray, high: AnyArray) -> AnyArray:
    return Ranking.from_array(low).merge(Ranking.from_array(high)).to_array()


def _add(low: AnyArray, high: AnyArray) -> AnyArray:
    (low_totals, low_pairs), (high_totals, high_pairs) = unpack(low), unpack(high)
    totals = [a + b for a, b in zip(low_totals, high_totals, strict=True)]
    return pack(totals, [a.below(b) for a, b in zip(low_pairs, high_pairs, strict=True)])


def scored(worker: TaskWorker, task: Task, batch: Batch) -> EvalShare:
    """Return the scores and labels of a batch."""
    kind, scores = _score(worker, task, batch)
    if kind == "values":
        return EvalShare(scores, batch.labels.astype(np.float64), kind)
    return EvalShare(scores, batch.labels.astype(np.int64), kind)


def _score(worker: TaskWorker, task: Task, batch: Batch) -> tuple[Kind, Scores]:
    """Return the kind and the values from which metrics are computed, one row or number for each sample."""
    if getattr(task, "labels", "classes") == "targets":
        return "values", _checked_scores(task, "predict", task.predict(worker, batch), batch.n)
    if batch.labels.ndim > 1:
        return "labels", _checked_scores(task, "logits", task.logits(worker, batch), batch.n)
    # Prefer logits, from which metrics are more exact. A task that is no subclass of Task may have none.
    logits = task.logits(worker, batch) if _has_logits(type(task)) else None
    if logits is not None:
        return "logits", _checked_scores(task, "logits", logits, batch.n)
    return "probabilities", _checked_scores(task, "predict", task.predict(worker, batch), batch.n)


def _has_logits(kind: type) -> bool:
    """Return True if the logits of a task belong to its predict, which a subclass may have replaced."""
    order = {name: i for i, base in reversed([*enumerate(kind.__mro__)]) for name in vars(base)}
    return "logits" in order and order["logits"] <= order.get("predict", len(kind.__mro__))


def _checked_scores(task: Task, method: str, scores: object, n: int) -> Scores:
    """Check the scores that a method of a task returned.

    Args:
        task: The task.
        method: Name of the method.
        scores: Its value: must have shape (n,) or (n, classes).
        n: Number of samples.

    Raises:
        ConfigError: The value is not an array of such a shape.
    """
    shape = getattr(scores, "shape", None)
    if not isinstance(scores, np.ndarray) or scores.ndim not in (1, 2) or len(scores) != n:
        found = f"an array of shape {shape}" if shape is not None else f"{scores!r:.60}"
        raise ConfigError(
            f"{type(task).__name__}.{method} returned {found}: must be an array of shape ({n},) or "
            f"({n}, classes)"
        )
    return scores
