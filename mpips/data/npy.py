"""Reader of npy files: an array of samples, read in blocks; labels lie in a column or in a second file.

A plain array has the shape (n, d), or (n, ...) with labels in a second file. `data.label` is the number of
its label column, as NumPy counts (0 the first, -1 the last), or the name of the second file, such as
"labels.npy", in the folder of the samples. Without the option, the second file is that of the same name with
y in the place of x: y.npy beside x.npy, y_train.npy beside X_train.npy.

The fields of a structured array are named columns, as those of CSV. A few rows are in memory at a time, even
if the columns are contiguous (Fortran order).
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.arrays import BLOCK_BYTES, ArrayFile, check_arrays, no_labels
from mpips.data.columns import choose_columns, listed
from mpips.data.options import ReadOptions
from mpips.data.stored_arrays import HEADER_ERRORS, Member, RowsOfFile, array_header
from mpips.errors import DataError

_NUMBER = re.compile(r"[-+]?\d{1,9}")
_X = re.compile(r"(?<![A-Za-z0-9])[xX](?![A-Za-z0-9])")


@contextlib.contextmanager
def opened_npy(path: str, options: ReadOptions) -> Iterator[ArrayFile]:
    """Open a file, and that of its labels. Reads no samples.

    Raises:
        DataError: The file is damaged or no array of numbers, or it is not clear where its labels are.
        OSError: A file cannot be read.
    """
    array = _opened(path)
    if array.dtype.names is not None:
        file = _structured(path, array, options)
    else:
        file = _plain(path, array, options)
    check_arrays(path, file.x, file.y)
    if not math.prod(file.x.shape[1:]):
        raise DataError(f"{path}: has no column of features: its shape is {array.shape}")
    yield file


def label_files(path: str, options: ReadOptions) -> tuple[str, ...]:
    """Return the files beside `path` that a reader of npy takes labels from: none or one."""
    label = options.label
    if not options.labelled or (label is not None and not label.endswith(".npy")):
        return ()
    if label is not None:
        return (os.path.join(os.path.dirname(path), label),)
    folder, name = os.path.split(path)
    found = list(_X.finditer(name))
    if len(found) != 1:
        return ()
    begin, end = found[0].span()
    names = (os.path.join(folder, f"{name[:begin]}{y}{name[end:]}") for y in "yY")
    return next(((other,) for other in names if os.path.exists(other)), ())


def _plain(path: str, array: RowsOfFile, options: ReadOptions) -> ArrayFile:
    """Return the samples of an array without names."""
    label = options.label
    if label is not None and _NUMBER.fullmatch(label):
        return _with_column(path, array, int(label), options)
    # A model of files with named columns predicts rows without names, which need no label.
    if not options.labelled and math.prod(array.shape[1:]) == options.n_features:
        notes = (_read_as(path, options.columns),) if options.columns else ()
        return ArrayFile(array, no_labels(array.shape), None, notes)
    if label is not None and options.columns and not label.endswith(".npy"):
        return _of_named_model(path, array, options)
    if label is not None and not label.endswith(".npy"):
        raise DataError(
            f"{path}: data.label = '{label}', but the columns of this array have no names: set it to the "
            "number of the label's column, such as 0 or -1 (the last), or to the file of the labels, such as "
            "labels.npy"
        )
    if not options.labelled:
        return ArrayFile(array, no_labels(array.shape))
    others = label_files(path, options)
    if others:
        return _with_file(path, array, others[0])
    raise DataError(
        f"{path}: where its labels are is not clear: set data.label to the number of their column, such "
        "as 0 or -1 (the last), or to their file, such as labels.npy; or call the files x.npy and y.npy"
    )


def _of_named_model(path: str, array: RowsOfFile, options: ReadOptions) -> ArrayFile:
    """Return the samples of an array without names for a model of named columns, with labels beside it."""
    width, names = math.prod(array.shape[1:]), options.columns
    others = label_files(path, msgspec.structs.replace(options, label=None))
    wanted = f"an array of the {len(names)} features, {listed(names)}"
    if not options.labelled:
        raise DataError(f"{path}: has {width} columns without names: give {wanted}")
    if width != len(names) or not others:
        found = "no labels" if width == len(names) else f"{width} columns without names"
        raise DataError(
            f"{path}: has {found}: give {wanted}, and the labels as y.npy beside x.npy, or an array of "
            f"records with these fields and '{options.label}'"
        )
    if options.label_names:
        raise DataError(
            f"{others[0]}: contains numbers, and the labels of the training data are text, "
            f"{listed(options.label_names)}; use a file with their column"
        )
    file = _with_file(path, array, others[0])
    return file._replace(notes=(*file.notes, _read_as(path, names)))


def _read_as(path: str, names: Sequence[str]) -> str:
    """Return the sentence on columns without names that are read as those of the training data."""
    return f"{path}: its columns have no names and are read as {listed(names)}"


def _with_file(path: str, array: RowsOfFile, other: str) -> ArrayFile:
    """Return the samples of an array with the labels of another file."""
    y = _opened(other)
    _check_labels(other, y)
    return ArrayFile(array, y, None, (f"{path}: labels from {other}",))


def _check_labels(path: str, y: RowsOfFile) -> None:
    if len(y.shape) != 1 or y.dtype.kind not in "fiub":
        raise DataError(
            f"{path}: has shape {y.shape} and dtype {y.dtype}: labels are numbers, shape (n,)"
        )


def _with_column(path: str, array: RowsOfFile, number: int, options: ReadOptions) -> ArrayFile:
    """Return the samples of an array one of whose columns has the labels."""
    if len(array.shape) != 2:
        raise DataError(
            f"{path}: has shape {array.shape}: labels can be a column of an array of shape (n, d) only; "
            "set data.label to the file of the labels"
        )
    width = array.shape[1]
    # An array to be predicted may have no labels.
    if not options.labelled and width == options.n_features:
        return ArrayFile(array, no_labels(array.shape))
    if not -width <= number < width:
        raise DataError(
            f"{path}: data.label = {number}: the array has {width} columns, 0 to {width - 1}"
        )
    place = number % width
    y = _column(array, place) if options.labelled else no_labels(array.shape)
    note = f"{path}: labels from column {place} of {width} columns, 0 to {width - 1}"
    return ArrayFile(_without(array, place), y, None, (note,) if options.labelled else ())


def _without(array: RowsOfFile, place: int) -> _Rows:
    """Return an array of shape (n, d) without a column."""
    width = array.shape[1]

    def rows_of(rows: slice) -> npt.NDArray[Any]:
        found = array[rows]
        # Views are enough where the column is the first or the last.
        if place in (0, width - 1):
            return found[:, 1:] if place == 0 else found[:, :-1]
        return np.delete(found, place, axis=1)

    return _Rows((len(array), width - 1), array.dtype, rows_of)


def _column(array: RowsOfFile, place: int) -> Any:
    """Return a column of an array of shape (n, d)."""
    if array.by_columns:
        return array.column(place)
    return _Rows(
        array.shape[:1],
        array.dtype,
        lambda rows: _few_at_a_time(array, rows, lambda x: x[:, place]),
    )


def _structured(path: str, array: RowsOfFile, options: ReadOptions) -> ArrayFile:
    """Return the samples of an array with named fields."""
    names = array.dtype.names
    assert names is not None
    if len(array.shape) != 1:
        raise DataError(
            f"{path}: is an array of records of shape {array.shape}: must be (n,), a record a sample"
        )
    columns = choose_columns(path, names, options, [])
    label = columns.label if options.labelled else None
    features = [column.name for column in columns.features]
    for name in [*features, *([label.name] if label is not None else [])]:
        kind = array.dtype[name]
        if kind.kind not in "fiub" or kind.shape:
            raise DataError(
                f"{path}: field '{name}' has dtype {kind}, expected numbers; leave it out: data.ignore = "
                f'["{name}"]; text can be read from CSV, Parquet and Arrow'
            )
    hashed = [column.name for column in columns.features if column.categorical]
    if hashed:
        raise DataError(
            f"{path}: data.categorical names field '{hashed[0]}': fields of npy are numbers; use "
            "CSV, Parquet or Arrow to hash columns"
        )
    x = _Rows(
        (len(array), len(features)),
        np.result_type(*(array.dtype[name] for name in features)) if features else np.dtype("f4"),
        lambda rows: _stacked(array[rows], features),
    )
    y = _field(array, label.name) if label is not None else no_labels(array.shape)
    return ArrayFile(x, y, columns, columns.notes)


def _stacked(records: npt.NDArray[Any], names: Sequence[str]) -> npt.NDArray[Any]:
    """Return fields of records as rows."""
    return np.stack([records[name] for name in names], axis=1)


def _field(array: RowsOfFile, name: str) -> _Rows:
    """Return a field of records."""
    dtype = array.dtype[name]
    return _Rows(
        array.shape[:1], dtype, lambda rows: _few_at_a_time(array, rows, lambda x: x[name])
    )


def _few_at_a_time(
    array: RowsOfFile, rows: slice, part: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Return a part of consecutive rows, a new array, with at most `BLOCK_BYTES` of the rows in memory."""
    start, stop, _ = rows.indices(len(array))
    step = max(1, BLOCK_BYTES // max(1, array.dtype.itemsize * math.prod(array.shape[1:])))
    parts = [part(array[at : min(at + step, stop)]).copy() for at in range(start, stop, step)]
    return np.concatenate(parts or [part(array[0:0])])


class _Rows:
    """Rows of some columns of an array in a file, which are made when they are read."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        rows: Callable[[slice], npt.NDArray[Any]],
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._rows = rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        """Return consecutive rows, a new array."""
        return self._rows(rows)


def _opened(path: str) -> RowsOfFile:
    """Open an array.

    Raises:
        DataError: The file is not an array, or the array has Python objects or is longer than the file.
        OSError: The file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            shape, by_columns, dtype = array_header(file)
            offset = file.tell()
            there = os.fstat(file.fileno()).st_size - offset
        if dtype.hasobject:
            raise DataError(
                f"{path}: contains Python objects, which are not unpickled; save an array of numbers"
            )
        n_bytes = dtype.itemsize * math.prod(shape)
        if min(shape, default=0) < 0 or n_bytes > there:
            raise DataError(
                f"{path}: its header names shape {shape} and dtype {dtype}, {n_bytes:,} bytes, and "
                f"{there:,} follow: the file is cut off or damaged; write it again by np.save"
            )
        by_columns = by_columns and len(shape) > 1
        return RowsOfFile(path, Member(offset, dtype, shape, by_columns=by_columns))
    except HEADER_ERRORS as error:
        raise DataError(
            f"{path}: is not an array of NumPy: {error}; write it by np.save(file, x)"
        ) from None
