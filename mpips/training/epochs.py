"""The loop of one worker over its epochs: steps, the position for checkpoints, evaluations.

Before each clock the worker records the position of the batch after it (epoch, step, and the loss summed
over the epoch so far). A checkpoint of that clock contains the position, so that a restart repeats no step
and skips none.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from mpips.config.sections import ScheduleConfig
from mpips.data import Cursor, DataInfo, Dataset, Loader, Moments, Sampling
from mpips.data.rows import Arrays
from mpips.data.stream import StreamedData
from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.local_sgd import Local
from mpips.model.table import Table
from mpips.mpi.messages import Evaluation, ReportDetails
from mpips.scheduler.run_progress import RunProgress
from mpips.tasks import StepResult, Task
from mpips.training.best import BestCheckpoint
from mpips.training.callback import EpochCallback
from mpips.training.evaluation import evaluate, own_names
from mpips.training.final_test import FinalTest
from mpips.training.rates import Rates
from mpips.training.result import Result
from mpips.training.sizing import Sizing
from mpips.training.stopping import EarlyStopping
from mpips.training.weights import ClassWeights
from mpips.worker.worker import Worker, connection_of

_REPORT_INTERVAL_S = 0.25  # seconds between two progress reports of a worker
_CHEAP_SHARE = 10  # an evaluation of one in so many training samples, or fewer, is cheap
_PACE_STEPS = 8  # steps between two checks whether the worker is too far ahead


@dataclass
class Inputs:
    """The inputs of a rank before the session starts.

    Attributes:
        info: Description of the training data of all workers.
        task: The task.
        tables: Its tables, with the overrides of the configuration.
        n_epochs: Epochs of the run.
        batch_size: Samples of a step of one worker.
        train: Training data of this worker; None on ranks that are not workers.
        test: Samples of this worker on which epochs are evaluated: the validation data, or the test data of a
            job without; None without any.
        n_test: Number of these samples of all workers.
        first_epoch: Epochs that are complete at the start.
        sampling: The order of samples, with what was read of the epochs that are not complete.
        cursors: Position of each worker at the start; empty: all begin with what is left of `first_epoch`.
        clocks: Clock of each worker at its position; empty: 0.
        steps_before: Steps of the run at which clocks were 0.
        notes: Sentences about the data, printed at the start.
        test_source: These data, for people.
        make_task: Makes the task again for other columns.
        verbose: Worker 0 prints the notes and the task's report.
        saves: The job has a folder for checkpoints.
        schedule: The rule by which learning rates change.
        stopping: Decides whether training ends early; None: it does not.
        best: Keeps the best checkpoint; None: the job keeps none.
        class_weight: The option data.class_weight.
        class_weights: Weights of the classes, when the task is ready; None: none.
        metrics: Names of metrics of evaluations beside those of the task.
        arrays: Arrays of a task that reads its files itself; see `mpips.data.rows.Arrays`. {} on ranks that
            are not workers.
        block, window: Sizes for training data that is read in windows; see `mpips.data.Shape`.
        callback: The function that is called after each epoch; None: none is.
        skipped: Bad lines that were left out of the files for "train", "validation" and "test"; empty: none
            were converted.
        sizing: Determines batches and tables for other numbers of workers; see `for_workers`.
        unevaluated: The start is the end of an epoch whose evaluation `stopping` and `best` may lack.
        test_name: Name of the data `test`.
        final_test: The test data of a job with validation data; None without such data.
        moments: Moments of all workers' training data, when the task is ready.
    """

    info: DataInfo
    task: Task
    tables: list[Table]
    n_epochs: int
    batch_size: int
    train: Dataset | StreamedData | None = None
    test: Dataset | StreamedData | None = None
    n_test: int = 0
    first_epoch: int = 0
    sampling: Sampling | None = None
    cursors: tuple[Cursor, ...] = ()
    clocks: tuple[int, ...] = ()
    steps_before: int = 0
    notes: tuple[str, ...] = ()
    test_source: str = "test"
    make_task: Callable[[DataInfo], Task] | None = None
    verbose: bool = False
    saves: bool = False
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    stopping: EarlyStopping | None = None
    best: BestCheckpoint | None = None
    class_weight: Literal["balanced"] | dict[str, float] | None = None
    class_weights: ClassWeights | None = None
    metrics: tuple[str, ...] = ()
    arrays: Arrays = field(default_factory=dict)
    callback: EpochCallback | None = None
    unevaluated: bool = False
    block: int = 0
    window: int = 0
    sizing: Sizing | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    test_name: Evaluation = "test"
    final_test: FinalTest | None = None
    moments: Moments | None = None

    def for_workers(self, n_workers: int) -> Inputs:
        """Return a copy with the task, the batch size and the tables of a job of so many workers."""
        assert self.make_task is not None
        assert self.sizing is not None
        task = self.make_task(self.info)
        size = self.sizing.batch_size(task, n_workers)
        return replace(self, task=task, batch_size=size, tables=self.sizing.tables(task, n_workers))

    def cursor(self, worker: int) -> Cursor:
        """Return the position at which a worker starts."""
        return self.cursors[worker] if self.cursors else Cursor(self.first_epoch, 0)

    @property
    def latest_epoch(self) -> int:
        """The greatest epoch at which a worker starts."""
        return max((cursor.epoch for cursor in self.cursors), default=self.first_epoch)

    def rates(self) -> Rates:
        """Return the learning rates of the run.

        Raises:
            ConfigError: A table's optimizer has no rate that can change.
        """
        return Rates(self.schedule, self.tables, self.n_epochs)

    def run_progress(self) -> RunProgress:
        """Return the progress of the whole run, earlier launches included."""
        whole = self.info.n_samples_total * self.n_epochs
        left = sum(self._samples_left(epoch) for epoch in range(self.first_epoch, self.n_epochs))
        return RunProgress(self.n_epochs, whole, whole - left, self.first_epoch)

    def _samples_left(self, epoch: int) -> int:
        """Return the number of samples of an epoch that no worker has read."""
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


def train_epochs(
    worker: Worker, inputs: Inputs, loader: Loader, eval_every: int, result: Result
) -> tuple[float, int]:
    """Make all steps of this worker; return the summed loss and the samples of its last epoch. Blocks.

    Sets `result.epochs`, and `result.stopped` if training ends early.

    Args:
        worker: The worker.
        inputs: Its inputs; the task is prepared.
        loader: Its batches.
        eval_every: Epochs between two evaluations; 0: none.
        result: Samples, losses and evaluations are added to it.
    """
    task = inputs.task
    begin_step = getattr(task, "begin_step", None)
    rates = inputs.rates()
    n_clocks = _clocks(worker, inputs, loader)
    report = _Reporter(worker, functools.partial(rates.current, task))
    # Each worker has its own share of the data. Under ASP, if one worker ended long before the others, the
    # last updates would come from the other shares only. To wait costs no time: the slowest share determines
    # the end.
    ahead = max(_PACE_STEPS, loader.steps_per_epoch // 4)
    in_step = in_common_step(inputs.tables)
    done = _EpochSum.of(worker, loader.cursor)
    last, epoch = (0.0, 0), loader.cursor.epoch
    result.epochs = max(inputs.n_epochs, inputs.first_epoch)
    if inputs.unevaluated and loader.cursor.step == 0 and epoch == inputs.latest_epoch:
        last = _EpochSum.ended(worker, loader.cursor)
        _evaluate_epoch(worker, inputs, epoch - 1, eval_every, result)
        _call_back(worker, inputs, epoch - 1, last, result)
    worker.set_cursor(_position(done, last, loader.cursor, inputs))
    if result.stopped:
        return last
    for cursor, batch in loader.until(inputs.n_epochs):
        # With backup workers a late worker skips clocks, so its clock may end before its batches do.
        if worker.now >= n_clocks:
            break
        rates.set(worker, cursor.epoch, cursor.step, loader.steps_in(cursor.epoch))
        if batch.n:
            if inputs.class_weights is not None:
                batch = inputs.class_weights.applied(batch)
            if begin_step is not None:
                begin_step(cursor.epoch, cursor.step, loader.steps_in(cursor.epoch))
            task.prefetch(worker, batch)
            step = _checked(task, task.step(worker, batch))
            report.add(cursor.epoch, cursor.step, step.n, step.loss_sum)
            done.loss, done.samples = done.loss + step.loss_sum, done.samples + step.n
            result.samples += step.n
        # Record the position after this batch before the clock to which it belongs.
        following = loader.after(cursor)
        ends = following.epoch != cursor.epoch
        if ends:
            last, done = (done.loss, done.samples), _EpochSum()
            result.losses[cursor.epoch] = last
        worker.set_cursor(_position(done, last, following, inputs))
        worker.clock()
        if not in_step and cursor.step % _PACE_STEPS == 0:
            worker.keep_pace(ahead)
        if ends:
            report.flush(cursor.epoch, cursor.step)
            _evaluate_epoch(worker, inputs, cursor.epoch, eval_every, result)
            _call_back(worker, inputs, cursor.epoch, last, result)
        epoch = following.epoch
        if result.stopped:
            return last
    # A worker that skipped clocks ends before its last epochs; the others evaluate them with it.
    for missed in range(epoch, inputs.n_epochs):
        _evaluate_epoch(worker, inputs, missed, eval_every, result)
    return last


def _position(
    done: _EpochSum, last: tuple[float, int], at: Cursor, inputs: Inputs
) -> dict[str, Any]:
    """Return the position for checkpoints: that of the next batch, with all that a restart needs."""
    found = done.cursor(at)
    if inputs.callback is not None and at.step == 0:
        # A restart from here calls the function for the epoch before.
        found |= {"ended_loss": _plain(last[0]), "ended_samples": last[1]}
    return found | (inputs.stopping.position() if inputs.stopping is not None else {})


def _checked(task: Task, step: object) -> StepResult:
    """Check the value that a step returned.

    Raises:
        ConfigError: The value is not a pair.
    """
    if isinstance(step, tuple) and len(step) == 2:
        return StepResult(*step)
    raise ConfigError(
        f"{type(task).__name__}.step returned {step!r:.60}: must be StepResult(loss_sum, n), with the summed "
        "loss and the number of samples"
    )


def in_common_step(tables: Sequence[Table]) -> bool:
    """Return True if all tables wait for all workers, at each clock or at outer steps."""
    return all(isinstance(t.consistency, BSP | Local) for t in tables)


def _clocks(worker: Worker, inputs: Inputs, loader: Loader) -> int:
    """Return the last clock of this worker; with backup workers, that of the one with the fewest steps."""
    own = worker.now + loader.steps_until(inputs.n_epochs)
    if not _has_backup(inputs) or not inputs.cursors:
        return own
    clocks = inputs.clocks or [0] * len(inputs.cursors)
    begun = worker.now - clocks[worker.index]
    left = [loader.steps_until(inputs.n_epochs, cursor) for cursor in inputs.cursors]
    return begun + min(clock + steps for clock, steps in zip(clocks, left, strict=True))


def _has_backup(inputs: Inputs) -> bool:
    """Return True if there are backup workers, so that a late worker may skip clocks."""
    return any(isinstance(t.consistency, BSP) and t.consistency.backup for t in inputs.tables)


def refuse_backup(inputs: Inputs) -> None:
    """Check that all workers come to the end of each epoch, if a function is called there.

    Raises:
        ConfigError: The job has backup workers.
    """
    if inputs.callback is not None and _has_backup(inputs):
        raise ConfigError(
            "on_epoch_end does not work with backup workers, which may skip the end of an epoch: set "
            "backup = 0, or leave on_epoch_end out"
        )


def is_evaluation_cheap(inputs: Inputs) -> bool:
    """Return True if an evaluation takes at most about a tenth of an epoch, by the numbers of samples.

    A prediction takes less time than a step on the same sample. Metrics of a task's own, such as ranks among
    all items, may take more, so such evaluations count as expensive. So do those with backup workers, where
    worker 0 evaluates while the others go on.
    """
    if own_names(inputs.task, inputs.metrics) or _has_backup(inputs):
        return False
    return 0 < _CHEAP_SHARE * inputs.n_test <= inputs.info.n_samples_total


def _evaluate_epoch(
    worker: Worker, inputs: Inputs, epoch: int, eval_every: int, result: Result
) -> None:
    """Evaluate the validation or test data after an epoch, if that is due. Collective over workers.

    An epoch that some worker had completed before this launch is skipped, because that worker does not come
    here; for early stopping and the best checkpoint all workers come to the evaluation of the last such
    epoch, if that may be missing.
    """
    started = inputs.latest_epoch - inputs.unevaluated
    due = eval_every and (epoch + 1) % eval_every == 0 and epoch >= started
    if due and inputs.test is not None and epoch + 1 < inputs.n_epochs:
        # With backup workers only worker 0 may wait here: the pulls of a late worker wait for clocks that the
        # others have not ended yet. So the scores are ranked by worker 0.
        n_total = 0 if _has_backup(inputs) else inputs.n_test
        name = f"epoch {epoch + 1}"
        # Under LocalSGD and DiLoCo workers evaluate the values of the last outer step, which are the same.
        with worker.averaged():
            found = evaluate(worker, inputs.task, inputs.test, n_total, name, inputs.metrics)
        result.evaluated_epoch = epoch
        if found is not None:
            result.evaluated[epoch] = found
            step = inputs.steps_before + worker.now
            worker.report_metrics(epoch + 1, step, found, inputs.test_name)
        if inputs.stopping is not None:
            inputs.stopping.agree(worker, epoch + 1, found)
            if inputs.stopping.is_over:
                result.epochs, result.stopped = epoch + 1, inputs.stopping.text(epoch + 1)
        if inputs.best is not None:
            inputs.best.agree(worker, epoch + 1, found)


def _call_back(
    worker: Worker, inputs: Inputs, epoch: int, losses: tuple[float, int], result: Result
) -> None:
    """Call the function of the job after an epoch, and end training if it requests that. Collective.

    After the last epoch, and after an end by early stopping, it is called with the last metrics of the job
    (`mpips.training.train`). As for evaluations, an epoch that some worker had completed before this launch
    is skipped, but for the last such epoch if its call may be missing.
    """
    started = inputs.latest_epoch - inputs.unevaluated
    over = result.stopped or epoch + 1 >= inputs.n_epochs or epoch < started
    if inputs.callback is None or over:
        return
    if inputs.callback.ends(worker, epoch + 1, losses, result.evaluated.get(epoch)):
        result.is_ended_by_caller = True
        result.epochs, result.stopped = epoch + 1, f"after epoch {epoch + 1}: by on_epoch_end"


class _EpochSum(msgspec.Struct):
    """The summed loss and the samples of a worker's epoch so far, which are part of its position."""

    loss: float = 0.0
    samples: int = 0

    @classmethod
    def of(cls, worker: Worker, cursor: Cursor) -> _EpochSum:
        """Return the sums in the checkpoint if the worker starts from its own position there, else zeros."""
        found = worker.start.cursor if worker.start is not None else None
        if not found or (found.get("epoch"), found.get("step")) != (cursor.epoch, cursor.step):
            return cls()
        loss = found.get("loss", 0.0)
        # Checkpoints before 0.3 have null for infinity and NaN.
        return cls(float("nan" if loss is None else loss), int(found.get("samples", 0)))

    @staticmethod
    def ended(worker: Worker, cursor: Cursor) -> tuple[float, int]:
        """Return loss and samples of the epoch that ended at the worker's start; zeros if unknown."""
        found = worker.start.cursor if worker.start is not None else None
        if not found or (found.get("epoch"), found.get("step")) != (cursor.epoch, cursor.step):
            return 0.0, 0
        return float(found.get("ended_loss", 0.0)), int(found.get("ended_samples", 0))

    def cursor(self, at: Cursor) -> dict[str, Any]:
        """Return the position for checkpoints: that of the next batch, and these sums."""
        loss = _plain(self.loss)
        return {"epoch": at.epoch, "step": at.step, "loss": loss, "samples": self.samples}


def _plain(loss: float) -> float | str:
    """Return a loss as a value of JSON, which has neither infinity nor NaN."""
    return loss if math.isfinite(loss) else repr(loss)


class _Reporter:
    """Reports the progress of a worker to the scheduler, a few times a second."""

    def __init__(self, worker: Worker, rates: Callable[[], list[float]]) -> None:
        """`rates`: returns the learning rates of the newest step."""
        self._worker = worker
        self._rates = rates
        self._reported: list[float] = []  # rates of the report before
        self._samples = 0
        self._loss = 0.0
        self._next = time.monotonic() + _REPORT_INTERVAL_S

    def add(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Add a step, and send a report if one is due."""
        self._samples += samples
        self._loss += loss_sum
        if time.monotonic() >= self._next:
            self.flush(epoch, step)

    def flush(self, epoch: int, step: int) -> None:
        """Report the steps that were added since the last report."""
        if self._samples:
            rates = self._rates()
            details = ReportDetails(rates=rates) if rates != self._reported else None
            self._reported = rates
            connection = connection_of(self._worker)
            connection.report(epoch, step, self._samples, self._loss, details)
        self._samples, self._loss = 0, 0.0
        self._next = time.monotonic() + _REPORT_INTERVAL_S
