"""A training job from its configuration: data, task, session, evaluation, result."""

from __future__ import annotations

import functools
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mpips.config.options import SessionOptions
from mpips.config.overrides import apply_overrides, asks_for_measurement
from mpips.config.schema import JobConfig
from mpips.data import (
    DataInfo,
    Dataset,
    Loader,
    Moments,
    ReadOptions,
    Sampling,
    Shape,
    SparseData,
    align,
    combine,
    read,
)
from mpips.data.options import Wants
from mpips.data.summary import summarise, summarise_test
from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.partition import FrequencyPartition
from mpips.model.placement import place
from mpips.model.table import Table
from mpips.monitor import summary
from mpips.monitor.progress import ProgressMeter, make_display
from mpips.mpi import launch
from mpips.mpi.messages import Evaluated
from mpips.mpi.roles import default_servers
from mpips.recovery.replica import check_tables
from mpips.recovery.saving import Saving, SavingPlan
from mpips.rundir import directory
from mpips.scheduler.run_progress import RunProgress
from mpips.session.driver import JobRanks, JobView, OneRank, Outcome, drive
from mpips.tasks import Schedule, Task, load_task
from mpips.training.epochs import Inputs, Result, evaluate, history, train_epochs
from mpips.training.preflight import preflight, task_options
from mpips.training.resume import TrainingPlan, go_on_in_memory
from mpips.worker.worker import Worker

if TYPE_CHECKING:
    from mpi4py import MPI

_KEYS_PER_ROUND = 1 << 22  # of all workers together, 64 MiB
_ROUND_MIX = np.uint64(0x9E3779B97F4A7C15)


