"""A training job from its configuration: data, task, session, evaluation, result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from mpips.cluster import launch
from mpips.config import JobConfig
from mpips.data import (
    Cursor,
    DataInfo,
    Dataset,
    Loader,
    Moments,
    ReadOptions,
    Sampling,
    SparseData,
    align,
    combine,
    read,
)
from mpips.data.metrics import EvalShare, merge
from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.partition import FrequencyPartition
from mpips.model.table import Table
from mpips.monitor.progress import ProgressMeter, make_display
from mpips.options import SessionOptions
from mpips.overrides import apply_overrides, asks_for_measurement
from mpips.preflight import preflight, task_options
from mpips.resume import plan_saving
from mpips.session import Outcome, leaves_after_checkpoint, run_alone, signals_unwind
from mpips.tasks import Task, load_task
from mpips.transport.region import new_token
from mpips.worker import Worker

Value = TypeVar("Value")
_REPORT_INTERVAL_S = 0.25
_EVAL_BATCH = 4096
_PACE_STEPS = 8  # how often a worker looks whether it is too far ahead


class Ranks(Protocol):
    """The ranks of a job before its session: one process, or a cluster."""

    @property
    def worker(self) -> int | None:
        """This rank's worker index, or None."""

    def agree(self, what: str, work: Callable[[], Value]) -> list[Value]:
        """Do work on every rank; everyone's result, or the first error on all."""


class OneRank:
    """The only rank, which is worker 0."""

    worker = 0

    def agree(self, what: str, work: Callable[[], Value]) -> list[Value]:
        """See Ranks."""
        return [work()]


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

    def cursor(self, worker: int) -> Cursor:
        """Where a worker starts."""
        return self.cursors[worker] if self.cursors else Cursor(self.first_epoch, 0)


@dataclass
class Result:
    """What a job gives: totals over all workers, test metrics on worker 0 only."""

    metrics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    samples: int = 0
    seconds: float = 0.0
    epochs: int = 0


def read_options(config: JobConfig, split: str) -> ReadOptions:
    """The readers' part of [data].

    Raises:
        ConfigError: A value that no reader takes.
    """
    d = config.data
    raw = {
        "format": d.format,
        "index_base": d.index_base,
        "label": d.label,
        "categorical": d.categorical,
        "numeric": d.numeric,
        "empty": d.empty,
        "split": split,
    }
    try:
        return msgspec.convert(raw, ReadOptions)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise ConfigError(f"data.{where.rstrip('`')}: {what[0].lower()}{what[1:]}") from None


def prepare(ranks: Ranks, n_workers: int, config: JobConfig) -> Inputs:
    """Read the data, agree on it, make the task and its tables. Collective over the ranks.

    Raises:
        DataError, ConfigError: On every rank, what is wrong on any.
    """
    task_class = load_task(config.task)
    own: dict[str, Any] = {}

    def load(path: str, split: str, like: DataInfo | None) -> dict[str, Any] | None:
        if ranks.worker is None:
            return None
        options = read_options(config, split)
        own[split] = part = read(
            path, stride=n_workers, offset=ranks.worker, options=options, like=like
        )
        return part.info.to_config()

    rows = ranks.agree("reading the training data", lambda: load(config.data.train, "train", None))
    info = combine([DataInfo.from_config(row) for row in rows if row is not None])
    if config.data.test:
        ranks.agree("reading the test data", lambda: load(config.data.test, "test", info))
    ranks.agree("matching labels", lambda: _align(own, info))
    data = own.get("train")
    measured = _measure(ranks, data, info) if asks_for_measurement(config) else None
    task = task_class(info, task_options(task_class, config.options), config.cluster.seed)
    tables = apply_overrides(task.tables(), config, measured)
    return Inputs(
        info,
        task,
        tables,
        config.train.epochs or task.default_epochs,
        config.train.batch_size or task.default_batch_size,
        data,
        own.get("test"),
    )


def _align(own: dict[str, Any], info: DataInfo) -> None:
    for split, part in list(own.items()):
        own[split] = align(part.data, info)


