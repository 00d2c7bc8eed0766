"""Readers of dense arrays in npz and HDF5 files, with the names `x` (or `X`) and `y` (or `Y`).

`npy.py` has those in npy files.
"""

from __future__ import annotations

import contextlib
import tokenize
import zipfile
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpips.data.columns import TableColumns, part_of
from mpips.data.dataset import Dataset, DenseData, Features
from mpips.data.hdf5 import load_hdf5
from mpips.data.info import MOST_LABEL, Part, describe, narrow
from mpips.data.options import ReadOptions, Share
from mpips.data.stored_arrays import RowsOfFile, array_header, members_of, names_of
from mpips.errors import DataError

BLOCK_BYTES = 16 << 20  # bytes of a dataset that are read at a time


def read_npz(path: str, options: ReadOptions, share: Share) -> Part:
    """Read a share of `x`, shape (n, ...), and `y`, shape (n,), from an npz file.

    Axes of `x` after the first are flattened. Arrays that are not compressed are read in blocks, and
    their CRC is checked; of others each worker unpacks the whole of `x` temporarily. Pickled objects are
    refused.

    Raises:
        DataError: The file is not npz, has no such array, or shapes or dtypes do not fit.
    """
    plain = _plain_npz(path, options)
    if plain is not None:
        x, y = plain
        check_arrays(path, x, y)
        return array_part(path, read_blocks(x, share), read_blocks(y, share), len(y), options)
    with _npz_errors(path):
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(
                f"{path}: is a single array, not an npz file: set data.format = 'npy', or write it by "
                "np.savez(file, x=x, y=y)"
            )
        with archive:
            x_name, y_name = array_names(path, archive.files, options.labelled)
            x = archive[x_name]
            y = archive[y_name] if y_name else np.zeros(len(x) if x.ndim else 0)
    check_arrays(path, x, y)
    own = share.numbers(0, len(y)) if share.stride > 1 else slice(None)
    return array_part(path, x[own], y[own], len(y), options)


def _plain_npz(path: str, options: ReadOptions) -> tuple[Any, Any] | None:
    """Open samples and labels; None: only NumPy can read them, or they are not there."""
    try:
        x_name, y_name = array_names(path, names_of(path), options.labelled)
        members = members_of(path, (x_name, y_name))
    except (ValueError, OverflowError, zipfile.BadZipFile):
        return None
    x = RowsOfFile(path, members[x_name])
    if not y_name:
        return x, np.broadcast_to(np.zeros(()), x.shape[:1])
    return x, RowsOfFile(path, members[y_name])


@contextlib.contextmanager
def _npz_errors(path: str) -> Iterator[None]:
    """Turn errors of a file that is no npz file in the block into a DataError."""
    try:
        yield
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, tokenize.TokenError) as error:
        # zipfile raises RuntimeError for encrypted files.
        raise DataError(
            f"{path}: is not an npz file of plain arrays: {error}; write it by np.savez(file, x=x, y=y)"
        ) from error


def read_hdf5(path: str, options: ReadOptions, share: Share) -> Part:
    """Read a share of the datasets `x`, shape (n, ...), and `y`, shape (n,), block by block.

    Raises:
        CapabilityError: h5py is not installed.
        DataError: The file is not HDF5, has no such dataset, or shapes or dtypes do not fit.
    """
    with opened_hdf5(path, options) as (x, y):
        own_x, own_y = read_blocks(x, share), read_blocks(y, share)
        return array_part(path, own_x, own_y, len(y), options)


