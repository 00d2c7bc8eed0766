"""A worker's way through its epochs: steps, the place that a checkpoint needs, evaluations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from mpips.data import Batch, Cursor, DataInfo, Dataset, Loader, Sampling
from mpips.data.metrics import EvalShare, Kind, Scores, merge
from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.table import Table
from mpips.scheduler.run_progress import RunProgress
from mpips.tasks import StepResult, Task
from mpips.worker.worker import Worker

_REPORT_INTERVAL_S = 0.25
_EVAL_BATCH = 4096
_PACE_STEPS = 8  # how often a worker looks whether it is too far ahead


@dataclass
class Inputs:
    """What a rank knows before the session starts; data on workers only."""

    info: DataInfo
    task: Task
    tables: list[Table]
    n_epochs: int
    batch_size: int
    train: Dataset | None = None
    test: Dataset | None = None
    # Of the checkpoint that training starts from: epochs that it has behind it, what was read of later
    # ones, and each worker's place; no places: all begin with what is left of `first_epoch`.
    first_epoch: int = 0
    sampling: Sampling | None = None
    cursors: tuple[Cursor, ...] = ()
    clocks: tuple[int, ...] = ()  # of each worker at its cursor; none: 0
    steps_before: int = 0  # of the run, when clocks were 0
    # Sentences about the data, for the output at start.
    notes: tuple[str, ...] = ()
    make_task: Callable[[DataInfo], Task] | None = None
    verbose: bool = False  # worker 0 prints the notes and the task's report

    def cursor(self, worker: int) -> Cursor:
        """Where a worker starts."""
        return self.cursors[worker] if self.cursors else Cursor(self.first_epoch, 0)

    def run_progress(self) -> RunProgress:
        """The way of the whole run, with what launches before this one have done of it."""
        whole = self.info.n_samples_total * self.n_epochs
        left = sum(self._samples_left(epoch) for epoch in range(self.first_epoch, self.n_epochs))
        return RunProgress(self.n_epochs, whole, whole - left, self.first_epoch)

    def _samples_left(self, epoch: int) -> int:
        """Samples of an epoch that no worker has read."""
        if self.sampling is None or epoch > max(
            [self.first_epoch, *(c.epoch for c in self.cursors)]
        ):
            return self.info.n_samples_total
        left = 0
        for worker, own in enumerate(self.sampling.counts(epoch)):
            at = self.cursor(worker)
            read = 0 if at.epoch < epoch else own
            left += own - (min(at.step * self.batch_size, own) if at.epoch == epoch else read)
        return left


@dataclass
class Result:
    """What a job gives: totals over all workers, test metrics on worker 0 only.

    Attributes:
        history: For each epoch of this launch its number from 1 and the mean loss of all workers, and the
            metrics of the test data where they were evaluated (on worker 0).
        steps: Of the run up to here: the greatest clock of a worker, with those of launches before.
        n_samples, n_features: Of the training data.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    # By epoch from 0: this worker's summed loss and samples, and the metrics on worker 0.
    losses: dict[int, tuple[float, int]] = field(default_factory=dict)
    evaluated: dict[int, dict[str, float]] = field(default_factory=dict)
    samples: int = 0
    seconds: float = 0.0
    epochs: int = 0
    steps: int = 0
    n_samples: int = 0
    n_features: int = 0


