"""Make the inputs of a rank: read the data, agree on it with all ranks, make the task and its tables.

`prepare` runs on all ranks before the session starts. `ready` runs on each worker after it has started: it
prepares the task with the moments of all workers' data and returns the worker's batches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from mpips.config.overrides import apply_overrides, asks_for_measurement
from mpips.config.schema import JobConfig
from mpips.data import (
    DataInfo,
    Dataset,
    Loader,
    Moments,
    Part,
    ReadOptions,
    Sampling,
    Shape,
    SparseData,
    align,
    combine,
    read,
)
from mpips.data.info import matching_labels, relabel
from mpips.data.options import Share, Wants
from mpips.data.rows import Arrays, Purpose, TaskPart
from mpips.data.summary import matching_text, summarise, summarise_test
from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.distinct import distinct_counts
from mpips.model.partition import FrequencyPartition
from mpips.model.table import Table
from mpips.session.driver import JobRanks
from mpips.snapshot import attachments
from mpips.tasks import Schedule, Task, load_task
from mpips.tasks.base import reader_of
from mpips.training.epochs import Inputs
from mpips.training.halving import sum_by_key
from mpips.training.own_data import check_changes, learn_own, read_own
from mpips.training.preflight import task_options
from mpips.training.rates import Rates
from mpips.training.stopping import EarlyStopping, asked_metrics
from mpips.worker.collectives import AnyArray, Collectives
from mpips.worker.worker import Worker, connection_of


def read_options(config: JobConfig, split: str, wants: Wants = "classes") -> ReadOptions:
    """Return the readers' options of [data].

    Args:
        config: The job.
        split: "train" or "test".
        wants: How the task uses labels: as classes or as targets.

    Raises:
        ConfigError: A value is invalid for every reader.
    """
    d = config.data
    raw = {
        "format": d.format,
        "index_base": d.index_base,
        "label": d.label,
        "wants": wants,
        "categorical": d.categorical,
        "numeric": d.numeric,
        "ignore": d.ignore,
        "empty": d.empty,
        "split": split,
    }
    try:
        return msgspec.convert(raw, ReadOptions)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise ConfigError(f"data.{where.rstrip('`')}: {what[0].lower()}{what[1:]}") from None


def prepare(ranks: JobRanks, n_workers: int, config: JobConfig) -> Inputs:
    """Read the data, agree on it, make the task and its tables. Collective over the ranks; blocks.

    Args:
        ranks: Ranks of the job; each worker reads its share of the data.
        n_workers: Number of workers.
        config: The job.

    Raises:
        DataError, ConfigError: The data or the configuration is wrong on some rank; all ranks raise the
            error.
    """
    task_class = load_task(config.task)
    wants: Wants = getattr(task_class, "labels", "classes")
    reads, given = reader_of(task_class), task_options(task_class, config.options)
    own_metrics = getattr(task_class, "own_metrics", {})
    own: dict[str, Any] = {}

    def load(path: str, split: str, like: DataInfo | None) -> dict[str, Any] | None:
        if ranks.worker is None:
            return None
        part: Part | TaskPart
        if reads is not None:
            share = Share(n_workers, ranks.worker, "mixed")
            there = own["train"].arrays if like is not None else learned
            purpose: Purpose = "train" if split == "train" else "test"
            part = read_own(reads, given, path, share, there, purpose)
        else:
            part = read(
                path,
                stride=n_workers,
                offset=ranks.worker,
                options=read_options(config, split, wants),
                like=like,
                shares="mixed",
            )
        own[split] = part
        return {"info": part.info.to_config(), "notes": part.notes}

    learned = learn_own(reads, given, config.data.train, ranks, n_workers)
    # Combine the descriptions of all workers' shares: columns, labels, number of samples.
    rows = ranks.agree(
        "reading the training data", lambda: load(config.data.train, "train", None), True
    )
    info = combine([DataInfo.from_config(row["info"]) for row in rows if row is not None])
    notes, n_test = [summarise(config.data.train, info), *_notes_of(rows)], 0
    meant: dict[float, float] = {}
    if config.data.test:
        rows = ranks.agree(
            "reading the test data", lambda: load(config.data.test, "test", info), True
        )
        found = [row for row in rows if row is not None]
        test_info = combine([DataInfo.from_config(row["info"]) for row in found])
        n_test = test_info.n_samples_total
        meant = matching_labels(info, test_info)
        if meant:
            notes.append(matching_text(config.data.test, meant))
        notes += [summarise_test(config.data.test, test_info), *found[0]["notes"]]
    arrays: Arrays = own["train"].arrays if reads is not None and "train" in own else {}
    ranks.agree("matching labels", lambda: _align(own, info, meant), True)
    data = own.get("train")
    measured = _measure(ranks, data, info) if asks_for_measurement(config) else None

    def make_task(info: DataInfo) -> Task:
        return task_class(info, given, config.cluster.seed)

    task = make_task(info)
    n_epochs = config.train.epochs or task.default_epochs
    suitable = getattr(task, "suitable_batch_size", lambda _: task.default_batch_size)
    batch_size = config.train.batch_size or suitable(n_workers)
    tables = _tables(task, config, measured, n_epochs, batch_size, n_workers)
    check_changes(task, tables, config)
    Rates(config.schedule, tables, n_epochs)  # refuse optimizers that cannot have the schedule
    watched = (config.train.metric,) if config.train.patience else ()
    asked = (*config.train.metrics, *(name for name in watched if name != "auto"))
    has_test = bool(config.data.test)
    stopping = EarlyStopping.of(config.train, task.metrics, tables, has_test, own_metrics)
    return Inputs(
        info,
        task,
        tables,
        n_epochs,
        batch_size,
        data,
        own.get("test"),
        n_test,
        notes=tuple(notes),
        make_task=make_task,
        schedule=config.schedule,
        stopping=stopping,
        metrics=asked_metrics(asked, task.metrics, own_metrics),
        arrays=arrays,
    )


def _notes_of(rows: Sequence[dict[str, Any] | None]) -> Sequence[str]:
    """Return what the first worker notes about the data that it has read; all read the same file."""
    return next((row["notes"] for row in rows if row is not None), ())


def _tables(
    task: Task,
    config: JobConfig,
    measured: FrequencyPartition | None,
    n_epochs: int,
    batch_size: int,
    n_workers: int,
) -> list[Table]:
    """Return the task's tables for a run of this length, with the overrides of the configuration."""
    tables = apply_overrides(task.tables(), config, measured)
    if not hasattr(task, "schedule") or type(task).schedule is Task.schedule:
        return tables
    # Let the task adapt its learning rates to the length of the run, then take its tables again.
    averaged = frozenset(
        table.name
        for table in tables
        if isinstance(table.consistency, BSP) and table.consistency.reduce == "mean"
    )
    task.schedule(Schedule(n_epochs, batch_size, n_workers, averaged))
    return apply_overrides(task.tables(), config, measured)


