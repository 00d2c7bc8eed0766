"""A training job from its configuration: data, task, session, evaluation, result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from mpips import rundir
from mpips.cluster import launch
from mpips.cluster.signals import signals_unwind
from mpips.config import JobConfig
from mpips.course import Course
from mpips.data import (
    DataInfo,
    Dataset,
    Loader,
    Moments,
    ReadOptions,
    SparseData,
    align,
    combine,
    read,
)
from mpips.epochs import Inputs, Result, evaluate, train_epochs
from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.partition import FrequencyPartition
from mpips.monitor.progress import ProgressMeter, make_display
from mpips.options import SessionOptions
from mpips.overrides import apply_overrides, asks_for_measurement
from mpips.panel import Panel
from mpips.preflight import preflight, task_options
from mpips.resume import go_on_in_memory, plan_saving
from mpips.session import Outcome, here, leaves_after_checkpoint, run_alone
from mpips.tasks import load_task
from mpips.transport.region import new_token
from mpips.worker import Worker

Value = TypeVar("Value")


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
    mine = msgspec.msgpack.encode([worker.now, result.samples, *last])
    parts = [msgspec.msgpack.decode(part) for part in worker.gather("end of training", mine)]
    result.seconds = time.monotonic() - start
    result.epochs = max(inputs.n_epochs, inputs.first_epoch)
    result.steps = inputs.steps_before + max(part[0] for part in parts)
    result.n_samples, result.n_features = inputs.info.n_samples_total, inputs.info.n_features
    result.samples = int(sum(part[1] for part in parts))
    loss, n = np.sum([part[2:] for part in parts], axis=0)
    result.metrics["loss"] = float(loss / n) if n else float("nan")
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
    if config.redundancy.partner and (rundir.current() is None or launch.launched_size() == 1):
        raise ConfigError(
            "redundancy.partner = true needs servers on two hosts and a relaunch after a failure: start the "
            "job with `mpips run` and more ranks"
        )
    if launch.launched_size() == 1:
        return _train_alone(config, progress, verbose)
    return _train_on_cluster(config, progress, verbose)


def _meter(course: Course, progress: str, panel: Panel) -> ProgressMeter:
    meter = ProgressMeter(make_display(progress, course.share), course, panel.totals)
    panel.on_look, panel.on_end = meter.look, meter.close
    return meter


def _train_alone(config: JobConfig, progress: str, verbose: bool) -> Outcome:
    with signals_unwind(), leaves_after_checkpoint():
        inputs = prepare(OneRank(), 1, config)
        run_id = rundir.run_id(new_token())
        saving = plan_saving(config, inputs, 1, None, run_id)
        if verbose and saving.notes:
            print("\n".join(saving.notes), file=sys.stderr, flush=True)
        panel, course = Panel([here()]), inputs.course()
        meter = _meter(course, progress, panel)
        try:
            return run_alone(
                lambda worker: train_worker(worker, inputs, config),
                inputs.tables,
                config.cluster,
                lambda epoch, clock, samples, loss: meter.report(
                    epoch, saving.steps_before + clock, samples, loss
                ),
                saving,
                panel,
                course,
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
        run_id = rundir.run_id(cluster.token)
        job = Job(
            cluster,
            inputs.tables,
            options,
            lambda look: plan_saving(config, inputs, n_workers, cluster.comm, run_id, look),
            config.redundancy.warm,
            config.redundancy.partner_bound,
        )
        notes = job.saving.notes
        if job.saving.places:
            notes = (go_on_in_memory(config, inputs, job.saving, n_workers),)
        if speak and notes:
            print("\n".join(notes), file=sys.stderr, flush=True)
        meter = course = None
        if cluster.is_scheduler:
            if verbose:
                print(job.describe(), file=sys.stderr, flush=True)
            course = inputs.course()
            meter = _meter(course, progress, job.panel)
        before = job.saving.steps_before
        try:
            value, statistics = job.run(
                lambda worker: train_worker(worker, inputs, config),
                (lambda w, r: meter.report(r.epoch, before + r.clock, r.samples, r.loss_sum))
                if meter
                else None,
                course,
            )
        finally:
            if meter is not None:
                meter.close()
        role = cluster.assignment.roles_of(cluster.rank)
        return Outcome(value, role, statistics, job.transports, job.panel.places)
