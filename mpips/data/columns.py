"""Named columns of files: which is the label, which are features, which are text; and keys of their cells.

Keys are uniform in 0..2**62-1, so that no collision is to be expected below a billion distinct keys. They are
equal on all machines, and equal for all formats of files and all forms of a value (`words.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from glob import escape
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.conversions import NUMBERS, YEAR, parts_of
from mpips.data.dataset import Dataset
from mpips.data.info import Part, describe
from mpips.data.options import Conversion, ReadOptions
from mpips.data.words import SCALED
from mpips.errors import DataError

Float64: TypeAlias = npt.NDArray[np.float64]
Int64: TypeAlias = npt.NDArray[np.int64]

KEY_BITS = 62
_MOST_CACHED = 64  # characters of a cell whose key is remembered
# Label columns that are found without an option, in small letters; the first has precedence.
LABEL_NAMES = ("label", "y", "target", "class")
FOUND = "auto"  # in data.categorical: the columns that are found to be text
FLOAT32_MAX = float(np.finfo(np.float32).max)


class Column(msgspec.Struct, frozen=True):
    """A column of the file.

    Attributes:
        place: Index of the column, from 0.
        name: Name in the header; for a part of a date with the part behind it, such as `sent.hour`.
        categorical: The words of the cells are hashed; else they are numbers.
        words: The rule for words; see `mpips.data.words`.
        convert: Notation of the cells (`mpips.data.conversions`); "": plain numbers or words.
        part: The part of a date that the feature is; "": none.
        missing: Texts that mean an empty cell, beside the usual ones.
    """

    place: int
    name: str
    categorical: bool
    words: int = SCALED
    convert: Conversion | Literal[""] = ""
    part: str = ""
    missing: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Name in the header."""
        return self.name.removesuffix(f".{self.part}") if self.part else self.name


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
    label = _find_label(path, header, options)
    notes: tuple[str, ...] = ()
    own = label.name if label is not None else None
    names = [
        name
        for name in text
        if name != own and not _is_ignored(name, options) and not notation_of(name, options)
    ]
    if names:
        notes += (
            f"{path}: {_plural(names)} with text: categorical (data.categorical sets which are)",
        )
        asked = tuple(pattern for pattern in options.categorical if pattern != FOUND)
        options = msgspec.structs.replace(options, categorical=(*asked, *map(exactly, names)))
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
    return tuple(
        takes and column.name not in options.as_is and not column.part for column in features
    )


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


def _find_label(path: str, header: Sequence[str], options: ReadOptions) -> Column | None:
    """Return the label's column; None if it is missing and not needed."""
    wanted, needed = options.label, options.labelled
    if len(set(header)) < len(header):
        twins = sorted({name for name in header if header.count(name) > 1}, key=header.index)
        others = f" (as it does {listed(twins[1:])})" if len(twins) > 1 else ""
        raise DataError(f"{path}: the header names '{twins[0]}' twice{others}; rename one")
    if not needed and wanted is None:
        wanted = next((name for name in header if name.lower() in LABEL_NAMES), None)
    if not needed and wanted not in header:
        return None
    if wanted is None:
        wanted = _default_label(path, header)
    if wanted not in header:
        way = "set data.label to one of"
        if options.columns:
            # The label is that of the training data.
            way = "the column of the labels must have this name: the file has"
        raise DataError(f"{path}: no label column '{wanted}'; {way} {listed(header)}")
    return Column(
        header.index(wanted),
        wanted,
        categorical=False,
        convert=_label_notation(path, wanted, options),
    )


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


def _label_notation(path: str, name: str, options: ReadOptions) -> Conversion | Literal[""]:
    """Return the notation of the label's column.

    Raises:
        DataError: The option names one for classes, or that of a date.
    """
    notation = notation_of(name, options)
    if not notation or not options.labelled:
        return ""
    if options.wants != "targets" or parts_of(notation):
        raise DataError(
            f"{path}: data.convert names the label's column '{name}': only numbers to be predicted "
            "(options.labels = 'targets') have a notation, decimal_point or decimal_comma"
        )
    return notation


def _find_features(
    path: str, header: Sequence[str], options: ReadOptions, label: str | None
) -> tuple[tuple[Column, ...], list[str]]:
    """Return the feature columns in the order of a sample's features, and names of columns left out."""
    there = {
        column.name: column
        for place, name in enumerate(header)
        if name != label and not _is_ignored(name, options)
        for column in _features_of(place, name, options)
    }
    _check_names(path, header, list(there), options)
    names = options.columns or tuple(there)
    missing = [source_of(name, options) for name in names if name not in there]
    if missing:
        raise DataError(
            f"{path}: the training data has {_plural(list(dict.fromkeys(missing)))} that this file lacks; "
            f"add them or correct the header: {listed(header)}"
        )
    used = {there[name].source for name in names}
    extra = [c.source for name, c in there.items() if name not in names and c.source not in used]
    for pattern in options.categorical:
        if pattern != FOUND and not any(fnmatchcase(name, pattern) for name in names):
            raise DataError(
                f"{path}: categorical '{pattern}' matches none of {list(names)}; give names or "
                "patterns such as C*"
            )
    return tuple(there[name] for name in names), list(dict.fromkeys(extra))


