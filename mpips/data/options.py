"""Options of readers, and the share of the samples that one worker reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from mpips.data.shares import Shares, check_shares, owners
from mpips.data.words import SCALED

# The labels that a task needs. "several": k labels of a sample, each 0 or 1. "none": no labels, and all of
# its metrics are its own.
Wants: TypeAlias = Literal["classes", "targets", "several", "none"]

# Options of [data], by the annotation that the job file and the readers share.
Format: TypeAlias = Annotated[
    Literal["auto", "libsvm", "csv", "criteo", "parquet", "arrow", "npz", "npy", "hdf5", "digits"],
    Meta(
        description="Format of the files. auto: by the extension of the name, else by the content. criteo: "
        "click logs of Criteo, whose columns are called label, I1 to I13, C1 to C26."
    ),
]
IndexBase: TypeAlias = Annotated[
    Literal[0, 1, "auto"],
    Meta(
        description="LIBSVM: number of the first feature. auto: 0 if index 0 occurs anywhere in the file, "
        "else 1."
    ),
]
Label: TypeAlias = Annotated[
    str | None,
    Meta(
        description="CSV, Parquet, fields of npy: column of the label. By default the column label, or else "
        "the only one that is named y, target or class in small or capital letters. Labels are numbers, or "
        "all of them are text. Plain npy: number of the label's column, such as 0 or -1 (the last), or the "
        "file of the labels, such as labels.npy; by default y.npy beside x.npy, y_1.npy beside x_1.npy."
    ),
]
LabelKind: TypeAlias = Annotated[
    Literal["auto", "text"],
    Meta(
        description="CSV, Parquet: kind of the labels. auto: numbers if all of them are numbers, so 1, 01 "
        "and 1.0 are one class. text: each text is a class."
    ),
]
Categorical: TypeAlias = Annotated[
    tuple[str, ...],
    Meta(
        description="CSV: columns to hash, as names or patterns such as C*. With one or more of them the "
        "data is sparse. By default the columns of which the first 1000 cells are text; auto in the list "
        "means these, so [auto, age] adds a column to them."
    ),
]
Numeric: TypeAlias = Annotated[
    Literal["auto", "raw", "log"],
    Meta(
        description="CSV: transformation of numeric columns. log: sign(v) log(1 + |v|). auto: log in sparse "
        "data, which tasks cannot standardise, else raw."
    ),
]
EmptyCells: TypeAlias = Annotated[
    Literal["error", "zero"],
    Meta(
        description="CSV: an empty numeric cell (also NA, NaN, null, none, ?) is an error, or 0. In sparse "
        "data it has no entry."
    ),
]
MissingTexts: TypeAlias = Annotated[
    tuple[str, ...],
    Meta(
        description="CSV, Parquet: texts that mean an empty cell in any feature column, in small or capital "
        "letters, such as [unknown, -]. Empty cells, NA, N/A, NaN, null, none and ? always do. A number, "
        "such as -999, means each cell of this value."
    ),
]
Conversion: TypeAlias = Literal[
    "decimal_point",
    "decimal_comma",
    "date_ymd",
    "date_dmy",
    "date_mdy",
    "time_ymd",
    "time_dmy",
    "time_mdy",
    "epoch_s",
    "epoch_ms",
]
Conversions: TypeAlias = Annotated[
    dict[str, Conversion],
    Meta(
        description="CSV, Parquet: notations of columns, by names or patterns. decimal_point, decimal_comma: "
        "numbers such as 1,234.5 or 1.234,5, also with a currency or % (divided by 100). date_ymd, date_dmy, "
        "date_mdy: dates by the order of year, month and day; each gives the features NAME.year, NAME.month, "
        "NAME.weekday. time_ymd, time_dmy, time_mdy: the same with NAME.hour. epoch_s, epoch_ms: seconds or "
        "milliseconds since 1970, in UTC, also with NAME.hour."
    ),
]
Header: TypeAlias = Annotated[
    bool,
    Meta(
        description="CSV: the first line names the columns. false: it is a sample, and the columns are "
        "called c1, c2, ..."
    ),
]

OnBad: TypeAlias = Annotated[
    Literal["error", "skip"],
    Meta(
        description="LIBSVM, CSV, Criteo: a line that cannot be read is an error, or left out and counted; "
        "the files are then converted into a cache, as those larger than memory."
    ),
]
Ignored: TypeAlias = Annotated[
    tuple[str, ...],
    Meta(description="CSV: columns that are not read, as names or patterns such as id_*."),
]

_CHUNK = 4096  # samples whose owners are computed at a time


class FileList(str):
    """A list of paths and patterns, in the place of one: as text, its entries with commas between them.

    Attributes:
        paths: The entries, at least one.
    """

    paths: tuple[str, ...]

    def __new__(cls, paths: Sequence[str]) -> FileList:
        """Make a list of paths."""
        found = super().__new__(cls, ", ".join(paths))
        found.paths = tuple(paths)
        return found


class ReadOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of all readers. Each reader uses those of its format.

    Attributes:
        format: A name in `READERS`, or "auto".
        index_base: LIBSVM: number of the first feature, or "auto".
        label: CSV: column of the label; None: the default column; "": none, if labels are not read. Plain
            npy: see `mpips.data.npy`.
        label_kind: CSV, Parquet: "text": labels are texts, also those that look like numbers.
        wants: "classes"; "targets", numbers to be predicted; "several" labels, in columns that are read like
            features if `labelled` is False, else in front of the lines of LIBSVM text.
        columns: CSV: the feature columns to read, in this order; (): all but the label, in the order of the
            file.
        categorical: CSV: columns to hash, as names or patterns.
        numeric: CSV: transformation of numeric columns.
        ignore: CSV: columns that are not read, as names or patterns.
        finds_text: CSV: columns of text are categorical if `categorical` is empty.
        label_names: CSV: the texts that are labels; (): numbers, or texts that are found.
        empty: CSV: meaning of an empty numeric cell.
        missing: CSV: texts that mean an empty cell.
        convert: CSV: pairs of a column's name or pattern and its notation; see `mpips.data.conversions`.
        header: CSV: the first line names the columns.
        as_is: CSV: columns of which no logarithms are taken, as those of weights and of several labels.
        labelled: False: labels are not read, and a file need not have any; they count as 0. In LIBSVM the
            first number of a line is the label in any case.
        on_bad: Action for a line that cannot be read; "skip" is for conversions into a cache only.
        words: The rule for words of categorical columns; see `mpips.data.words`.
        n_features: Plain npy: number of features of the training data, which shows whether an array to be
            predicted has a column of labels; 0: unknown.
        split: digits: part of the data set.
        split_seed: digits: seed of the division into parts.
    """

    format: Format = "auto"
    index_base: IndexBase = "auto"
    label: Label = None
    label_kind: LabelKind = "auto"
    wants: Wants = "classes"
    columns: tuple[str, ...] = ()
    categorical: Categorical = ()
    numeric: Numeric = "auto"
    ignore: Ignored = ()
    finds_text: bool = True
    label_names: tuple[str, ...] = ()
    empty: EmptyCells = "error"
    missing: MissingTexts = ()
    convert: tuple[tuple[str, Conversion], ...] = ()
    header: Header = True
    as_is: tuple[str, ...] = ()
    labelled: bool = True
    on_bad: OnBad = "error"
    words: int = SCALED
    n_features: int = 0
    split: Literal["train", "test"] = "train"
    split_seed: int = 0


