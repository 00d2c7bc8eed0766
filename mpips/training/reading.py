"""Read the data of a job on all ranks, split by split: training, validation and test data.

Each worker reads its share, or the ranks convert the data into a cache together. Then they agree on labels
and columns, which those of the training data determine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np

from mpips.config.schema import JobConfig
from mpips.data import DataInfo, Dataset, DenseData, Part, ReadOptions, SparseData, combine, read
from mpips.data.holdout import Holdout
from mpips.data.info import check_labels, matching_labels, relabel
from mpips.data.options import Share, Wants
from mpips.data.rows import Arrays, Purpose, TaskPart
from mpips.data.stream import StreamedData
from mpips.data.summary import matching_text, summarise, summarise_test, summarise_validation
from mpips.data.words import SCALED
from mpips.errors import ConfigError
from mpips.mpi.one_rank import Ranks
from mpips.tasks.base import ReadsData
from mpips.training.labels import Apart
from mpips.training.own_data import learn_own, read_own
from mpips.training.streaming import Streamed, Streaming, stream

SplitPart = Part | TaskPart | Streamed  # of one split, as this worker has read it
SplitSamples: TypeAlias = Any  # Dataset, StreamedData or Samples, as the task reads them


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


@dataclass
class JobData:
    """The data of a job on this rank, with the labels and columns of the training data.

    Attributes:
        info: Description of the training data.
        samples: Samples of this worker by split; {} on ranks without a worker.
        sizes: Number of samples of all workers, of each split but the training data.
        notes: Sentences for the user.
        arrays: Arrays that a task which reads its files itself has made of the training data.
        block, window: Shape of training data that is streamed; 0: it is in memory.
        skipped: Bad lines that were left out, by split.
    """

    info: DataInfo
    samples: dict[str, SplitSamples] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    arrays: Arrays = field(default_factory=dict)
    block: int = 0
    window: int = 0
    skipped: dict[str, int] = field(default_factory=dict)


def read_data(reader: DataReader) -> JobData:
    """Read all splits of a job and align them with the training data. Collective; blocks.

    Raises:
        DataError, ConfigError: The data or the configuration is wrong on some rank; all ranks raise the
            error.
    """
    config, ranks, own = reader.config, reader.ranks, reader.own
    train_files = config.data.train_files

    # The training data determines labels and columns.
    reader.learn(train_files)
    whole_info, notes_of_train = reader.load(train_files, "train", None)
    apart = Apart.of(config, whole_info)
    info = apart.without(whole_info)
    found = JobData(info, notes=[summarise(train_files, info), *notes_of_train])
    read_as = {"train": whole_info}
    if reader.holdout is not None:
        streamed = own["train"]
        assert isinstance(streamed, Streamed)
        assert streamed.validation is not None
        held = own["validation"] = streamed.validation
        found.sizes["validation"] = held.info.n_samples_total
        read_as["validation"] = whole_info
        found.notes.append(summarise_validation(train_files, held.info))

    # Files of other splits are read as the training data was.
    meant: dict[str, dict[float, float]] = {}
    for split, files in config.data.evaluated_files.items():
        read_as[split] = apart.read_as(info)
        split_info, notes_of_split = reader.load(files, split, read_as[split])
        found.notes += apart.notes(split_info, files)
        split_info = apart.without(split_info)
        found.sizes[split] = split_info.n_samples_total
        meant[split] = matching_labels(info, split_info)
        if meant[split]:
            found.notes.append(matching_text(files, meant[split]))
        found.notes += [summarise_test(split, files, split_info), *notes_of_split]

    def align() -> None:
        found.samples.update(_aligned(own, info, meant, apart, read_as))

    ranks.agree("matching labels", align, True)
    train = own.get("train")
    if isinstance(train, TaskPart):
        found.arrays = train.arrays
    if isinstance(train, Streamed):
        found.block, found.window = train.block, train.window
    found.skipped = reader.skipped
    return found


@dataclass
class DataReader:
    """Reads the splits of one job on this rank. All methods are collective over the ranks, and block.

    Attributes:
        ranks: Ranks of the job; each worker reads its share.
        n_workers: Number of workers.
        config: The job.
        reads: The class of the task, if it reads its files itself; else None.
        given: Options of the task.
        wants: Kind of labels that the task needs.
        rule: The rule for words of categorical columns; see `mpips.data.words`.
        streaming: Where and how data is streamed.
        holdout: The part of the training data that is held out; None: none is.
        own: The parts that this rank has read, by split. Streamed splits have one on every rank.
        skipped: Bad lines that were left out, by split.
        learned: The knowledge of the task about the training data before it is read; None: nothing.
    """

    ranks: Ranks
    n_workers: int
    config: JobConfig
    reads: type[ReadsData] | None
    given: msgspec.Struct
    wants: Wants
    rule: int
    streaming: Streaming
    holdout: Holdout | None
    own: dict[str, SplitPart] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    learned: Arrays | None = None

    def learn(self, path: str) -> None:
        """Let a task that reads its files itself learn of the training data before it is read."""
        self.learned = learn_own(self.reads, self.given, path, self.ranks, self.n_workers)

    def load(self, path: str, split: str, like: DataInfo | None) -> tuple[DataInfo, Sequence[str]]:
        """Load a file on all ranks; return the description of all of it, and notes.

        Args:
            path: A file or a pattern of several.
            split: "train", "validation" or "test".
            like: Description of the training data; None: this is the training data.
        """
        if self.reads is None:
            streamed = self._stream(path, split, like)
            if streamed is not None:
                self.own[split], self.skipped[split] = streamed, streamed.n_skipped
                return streamed.info, streamed.notes
        what = "training" if split == "train" else split
        rows = self.ranks.agree(
            f"reading the {what} data", lambda: self._read_share(path, split, like), True
        )
        # Combine the descriptions of all workers' shares: columns, labels, number of samples.
        found = [row for row in rows if row is not None]
        # All workers read the same file, so the notes of one are those of all.
        return combine([DataInfo.from_config(row["info"]) for row in found]), found[0]["notes"]

    def _options(self, split: str) -> ReadOptions:
        return read_options(self.config, split, self.wants, self.rule)

    def _stream(self, path: str, split: str, like: DataInfo | None) -> Streamed | None:
        """Convert a file into a cache if the workers cannot hold it; None: each reads its share."""
        on_bad = self.config.data.on_bad
        options = msgspec.structs.replace(self._options(split), on_bad=on_bad)
        held = self.holdout if like is None else None
        found = stream(self.ranks, self.n_workers, path, options, like, self.streaming, held)
        if found is None and (held is not None or on_bad == "skip"):
            option = held.option if held is not None else "data.on_bad = 'skip'"
            raise ConfigError(
                f"{option}: {path} is no file of which samples can be held or left out; leave the option "
                "out"
            )
        return found

    def _read_share(self, path: str, split: str, like: DataInfo | None) -> dict[str, Any] | None:
        """Read this worker's share of a file; return its description and notes for all ranks."""
        worker = self.ranks.worker
        if worker is None:
            return None
        part: Part | TaskPart
        if self.reads is not None:
            share = Share(self.n_workers, worker, "mixed")
            purpose: Purpose = "train" if split == "train" else "test"
            arrays = self.learned if like is None else self._train_arrays()
            part = read_own(self.reads, self.given, path, share, arrays, purpose)
        else:
            part = read(
                path,
                stride=self.n_workers,
                offset=worker,
                options=self._options(split),
                like=like,
                shares="mixed",
            )
        self.own[split] = part
        return {"info": part.info.to_config(), "notes": part.notes}

    def _train_arrays(self) -> Arrays:
        part = self.own["train"]
        assert isinstance(part, TaskPart)
        return part.arrays


def _aligned(
    own: Mapping[str, SplitPart],
    info: DataInfo,
    meant: Mapping[str, dict[float, float]],
    apart: Apart,
    read_as: Mapping[str, DataInfo],
) -> dict[str, SplitSamples]:
    """Return the samples of each split with the labels and columns of `info`.

    Args:
        own: The parts of this worker by split.
        info: Description of the training data.
        meant: Which label of the training data each label of a split means; {}: itself.
        apart: Columns that are not features.
        read_as: Description of each split as it was read.
    """
    found: dict[str, SplitSamples] = {}
    for split, part in own.items():
        if isinstance(part, TaskPart):
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
            assert isinstance(part.data, StreamedData)
            changed = found[split] = part.data.changed(change)
            # Other differences from the training data show in any sample.
            changed.take(np.zeros(min(1, part.data.n), np.int64))
    return found
