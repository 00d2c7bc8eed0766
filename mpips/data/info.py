"""What all workers must know alike about the training data, and fitting any data to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from mpips.data.dataset import Dataset, DenseData, Labels, SparseData
from mpips.errors import DataError

MAX_CLASSES = 65536


@dataclass(frozen=True)
class DataInfo:
    """Facts about a data set.

    Attributes:
        n_samples_total: Samples in the whole file.
        n_local: Samples of the worker that reports; after `combine`, of all workers.
        n_features: Columns, or one more than the largest key.
        labels: The distinct labels as they stand in the file, ascending; class c is `labels[c]`.
        kind: Whether samples are rows or lists of (key, value).
        index_base: What features are counted from in a LIBSVM file; 0 for all other formats.
    """

    n_samples_total: int
    n_local: int
    n_features: int
    labels: tuple[float, ...]
    kind: Literal["sparse", "dense"]
    index_base: int = 0

    @property
    def n_classes(self) -> int:
        """Number of distinct labels."""
        return len(self.labels)

    def to_config(self) -> dict[str, Any]:
        """Return plain values, for a checkpoint or a log."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DataInfo:
        """Undo `to_config`, also after JSON has turned the tuple into a list."""
        return cls(**{**config, "labels": tuple(float(label) for label in config["labels"])})


@dataclass(frozen=True)
class Part:
    """What a reader returns: a worker's own samples and what it knows of the whole."""

    data: Dataset
    info: DataInfo


def describe(data: Dataset, n_samples_total: int, source: str, index_base: int = 0) -> Part:
    """Make the `Part` of `data`, whose labels are still those of the file.

    Raises:
        DataError: There is no sample, or labels are too many to be classes.
    """
    if n_samples_total == 0:
        raise DataError(f"{source}: holds no sample")
    labels = tuple(float(label) for label in np.unique(data.labels))
    _check_class_count(len(labels), source)
    kind: Literal["sparse", "dense"] = "sparse" if isinstance(data, SparseData) else "dense"
    info = DataInfo(n_samples_total, data.n, data.n_features, labels, kind, index_base)
    return Part(data, info)


def combine(infos: Sequence[DataInfo]) -> DataInfo:
    """Agree on one description from those of all workers, given in any order.

    Raises:
        DataError: The workers did not read the same file, or not all of it exactly once.
    """
    first = infos[0]
    for name in ("n_samples_total", "n_features", "kind", "index_base"):
        found = sorted({getattr(info, name) for info in infos})
        if len(found) > 1:
            raise DataError(f"workers read different data: {name} is {found}; give all one file")
    n_local = sum(info.n_local for info in infos)
    if n_local != first.n_samples_total:
        raise DataError(
            f"workers hold {n_local} of {first.n_samples_total} samples; stride must be the "
            "number of workers and offset the worker's index"
        )
    labels = tuple(sorted({label for info in infos for label in info.labels}))
    _check_class_count(len(labels), "training data")
    return replace(first, n_local=n_local, labels=labels)


def align(data: Dataset, info: DataInfo) -> Dataset:
    """Fit data to the training data's description.

    Labels become classes, int64 in 0..n_classes-1. Sparse entries whose key the training data
    cannot hold are dropped, because nothing was learned about them.

    Raises:
        DataError: A label, the number of columns or the kind is not that of the training data.
    """
    labels = _to_classes(data.labels, info.labels)
    if isinstance(data, SparseData) and info.kind == "sparse":
        return replace(_drop_unknown(data, info.n_features), labels=labels)
    if isinstance(data, DenseData) and info.kind == "dense":
        if data.n_features != info.n_features:
            raise DataError(
                f"data has {data.n_features} features, the training data {info.n_features}"
            )
        return replace(data, labels=labels)
    raise DataError(f"training data is {info.kind}, this data is not; use one format for both")


def _to_classes(labels: Labels, known: tuple[float, ...]) -> Labels:
    ordered = np.array(known, dtype=np.float64)
    classes = np.minimum(np.searchsorted(ordered, labels), len(known) - 1).astype(np.int64)
    strange = np.flatnonzero(ordered[classes] != labels)
    if len(strange):
        shown = ", ".join(f"{label:g}" for label in known[:10])
        more = ", ..." if len(known) > 10 else ""
        raise DataError(
            f"label {labels[strange[0]]:g} does not occur in the training data, "
            f"whose labels are {shown}{more}"
        )
    return classes


def _drop_unknown(data: SparseData, n_features: int) -> SparseData:
    if data.n_features <= n_features:
        return replace(data, n_features=n_features)
    known = data.indices < n_features
    n_known_before = np.concatenate(([0], np.cumsum(known, dtype=np.int64)))
    return replace(
        data,
        indptr=n_known_before[data.indptr],
        indices=data.indices[known],
        values=data.values[known],
        n_features=n_features,
    )


def _check_class_count(count: int, source: str) -> None:
    if count > MAX_CLASSES:
        raise DataError(
            f"{source}: {count} distinct labels, at most {MAX_CLASSES} can be classes; "
            "is this the right label column?"
        )
