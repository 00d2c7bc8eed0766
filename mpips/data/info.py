"""The description of the training data, equal on all workers, and the alignment of data with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Dataset, DenseData, Features, Labels, SparseData, all_labels
from mpips.data.moments import Moments
from mpips.data.options import Wants
from mpips.data.words import TEXTS
from mpips.errors import DataError
from mpips.model.distinct import distinct_counts

MAX_CLASSES = 65536
MOST_LABEL = 2.0**53  # above which different whole numbers are one float64
TOO_MANY = "check the label column (data.label), or predict numbers (options.labels = 'targets')"
# Greatest error of rounding to float32, as a fraction of the standard deviation of the feature.
ROUNDING = 1e-4


@dataclass(frozen=True)
class DataInfo:
    """Description of a data set.

    Attributes:
        n_samples_total, n_local: Samples in the whole file, and of one worker; after `combine`, of all.
        n_features: Columns, or one more than the largest key.
        labels: The distinct labels as they are in the file, ascending; class c is `labels[c]`. () for
            targets.
        kind: "dense": samples are rows. "sparse": samples are lists of (key, value). "own": the task reads
            its files itself (`mpips.data.rows`), and `n_features` is 0.
        index_base: Number of the first feature in a LIBSVM file; 0 for all other formats.
        wants: "classes"; "targets", numbers to be predicted; "several" labels, each 0 or 1; or "none".
        counts: Samples of each of `labels`, of one worker; after `combine`, of all. () for targets.
        target_range: The least and the greatest target; () for classes.
        columns: CSV: names of the feature columns; for dense data in the order of `x`.
        label_column: CSV: name of the label's column.
        label_names: CSV: labels that are text, sorted; class c, whose label is c, is `label_names[c]`. ():
            labels are numbers. Names of several labels.
        categorical: CSV: names of the columns that are hashed.
        wide: float32 would lose differences between samples in a dense feature, such as seconds since 1970.
            Then `x` is float64, else float32.
        arrays: Kind "own": paths of the arrays that checkpoints contain for the task, sorted.
        sizes: Number of names or entries in each of them.
        digest: XXH3-64 of the vocabularies among them, 16 hexadecimal digits.
        of_array: LIBSVM: features are the columns of an array. So a file is asked for its own base; see
            `mpips.data.libsvm.OF_ARRAY`.
        words: CSV: the rule for words of categorical columns (`mpips.data.words`). Descriptions of earlier
            versions have none, and mean rule 0.
        chosen: Values that the task has chosen by this data (`mpips.tasks.base.Chooses`), by dotted names
            such as "train.epochs". {}: it chooses none, or the description is that of an earlier version.
    """

    n_samples_total: int
    n_local: int
    n_features: int
    labels: tuple[float, ...]
    kind: Literal["sparse", "dense", "own"]
    index_base: int = 0
    wants: Wants = "classes"
    counts: tuple[int, ...] = ()
    target_range: tuple[float, ...] = ()
    columns: tuple[str, ...] = ()
    label_column: str = ""
    wide: bool = False
    label_names: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    digest: str = ""
    words: int = TEXTS
    of_array: bool = False
    chosen: dict[str, Any] = field(default_factory=dict, hash=False)

    def size(self, name: str) -> int:
        """Return the number of names in the vocabulary `name`, or of entries in the task's array `name`.

        Raises:
            KeyError: The data has no such array.
        """
        for path, size in zip(self.arrays, self.sizes, strict=True):
            if path.partition("/")[2] == name:
                return size
        raise KeyError(name)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Classes as text, in their order, or several labels; () for targets."""
        return self.label_names or tuple(map(label_text, self.labels))

    @property
    def n_fields(self) -> int:
        """Number of columns from which the entries of sparse samples come; 0: the format has no columns."""
        return len(self.columns) if self.kind == "sparse" else 0

    @property
    def n_targets(self) -> int:
        """Numbers of a sample that labels have moments of, in data that mpips reads; 0 for classes."""
        if self.kind == "own":
            return 0
        return {"targets": 1, "several": len(self.label_names)}.get(self.wants, 0)

    @property
    def n_classes(self) -> int:
        """Number of distinct labels; 0 for targets."""
        return len(self.labels)

    def to_config(self) -> dict[str, Any]:
        """Return plain values, for a checkpoint or a log."""
        found = asdict(self)
        # Descriptions without choices are those of earlier versions.
        return found if self.chosen else {k: v for k, v in found.items() if k != "chosen"}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DataInfo:
        """Return the description that `to_config` wrote, even if JSON has turned tuples into lists."""
        tuples = {name: tuple(v) for name, v in config.items() if isinstance(v, list)}
        return cls(**{**config, **tuples, "labels": tuple(float(x) for x in config["labels"])})


