"""Dense arrays in files: the reader, and how npz and HDF5 are opened; `npy.py` opens npy files.

The arrays of npz and HDF5 have the names `x` (or `X`) and `y` (or `Y`).
"""

from __future__ import annotations

import contextlib
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.bad_lines import BadLines
from mpips.data.columns import TableColumns, part_of
from mpips.data.dataset import DenseData, Features
from mpips.data.hdf5 import load_hdf5
from mpips.data.info import MOST_LABEL, Part, describe, narrow
from mpips.data.options import ReadOptions, Share
from mpips.data.sources import SIZE, BlockSize, Converted, Span, every_turn
from mpips.data.stored_arrays import RowsOfFile, array_header, joined_crc, members_of, names_of
from mpips.errors import DataError

MAGIC = b"\x93NUMPY"  # beginning of an npy file
BLOCK_BYTES = 16 << 20  # bytes of a dataset that are read at a time


class ArrayFile(NamedTuple):
    """An open file.

    Attributes:
        x: Samples; has `shape`, `dtype`, a length and rows, as an array of shape (n, ...).
        y: Labels, the same of shape (n,); zeros that take no memory if labels are not read.
        columns: The named columns that are used; None: they have no names.
        notes: Sentences for the user.
        in_order: All rows must be read in order: their CRC is checked, or they are compressed.
        packed: Reason why a part of the rows cannot be read without those before it; "": it can be.
    """

    x: Any
    y: Any
    columns: TableColumns | None = None
    notes: tuple[str, ...] = ()
    in_order: bool = False
    packed: str = ""


Opened: TypeAlias = Callable[[str, ReadOptions], contextlib.AbstractContextManager[ArrayFile]]