def _align(own: dict[str, Any], info: DataInfo, meant: dict[float, float]) -> None:
    """Replace the data of each split by data with the labels and columns of `info`.

    Args:
        own: The parts of this worker by split.
        info: Description of the training data.
        meant: Which label of the training data each label of the test data means; {}: itself.
    """
    for split, part in list(own.items()):
        if info.kind == "own":
            own[split] = part.data
            continue
        own[split] = align(relabel(part.data, meant if split == "test" else {}), info)


def _measure(ranks: JobRanks, data: Dataset | None, info: DataInfo) -> FrequencyPartition | None:
    """Count the keys of the whole training data in hash buckets; None for dense data. Collective."""
    if info.kind != "sparse":
        return None

    def count() -> list[int] | None:
        if not isinstance(data, SparseData):
            return None
        keys, counts = distinct_counts(data.indices)
        return list(FrequencyPartition.from_counts(keys, counts).bucket_counts)

    rows = [row for row in ranks.agree("measuring frequencies", count, True) if row is not None]
    return FrequencyPartition(
        bucket_counts=tuple(sum(column) for column in zip(*rows, strict=True))
    )


def ready(worker: Worker, inputs: Inputs, seed: int) -> Loader:
    """Prepare the task with the moments of all workers' data. Collective over workers.

    Args:
        worker: The worker.
        inputs: Its data and task.
        seed: Seed of the order of samples.

    Returns:
        The batches of this worker.
    """
    assert inputs.train is not None
    collectives = connection_of(worker).collectives
    if inputs.info.kind == "own":
        none = Moments.empty(0)
        moments = replace(none, count=inputs.info.n_samples_total)
        inputs.task.receive(inputs.arrays)
    else:
        moments = combine_moments(collectives, Moments.of(inputs.train))
    inputs.task.prepare(worker, moments)
    if worker.index == 0 and inputs.saves:
        tell = connection_of(worker).control.tell
        attachments.send(tell, {**moments.to_arrays(), **inputs.arrays})
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


def combine_moments(collectives: Collectives, local: Moments, name: str = "moments") -> Moments:
    """Combine the moments of all workers; of hashed keys, only those in this worker's data. Collective.

    The moments of two workers at a time are combined along the tree, so a worker needs memory for a few,
    whatever the number of workers.

    Args:
        collectives: Gathers and reductions of this worker.
        local: Moments of this worker's samples.
        name: Name of the exchange.
    """
    if not local.n_features:
        count = collectives.reduce(f"{name}: samples", np.array([local.count]))
        assert count is not None
        sums = sum_by_key(collectives, name, local.keys, local.present.astype(np.int64))
        columns = local.columns
        if columns is not None:
            columns = combine_moments(collectives, columns, f"{name} of columns")
        return replace(local, count=int(count[0]), present=sums.astype(np.float64), columns=columns)
    whole = collectives.reduce(name, _pack_moments(local), _combine_two)
    assert whole is not None
    return _unpack_moments(whole)


def _combine_two(low: AnyArray, high: AnyArray) -> AnyArray:
    return _pack_moments(Moments.combine([_unpack_moments(low), _unpack_moments(high)]))


def _pack_moments(m: Moments) -> AnyArray:
    """Return the moments of features as float64 values; the number of samples is exact below 2**53."""
    return np.concatenate([[float(m.count)], m.present, m.mean, m.squares])


def _unpack_moments(array: AnyArray) -> Moments:
    """Return the moments that `_pack_moments` packed."""
    present, mean, squares = array[1:].reshape(3, -1)
    return Moments(int(array[0]), present, mean, squares)