@dataclass(frozen=True)
class Part:
    """The result of a reader: the samples of one worker, and their description.

    Attributes:
        data: The samples, with the labels of the file. Dense `x` is float64 if float32 does not represent the
            numbers of the file exactly; `align` decides on the precision for all workers.
        info: The description.
        notes: Sentences for the user, such as which columns were left out.
    """

    data: Dataset
    info: DataInfo
    notes: tuple[str, ...] = ()


def label_text(label: float) -> str:
    """Return a label that is a number as text: all of its digits, and those of a whole number alone."""
    number = float(label)
    return str(int(number)) if number.is_integer() and abs(number) <= MOST_LABEL else repr(number)


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
    """Make the `Part` of one worker.

    Args:
        data: Samples of the worker, with the labels of the file.
        n_samples_total: Samples in the whole file.
        source: Name of the file in errors.
        index_base: Number of the first feature in a LIBSVM file.
        wants: "classes" or "targets".
        columns: CSV: names of the feature columns.
        label_column: CSV: name of the label's column.
        notes: Sentences for the user.

    Raises:
        DataError: There are no samples, or too many distinct labels to be classes.
    """
    if n_samples_total == 0:
        raise DataError(f"{source}: contains no samples")
    kind: Literal["sparse", "dense"] = "sparse" if isinstance(data, SparseData) else "dense"
    labels, counts, target_range = _label_facts(all_labels(data, wants), wants, source)
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
    """Return labels, their counts and the range of targets; () for what does not apply."""
    if wants == "targets":
        ends = (float(values.min()), float(values.max())) if len(values) else ()
        return (), (), ends
    labels, counts = distinct_counts(values)
    check_class_count(len(labels), source)
    return tuple(labels.astype(float).tolist()), tuple(counts.tolist()), ()


def narrow(x: npt.NDArray[Any]) -> npt.NDArray[np.float32] | npt.NDArray[np.float64]:
    """Return x as float32 if that is exact, else as float64; C-contiguous.

    A number beyond float32 becomes infinity, which callers refuse.
    """
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(x, dtype=np.float32)
    if np.can_cast(x.dtype, np.float32) or not np.isfinite(rows).all() or np.array_equal(rows, x):
        return rows
    return np.ascontiguousarray(x, dtype=np.float64)


def needs_float64(x: Features) -> bool:
    """Return True if float32 would lose differences between samples in a column of x, shape (n, d)."""
    if x.dtype != np.float64 or len(x) < 2:
        return False
    moments = Moments.of(DenseData(x, np.zeros(len(x))))
    deviation = np.sqrt(moments.squares / len(x))
    # Go in blocks, so that temporary arrays are small.
    for start in range(0, len(x), 4096):
        block = x[start : start + 4096]
        error = np.abs(block - block.astype(np.float32)).max(axis=0)
        if ((error > ROUNDING * deviation) & ~moments.constant()).any():
            return True
    return False


def combine(infos: Sequence[DataInfo]) -> DataInfo:
    """Combine the descriptions of all workers, given in any order, into one of the whole data.

    Raises:
        DataError: The workers did not read the same file, or did not read each sample exactly once.
    """
    first = infos[0]
    names = (
        "n_samples_total",
        "n_features",
        "kind",
        "index_base",
        "of_array",
        "columns",
        "label_column",
        "label_names",
        "categorical",
        "words",
        "arrays",
        "sizes",
        "digest",
    )
    for name in names:
        found = sorted({getattr(info, name) for info in infos})
        if len(found) > 1:
            raise DataError(
                f"workers read different data: {name} is {found}: all workers must read the same file"
            )
    n_local = sum(info.n_local for info in infos)
    if n_local != first.n_samples_total:
        raise DataError(
            f"workers have {n_local} of {first.n_samples_total} samples; read with stride = number of "
            "workers and offset = index of the worker"
        )
    labels = tuple(sorted({label for info in infos for label in info.labels}))
    check_class_count(len(labels), "training data")
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
    """Return the samples of each label over all workers; () if a worker did not count its labels."""
    if any(len(info.counts) != len(info.labels) for info in infos):
        return ()
    total = dict.fromkeys(labels, 0)
    for info in infos:
        for label, count in zip(info.labels, info.counts, strict=True):
            total[label] += count
    return tuple(total.values())


# Labels that two classes usually have.
_PAIRS = ((-1.0, 1.0), (0.0, 1.0), (1.0, 2.0))