def _features_of(place: int, name: str, options: ReadOptions) -> list[Column]:
    """Return the features of a column of the file."""
    notation = notation_of(name, options)
    parts = parts_of(notation) if notation else ()
    found = []
    for part in parts or ("",):
        own = f"{name}.{part}" if part else name
        if part and _is_ignored(own, options):
            continue
        asked = any(p != FOUND and fnmatchcase(own, p) for p in options.categorical)
        categorical = asked or part not in ("", YEAR)
        found.append(
            Column(place, own, categorical, options.words, notation, part, options.missing)
        )
    return found


def _check_names(
    path: str, header: Sequence[str], names: Sequence[str], options: ReadOptions
) -> None:
    """Check that the names of the features are distinct, and that data.convert names columns.

    Raises:
        DataError: They are not, or it does not.
    """
    sources = [source_of(name, options) for name in names]
    twin = next((n for n, own in zip(names, sources, strict=True) if n != own and n in header), "")
    if twin:
        raise DataError(
            f"{path}: data.convert gives the feature '{twin}', which is also a column; rename the column"
        )
    if options.columns:
        return
    for pattern, notation in options.convert:
        found = [name for name in header if fnmatchcase(name, pattern)]
        if not found:
            raise DataError(
                f"{path}: data.convert '{pattern}' matches none of {listed(header)}; give names or patterns"
            )
        asked = [p for p in options.categorical if p != FOUND and p in found]
        if asked and not parts_of(notation):
            raise DataError(
                f"{path}: column '{asked[0]}' is in data.categorical and in data.convert: it has words or "
                "numbers; leave one of them out"
            )


def notation_of(name: str, options: ReadOptions) -> Conversion | Literal[""]:
    """Return the notation that data.convert gives a column of the file; "": none. The first match counts."""
    return next((n for pattern, n in options.convert if fnmatchcase(name, pattern)), "")


def with_types(
    options: ReadOptions, numbers: Collection[str], dates: Collection[str]
) -> ReadOptions:
    """Return the options for data whose columns have types, not the notation of the training data.

    Args:
        options: Options of the reader.
        numbers: Columns of numbers, whose text has a decimal point.
        dates: Columns of dates, whose text begins with the year.
    """
    typed: list[tuple[str, Conversion]] = []
    for name in [*numbers, *dates]:
        notation = notation_of(name, options)
        if name in numbers and notation in NUMBERS:
            typed.append((exactly(name), "decimal_point"))
        elif name in dates and notation and parts_of(notation):
            typed.append(
                (exactly(name), "time_ymd" if "hour" in parts_of(notation) else "date_ymd")
            )
    # The first pair that matches counts.
    return (
        msgspec.structs.replace(options, convert=(*typed, *options.convert)) if typed else options
    )


def source_of(feature: str, options: ReadOptions) -> str:
    """Return the name of the column from which a feature comes: `sent` of `sent.hour`."""
    name, dot, part = feature.rpartition(".")
    notation = notation_of(name, options) if dot else ""
    return name if notation and part in parts_of(notation) else feature


def sources_of(features: Sequence[str], options: ReadOptions) -> tuple[str, ...]:
    """Return the names of the columns from which features come, each once, in their order."""
    return tuple(dict.fromkeys(source_of(feature, options) for feature in features))


def exactly(name: str) -> str:
    """Return the pattern that matches a name alone, for the options data.categorical and data.ignore."""
    return "[a]uto" if name == FOUND else escape(name)


def finds_text(options: ReadOptions) -> bool:
    """Return True if columns of text are categorical without being named."""
    return options.finds_text and (not options.categorical or FOUND in options.categorical)


def _is_ignored(name: str, options: ReadOptions) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in options.ignore)


def listed(names: Sequence[str]) -> str:
    """Return the names in quotes, the first ten if they are more than 20."""
    shown = names if len(names) <= 20 else names[:10]
    more = f" and {len(names) - 10} more" if shown is not names else ""
    return ", ".join(f"'{name}'" for name in shown) + more


def as_text(features: Sequence[Column], also: Collection[str]) -> str:
    """Return the option that reads further columns as text.

    The option names all columns of text, so those that are text without it are part of it.
    """
    names = [
        column.name
        for column in features
        if (column.categorical and not column.part) or column.name in also
    ]
    return f"data.categorical = {as_json(names)}"


class UnusableColumnsError(DataError):
    """Columns of a typed table are neither numbers nor text.

    Attributes:
        names: These columns, which can be left out; empty: the label's is one of them.
    """

    def __init__(self, text: str, names: Sequence[str]) -> None:
        """`text`: the sentence; `names`: see above."""
        super().__init__(text)
        self.names = tuple(names)


def as_json(value: object) -> str:
    """Return a text or a list as JSON, which is valid TOML."""
    return json.dumps(value, ensure_ascii=False)


def toml_table(pairs: Mapping[str, str]) -> str:
    """Return names and texts as an inline table of TOML."""
    return (
        f"{{ {', '.join(f'{as_json(name)} = {as_json(value)}' for name, value in pairs.items())} }}"
    )


def _plural(names: Sequence[str]) -> str:
    return f"{'columns' if len(names) > 1 else 'column'} {listed(names)}"