@dataclass(frozen=True)
class Share:
    """The samples that worker `offset` of `stride` workers reads, by the rule `shares`.

    Attributes:
        stride: Number of workers.
        offset: Index of the worker, 0 to stride - 1.
        shares: The rule; see `mpips.data.shares`.
        first: Number of samples in files before this one, which are read as one with it.
    """

    stride: int
    offset: int
    shares: Shares = "interleaved"
    first: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for a share that no worker can have."""
        if not 0 <= self.offset < self.stride:
            raise ValueError(
                f"share {self.offset} of {self.stride}: needs 0 <= offset < stride (offset is the index of "
                "the worker, stride the number of workers)"
            )
        check_shares(self.shares)

    def numbers(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the numbers of this share's samples from `start` to below `stop`.

        Returns:
            int64, shape (n,), ascending.
        """
        samples = np.arange(start, stop, dtype=np.int64)
        numbers: npt.NDArray[np.int64] = samples[self._owned(samples)]
        return numbers

    def own(self, start: int, n: int) -> npt.NDArray[np.int64] | None:
        """Return the places of this share's samples among the n from `start` on; None for all of them."""
        return self.numbers(start, start + n) - start if self.stride > 1 else None

    def flags(self) -> Iterator[bool]:
        """Yield True or False for sample 0, 1, ... of the file: it belongs to this share or not. Endless."""
        for start in count(0, _CHUNK):
            samples = np.arange(start, start + _CHUNK, dtype=np.int64)
            yield from self._owned(samples).tolist()

    def _owned(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        owned: npt.NDArray[np.bool_] = (
            owners(samples + self.first, self.stride, self.shares) == self.offset
        )
        return owned