def _measure(ranks: Ranks, data: Dataset | None, info: DataInfo) -> FrequencyPartition | None:
    """Key frequencies of the whole training data, in hash buckets."""
    if info.kind != "sparse":
        return None

    def count() -> list[int] | None:
        if not isinstance(data, SparseData):
            return None
        keys, counts = np.unique(data.indices, return_counts=True)
        return list(FrequencyPartition.from_counts(keys, counts.astype(np.int64)).bucket_counts)

    rows = [row for row in ranks.agree("measuring frequencies", count) if row is not None]
    return FrequencyPartition(
        bucket_counts=tuple(sum(column) for column in zip(*rows, strict=True))
    )


def train_worker(worker: Worker, inputs: Inputs, config: JobConfig) -> Result:
    """The work of one worker: all epochs, evaluations in between and at the end."""
    loader = ready(worker, inputs, config.cluster.seed)
    result = Result()
    start = time.monotonic()
    last = train_epochs(worker, inputs, loader, config.train.eval_every, result)
    worker.flush()
    parts = worker.gather("end of training", msgspec.msgpack.encode([result.samples, *last]))
    result.seconds = time.monotonic() - start
    result.epochs = max(inputs.n_epochs, inputs.first_epoch)
    totals = np.sum([msgspec.msgpack.decode(part) for part in parts], axis=0)
    result.samples = int(totals[0])
    result.metrics["loss"] = float(totals[1] / totals[2]) if totals[2] else float("nan")
    if inputs.test is not None:
        result.metrics.update(evaluate(worker, inputs.task, inputs.test, "final") or {})
    return result


def ready(worker: Worker, inputs: Inputs, seed: int) -> Loader:
    """Prepare the task with everybody's moments; the batches of this worker. Collective over workers."""
    assert inputs.train is not None
    local = Moments.of(inputs.train)
    parts = worker.gather("moments", _pack_moments(local))
    inputs.task.prepare(worker, Moments.combine([_unpack_moments(part) for part in parts]))
    return Loader(
        inputs.train,
        inputs.info.n_samples_total,
        worker.n_workers,
        worker.index,
        inputs.batch_size,
        seed,
        cursor=inputs.cursor(worker.index),
        weighted=all(isinstance(t.consistency, BSP) for t in inputs.tables),
        sampling=inputs.sampling,
    )


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
            step = task.step(worker, batch)
            report.add(cursor.epoch, cursor.step, step.n, step.loss_sum)
            done.loss, done.samples = done.loss + step.loss_sum, done.samples + step.n
            result.samples += step.n
        following = loader.after(cursor)
        ends = following.epoch != cursor.epoch
        if ends:
            last, done = (done.loss, done.samples), _EpochSum()
        worker.set_cursor(done.cursor(following))
        worker.clock()
        if not in_step and cursor.step % _PACE_STEPS == 0:
            worker.keep_pace(ahead)
        if ends:
            report.flush(cursor.epoch, cursor.step)
            _evaluate_epoch(worker, inputs, cursor.epoch, eval_every, result)
    return last


def _clocks(worker: Worker, inputs: Inputs, loader: Loader) -> int:
    """Clocks to come: of the worker that has the fewest steps left, where late ones skip clocks."""
    own = loader.steps_until(inputs.n_epochs)
    backup = any(isinstance(t.consistency, BSP) and t.consistency.backup for t in inputs.tables)
    if not backup or not inputs.cursors:
        return own
    return min(loader.steps_until(inputs.n_epochs, cursor) for cursor in inputs.cursors)