def read_options(config: JobConfig, split: str, wants: Wants = "classes") -> ReadOptions:
    """The readers' part of [data]; `wants`: what the task takes labels for.

    Raises:
        ConfigError: A value that no reader takes.
    """
    d = config.data
    raw = {
        "format": d.format,
        "index_base": d.index_base,
        "label": d.label,
        "wants": wants,
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


def prepare(ranks: JobRanks, n_workers: int, config: JobConfig) -> Inputs:
    """Read the data, agree on it, make the task and its tables. Collective over the ranks.

    Raises:
        DataError, ConfigError: On every rank, what is wrong on any.
    """
    task_class = load_task(config.task)
    wants: Wants = getattr(task_class, "labels", "classes")
    own: dict[str, Any] = {}

    def load(path: str, split: str, like: DataInfo | None) -> dict[str, Any] | None:
        if ranks.worker is None:
            return None
        options = read_options(config, split, wants)
        own[split] = part = read(
            path,
            stride=n_workers,
            offset=ranks.worker,
            options=options,
            like=like,
            shares="mixed",
        )
        return {"info": part.info.to_config(), "notes": part.notes}

    rows = ranks.agree(
        "reading the training data", lambda: load(config.data.train, "train", None), True
    )
    info = combine([DataInfo.from_config(row["info"]) for row in rows if row is not None])
    notes = [summarise(config.data.train, info)]
    if config.data.test:
        rows = ranks.agree(
            "reading the test data", lambda: load(config.data.test, "test", info), True
        )
        found = [row for row in rows if row is not None]
        test_info = combine([DataInfo.from_config(row["info"]) for row in found])
        notes += [summarise_test(config.data.test, test_info), *found[0]["notes"]]
    ranks.agree("matching labels", lambda: _align(own, info), True)
    data = own.get("train")
    measured = _measure(ranks, data, info) if asks_for_measurement(config) else None

    def make_task(info: DataInfo) -> Task:
        return task_class(info, task_options(task_class, config.options), config.cluster.seed)

    task = make_task(info)
    n_epochs = config.train.epochs or task.default_epochs
    batch_size = config.train.batch_size or task.default_batch_size
    return Inputs(
        info,
        task,
        _tables(task, config, measured, n_epochs, batch_size, n_workers),
        n_epochs,
        batch_size,
        data,
        own.get("test"),
        notes=tuple(notes),
        make_task=make_task,
    )


def _tables(
    task: Task,
    config: JobConfig,
    measured: FrequencyPartition | None,
    n_epochs: int,
    batch_size: int,
    n_workers: int,
) -> list[Table]:
    """The task's tables for a run of this length, with what the configuration changes."""
    tables = apply_overrides(task.tables(), config, measured)
    if not hasattr(task, "schedule") or type(task).schedule is Task.schedule:
        return tables
    averaged = frozenset(
        table.name
        for table in tables
        if isinstance(table.consistency, BSP) and table.consistency.reduce == "mean"
    )
    task.schedule(Schedule(n_epochs, batch_size, n_workers, averaged))
    return apply_overrides(task.tables(), config, measured)


def _align(own: dict[str, Any], info: DataInfo) -> None:
    for split, part in list(own.items()):
        own[split] = align(part.data, info)


def _measure(ranks: JobRanks, data: Dataset | None, info: DataInfo) -> FrequencyPartition | None:
    """Key frequencies of the whole training data, in hash buckets."""
    if info.kind != "sparse":
        return None

    def count() -> list[int] | None:
        if not isinstance(data, SparseData):
            return None
        keys, counts = np.unique(data.indices, return_counts=True)
        return list(FrequencyPartition.from_counts(keys, counts.astype(np.int64)).bucket_counts)

    rows = [row for row in ranks.agree("measuring frequencies", count, True) if row is not None]
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
    mine = msgspec.msgpack.encode([worker.now, result.samples, *last, result.losses])
    parts = [msgspec.msgpack.decode(part) for part in worker.gather("end of training", mine)]
    result.seconds = time.monotonic() - start
    result.epochs = max(inputs.n_epochs, inputs.first_epoch)
    result.steps = inputs.steps_before + max(part[0] for part in parts)
    result.n_samples, result.n_features = inputs.info.n_samples_total, inputs.info.n_features
    result.samples = int(sum(part[1] for part in parts))
    loss, n = np.sum([part[2:4] for part in parts], axis=0)
    result.metrics["loss"] = float(loss / n) if n else float("nan")
    if inputs.test is not None:
        found = evaluate(worker, inputs.task, inputs.test, "final") or {}
        result.metrics.update(found)
        if found:
            result.evaluated[max(result.epochs - 1, 0)] = found
            worker.report_metrics(result.epochs, result.steps, found)
    result.history = history([part[4] for part in parts], result.evaluated)
    return result


def ready(worker: Worker, inputs: Inputs, seed: int) -> Loader:
    """Prepare the task with all workers' moments; the batches of this worker. Collective over workers."""
    assert inputs.train is not None
    inputs.task.prepare(worker, _moments(worker, Moments.of(inputs.train)))
    if inputs.verbose and worker.index == 0:
        report = inputs.task.report() if hasattr(inputs.task, "report") else ""
        lines = (*inputs.notes, f"features: {report}") if report else inputs.notes
        print("\n".join(lines), file=sys.stderr, flush=True)
    n_total = inputs.info.n_samples_total
    shape = Shape.of_job(n_total, worker.n_workers, inputs.batch_size, seed)
    return Loader(
        inputs.train,
        n_total,
        worker.n_workers,
        worker.index,
        inputs.batch_size,
        seed,
        cursor=inputs.cursor(worker.index),
        weighted=all(isinstance(t.consistency, BSP) for t in inputs.tables),
        sampling=inputs.sampling or Sampling(shape),
    )


def _moments(worker: Worker, local: Moments) -> Moments:
    """Combine the moments of all workers; of hashed keys, those that this worker holds. Collective.

    Every worker would need every key in memory if all were exchanged at once: keys go in rounds, and of
    each round a worker takes the counts of its own keys.
    """
    sizes = msgspec.msgpack.encode([local.n_features, local.count, len(local.keys)])
    shapes = [msgspec.msgpack.decode(part) for part in worker.gather("moments: sizes", sizes)]
    if shapes[0][0]:
        parts = worker.gather("moments", _pack_moments(local))
        return Moments.combine([_unpack_moments(part) for part in parts])
    n_rounds = -(-sum(n for _, _, n in shapes) // _KEYS_PER_ROUND) if worker.n_workers > 1 else 0
    rounds = (local.keys.view(np.uint64) * _ROUND_MIX >> np.uint64(32)) % np.uint64(
        max(n_rounds, 1)
    )
    present = local.present.copy()
    for i in range(n_rounds):
        mine = rounds == i
        part = replace(local, keys=local.keys[mine], present=local.present[mine])
        rows = worker.gather(f"moments: keys {i}", _pack_moments(part))
        others = Moments.combine([_unpack_moments(row) for row in rows])
        present[mine] = others.present[np.searchsorted(others.keys, part.keys)]
    return replace(local, count=sum(count for _, count, _ in shapes), present=present)


def _pack_moments(m: Moments) -> bytes:
    arrays = (m.present, m.mean, m.squares, m.keys)
    return msgspec.msgpack.encode([m.count, *(array.tobytes() for array in arrays)])


def _unpack_moments(data: bytes) -> Moments:
    count, present, mean, squares, keys = msgspec.msgpack.decode(data)
    present, mean, squares = (np.frombuffer(a, np.float64) for a in (present, mean, squares))
    return Moments(count, present, mean, squares, np.frombuffer(keys, np.int64))


def train(config: JobConfig, progress: str = "auto", verbose: bool = True) -> Outcome:
    """Run a training job on the ranks of this launch. Collective over them.

    Args:
        config: See `mpips.config.schema.load_config`.
        progress: "auto", "rich", "plain" or "none".
        verbose: Print roles and transports at start.

    Returns:
        On worker 0 `value` is the `Result` with metrics.
    """
    preflight(config)
    refuse_partner(config)
    program = TrainingProgram(config, progress, verbose)
    return drive(program, directory.current(), None, launch.launched_size())


def rehearse(config: JobConfig, n_ranks: int | None = None) -> None:
    """Refuse what `train` would refuse up to its first step, without any trace. Reads the data on rank 0.

    Args:
        config: The job.
        n_ranks: Ranks that it will have under `mpips run`; None: those of this launch, without `mpips run`.

    Raises:
        MpipsError: What is wrong, where, and what is accepted.
    """
    preflight(config, n_ranks, dry_run=True)
    if n_ranks is None:
        refuse_partner(config)
    if launch.launched_rank() == 0:
        inputs = prepare(OneRank(), 1, config)
        TrainingPlan(config, inputs, 1, None, "").choose()
        if config.redundancy.partner:
            check_tables(inputs.tables)
        size = n_ranks or launch.launched_size()
        servers = config.cluster.servers or (default_servers(size, 1) if size > 1 else 1)
        place(inputs.tables, servers, 1, config.cluster.ring_slots, config.cluster.slot_kib << 10)


def refuse_partner(config: JobConfig) -> None:
    """Refuse copies on other nodes where there is one node or no relaunch.

    Raises:
        ConfigError: Says how to start the job instead.
    """
    if config.redundancy.partner and (directory.current() is None or launch.launched_size() == 1):
        raise ConfigError(
            "redundancy.partner = true needs servers on two hosts and a relaunch after a failure: start the "
            "job with `mpips run` and more ranks"
        )


class TrainingProgram:
    """The job of a configuration file; see `mpips.session.driver.Program`."""

    def __init__(self, config: JobConfig, progress: str, verbose: bool) -> None:
        """`progress`, `verbose`: as of `train`."""
        self.options: SessionOptions = config.cluster
        self.warm = config.redundancy.warm
        self.partner_bound = config.redundancy.partner_bound
        self._config = config
        self._progress = progress
        self._verbose = verbose
        self._notes: tuple[str, ...] = ()
        self._meter: ProgressMeter | None = None

    def prepare(
        self, ranks: JobRanks, n_workers: int, run_id: str, comm: MPI.Intracomm | None
    ) -> SavingPlan:
        """Read the data and make the task."""
        self._inputs = prepare(ranks, n_workers, self._config)
        self._inputs.verbose = self._verbose
        return TrainingPlan(self._config, self._inputs, n_workers, comm, run_id)

    def tables(self) -> list[Table]:
        """Return the task's tables."""
        return self._inputs.tables

    def begin(self, saving: Saving, n_workers: int) -> None:
        """Let the inputs begin where the workers stood, if the job continues in memory."""
        self._notes = saving.notes
        if saving.places:
            self._notes = (go_on_in_memory(self._config, self._inputs, saving, n_workers),)

    def show(self, view: JobView) -> RunProgress:
        """Print notes, roles and transports; start the progress line."""
        if self._verbose:
            for line in (*self._notes, view.description):
                if line:
                    print(line, file=sys.stderr, flush=True)
        run_progress, table = self._inputs.run_progress(), view.rank_table
        if self._verbose:
            table.on_evaluated.append(functools.partial(_say_metrics, run_progress.n_epochs))
        display = make_display(self._progress, run_progress.share)
        meter = self._meter = ProgressMeter(display, run_progress, table.totals)
        table.on_look, table.on_end = meter.look, meter.close
        return run_progress

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Count the report in the progress line."""
        if self._meter is not None:
            self._meter.report(epoch, step, samples, loss_sum)

    def main(self, worker: Worker) -> Result | None:
        """Train."""
        return train_worker(worker, self._inputs, self._config)

    def close(self) -> None:
        """End the progress line."""
        if self._meter is not None:
            self._meter.close()


def _say_metrics(n_epochs: int, found: Evaluated) -> None:
    """Print the metrics of an evaluation that is not the last one, which the summary has."""
    if found.epochs < n_epochs:
        text = summary.metrics_text(found.metrics)
        print(f"epoch {found.epochs}/{n_epochs}: {text} (test)", file=sys.stderr, flush=True)
