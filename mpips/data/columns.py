"""Named columns of files: which is the label, which are features, which are text; and keys of their cells.

Keys are uniform in 0..2**62-1, so that no collision is to be expected below a billion distinct keys. They are
equal on all machines, and equal for all formats of files and all forms of a value (`words.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import escape
from hashlib import blake2b
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Dataset
from mpips.data.info import Part, describe
from mpips.data.options import ReadOptions
from mpips.data.words import VALUES
from mpips.errors import DataError

Float64: TypeAlias = npt.NDArray[np.float64]
Int64: TypeAlias = npt.NDArray[np.int64]

KEY_BITS = 62
_MOST_CACHED = 64  # characters of a cell whose key is remembered
# Label columns that are found without an option, in small letters; the first has precedence.
LABEL_NAMES = ("label", "y", "target", "class")
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Column(msgspec.Struct, frozen=True):
    """A column of the file.

    Attributes:
        place: Index of the column, from 0.
        name: Name in the header.
        categorical: The words of the cells are hashed; else they are numbers.
        words: The rule for words; see `mpips.data.words`.
    """

    place: int
    name: str
    categorical: bool
    words: int = VALUES


class TableColumns(msgspec.Struct, frozen=True):
    """The columns of a file that are used.

    Attributes:
        label: The label's column; None if it is missing and not needed.
        features: The feature columns, in the order of a sample's features.
        notes: Sentences for the user.
    """

    label: Column | None
    features: tuple[Column, ...]
    notes: tuple[str, ...] = ()


def hash_key(column: str, cell: str = "") -> int:
    """Return the key of a word in a categorical column, or of a numeric column itself."""
    return (
        _hash_key(column, cell)
        if len(cell) <= _MOST_CACHED
        else _hash_key.__wrapped__(column, cell)
    )


@lru_cache(maxsize=1 << 20)
def _hash_key(column: str, cell: str) -> int:
    # Prepend the length, so that ("ab", "c") and ("a", "bc") differ.
    text = f"{len(column)}:{column}{cell}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> (64 - KEY_BITS)


def choose_columns(
    path: str, header: Sequence[str], options: ReadOptions, text: Sequence[str]
) -> TableColumns:
    """Choose the columns of a file.

    Args:
        path: The file, for messages.
        header: Names of all columns.
        options: Options of the reader.
        text: Names of the columns that contain text; they are categorical if no option lists columns as such.

    Raises:
        DataError: The label's column or a feature is missing, or a name occurs twice.
    """
    label = _find_label(path, header, options.label, options.labelled)
    notes: tuple[str, ...] = ()
    own = label.name if label is not None else None
    names = [n for n in text if n != own and not any(fnmatchcase(n, p) for p in options.ignore)]
    if names:
        notes += (
            f"{path}: {_plural(names)} with text: categorical (data.categorical sets which are)",
        )
        options = msgspec.structs.replace(options, categorical=tuple(map(escape, names)))
    features, extra = _find_features(path, header, options, own)
    if extra:
        notes += (f"{path}: {_plural(extra)} not in the training data: left out",)
    return TableColumns(label, features, notes)


def logarithms_of(
    features: Sequence[Column], options: ReadOptions, hashed: bool
) -> tuple[bool, ...]:
    """Return for each feature whether a number v becomes sign(v) log(1 + |v|).

    Args:
        features: The features.
        options: Options of the reader; the columns in `as_is` have none.
        hashed: Samples are lists of keys and values.
    """
    auto = "log" if hashed else "raw"
    takes = (auto if options.numeric == "auto" else options.numeric) == "log"
    return tuple(takes and column.name not in options.as_is for column in features)


def part_of(
    path: str,
    data: Dataset,
    n_samples: int,
    options: ReadOptions,
    columns: TableColumns,
    label_names: tuple[str, ...],
) -> Part:
    """Make the `Part` of one worker.

    Args:
        path: The file.
        data: Samples of the worker; labels that are text are places in `label_names`.
        n_samples: Samples in the whole file.
        options: Options of the reader.
        columns: The columns that were read.
        label_names: Labels of the whole file that are text, sorted; (): labels are numbers.

    Raises:
        DataError: There are no samples, or too many distinct labels to be classes.
    """
    part = describe(
        data,
        n_samples,
        path,
        wants=options.wants if options.labelled else "targets",
        columns=tuple(column.name for column in columns.features),
        label_column=columns.label.name if columns.label is not None else "",
        notes=columns.notes,
    )
    info = replace(
        part.info,
        label_names=label_names,
        categorical=tuple(column.name for column in columns.features if column.categorical),
        words=options.words,
    )
    if label_names and options.labelled:
        # Describe all classes, also those that this share does not contain.
        counts = np.bincount(data.labels.astype(np.int64), minlength=len(label_names))
        labels = tuple(map(float, range(len(label_names))))
        info = replace(info, labels=labels, counts=tuple(counts.tolist()))
    return replace(part, info=info)


def _find_label(
    path: str, header: Sequence[str], wanted: str | None, needed: bool
) -> Column | None:
    """Return the label's column; None if it is missing and not `needed`."""
    if len(set(header)) < len(header):
        twin = next(name for name in header if header.count(name) > 1)
        raise DataError(f"{path}: the header names '{twin}' twice; rename one")
    if not needed and wanted is None:
        wanted = next((name for name in header if name.lower() in LABEL_NAMES), None)
    if not needed and wanted not in header:
        return None
    if wanted is None:
        wanted = _default_label(path, header)
    if wanted not in header:
        raise DataError(
            f"{path}: no label column '{wanted}'; set data.label to one of {listed(header)}"
        )
    return Column(header.index(wanted), wanted, categorical=False)


