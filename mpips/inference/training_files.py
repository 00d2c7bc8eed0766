"""Write what people train on in Python, arrays and frames, into files that all ranks read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

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
        place: Where a new file is written.
        name: Name of the file without its extension, also for errors.

    Raises:
        DataError: The data has none of the accepted forms, or samples and labels do not fit together.
    """
    files = given_files(data)
    if files is not None:
        return files
    if hasattr(data, "to_csv") and hasattr(data, "columns"):
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
    if len(shape) != 2 or y.ndim != 1 or shape[0] != len(y):
        raise DataError(
            f"the {name} data has samples of shape {tuple(shape)} and labels of shape {y.shape}: must be "
            "(n, d) and (n,)"
        )
    if hasattr(x, "tocsr"):
        return _write_svm(x.tocsr(), _as_numbers(y, name), place.path / f"{name}.svm")
    x = np.asarray(x)
    if x.dtype.kind not in "biuf":
        raise DataError(
            f"the {name} data has samples of dtype {x.dtype}: must be numbers; give a frame of pandas, or "
            "a CSV file, for columns of text"
        )
    if y.dtype.kind in "biuf":
        path = place.path / f"{name}.npz"
        np.savez(path, x=x, y=y)
        return str(path)
    return _write_csv(x, y, place.path / f"{name}.csv")


def _as_numbers(y: Any, name: str) -> Any:
    """Return labels of sparse samples.

    Raises:
        DataError: They are no numbers.
    """
    if y.dtype.kind not in "biuf":
        raise DataError(
            f"the {name} data has sparse samples and labels of dtype {y.dtype}: give numbers, such as those "
            "of numpy.unique(y, return_inverse=True)[1]"
        )
    return y


def _write_csv(x: Any, y: Any, path: Path) -> str:
    """Write numbers and labels of text."""
    import csv

    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{i}" for i in range(x.shape[1])), "label"])
        for row, label in zip(x.tolist(), y.tolist(), strict=True):
            writer.writerow([*row, str(label)])
    return str(path)


def _write_svm(x: Any, y: Any, path: Path) -> str:
    """Write a matrix in compressed rows as LIBSVM text; column j is feature j."""
    x.sum_duplicates()
    with path.open("w") as file:
        for i, label in enumerate(y.tolist()):
            begin, end = x.indptr[i], x.indptr[i + 1]
            entries = zip(x.indices[begin:end].tolist(), x.data[begin:end].tolist(), strict=True)
            file.write(f"{label:g}" if float(f"{label:g}") == label else repr(float(label)))
            file.write("".join(f" {key}:{float(value)!r}" for key, value in entries) + "\n")
    return str(path)