def _evaluate_epoch(
    worker: Worker, inputs: Inputs, epoch: int, eval_every: int, result: Result
) -> None:
    """Metrics after an epoch, where they are due and all workers come here in this launch."""
    started = max((cursor.epoch for cursor in inputs.cursors), default=0)
    due = eval_every and (epoch + 1) % eval_every == 0 and epoch >= started
    if due and inputs.test is not None and epoch + 1 < inputs.n_epochs:
        found = evaluate(worker, inputs.task, inputs.test, f"epoch {epoch + 1}")
        result.history.append({"epoch": epoch + 1, **(found or {})})


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
    scores = [
        task.predict(worker, test.take(np.arange(i, min(i + _EVAL_BATCH, test.n))))
        for i in range(0, max(test.n, 1), _EVAL_BATCH)
    ]
    labels = np.ascontiguousarray(test.labels, dtype=np.int64)
    joined = np.concatenate(scores).astype(np.float32)
    payload = msgspec.msgpack.encode([list(joined.shape), joined.tobytes(), labels.tobytes()])
    parts = worker.gather(f"evaluation {name}", payload, everyone=False)
    if worker.index != 0:
        return None
    shares = []
    for part in parts:
        shape, score_bytes, label_bytes = msgspec.msgpack.decode(part)
        shares.append(
            EvalShare(
                np.frombuffer(score_bytes, np.float32).reshape(shape),
                np.frombuffer(label_bytes, np.int64),
            )
        )
    return merge(shares)


def _pack_moments(m: Moments) -> bytes:
    return msgspec.msgpack.encode(
        [m.count, m.present.tobytes(), m.sum.tobytes(), m.square_sum.tobytes()]
    )


def _unpack_moments(data: bytes) -> Moments:
    count, *arrays = msgspec.msgpack.decode(data)
    return Moments(count, *(np.frombuffer(a, np.float64) for a in arrays))


def train(config: JobConfig, progress: str = "auto", verbose: bool = True) -> Outcome:
    """Run a training job on the ranks of this launch. Collective over them.

    Args:
        config: See `mpips.config.load_config`.
        progress: "auto", "rich", "plain" or "none".
        verbose: Print roles and transports at start.

    Returns:
        On worker 0 `value` is the `Result` with metrics.
    """
    preflight(config)
    if launch.launched_size() == 1:
        return _train_alone(config, progress, verbose)
    return _train_on_cluster(config, progress, verbose)


def _meter(inputs: Inputs, progress: str) -> ProgressMeter:
    total = inputs.info.n_samples_total * max(inputs.n_epochs - inputs.first_epoch, 0)
    total -= sum(cursor.step for cursor in inputs.cursors) * inputs.batch_size
    return ProgressMeter(make_display(progress), inputs.n_epochs, total)


def _train_alone(config: JobConfig, progress: str, verbose: bool) -> Outcome:
    with signals_unwind(), leaves_after_checkpoint():
        inputs = prepare(OneRank(), 1, config)
        saving = plan_saving(config, inputs, 1, None, new_token(), verbose)
        meter = _meter(inputs, progress)
        try:
            return run_alone(
                lambda worker: train_worker(worker, inputs, config),
                inputs.tables,
                config.cluster,
                lambda epoch, step, samples, loss: meter.report(epoch, samples, loss),
                saving,
            )
        finally:
            meter.close()


def _train_on_cluster(config: JobConfig, progress: str, verbose: bool) -> Outcome:
    world = launch.load_mpi()
    from mpips.cluster.cluster import Cluster
    from mpips.job import Job

    options: SessionOptions = config.cluster
    with (
        signals_unwind(),
        Cluster(world, options.servers or None, options.timeout_s) as cluster,
    ):
        n_workers = len(cluster.assignment.workers)
        inputs = prepare(cluster, n_workers, config)
        speak = verbose and cluster.is_scheduler
        saving = plan_saving(config, inputs, n_workers, cluster.comm, cluster.token, speak)
        job = Job(cluster, inputs.tables, options, saving)
        meter = None
        if cluster.is_scheduler:
            if verbose:
                print(job.describe(), file=sys.stderr, flush=True)
            meter = _meter(inputs, progress)
        try:
            value, statistics = job.run(
                lambda worker: train_worker(worker, inputs, config),
                (lambda w, r: meter.report(r.epoch, r.samples, r.loss_sum)) if meter else None,
            )
        finally:
            if meter is not None:
                meter.close()
        role = cluster.assignment.roles_of(cluster.rank)
        return Outcome(value, role, statistics, job.transports)
