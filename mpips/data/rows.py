"""Data that a task reads itself: any samples in memory, rows of whole numbers in particular.

A task whose files are not samples with features has a class method `read` (`mpips.tasks.base.ReadsData`). It
returns a `TaskPart`. The arrays of the part are what the task must know about the whole data beside the
samples, such as its vocabularies. They are equal on all workers, and checkpoints contain them, so that a
model predicts without the training data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from mpips._native import Xxh3
from mpips.data.info import DataInfo
from mpips.data.options import Wants
from mpips.data.vocabulary import VOCABULARY, size_of
from mpips.errors import DataError

T = TypeVar("T")
Int64: TypeAlias = npt.NDArray[np.int64]
PART = 4096  # samples that are evaluated, or predicted, at a time
# Arrays by path in the file of a checkpoint: `vocabulary/NAME` (`Vocabulary.to_array`) or `task/NAME`.
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
# Use of the samples. "test": they are evaluated. "predict": what is to be predicted need not be in the file.
Purpose: TypeAlias = Literal["train", "test", "predict"]


class Samples(Protocol):
    """One worker's samples in memory, as the loop of the training uses them."""

    @property
    def n(self) -> int:
        """Number of samples."""

    def take(self, rows: Int64, weight: float = 1.0) -> Any:
        """Return a batch of samples `rows` (int64, shape (n,), any order).

        Its attributes: `n`, the number of samples, and `weight`, a factor of the mean gradient.
        """


class RowBatch(msgspec.Struct, frozen=True):
    """Samples as rows of whole numbers.

    Attributes:
        ids: int64, shape (n, k).
        labels: A number for each sample, float64, shape (n,); zeros if the samples have none.
        weight: Factor of the mean gradient over the batch.
        names: The names in the file, shape (n, k); None: the task has not kept them.
    """

    ids: Int64
    labels: npt.NDArray[np.float64]
    weight: float = 1.0
    names: npt.NDArray[np.str_] | None = None

    @property
    def n(self) -> int:
        """Number of samples; may be 0."""
        return len(self.ids)


class RowData(msgspec.Struct, frozen=True):
    """A worker's samples as rows of whole numbers, such as the keys of head, relation and tail.

    Attributes:
        ids: int64, shape (n, k).
        values: A number for each sample, float64, shape (n,); None: they have none.
        names: The names in the file, shape (n, k), for output about unknown ones; None: they are not needed.
    """

    ids: Int64
    values: npt.NDArray[np.float64] | None = None
    names: npt.NDArray[np.str_] | None = None

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.ids)

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return self.ids.nbytes + (self.values.nbytes if self.values is not None else 0)

    def take(self, rows: Int64, weight: float = 1.0) -> RowBatch:
        """Copy samples `rows` (int64, shape (n,), any order) into a batch."""
        labels = self.values[rows] if self.values is not None else np.zeros(len(rows))
        names = self.names[rows] if self.names is not None else None
        return RowBatch(self.ids[rows], labels, weight, names)


class SomeSamples(msgspec.Struct, frozen=True):
    """Some of the samples of a data set; sample i is sample `rows[i]` (int64, shape (n,)) of `data`."""

    data: Samples
    rows: Int64

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.rows)

    def take(self, rows: Int64, weight: float = 1.0) -> Any:
        """Return a batch of these samples."""
        return self.data.take(self.rows[rows], weight)


class TaskPart(msgspec.Struct, frozen=True):
    """The result of `read` of a task.

    Attributes:
        data: The samples of this worker: of the share that `read` was given, in the order of the file.
        info: Description of the whole data, made by `describe_samples`.
        arrays: Arrays of training data, equal on all workers, by path; see `Arrays`.
        notes: Sentences for the user, such as how many lines were left out.
    """

    data: Samples
    info: DataInfo
    arrays: Arrays = {}
    notes: tuple[str, ...] = ()


def grouped(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items in lists of `PART`; the last one may be shorter."""
    left = iter(items)
    while found := list(itertools.islice(left, PART)):
        yield found


def describe_samples(
    n_total: int,
    n_local: int,
    source: str,
    arrays: Arrays | None = None,
    *,
    wants: Wants = "none",
    target_range: tuple[float, ...] = (),
) -> DataInfo:
    """Return the description of samples that a task has read.

    Args:
        n_total: Samples in the whole file.
        n_local: Samples of this worker.
        source: Name of the file in errors.
        arrays: See `TaskPart`. The sizes are part of the description, so `DataInfo.size("entities")` is the
            number of names in the array `vocabulary/entities` on all ranks, also on those without data.
        wants: The labels that the task needs.
        target_range: The least and the greatest target.

    Raises:
        DataError: There are no samples.
    """
    if not n_total:
        raise DataError(f"{source}: contains no samples")
    arrays = arrays or {}
    names = tuple(sorted(arrays))
    digest = Xxh3()
    for name in names:
        if name.startswith(VOCABULARY):
            digest.update(np.ascontiguousarray(arrays[name]).view(np.uint8))
    return DataInfo(
        n_total,
        n_local,
        0,
        (),
        "own",
        wants=wants,
        target_range=target_range,
        arrays=names,
        sizes=tuple(size_of(name, arrays[name]) for name in names),
        digest=f"{digest.digest():016x}",
    )
