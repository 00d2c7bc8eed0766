"""Write what people train on in Python, arrays and frames, into files that all ranks read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mpips.data.columns import LABEL_NAMES
from mpips.data.csv_dialect import is_text
from mpips.data.info import label_text
from mpips.data.libsvm import OF_ARRAY
from mpips.data.several import given_files
from mpips.errors import DataError


class DataFolder(Protocol):
    """Has a folder, which is made when it is first asked for."""

    @property
    def path(self) -> Path:
        """The folder."""


def as_file(data: Any, place: DataFolder, name: str) -> str:
    """Return the path of a file with this data; files are returned as they are.

    Args:
        data: See `mpips.fit`.
        place: Folder in which a new file is written.
        name: Name of the file without its extension, also for errors.

    Raises:
        DataError: The data has none of the accepted forms, or samples and labels do not fit together.
    """
    files = given_files(data)
    if files is not None:
        return files
    if is_frame(data):
        path = place.path / f"{name}.csv"
        data.to_csv(path, index=False)
        return str(path)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise DataError(
            f"the {name} data is {type(data).__name__}: must be a path, a list of paths, a pair (x, y) or a "
            "frame of pandas"
        )
    x, y = data[0], np.asarray(data[1])
    shape = getattr(x, "shape", None) or np.shape(x)
    if len(shape) != 2 or y.ndim not in (1, 2) or shape[0] != len(y):
        raise DataError(
            f"the {name} data has samples of shape {tuple(shape)} and labels of shape {y.shape}: must be "
            "(n, d) and (n,), or (n, k) for several labels"
        )
    if y.ndim == 2 and y.dtype.kind not in "biuf":
        raise DataError(
            f"the {name} data has labels of shape {y.shape} and dtype {y.dtype}: several labels are numbers "
            "0 or 1"
        )
    if hasattr(x, "tocsr"):
        own = _as_lists(y, name) if y.ndim == 2 else _as_texts(y, name)
        return _write_svm(x.tocsr(), own, place.path / f"{name}.svm")
    x = np.asarray(x)
    if x.dtype.kind not in "biuf":
        raise DataError(
            f"the {name} data has samples of dtype {x.dtype}: must be numbers; give a frame of pandas, or "
            "a CSV file, for columns of text"
        )
    if y.ndim == 2:
        numbers = y.astype(np.int64) if y.dtype.kind == "b" else y
        return _write_csv(x, numbers, _column_names(y), place.path / f"{name}.csv")
    if y.dtype.kind in "biuf":
        path = place.path / f"{name}.npz"
        np.savez(path, x=x, y=y)
        return str(path)
    return _write_csv(x, y[:, np.newaxis], ["label"], place.path / f"{name}.csv")


def options_of(data: Any, label: Any = None) -> list[tuple[str, Any]]:
    """Return the options, by dotted name, with which the file is read that `as_file` writes.

    Args:
        data: The data.
        label: The option data.label of the job; None: it has none.
    """
    if given_files(data) is not None:
        return []
    if is_frame(data):
        names = [name for name in LABEL_NAMES if name in data.columns] if label is None else [label]
        known = bool(names) and isinstance(names[0], str) and names[0] in data.columns
        # A frame of another library may only know how to write itself.
        known = known and hasattr(data, "__getitem__")
        return _kind_of(list(data[names[0]])) if known else []
    if not isinstance(data, tuple | list) or len(data) != 2:
        return []
    several = np.ndim(data[1]) == 2
    if hasattr(data[0], "tocsr"):
        return [("options.labels", "several")] if several else []
    if several:
        return [("data.label", _column_names(np.asarray(data[1])))]
    return _kind_of(np.asarray(data[1]).tolist())


def is_frame(data: Any) -> bool:
    """Return True for a frame of pandas."""
    return hasattr(data, "to_csv") and hasattr(data, "columns")


def _kind_of(labels: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the option for labels that are text, and some of which look like numbers in CSV."""
    texts = all(isinstance(label, str) for label in labels)
    if texts and any(not is_text(label.strip()) for label in set(labels)):
        return [("data.label_kind", "text")]
    return []


def _column_names(y: Any) -> list[str]:
    """Return names of the columns of several labels, shape (n, k)."""
    return [f"y{i}" for i in range(y.shape[1])]


def _as_texts(y: Any, name: str) -> list[str]:
    """Return labels of sparse samples as text.

    Raises:
        DataError: The labels are not numbers.
    """
    if y.dtype.kind not in "biuf":
        raise DataError(
            f"the {name} data has sparse samples and labels of dtype {y.dtype}: give numbers, such as those "
            "of numpy.unique(y, return_inverse=True)[1]"
        )
    if y.dtype.kind in "iu":
        # The reader refuses what is too large for float64.
        return list(map(str, y.tolist()))
    return [label_text(label) for label in y.tolist()]


def _as_lists(y: Any, name: str) -> list[str]:
    """Return several labels of sparse samples, shape (n, k), as lists of the numbers of those that are 1.

    Raises:
        DataError: A label is neither 0 nor 1, or no training sample has it, so that no list names it.
    """
    strange = y[(y != 0) & (y != 1)]
    if len(strange):
        raise DataError(
            f"the {name} data has the label {strange[0]}: several labels are 0 or 1 each"
        )
    empty = np.flatnonzero(~(y == 1).any(axis=0))
    if name == "train" and len(empty):
        raise DataError(
            f"the {name} data has sparse samples, and column {empty[0]} of the labels is 0 in all of them: "
            "leave the column out"
        )
    return [",".join(map(str, np.flatnonzero(row).tolist())) for row in y]


def _write_csv(x: Any, y: Any, names: list[str], path: Path) -> str:
    """Write numbers, and labels, shape (n, k), in columns of these names."""
    import csv

    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{i}" for i in range(x.shape[1])), *names])
        for row, labels in zip(x.tolist(), y.tolist(), strict=True):
            writer.writerow([*row, *map(str, labels)])
    return str(path)


def _write_svm(x: Any, labels: list[str], path: Path) -> str:
    """Write a matrix in compressed rows as LIBSVM text; column j is feature j."""
    x.sum_duplicates()
    with path.open("w") as file:
        file.write(OF_ARRAY.decode())
        for i, label in enumerate(labels):
            begin, end = x.indptr[i], x.indptr[i + 1]
            entries = zip(x.indices[begin:end].tolist(), x.data[begin:end].tolist(), strict=True)
            text = "".join(f" {key}:{float(value)!r}" for key, value in entries)
            # An empty line would be no sample.
            file.write((f"{label}{text}" if label or text else " 0:0") + "\n")
    return str(path)
