"""Make the inputs of a rank: read the data, agree on it with all ranks, make the task and its tables.

`prepare` runs on all ranks before the session starts. `ready` runs on each worker after it has started: it
prepares the task with the moments of all workers' data and returns the worker's batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mpips.config.overrides import asks_for_measurement
from mpips.config.schema import JobConfig
from mpips.data import (
    DataInfo,
    Dataset,
    DenseData,
    Loader,
    Moments,
    Part,
    ReadOptions,
    Sampling,
    Shape,
    SparseData,
    combine,
    read,
)
from mpips.data.info import check_labels, matching_labels, relabel
from mpips.data.known_words import PATH
from mpips.data.options import Share, Wants
from mpips.data.rows import Arrays, Purpose, Samples, TaskPart
from mpips.data.stream import StreamedData
from mpips.data.summary import matching_text, summarise, summarise_test, summarise_validation
from mpips.data.words import SCALED
from mpips.errors import ConfigError
from mpips.model.distinct import distinct_counts
from mpips.model.partition import FrequencyPartition
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
from mpips.training.labels import Apart, wants_of
from mpips.training.moments import combine_moments, moments_of
from mpips.training.own_data import check_changes, learn_own, read_own
from mpips.training.preflight import task_options
from mpips.training.rates import Rates
from mpips.training.sizing import Sizing, earlier_batches, earlier_words
from mpips.training.stopping import EarlyStopping, asked_metrics, watched
from mpips.training.streaming import Streamed, Streaming, stream
from mpips.training.weights import ClassWeights
from mpips.training.words import known_words, notes_on_words
from mpips.worker.worker import Worker, connection_of


def read_options(
    config: JobConfig, split: str, wants: Wants = "classes", words: int = SCALED
) -> ReadOptions:
    """Return the readers' options of [data].

    Args:
        config: The job.
        split: "train", "validation" or "test".
        wants: Kind of labels that the task needs.
        words: The rule for words of categorical columns; see `mpips.data.words`.

    Raises:
        ConfigError: A value is invalid for every reader.
    """
    d, several = config.data, config.data.several_labels
    raw = {
        "format": d.format,
        "index_base": d.index_base,
        # Several labels are read like features, and there is no other label.
        "label": "" if several else d.label,
        "labelled": not several,
        "label_kind": d.label_kind,
        "wants": wants,
        "categorical": d.categorical,
        "numeric": d.numeric,
        "ignore": d.ignore,
        "empty": d.empty,
        "missing": d.missing,
        "convert": tuple(d.convert.items()),
        "header": d.header,
        "as_is": (*((d.weight,) if d.weight else ()), *several),
        "words": words,
        "split": "train" if split == "train" else "test",
    }
    try:
        return msgspec.convert(raw, ReadOptions)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise ConfigError(f"data.{where.rstrip('`')}: {what[0].lower()}{what[1:]}") from None


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
    wants = wants_of(config, task_class, given)
    own_metrics = getattr(task_class, "own_metrics", {})
    rule = earlier_words(ranks, config) if reads is None else SCALED
    own: dict[str, Any] = {}
    skipped: dict[str, int] = {}
    holdout = config.data.holdout(config.cluster.seed)
    streaming = Streaming(
        int(config.data.memory_mib * (1 << 20)),
        Path(config.data.cache) if config.data.cache else cache,
        say,
    )

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
                options=read_options(config, split, wants, rule),
                like=like,
                shares="mixed",
            )
        own[split] = part
        return {"info": part.info.to_config(), "notes": part.notes}

    def load_all(path: str, split: str, like: DataInfo | None) -> tuple[DataInfo, Sequence[str]]:
        """Load a file on all ranks; return the description of all of it, and notes."""
        if reads is None:
            on_bad = config.data.on_bad
            options = msgspec.structs.replace(
                read_options(config, split, wants, rule), on_bad=on_bad
            )
            held = holdout if like is None else None
            streamed = stream(ranks, n_workers, path, options, like, streaming, held)
            if streamed is not None:
                own[split], skipped[split] = streamed, streamed.n_skipped
                return streamed.info, streamed.notes
            if held is not None or on_bad == "skip":
                option = held.option if held is not None else "data.on_bad = 'skip'"
                raise ConfigError(
                    f"{option}: {path} is no file of which samples can be held or left out; leave the "
                    "option out"
                )
        what = "training" if split == "train" else split
        rows = ranks.agree(f"reading the {what} data", lambda: load(path, split, like), True)
        # Combine the descriptions of all workers' shares: columns, labels, number of samples.
        found = [row for row in rows if row is not None]
        # All workers read the same file, so the notes of one are those of all.
        return combine([DataInfo.from_config(row["info"]) for row in found]), found[0]["notes"]

    learned = learn_own(reads, given, config.data.train_files, ranks, n_workers)
    whole_info, notes_of_train = load_all(config.data.train_files, "train", None)
    apart = Apart.of(config, whole_info)
    info = apart.without(whole_info)
    notes = [summarise(config.data.train_files, info), *notes_of_train]
    sizes: dict[str, int] = {}
    read_as = {"train": whole_info}
    if holdout is not None:
        held = own["validation"] = own["train"].validation
        sizes["validation"] = held.info.n_samples_total
        read_as["validation"] = whole_info
        notes.append(summarise_validation(config.data.train_files, held.info))
    meant: dict[str, dict[float, float]] = {}
    for split, files in config.data.evaluated_files.items():
        read_as[split] = apart.read_as(info)
        split_info, notes_of_split = load_all(files, split, read_as[split])
        notes += apart.notes(split_info, files)
        split_info = apart.without(split_info)
        sizes[split] = split_info.n_samples_total
        meant[split] = matching_labels(info, split_info)
        if meant[split]:
            notes.append(matching_text(files, meant[split]))
        notes += [summarise_test(split, files, split_info), *notes_of_split]
    arrays: Arrays = own["train"].arrays if reads is not None and "train" in own else {}
    samples: dict[str, Any] = {}

    def aligned() -> dict[str, Dataset | StreamedData | Samples]:
        return _aligned(own, info, meant, apart, read_as)

    ranks.agree("matching labels", lambda: samples.update(aligned()), True)
    streamed = own.get("train")
    block, window = (streamed.block, streamed.window) if isinstance(streamed, Streamed) else (0, 0)
    data = samples.get("train")
    measured = _measure(ranks, data, info) if asks_for_measurement(config) else None

    def make_task(info: DataInfo) -> Task:
        return task_class(info, given, config.cluster.seed)

    chosen = agree_on_choice(ranks, config, task_class, given, info, folder)
    info = replace(info, chosen=chosen)
    ClassWeights.of(
        config.data.class_weight, info, np.ones(info.n_classes, np.int64)
    )  # check names
    task = make_task(info)
    n_epochs = config.train.epochs or chosen.get("train.epochs") or task.default_epochs
    earlier, size = earlier_batches(ranks, config), chosen.get("train.batch_size")
    sizing = Sizing(config, n_epochs, measured, earlier, size)
    batch_size, tables = sizing.batch_size(task, n_workers), sizing.tables(task, n_workers)
    notes += sizing.note(task, n_workers)
    check_changes(task, tables, config)
    Rates(config.schedule, tables, n_epochs)  # refuse optimizers that cannot have the schedule
    given_name = (config.train.metric,) if config.watches else ()
    asked = (*config.train.metrics, *(name for name in given_name if name != "auto"))
    watched_data = config.data.evaluates
    has_test = bool(watched_data)
    stopping = EarlyStopping.of(config.train, task.metrics, tables, has_test, own_metrics)
    test_source = config.data.evaluated_files.get(watched_data, watched_data)
    n_test = sizes.get(watched_data, 0)
    # A folder with another path may hold the same data.
    about = f"{watched_data}: {Path(test_source).name}, {n_test} samples"
    if stopping is not None:
        stopping.data = about
    best = None
    if config.checkpoint.keep_best:
        why = "checkpoint.keep_best = true"
        best = BestCheckpoint(
            *watched(config.train, why, task.metrics, tables, has_test, own_metrics), about
        )
    return Inputs(
        info,
        task,
        tables,
        n_epochs,
        batch_size,
        data,
        samples.get(watched_data),
        n_test,
        notes=tuple(notes),
        make_task=make_task,
        schedule=config.schedule,
        test_source=test_source,
        test_name="test" if watched_data == "test" else "validation",
        stopping=stopping,
        best=best,
        class_weight=config.data.class_weight,
        metrics=asked_metrics(asked, task.metrics, own_metrics),
        arrays=arrays,
        block=block,
        window=window,
        sizing=sizing,
        skipped=skipped,
        final_test=FinalTest(samples.get("test"), sizes["test"], config.data.test_files)
        if config.data.is_tested_once
        else None,
    )


def _aligned(
    own: dict[str, Any],
    info: DataInfo,
    meant: Mapping[str, dict[float, float]],
    apart: Apart,
    read_as: Mapping[str, DataInfo],
) -> dict[str, Dataset | StreamedData | Samples]:
    """Return the samples of each split with the labels and columns of `info`.

    Args:
        own: The parts of this worker by split.
        info: Description of the training data.
        meant: Which label of the training data each label of a split means; {}: itself.
        apart: Columns that are not features.
        read_as: Description of each split as it was read.
    """
    found: dict[str, Dataset | StreamedData | Samples] = {}
    for split, part in own.items():
        if info.kind == "own":
            found[split] = part.data
            continue
        labels = meant.get(split, {})

        def change(
            data: Dataset, labels: dict[float, float] = labels, like: DataInfo = read_as[split]
        ) -> Dataset:
            return apart.aligned(relabel(data, labels), like)

        if isinstance(part.data, SparseData | DenseData):
            found[split] = change(part.data)
        elif part.data is not None:
            check_labels([labels.get(label, label) for label in part.info.labels], info)
            found[split] = part.data.changed(change)
            # Other differences from the training data show in any sample.
            found[split].take(np.zeros(min(1, part.data.n), np.int64))
    return found


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