@contextlib.contextmanager
def opened_hdf5(path: str, options: ReadOptions) -> Iterator[tuple[Any, Any]]:
    """Open the datasets of samples and labels; zeros, an array, stand for labels that are not read.

    Raises:
        CapabilityError, DataError: As `read_hdf5`.
    """
    h5py = load_hdf5(f"{path}: reading HDF5")
    # Raise OSError with the system's reason, which h5py does not give.
    with open(path, "rb"):
        pass
    if not h5py.is_hdf5(path):
        raise DataError(f"{path}: is not an HDF5 file")
    with h5py.File(path, "r") as file:
        x_name, y_name = array_names(path, list(file), options.labelled)
        # Refuse links and external storage: a file from elsewhere could name any file of this machine.
        for name in filter(None, (x_name, y_name)):
            if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                raise DataError(
                    f"{path}: {name} is a link, which may lead to other files; copy the data into this file"
                )
        x = file[x_name]
        y = file[y_name] if y_name else np.zeros(len(x) if isinstance(x, h5py.Dataset) else 0)
        if not isinstance(x, h5py.Dataset) or not isinstance(y, h5py.Dataset | np.ndarray):
            raise DataError(f"{path}: {x_name} and {y_name} must be datasets, not groups")
        for name, dataset in ((x_name, x), (y_name, y)):
            if isinstance(dataset, np.ndarray):
                continue
            if dataset.external or dataset.is_virtual:
                raise DataError(f"{path}: {name} lies in other files; copy the data into this file")
        check_arrays(path, x, y)
        yield x, y


def hdf5_blocks(
    path: str, options: ReadOptions, turns: Iterator[bool], n_rows: Callable[[int], int]
) -> Iterator[Dataset | None]:
    """Read the samples of an HDF5 file in blocks; raises as `read_hdf5` does.

    Args:
        path: The file.
        options: Options of the reader.
        turns: For each block whether it is read; None is yielded in the place of one that is not.
        n_rows: Returns the rows of a block from the number of columns.
    """
    with opened_hdf5(path, options) as (x, y):
        step = n_rows(int(np.prod(x.shape[1:])))
        for start in range(0, len(x), step):
            own = slice(start, start + step)
            yield block_of(path, x[own], y[own]) if next(turns) else None


def npz_blocks(
    path: str, options: ReadOptions, turns: Iterator[bool], n_rows: Callable[[int], int]
) -> Iterator[Dataset | None]:
    """Read the samples of an npz file in blocks; raises as `read_npz` does.

    Memory is bounded if `x` is in C order, as NumPy writes it unless the array was transposed; else all of it
    is unpacked. Labels are read as a whole. The arguments are those of `hdf5_blocks`.
    """
    with _npz_errors(path), zipfile.ZipFile(path) as archive:
        found = [name.removesuffix(".npy") for name in archive.namelist()]
        x_name, y_name = array_names(path, found, options.labelled)
        with archive.open(entry_name(archive, x_name)) as file:
            shape, is_fortran, dtype = array_header(file)
            y = np.zeros(shape[:1]) if not y_name else _member(path, y_name)
            check_arrays(path, _Form(shape, dtype), y)
            step = n_rows(int(np.prod(shape[1:])))
            row_bytes = dtype.itemsize * int(np.prod(shape[1:]))
            whole = None
            if is_fortran:
                whole = _member(path, x_name)
            for start in range(0, shape[0], step):
                n, mine = min(step, shape[0] - start), next(turns)
                labels = y[start : start + n]
                if whole is not None:
                    yield block_of(path, whole[start : start + n], labels) if mine else None
                    continue
                data = file.read(n * row_bytes)
                if len(data) < n * row_bytes:
                    raise EOFError(f"{x_name} ends early")
                x = np.frombuffer(data, dtype).reshape(n, *shape[1:])
                yield block_of(path, x, labels) if mine else None


def _member(path: str, name: str) -> npt.NDArray[Any]:
    """Return a whole array of an npz file."""
    with np.load(path, allow_pickle=False) as loaded:
        found: npt.NDArray[Any] = loaded[name]
    return found


