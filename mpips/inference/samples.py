"""Turn what people predict from into samples as the task was trained on: arrays, matrices, frames."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mpips.data import DataInfo, Dataset, DenseData, ReadOptions, SparseData, read
from mpips.data.columns import with_types
from mpips.data.file_blocks import as_trained
from mpips.data.info import narrow
from mpips.errors import DataError


def samples_of(data: Any, info: DataInfo, options: ReadOptions) -> tuple[Dataset, tuple[str, ...]]:
    """Return samples without labels, with the columns of the training data.

    Args:
        data: An array of numbers, shape (n, d); a sparse matrix of SciPy; or a frame of pandas, whose columns
            have the names of the training data's.
        info: Description of the training data.
        options: Options with which the training data was read.

    Returns:
        The samples, and sentences for the user.

    Raises:
        DataError: The data does not fit; names what is missing or different.
    """
    if hasattr(data, "to_csv") and hasattr(data, "columns"):
        return _of_frame(data, info, options)
    if hasattr(data, "tocsr"):
        return as_trained(_of_matrix(data.tocsr()), info), ()
    try:
        array = np.asarray(data)
    except ValueError:
        raise DataError(
            f"data of type {type(data).__name__}: is neither an array of numbers nor a list of files; give "
            "either of them"
        ) from None
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(
            f"an array of shape {array.shape} and dtype {array.dtype}: samples are rows of numbers, shape "
            f"(n, {info.n_features if info.kind == 'dense' else 'features'})"
        )
    if not np.isfinite(array).all():
        raise DataError("the array contains NaN or infinity; clean it first")
    notes: tuple[str, ...] = ()
    if info.wide and array.dtype.kind == "f" and array.dtype.itemsize < 8:
        notes = (
            f"the array is {array.dtype}, which loses differences between samples of this model's training "
            "data: give float64",
        )
    rows = narrow(array)
    if not np.isfinite(rows).all():
        raise DataError(
            f"the array contains {array[~np.isfinite(rows)][0]:g}, which is beyond float32; clean or scale it"
        )
    samples = DenseData(rows, np.zeros(len(array)))
    return as_trained(_sparse(samples) if info.kind == "sparse" else samples, info), notes


def _of_frame(frame: Any, info: DataInfo, options: ReadOptions) -> tuple[Dataset, tuple[str, ...]]:
    """Return the samples of a frame: those of the CSV file that it writes."""
    if not info.columns:
        return samples_of(frame.to_numpy(), info, options)
    with tempfile.TemporaryDirectory(prefix="mpips-frame-") as folder:
        path = Path(folder) / "frame.csv"
        options = msgspec.structs.replace(options, format="csv", header=True, labelled=False)
        kinds = {name: getattr(kind, "kind", "") for name, kind in _types_of(frame).items()}
        options = with_types(
            options,
            [name for name, kind in kinds.items() if kind in tuple("iuf")],
            [name for name, kind in kinds.items() if kind == "M"],
        )
        try:
            frame.to_csv(path, index=False)
            part = read(path, options=options, like=info)
        except UnicodeEncodeError as error:
            raise DataError(
                f"the frame contains text that is not Unicode: {error.reason}"
            ) from None
        except DataError as error:
            # Nobody has seen the file.
            raise DataError(str(error).replace(str(path), "the frame")) from None
    return as_trained(part.data, info), tuple(
        note.replace(str(path), "the frame") for note in part.notes
    )


def _types_of(frame: Any) -> dict[str, Any]:
    """Return the dtypes of the columns of a frame of pandas; {} for another one."""
    types = getattr(frame, "dtypes", None)
    return dict(types) if types is not None else {}


def _of_matrix(matrix: Any) -> SparseData:
    """Return the samples of a matrix in compressed rows; column j is feature j."""
    matrix.sum_duplicates()
    values = matrix.data.astype(np.float32)
    if not np.isfinite(values).all():
        raise DataError(
            "the matrix contains NaN, infinity or a number beyond float32; clean it first"
        )
    return SparseData(
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int64),
        values,
        np.zeros(matrix.shape[0]),
        int(matrix.shape[1]),
    )


def _sparse(data: DenseData) -> SparseData:
    """Return rows as lists of their numbers that are not 0; column j is feature j."""
    rows, columns = np.nonzero(data.x)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=data.n))))
    return SparseData(
        indptr.astype(np.int64),
        columns.astype(np.int64),
        data.x[rows, columns].astype(np.float32),
        data.labels,
        data.n_features,
    )
