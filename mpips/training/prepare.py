"""Make the inputs of a rank: read the data, agree on it with all ranks, make the task and its tables.

`prepare` runs on all ranks before the session starts. `ready` runs on each worker after it has started: it
prepares the task with the moments of all workers' data and returns the worker's batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpips.config.overrides import asks_for_measurement
from mpips.config.schema import JobConfig
from mpips.data import (
    DataInfo,
    Dataset,
    Loader,
    Moments,
    Sampling,
    Shape,
    SparseData,
)
from mpips.data.known_words import PATH
from mpips.data.stream import StreamedData
from mpips.data.words import SCALED
from mpips.model.distinct import distinct_counts
from mpips.model.partition import FrequencyPartition
from mpips.model.table import Table
from mpips.mpi.one_rank import Ranks
from mpips.snapshot import attachments
from mpips.tasks import Task, load_task
from mpips.tasks.base import description_of, reader_of
from mpips.terminal.screen import say
from mpips.training.best import BestCheckpoint
from mpips.training.choices import agree_on_choice
from mpips.training.epochs import Inputs, in_common_step
from mpips.training.example import arrays_of
from mpips.training.final_test import FinalTest
from mpips.training.labels import wants_of
from mpips.training.moments import combine_moments, moments_of
from mpips.training.own_data import check_changes
from mpips.training.preflight import task_options
from mpips.training.rates import Rates
from mpips.training.reading import DataReader, JobData, SplitSamples, read_data
from mpips.training.sizing import Sizing, earlier_batches, earlier_words
from mpips.training.stopping import EarlyStopping, asked_metrics, watched
from mpips.training.streaming import Streaming
from mpips.training.weights import ClassWeights
from mpips.training.words import known_words, notes_on_words
from mpips.worker.worker import Worker, connection_of


def prepare(
    ranks: Ranks,
    n_workers: int,
    config: JobConfig,
    cache: Path | None = None,
    say: Callable[[str], object] = lambda line: None,
    folder: Path | None = None,
) -> Inputs:
    """Read the data, agree on it, make the task and its tables. Collective over the ranks; blocks.

    Args:
        ranks: Ranks of the job; each worker reads its share of the data.
        n_workers: Number of workers.
        config: The job.
        cache: Folder for the cache of data that is read in windows, if the configuration names none; None: a
            temporary one.
        say: Called on worker 0 with the progress of a conversion into the cache.
        folder: The run directory, which keeps what the task chooses; None: the job is not supervised, or
            writes nothing.

    Raises:
        DataError, ConfigError: The data or the configuration is wrong on some rank; all ranks raise the
            error.
    """
    task_class = load_task(config.task)
    reads, given = reader_of(task_class), task_options(task_class, config.options)

    # Read all data, and agree on it.
    cache_folder = Path(config.data.cache) if config.data.cache else cache
    found = read_data(
        DataReader(
            ranks,
            n_workers,
            config,
            reads,
            given,
            wants_of(config, task_class, given),
            earlier_words(ranks, config) if reads is None else SCALED,
            Streaming(int(config.data.memory_mib * (1 << 20)), cache_folder, say),
            config.data.holdout(config.cluster.seed),
        )
    )
    data = found.samples.get("train")
    measured = _measure(ranks, data, found.info) if asks_for_measurement(config) else None

    # Make the task, with what it chooses by the data, and its tables.
    chosen = agree_on_choice(ranks, config, task_class, given, found.info, folder)
    info = replace(found.info, chosen=chosen)
    # Refuse names of classes that do not exist.
    ClassWeights.of(config.data.class_weight, info, np.ones(info.n_classes, np.int64))

    def make_task(info: DataInfo) -> Task:
        return task_class(info, given, config.cluster.seed)

    task = make_task(info)
    n_epochs = config.train.epochs or chosen.get("train.epochs") or task.default_epochs
    earlier, size = earlier_batches(ranks, config), chosen.get("train.batch_size")
    sizing = Sizing(config, n_epochs, measured, earlier, size)
    batch_size, tables = sizing.batch_size(task, n_workers), sizing.tables(task, n_workers)
    size_note = sizing.note(task, n_workers)
    check_changes(task, tables, config)
    Rates(config.schedule, tables, n_epochs)  # refuse optimizers that cannot have the schedule

    own_metrics = getattr(task_class, "own_metrics", {})
    watching = _Watching.of(config, task.metrics, tables, own_metrics, found)
    return Inputs(
        info,
        task,
        tables,
        n_epochs,
        batch_size,
        data,
        watching.samples,
        watching.n_samples,
        notes=(*found.notes, *size_note),
        make_task=make_task,
        schedule=config.schedule,
        test_source=watching.source,
        test_name="test" if config.data.evaluates == "test" else "validation",
        stopping=watching.stopping,
        best=watching.best,
        class_weight=config.data.class_weight,
        metrics=watching.metrics,
        arrays=found.arrays,
        block=found.block,
        window=found.window,
        sizing=sizing,
        skipped=found.skipped,
        final_test=watching.final_test,
    )


class _Watching(NamedTuple):
    """The evaluations of a job, and what they decide.

    Attributes:
        source: The data that is evaluated.
        samples: Its samples on this worker; None without such data, and on ranks without a worker.
        n_samples: Number of its samples on all workers.
        metrics: The metrics of an evaluation.
        stopping: Early stopping; None without it.
        best: The best checkpoint; None: it is not kept apart.
        final_test: The test at the end; None without one.
    """

    source: str
    samples: SplitSamples | None
    n_samples: int
    metrics: tuple[str, ...]
    stopping: EarlyStopping | None
    best: BestCheckpoint | None
    final_test: FinalTest | None

    @classmethod
    def of(
        cls,
        config: JobConfig,
        metrics: Sequence[str],
        tables: Sequence[Table],
        own_metrics: Mapping[str, Any],
        found: JobData,
    ) -> _Watching:
        """Return them for a job.

        Args:
            config: The job.
            metrics: Metrics of the task.
            tables: Its tables.
            own_metrics: Metrics that the task itself computes, by name.
            found: Its data.

        Raises:
            ConfigError: A metric does not exist, or there is no data to evaluate.
        """
        split = config.data.evaluates
        source, n_samples = config.data.evaluated_files.get(split, split), found.sizes.get(split, 0)
        # A folder with another path may hold the same data.
        about = f"{split}: {Path(source).name}, {n_samples} samples"

        stopping = EarlyStopping.of(config.train, metrics, tables, bool(split), own_metrics)
        if stopping is not None:
            stopping.data = about
        best = None
        if config.checkpoint.keep_best:
            why = "checkpoint.keep_best = true"
            best = BestCheckpoint(
                *watched(config.train, why, metrics, tables, bool(split), own_metrics), about
            )

        given_name = (config.train.metric,) if config.watches else ()
        asked = (*config.train.metrics, *(name for name in given_name if name != "auto"))
        final_test = None
        if config.data.is_tested_once:
            test = found.samples.get("test")
            final_test = FinalTest(test, found.sizes["test"], config.data.test_files)
        return cls(
            source,
            found.samples.get(split),
            n_samples,
            asked_metrics(asked, metrics, own_metrics),
            stopping,
            best,
            final_test,
        )


def _measure(
    ranks: Ranks, data: Dataset | StreamedData | None, info: DataInfo
) -> FrequencyPartition | None:
    """Count the keys of the whole training data in hash buckets; None for dense data. Collective."""
    if info.kind != "sparse":
        return None

    def count() -> list[int] | None:
        if data is None:
            return None
        none = np.zeros(0, np.int64)
        total = np.array(FrequencyPartition.from_counts(none, none).bucket_counts, np.int64)
        for part in data.parts() if isinstance(data, StreamedData) else (data,):
            assert isinstance(part, SparseData)
            keys, counts = distinct_counts(part.indices)
            found = np.array(FrequencyPartition.from_counts(keys, counts).bucket_counts, np.int64)
            total += found
        return list(map(int, total))

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
        known = None
    else:
        own = moments_of(inputs.train, bool(inputs.info.n_targets))
        moments = combine_moments(collectives, own)
        known = known_words(collectives, inputs.info, moments)
        evaluated = [(inputs.test, inputs.test_source)]
        if inputs.final_test is not None:
            evaluated.append((inputs.final_test.data, inputs.final_test.source))
        for data, source in evaluated:
            if data is not None:
                found = notes_on_words(collectives, known, inputs.info, data, source)
                inputs.notes = (*inputs.notes, *found)
    inputs.moments = moments
    inputs.class_weights = _class_weights(worker, inputs)
    inputs.task.prepare(worker, moments)
    if worker.index == 0 and inputs.saves:
        tell = connection_of(worker).control.tell
        example = arrays_of(inputs.train, inputs.info)
        record = {PATH: known.bits} if known is not None else {}
        attachments.send(tell, {**moments.to_arrays(), **inputs.arrays, **example, **record})
    if inputs.verbose and worker.index == 0:
        model = description_of(inputs.task)
        report = inputs.task.report() if hasattr(inputs.task, "report") else ""
        shown = (("model", model), ("features", report))
        lines = (*inputs.notes, *(f"{name}: {text}" for name, text in shown if text))
        say("\n".join(lines))
    n_total = inputs.info.n_samples_total
    shape = Shape.of_job(
        n_total, worker.n_workers, inputs.batch_size, seed, inputs.block, inputs.window
    )
    return Loader(
        inputs.train,
        n_total,
        worker.n_workers,
        worker.index,
        inputs.batch_size,
        seed,
        cursor=inputs.cursor(worker.index),
        weighted=in_common_step(inputs.tables),
        sampling=inputs.sampling or Sampling(shape),
    )


def _class_weights(worker: Worker, inputs: Inputs) -> ClassWeights | None:
    """Return the weights of classes; counts training samples where they depend on them. Collective."""
    counts = np.zeros(inputs.info.n_classes, np.int64)
    if inputs.class_weight == "balanced":
        data = inputs.train
        for part in data.parts() if isinstance(data, StreamedData) else (data,):
            assert part is not None
            counts += np.bincount(part.labels.astype(np.int64), minlength=len(counts))
        found = worker.reduce("samples of each class", counts)
        assert found is not None
        counts = found
    return ClassWeights.of(inputs.class_weight, inputs.info, counts)
