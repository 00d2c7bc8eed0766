"""What all workers must know alike about the training data, and fitting any data to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Dataset, DenseData, Features, Labels, SparseData
from mpips.data.moments import Moments
from mpips.data.options import Wants
from mpips.errors import DataError

MAX_CLASSES = 65536
# float32 is enough for a feature if rounding moves no value further than this share of its deviation.
ROUNDING = 1e-4


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
        wants: What labels are read as: "classes", or "targets", numbers to be predicted (regression);
            `labels` and `counts` are empty then.
        counts: Samples of each label, in the order of `labels`; of the worker that reports, after
            `combine` of all.
        target_range: The least and the greatest target; () for classes.
        columns: CSV: the names of the feature columns, in the order of `x` for dense data.
        label_column: CSV: the name of the label's column.
        wide: Whether float32 would lose what tells samples apart in some dense feature, such as seconds
            since 1970; `x` is float64 then, else float32.
    """

    n_samples_total: int
    n_local: int
    n_features: int
    labels: tuple[float, ...]
    kind: Literal["sparse", "dense"]
    index_base: int = 0
    wants: Wants = "classes"
    counts: tuple[int, ...] = ()
    target_range: tuple[float, ...] = ()
    columns: tuple[str, ...] = ()
    label_column: str = ""
    wide: bool = False

    @property
    def n_classes(self) -> int:
        """Number of distinct labels; 0 for targets."""
        return len(self.labels)

    def to_config(self) -> dict[str, Any]:
        """Return plain values, for a checkpoint or a log."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DataInfo:
        """Undo `to_config`, also after JSON has turned tuples into lists."""
        tuples = {name: tuple(v) for name, v in config.items() if isinstance(v, list)}
        return cls(**{**config, **tuples, "labels": tuple(float(x) for x in config["labels"])})


@dataclass(frozen=True)
class Part:
    """What a reader returns: a worker's own samples and what it knows of the whole.

    Attributes:
        data: The samples; labels are those of the file. Dense `x` is float64 where float32 does not
            hold the file's numbers exactly; `align` decides on the precision for all workers.
        info: The description.
        notes: Sentences that a user should read, such as which columns were left out.
    """

    data: Dataset
    info: DataInfo
    notes: tuple[str, ...] = ()


def describe(
    data: Dataset,
    n_samples_total: int,
    source: str,
    index_base: int = 0,
    *,
    wants: Wants = "classes",
    columns: tuple[str, ...] = (),
    label_column: str = "",
    notes: tuple[str, ...] = (),
) -> Part:
    """Make the `Part` of `data`, whose labels are still those of the file.

    Raises:
        DataError: There is no sample, or labels are too many to be classes.
    """
    if n_samples_total == 0:
        raise DataError(f"{source}: contains no samples")
    kind: Literal["sparse", "dense"] = "sparse" if isinstance(data, SparseData) else "dense"
    labels, counts, target_range = _label_facts(data.labels, wants, source)
    info = DataInfo(
        n_samples_total,
        data.n,
        data.n_features,
        labels,
        kind,
        index_base,
        wants,
        counts,
        target_range,
        columns,
        label_column,
        wide=isinstance(data, DenseData) and needs_float64(data.x),
    )
    return Part(data, info, notes)


def _label_facts(
    values: Labels, wants: Wants, source: str
) -> tuple[tuple[float, ...], tuple[int, ...], tuple[float, ...]]:
    """Return labels and their counts, or the range of targets."""
    if wants == "targets":
        ends = (float(values.min()), float(values.max())) if len(values) else ()
        return (), (), ends
    labels, counts = np.unique(values, return_counts=True)
    _check_class_count(len(labels), source)
    return tuple(labels.astype(float).tolist()), tuple(counts.tolist()), ()


def narrow(x: npt.NDArray[Any]) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]:
    """Return x as float32 if that is exact, else as float64.

    A number beyond float32 becomes infinity, which callers refuse.
    """
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(x, dtype=np.float32)
    if np.can_cast(x.dtype, np.float32) or not np.isfinite(rows).all() or np.array_equal(rows, x):
        return rows
    return np.ascontiguousarray(x, dtype=np.float64)


def needs_float64(x: Features) -> bool:
    """Return whether float32 would lose what tells the samples apart in some column of x."""
    if x.dtype != np.float64 or len(x) < 2:
        return False
    moments = Moments.of(DenseData(x, np.zeros(len(x))))
    deviation = np.sqrt(moments.squares / len(x))
    for start in range(0, len(x), 4096):
        block = x[start : start + 4096]
        error = np.abs(block - block.astype(np.float32)).max(axis=0)
        if ((error > ROUNDING * deviation) & ~moments.constant()).any():
            return True
    return False


def combine(infos: Sequence[DataInfo]) -> DataInfo:
    """Agree on one description from those of all workers, given in any order.

    Raises:
        DataError: The workers did not read the same file, or not all of it exactly once.
    """
    first = infos[0]
    names = ("n_samples_total", "n_features", "kind", "index_base", "columns", "label_column")
    for name in names:
        found = sorted({getattr(info, name) for info in infos})
        if len(found) > 1:
            raise DataError(
                f"workers read different data: {name} is {found}: all workers must read the same file"
            )
    n_local = sum(info.n_local for info in infos)
    if n_local != first.n_samples_total:
        raise DataError(
            f"workers hold {n_local} of {first.n_samples_total} samples; stride must be the "
            "number of workers and offset the worker's index"
        )
    labels = tuple(sorted({label for info in infos for label in info.labels}))
    _check_class_count(len(labels), "training data")
    ends = [end for info in infos for end in info.target_range]
    return replace(
        first,
        n_local=n_local,
        labels=labels,
        counts=_sum_counts(infos, labels),
        target_range=(min(ends), max(ends)) if ends else (),
        wide=any(info.wide for info in infos),
    )


def _sum_counts(infos: Sequence[DataInfo], labels: tuple[float, ...]) -> tuple[int, ...]:
    """Return the samples of each label over all workers, or () where a worker does not say."""
    if any(len(info.counts) != len(info.labels) for info in infos):
        return ()
    total = dict.fromkeys(labels, 0)
    for info in infos:
        for label, count in zip(info.labels, info.counts, strict=True):
            total[label] += count
    return tuple(total.values())


def align(data: Dataset, info: DataInfo) -> Dataset:
    """Fit data to the training data's description.

    Labels become classes, int64 in 0..n_classes-1, or stay as they are where the task wants targets.
    Sparse entries whose key the training data cannot hold are dropped, because nothing was learned
    about them. Dense features become float64 where `info.wide`, else float32.

    Raises:
        DataError: A label, the number of columns or the kind is not that of the training data.
    """
    targets = info.wants == "targets"
    labels = data.labels if targets else _to_classes(data.labels, info.labels)
    if isinstance(data, SparseData) and info.kind == "sparse":
        return replace(_drop_unknown(data, info.n_features), labels=labels)
    if isinstance(data, DenseData) and info.kind == "dense":
        if data.n_features != info.n_features:
            raise DataError(
                f"data has {data.n_features} features, the training data {info.n_features}"
            )
        if info.wide:
            return DenseData(data.x.astype(np.float64, copy=False), labels)
        return DenseData(data.x.astype(np.float32, copy=False), labels)
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