def _default_label(path: str, header: Sequence[str]) -> str:
    if LABEL_NAMES[0] in header:
        return LABEL_NAMES[0]
    likely = [name for name in header if name.lower() in LABEL_NAMES]
    if len(likely) == 1:
        return likely[0]
    found = f"columns {likely}" if likely else "no column is named 'label'"
    raise DataError(
        f"{path}: which column holds the label is not clear: {found}; "
        f"set data.label to one of {listed(header)}"
    )


def _find_features(
    path: str, header: Sequence[str], options: ReadOptions, label: str | None
) -> tuple[tuple[Column, ...], list[str]]:
    """Return the feature columns in the order of a sample's features, and names of columns left out."""
    there = [
        name
        for name in header
        if name != label and not any(fnmatchcase(name, p) for p in options.ignore)
    ]
    names = options.columns or tuple(there)
    missing = [name for name in names if name not in there]
    if missing:
        raise DataError(
            f"{path}: the training data has {_plural(missing)} that this file lacks; add them or "
            f"correct the header: {listed(header)}"
        )
    extra = [name for name in there if name not in names]
    for pattern in options.categorical:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise DataError(
                f"{path}: categorical '{pattern}' matches none of {list(names)}; give names or "
                "patterns such as C*"
            )
    features = tuple(
        Column(
            header.index(name),
            name,
            any(fnmatchcase(name, pattern) for pattern in options.categorical),
            options.words,
        )
        for name in names
    )
    return features, extra


def listed(names: Sequence[str]) -> str:
    """Return the names in quotes, the first ten if they are more than 20."""
    shown = names if len(names) <= 20 else names[:10]
    more = f" and {len(names) - 10} more" if shown is not names else ""
    return ", ".join(f"'{name}'" for name in shown) + more


def as_text(features: Sequence[Column], also: str) -> str:
    """Return the option that reads a further column as text.

    The option names all columns of text, so those that are text without it are part of it.
    """
    names = [column.name for column in features if column.categorical or column.name == also]
    return f"data.categorical = {json.dumps(names, ensure_ascii=False)}"


def _plural(names: Sequence[str]) -> str:
    return f"{'columns' if len(names) > 1 else 'column'} {listed(names)}"