def train_epochs(
    worker: Worker, inputs: Inputs, loader: Loader, eval_every: int, result: Result
) -> tuple[float, int]:
    """All steps of this worker; returns summed loss and samples of its last epoch.

    The task is prepared. Blocks; adds samples and evaluations to `result`.
    """
    task = inputs.task
    n_clocks = _clocks(worker, inputs, loader)
    report = _Reporter(worker)
    # Each worker has its own share of the data: under ASP one that ran far ahead would leave the last
    # word to the others' shares. Waiting costs nothing in the end, since the slowest share decides.
    ahead = max(_PACE_STEPS, loader.steps_per_epoch // 4)
    in_step = all(isinstance(t.consistency, BSP) for t in inputs.tables)
    done = _EpochSum.of(worker, loader.cursor)
    worker.set_cursor(done.cursor(loader.cursor))
    last = (0.0, 0)
    for cursor, batch in loader.until(inputs.n_epochs):
        # With backup workers a late worker skips clocks, and is done when the others are.
        if worker.now >= n_clocks:
            break
        if batch.n:
            task.prefetch(worker, batch)
            step = _checked(task, task.step(worker, batch))
            report.add(cursor.epoch, cursor.step, step.n, step.loss_sum)
            done.loss, done.samples = done.loss + step.loss_sum, done.samples + step.n
            result.samples += step.n
        following = loader.after(cursor)
        ends = following.epoch != cursor.epoch
        if ends:
            last, done = (done.loss, done.samples), _EpochSum()
            result.losses[cursor.epoch] = last
        worker.set_cursor(done.cursor(following))
        worker.clock()
        if not in_step and cursor.step % _PACE_STEPS == 0:
            worker.keep_pace(ahead)
        if ends:
            report.flush(cursor.epoch, cursor.step)
            _evaluate_epoch(worker, inputs, cursor.epoch, eval_every, result)
    return last


def _checked(task: Task, step: object) -> StepResult:
    """Return what a step returned.

    Raises:
        ConfigError: It is no pair of numbers.
    """
    if isinstance(step, tuple) and len(step) == 2:
        return StepResult(*step)
    raise ConfigError(
        f"{type(task).__name__}.step returned {step!r:.60}: must be StepResult(loss_sum, n)"
    )


def _checked_scores(task: Task, method: str, scores: object, n: int) -> Scores:
    """Return what a task's method returned; refuse what it must not return.

    Raises:
        ConfigError: It is no array of a row or number for each sample.
    """
    shape = getattr(scores, "shape", None)
    if not isinstance(scores, np.ndarray) or scores.ndim not in (1, 2) or len(scores) != n:
        found = f"an array of shape {shape}" if shape is not None else f"{scores!r:.60}"
        raise ConfigError(
            f"{type(task).__name__}.{method} returned {found}: must be an array of shape ({n},) or "
            f"({n}, classes)"
        )
    return scores


def _clocks(worker: Worker, inputs: Inputs, loader: Loader) -> int:
    """The last clock: of the worker that has the fewest steps left, where late ones skip clocks."""
    own = worker.now + loader.steps_until(inputs.n_epochs)
    backup = any(isinstance(t.consistency, BSP) and t.consistency.backup for t in inputs.tables)
    if not backup or not inputs.cursors:
        return own
    clocks = inputs.clocks or [0] * len(inputs.cursors)
    begun = worker.now - clocks[worker.index]
    left = [loader.steps_until(inputs.n_epochs, cursor) for cursor in inputs.cursors]
    return begun + min(clock + steps for clock, steps in zip(clocks, left, strict=True))


def _evaluate_epoch(
    worker: Worker, inputs: Inputs, epoch: int, eval_every: int, result: Result
) -> None:
    """Metrics after an epoch, where they are due and all workers come here in this launch."""
    started = max((cursor.epoch for cursor in inputs.cursors), default=0)
    due = eval_every and (epoch + 1) % eval_every == 0 and epoch >= started
    if due and inputs.test is not None and epoch + 1 < inputs.n_epochs:
        found = evaluate(worker, inputs.task, inputs.test, f"epoch {epoch + 1}")
        if found is not None:
            result.evaluated[epoch] = found
            step = inputs.steps_before + worker.now
            worker.report_metrics(epoch + 1, step, found)


def history(
    losses: Sequence[Mapping[int, tuple[float, int]]], evaluated: Mapping[int, dict[str, float]]
) -> list[dict[str, float]]:
    """Return what `Result.history` holds.

    Args:
        losses: Of each worker, by epoch.
        evaluated: Metrics by epoch.
    """
    found = []
    for epoch in sorted({epoch for own in losses for epoch in own} | set(evaluated)):
        total, n = np.sum([own.get(epoch, (0.0, 0)) for own in losses], axis=0)
        loss = {"loss": float(total / n)} if n else {}
        found.append({"epoch": epoch + 1, **loss, **evaluated.get(epoch, {})})
    return found


@dataclass
class _EpochSum:
    """Summed loss and samples of a worker's epoch so far, which its cursor carries along."""

    loss: float = 0.0
    samples: int = 0

    @classmethod
    def of(cls, worker: Worker, cursor: Cursor) -> _EpochSum:
        """As the checkpoint has it, if the worker starts from its own place there."""
        found = worker.start.cursor if worker.start is not None else None
        if not found or (found.get("epoch"), found.get("step")) != (cursor.epoch, cursor.step):
            return cls()
        return cls(float(found.get("loss", 0.0)), int(found.get("samples", 0)))

    def cursor(self, at: Cursor) -> dict[str, Any]:
        """With the place of the next batch, for a checkpoint."""
        return {"epoch": at.epoch, "step": at.step, "loss": self.loss, "samples": self.samples}


class _Reporter:
    """Tells the scheduler of progress, a few times a second."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._samples = 0
        self._loss = 0.0
        self._next = time.monotonic() + _REPORT_INTERVAL_S

    def add(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Count a step."""
        self._samples += samples
        self._loss += loss_sum
        if time.monotonic() >= self._next:
            self.flush(epoch, step)

    def flush(self, epoch: int, step: int) -> None:
        """Send what has been counted."""
        if self._samples:
            self._worker.report(epoch, step, self._samples, self._loss)
        self._samples, self._loss = 0, 0.0
        self._next = time.monotonic() + _REPORT_INTERVAL_S


def evaluate(worker: Worker, task: Task, test: Dataset, name: str) -> dict[str, float] | None:
    """Metrics over all workers' shares of the test data, on worker 0; None elsewhere.

    Collective over workers: worker 0 waits for all shares, the others do not wait.
    """
    batches = (
        test.take(np.arange(i, min(i + _EVAL_BATCH, test.n)))
        for i in range(0, max(test.n, 1), _EVAL_BATCH)
    )
    scored = [_score(worker, task, batch) for batch in batches]
    kind = scored[0][0]
    scores = np.concatenate([part for _, part in scored]).astype(np.float64)
    labels = test.labels.astype(np.float64 if kind == "values" else np.int64)
    row = [kind, list(scores.shape), scores.tobytes(), labels.tobytes()]
    parts = worker.gather(f"evaluation {name}", msgspec.msgpack.encode(row), everyone=False)
    if worker.index != 0:
        return None
    return merge([_unpack_share(part) for part in parts], shares="mixed")


def _score(worker: Worker, task: Task, batch: Batch) -> tuple[Kind, Scores]:
    """Return what metrics are to be taken from, and its kind."""
    if getattr(task, "labels", "classes") == "targets":
        return "values", _checked_scores(task, "predict", task.predict(worker, batch), batch.n)
    # A task that is no subclass of Task need not have logits.
    logits = task.logits(worker, batch) if _has_logits(type(task)) else None
    if logits is not None:
        return "logits", _checked_scores(task, "logits", logits, batch.n)
    return "probabilities", _checked_scores(task, "predict", task.predict(worker, batch), batch.n)


def _has_logits(kind: type) -> bool:
    """Return whether a task's logits belong to its predict, which a subclass may have replaced."""
    order = {name: i for i, base in reversed([*enumerate(kind.__mro__)]) for name in vars(base)}
    return "logits" in order and order["logits"] <= order.get("predict", len(kind.__mro__))


def _unpack_share(part: bytes) -> EvalShare:
    kind, shape, scores, labels = msgspec.msgpack.decode(part)
    numbers = np.frombuffer(scores, np.float64).reshape(shape)
    if kind == "values":
        return EvalShare(numbers, np.frombuffer(labels, np.float64), kind)
    return EvalShare(numbers, np.frombuffer(labels, np.int64), kind)