class ArraySource:
    """A file of dense arrays; see `mpips.data.sources.SampleSource`."""

    def __init__(
        self,
        opened: Opened,
        path: str,
        options: ReadOptions,
        size: BlockSize = SIZE,
        bad: BadLines | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            opened: Opens the file: `opened_npz`, `opened_hdf5` or `mpips.data.npy.opened_npy`.
            path: The file.
            options: Options of the reader.
            size: Size of blocks.
            bad: Is not used: arrays have no lines.
        """
        self.done = 0.0
        self._opened = opened
        self._path = path
        self._options = options
        self._size = size
        self._names: tuple[TableColumns | None, tuple[str, ...]] | None = None

    @property
    def columns(self) -> TableColumns | None:
        """The named columns that are used; only a structured array of npy has them."""
        return self._found()[0]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""
        return self._found()[1]

    def _found(self) -> tuple[TableColumns | None, tuple[str, ...]]:
        if self._names is None:
            with self._opened(self._path, self._options) as file:
                self._names = file.columns, file.notes
        return self._names

    def form(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of the samples."""
        with self._opened(self._path, self._options) as file:
            return tuple(file.x.shape), file.x.dtype

    def read(self, share: Share) -> Part:
        """Read a share of the rows. Axes behind the first are flattened."""
        path, options = self._path, self._options
        with self._opened(path, options) as file:
            x, y = read_blocks(file.x, share), read_blocks(file.y, share)
            data = DenseData(*float_rows(path, x, y))
            if file.columns is not None:
                return part_of(path, data, len(file.y), options, file.columns, ())
            wants = options.wants if options.labelled else "targets"
            return describe(data, len(file.y), path, wants=wants, notes=file.notes)

    def ends(self) -> list[int]:
        """Return the ends of spans of rows, which have several blocks."""
        with self._opened(self._path, self._options) as file:
            if file.packed:
                raise DataError(
                    f"{self._path}: cannot be read in windows: {file.packed}; write it by np.savez(file, "
                    "x=np.ascontiguousarray(x), y=y) or as HDF5, or raise data.memory_mib"
                )
            n_rows = len(file.x)
            n = max(1, n_rows * _row_bytes(file.x) // (4 * self._size.n_bytes))
        return [n_rows * i // n for i in range(n + 1)]

    def blocks(
        self,
        span: Span | None = None,
        inside: tuple[bool, bool] = (False, False),
        turns: Iterator[bool] | None = None,
    ) -> Iterator[Converted | None]:
        """Yield the samples of a span."""
        turns = every_turn(turns)
        with self._opened(self._path, self._options) as file:
            self._names = file.columns, file.notes
            for rows in (file.x, file.y):
                if span is not None and isinstance(rows, RowsOfFile):
                    rows.checks = False  # `check_crcs` compares those of all spans
            first, last = (span.start, span.stop) if span is not None else (0, len(file.y))
            step = self._size.rows(math.prod(file.x.shape[1:]), _row_bytes(file.x))
            for start in range(first, last, step):
                own, mine = slice(start, min(start + step, last)), next(turns)
                if not mine and not file.in_order:
                    yield None
                    continue
                x, y = file.x[own], file.y[own]
                if not mine:
                    yield None
                    continue
                crcs: tuple[int, ...] = ()
                if span is not None and file.in_order:
                    crcs = tuple(map(_crc, (x, y) if self._options.labelled else (x,)))
                self.done = (own.stop - first) / (last - first)
                yield Converted(DenseData(*float_rows(self._path, x, y)), crcs=crcs)


def _row_bytes(x: Any) -> int:
    """Return the bytes of a row in the file."""
    n_bytes: int = x.dtype.itemsize * math.prod(x.shape[1:])
    return max(1, n_bytes)


def _crc(array: npt.NDArray[Any]) -> int:
    """Return the CRC-32 of the bytes of an array."""
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)


def check_crcs(
    path: str, options: ReadOptions, parts: Sequence[tuple[tuple[int, ...], int]]
) -> None:
    """Check the CRCs of an npz file against those of its parts.

    Args:
        path: The file.
        options: Options of the reader.
        parts: CRCs (see `Converted.crcs`) and number of rows of all blocks of the file, in order.

    Raises:
        DataError: An array is damaged.
    """
    if not parts or not parts[0][0]:
        return
    names = [name for name in array_names(path, names_of(path), options.labelled) if name]
    members = members_of(path, names)
    with open(path, "rb") as file:
        for i, member in enumerate(members[name] for name in names):
            if member.crc is None:
                continue
            file.seek(member.begin)
            header = file.read(member.offset - member.begin)
            row_bytes = member.dtype.itemsize * math.prod(member.shape[1:])
            own = ((crcs[i], n * row_bytes) for crcs, n in parts)
            member.check(path, joined_crc([(zlib.crc32(header), len(header)), *own]))


def no_labels(shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return a zero for each sample of an array, without memory for them."""
    return np.broadcast_to(np.zeros(()), shape[:1])


@contextlib.contextmanager
def opened_npz(path: str, options: ReadOptions) -> Iterator[ArrayFile]:
    """Open `x`, shape (n, ...), and `y`, shape (n,), of an npz file.

    Arrays that are not compressed are read in place, others row by row in order. The CRC of both is checked
    when the last row was read. An array in Fortran order that is compressed, and labels beside a compressed
    array, are in memory as a whole. Pickled objects are refused.

    Raises:
        DataError: The file is not npz, has no such array, or shapes or dtypes do not fit.
    """
    with _npz_errors(path), zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        x_name, y_name = array_names(path, names, options.labelled)
        x: Any
        y: Any = None
        packed = ""
        try:
            members = members_of(path, (x_name, y_name))
            x = RowsOfFile(path, members[x_name])
            y = RowsOfFile(path, members[y_name]) if y_name else None
        except (ValueError, OverflowError) as error:
            packed = str(error)
            x = _unpacked(path, archive, x_name)
            y = _WholeArray(path, archive, y_name) if y_name else None
        y = no_labels(x.shape) if y is None else y
        check_arrays(path, x, y)
        yield ArrayFile(x, y, in_order=True, packed=packed)


class _PackedRows:
    """A compressed array in the order of rows, whose rows are read in order; see `RowsOfFile`."""

    def __init__(self, name: str, file: IO[bytes], shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self._name = name
        self._file = file

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        """Return the next rows: `rows` begins where the rows before have ended."""
        start, stop, _ = rows.indices(len(self))
        n_bytes = (stop - start) * self.dtype.itemsize * math.prod(self.shape[1:])
        data = self._file.read(n_bytes)
        if len(data) < n_bytes:
            raise EOFError(f"{self._name} ends early")
        return np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])


class _WholeArray:
    """An array of an npz file that is read as a whole, at the first access to its rows."""

    def __init__(self, path: str, archive: zipfile.ZipFile, name: str) -> None:
        """Read the header; raise ValueError for an array of objects."""
        self._path, self._name = path, name
        with _entry(archive, name) as file:
            self.shape, _, self.dtype = array_header(file)
        if self.dtype.hasobject:
            raise ValueError("Object arrays cannot be read")
        self._values: npt.NDArray[Any] | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0] if self.shape else 0

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return rows."""
        return self.whole()[rows]

    def whole(self) -> npt.NDArray[Any]:
        """Return the array."""
        if self._values is None:
            with np.load(self._path, allow_pickle=False) as loaded:
                self._values = loaded[self._name]
        return self._values


def _entry(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """Open an array of an npz file."""
    return archive.open(f"{name}.npy" if f"{name}.npy" in archive.NameToInfo else name)


def _unpacked(path: str, archive: zipfile.ZipFile, name: str) -> Any:
    """Return an array that only zipfile can read."""
    file = _entry(archive, name)
    shape, is_fortran, dtype = array_header(file)
    if is_fortran or dtype.hasobject:
        file.close()
        return _WholeArray(path, archive, name)
    return _PackedRows(name, file, shape, dtype)


@contextlib.contextmanager
def _npz_errors(path: str) -> Iterator[None]:
    """In the block, turn the errors of a file that is not an npz file into a DataError."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            raise DataError(
                f"{path}: is a single array, not an npz file: set data.format = 'npy', or write it by "
                "np.savez(file, x=x, y=y)"
            )
    try:
        yield
    except (
        ValueError,
        EOFError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
        tokenize.TokenError,
    ) as error:
        # zipfile raises RuntimeError for encrypted files.
        raise DataError(
            f"{path}: is not an npz file of plain arrays: {error}; write it by np.savez(file, x=x, y=y)"
        ) from error


@contextlib.contextmanager
def opened_hdf5(path: str, options: ReadOptions) -> Iterator[ArrayFile]:
    """Open the datasets `x`, shape (n, ...), and `y`, shape (n,), of an HDF5 file.

    Raises:
        CapabilityError: h5py is not installed.
        DataError: The file is not HDF5, has no such dataset, or shapes or dtypes do not fit.
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
        y = file[y_name] if y_name else no_labels(getattr(x, "shape", (0,)))
        if not isinstance(x, h5py.Dataset) or not isinstance(y, h5py.Dataset | np.ndarray):
            raise DataError(f"{path}: {x_name} and {y_name} must be datasets, not groups")
        for name, dataset in ((x_name, x), (y_name, y)):
            if isinstance(dataset, np.ndarray):
                continue
            if dataset.external or dataset.is_virtual:
                raise DataError(f"{path}: {name} lies in other files; copy the data into this file")
        check_arrays(path, x, y)
        yield ArrayFile(x, y)


def read_blocks(dataset: Any, share: Share) -> npt.NDArray[Any]:
    """Read contiguous blocks and select the share of each: strided selections of HDF5 are slow.

    Args:
        dataset: A dataset of HDF5, or rows of an array in a file.
        share: The share.

    Returns:
        The rows of the share.
    """
    n = len(dataset)
    if isinstance(dataset, _WholeArray):
        return dataset.whole() if share.stride == 1 else dataset[share.numbers(0, n)]
    n_rows = max(1, BLOCK_BYTES // _row_bytes(dataset))
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