def matching_labels(info: DataInfo, other: DataInfo) -> dict[float, float]:
    """Return which labels of the training data those of other data mean; see `meanings`.

    Args:
        info: Description of the training data.
        other: Description of the whole other data.
    """
    return {} if other.label_names else meanings(info, other.labels)


def has_usual_labels(info: DataInfo) -> bool:
    """Return True if other files may label the two classes of this data with other numbers."""
    return info.labels in _PAIRS and not info.label_names


def meanings(info: DataInfo, labels: tuple[float, ...]) -> dict[float, float]:
    """Return which labels of the training data those of other data mean, if both have two classes.

    Files of one data set label two classes as -1 and 1, 0 and 1, or 1 and 2.

    Args:
        info: Description of the training data.
        labels: The distinct labels of the whole other data, numbers, ascending.

    Returns:
        The label of the training data for each label of the other data; {} if the labels are equal, or mean
        nothing by themselves.
    """
    if not has_usual_labels(info) or labels not in _PAIRS or labels == info.labels:
        return {}
    return dict(zip(labels, info.labels, strict=True))


def relabel(data: Dataset, labels: dict[float, float]) -> Dataset:
    """Return the data with other labels; shares all other arrays.

    Args:
        data: The data.
        labels: The new label for each label of `data`; {}: nothing changes.
    """
    if not labels:
        return data
    old, new = np.array(list(labels)), np.array(list(labels.values()))
    return msgspec.structs.replace(data, labels=new[np.searchsorted(old, data.labels)])


def align(data: Dataset, info: DataInfo) -> Dataset:
    """Align data with the description of the training data.

    Labels become classes, int64 in 0..n_classes-1, or are unchanged if the task predicts targets. Sparse
    entries with a key of `info.n_features` or more are dropped, because the model has learned nothing about
    them. Dense features become float64 if `info.wide`, else float32.

    Returns:
        A new data set; it shares arrays with `data` that need no change.

    Raises:
        DataError: A label, the number of columns or the kind differs from the training data.
    """
    is_class = info.wants == "classes"
    labels = _to_classes(data.labels, info.labels) if is_class else data.labels
    if isinstance(data, SparseData) and info.kind == "sparse":
        return msgspec.structs.replace(_drop_unknown(data, info.n_features), labels=labels)
    if isinstance(data, DenseData) and info.kind == "dense":
        if data.n_features != info.n_features:
            raise DataError(
                f"data has {data.n_features} features, the training data {info.n_features}; use files "
                "with the same columns"
            )
        if info.wide:
            return DenseData(data.x.astype(np.float64, copy=False), labels)
        return DenseData(data.x.astype(np.float32, copy=False), labels)
    raise DataError(
        f"training data is {info.kind}, this data is not; use one format for both files"
    )


def check_labels(labels: Sequence[float], info: DataInfo) -> None:
    """Check that the training data has these labels, unless the task predicts numbers.

    Raises:
        DataError: It lacks one.
    """
    if info.wants == "classes":
        _to_classes(np.array(labels, np.float64), info.labels)


def _to_classes(labels: Labels, known: tuple[float, ...]) -> Labels:
    """Return the place in `known` of each label, int64; raise DataError for another label."""
    ordered = np.array(known, dtype=np.float64)
    classes = np.minimum(np.searchsorted(ordered, labels), len(known) - 1).astype(np.int64)
    strange = np.flatnonzero(ordered[classes] != labels)
    if len(strange):
        shown = ", ".join(map(label_text, known[:10]))
        more = ", ..." if len(known) > 10 else ""
        raise DataError(
            f"label {label_text(labels[strange[0]])} does not occur in the training data, "
            f"whose labels are {shown}{more}; use files with the same labels"
        )
    return classes


def _drop_unknown(data: SparseData, n_features: int) -> SparseData:
    """Return the data without entries whose key is `n_features` or more."""
    if data.n_features <= n_features:
        return msgspec.structs.replace(data, n_features=n_features)
    known = data.indices < n_features
    n_known_before = np.concatenate(([0], np.cumsum(known, dtype=np.int64)))
    return msgspec.structs.replace(
        data,
        indptr=n_known_before[data.indptr],
        indices=data.indices[known],
        values=data.values[known],
        n_features=n_features,
        fields=data.fields[known] if data.fields is not None else None,
    )


def check_class_count(count: int, source: str) -> None:
    """Raise DataError if `count` distinct labels are too many to be classes."""
    if count > MAX_CLASSES:
        raise DataError(
            f"{source}: {count} distinct labels, at most {MAX_CLASSES} can be classes; {TOO_MANY}"
        )