class _Form(NamedTuple):
    """Shape and dtype of an array that is not read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def block_of(path: str, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> Dataset:
    """Return rows and labels as samples; raises as `float_rows`."""
    return DenseData(*float_rows(path, x, y))


def read_blocks(dataset: Any, share: Share) -> npt.NDArray[Any]:
    """Read contiguous blocks and select the share of each: strided selections of HDF5 are slow.

    Args:
        dataset: A dataset of HDF5, or rows of an array in a file.
        share: The share.

    Returns:
        The rows of the share, a new array.
    """
    n = len(dataset)
    row_bytes = max(1, dataset.dtype.itemsize * int(np.prod(dataset.shape[1:])))
    n_rows = max(1, BLOCK_BYTES // row_bytes)
    own = share.numbers(0, n) if share.stride > 1 else None
    out = np.empty((n if own is None else len(own), *dataset.shape[1:]), dataset.dtype)
    done = 0
    for start in range(0, n, n_rows):
        block = dataset[start : start + n_rows]
        if own is None:
            out[start : start + len(block)] = block
            continue
        end = int(np.searchsorted(own, start + n_rows))
        out[done:end] = block[own[done:end] - start]
        done = end
    return out


def entry_name(archive: zipfile.ZipFile, name: str) -> str:
    """Return the name of an array's entry in an npz file, which NumPy also reads without the ending .npy."""
    return f"{name}.npy" if f"{name}.npy" in archive.NameToInfo else name


def array_names(path: str, found: Collection[str], labelled: bool) -> tuple[str, str]:
    """Return the names of samples and labels; "" for labels that are not to be read. Raises DataError."""
    twice = next((name for name in ("x", "X", "y", "Y") if list(found).count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path}: contains two arrays {twice}; write one of them")
    x_name = next((name for name in ("x", "X") if name in found), None)
    y_name = next((name for name in ("y", "Y") if name in found), None)
    if x_name is not None and not labelled:
        return x_name, ""
    if x_name is None or y_name is None:
        raise DataError(
            f"{path}: expected arrays x and y (or X and Y), found {sorted(found)}; rename them"
        )
    return x_name, y_name


def check_arrays(path: str, x: Any, y: Any) -> None:
    """Raise DataError if shapes or dtypes of samples `x` and labels `y` do not fit."""
    for name, array in (("x", x), ("y", y)):
        if array.dtype.kind not in "fiub":
            raise DataError(f"{path}: {name} has dtype {array.dtype}, expected numbers")
    if len(x.shape) < 2 or len(y.shape) != 1 or x.shape[0] != y.shape[0]:
        raise DataError(
            f"{path}: x has shape {tuple(x.shape)} and y {tuple(y.shape)}, expected (n, d) and (n,): samples "
            "are rows of x, with one label each"
        )


def array_part(
    path: str,
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    n_samples: int,
    options: ReadOptions,
    columns: TableColumns | None = None,
    notes: tuple[str, ...] = (),
) -> Part:
    """Make the `Part` of one worker from its rows and labels.

    Args:
        path: The file.
        x: Samples, shape (n, ...).
        y: Labels, shape (n,).
        n_samples: Samples in the whole file.
        options: Options of the reader.
        columns: The columns; None: they have no names.
        notes: Sentences for the user.

    Raises:
        DataError: As `float_rows`; there are no samples, or too many classes.
    """
    data = DenseData(*float_rows(path, x, y))
    if columns is not None:
        return part_of(path, data, n_samples, options, columns, ())
    wants = options.wants if options.labelled else "targets"
    return describe(data, n_samples, path, wants=wants, notes=notes)


def float_rows(
    path: str, x: npt.NDArray[Any], y: npt.NDArray[Any]
) -> tuple[Features, npt.NDArray[np.float64]]:
    """Return samples as rows of float32, or float64 if that is not exact, and labels as float64.

    Raises:
        DataError: They contain NaN, infinity or a number beyond float32.
    """
    rows = narrow(x.reshape(len(x), int(np.prod(x.shape[1:]))))
    labels = y.astype(np.float64)
    if not np.isfinite(rows).all() or not np.isfinite(labels).all():
        raise DataError(
            f"{path}: contains NaN, infinity or a number beyond float32; clean or scale it"
        )
    if y.dtype.kind in "iu" and (np.abs(labels) > MOST_LABEL).any():
        raise DataError(
            f"{path}: contains the label {y[np.abs(labels) > MOST_LABEL][0]}, which is beyond 2**53, where "
            "different whole numbers are one float64: number the classes anew"
        )
    return rows, labels
