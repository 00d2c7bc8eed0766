"""Files of tables and arrays that are converted in spans of rows: Parquet, Arrow, HDF5, npz, npy."""

from __future__ import annotations

import contextlib
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpips.data.arrays import array_names, check_arrays, entry_name, float_rows, opened_hdf5
from mpips.data.checksums import joined_crc
from mpips.data.columns import TableColumns
from mpips.data.dataset import DenseData
from mpips.data.npy import MAGIC, open_npy
from mpips.data.options import ReadOptions
from mpips.data.stored_arrays import RowsOfFile, array_header, members_of, names_of
from mpips.data.stream.cache import CachePiece, Converted
from mpips.data.stream.sources import Span
from mpips.data.table_files import TableFile
from mpips.data.typed_tables import TypedTable
from mpips.errors import DataError

_MAX_ROWS = 1 << 16  # rows of a piece
_ZIP = b"PK\x03\x04"


class TableSource:
    """Parquet or Arrow, a span for some groups of rows; see SpanSource."""

    def __init__(
        self,
        opened: Callable[[str], contextlib.AbstractContextManager[TableFile]],
        path: str,
        options: ReadOptions,
        piece_bytes: int,
    ) -> None:
        """Read the schema; `opened` opens the file. Raises as `mpips.data.typed_tables.read_parquet`."""
        self._opened = opened
        self._path = path
        self._options = options
        with opened(path) as file:
            table = TypedTable(path, options, file)
            self._starts = np.cumsum([0, *file.group_rows()])
        self.columns: TableColumns | None = table.columns
        self.notes = table.columns.notes
        self.done = 0.0
        row_bytes = 20 * max(1, len(table.wanted))
        self._n_rows = max(1, min(_MAX_ROWS, piece_bytes // row_bytes))

    def pieces(self, span: Span, inside: tuple[bool, bool]) -> Iterator[Converted]:
        """Yield the samples of a span."""
        with self._opened(self._path) as file:
            table = TypedTable(self._path, self._options, file)
            first, last = int(self._starts[span.start]), int(self._starts[span.stop])
            start, groups = first, range(span.start, span.stop)
            for batch in file.batches(self._n_rows, table.wanted, groups):
                before, start = start, start + batch.num_rows
                self.done = (start - first) / max(last - first, 1)
                if batch.num_rows:
                    yield Converted(*table.convert(batch, before))


class ArraySource:
    """The samples and labels of an HDF5, npz or npy file; see SpanSource."""

    def __init__(self, path: str, options: ReadOptions, piece_bytes: int) -> None:
        """Find the names of columns, which only a structured array of npy has."""
        self._path = path
        self._options = options
        self._piece_bytes = piece_bytes
        self.columns: TableColumns | None = None
        self.notes: tuple[str, ...] = ()
        self.done = 0.0
        self._has_crcs = _begins(path, _ZIP)
        if _begins(path, MAGIC):
            _, _, self.columns, self.notes = open_npy(path, options)

    def pieces(self, span: Span, inside: tuple[bool, bool]) -> Iterator[Converted]:
        """Yield the samples of a span."""
        with opened_arrays(self._path, self._options) as (x, y):
            row_bytes = max(1, x.dtype.itemsize * int(np.prod(x.shape[1:])))
            n_rows = max(1, self._piece_bytes // row_bytes)
            for start in range(span.start, span.stop, n_rows):
                stop = min(start + n_rows, span.stop)
                labels = y[start:stop] if y is not None else np.zeros(stop - start)
                raw = x[start:stop]
                crcs = tuple(map(_crc, (raw, labels) if y is not None else (raw,)))
                rows, labels = float_rows(self._path, raw, labels)
                self.done = (stop - span.start) / (span.stop - span.start)
                yield Converted(DenseData(rows, labels), crcs=crcs if self._has_crcs else ())


def _crc(array: npt.NDArray[Any]) -> int:
    """Return the CRC-32 of the bytes of an array."""
    return zlib.crc32(array.reshape(-1).view(np.uint8).data)


def check_crcs(path: str, options: ReadOptions, pieces: Sequence[CachePiece]) -> None:
    """Check the CRCs of an npz file against those of its parts.

    Args:
        path: The file.
        options: Options of the reader.
        pieces: All pieces of the file, in order.

    Raises:
        DataError: An array is damaged.
    """
    if not pieces or not pieces[0].crcs:
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
            parts = ((piece.crcs[i], piece.n * row_bytes) for piece in pieces)
            member.check(path, joined_crc([(zlib.crc32(header), len(header)), *parts]))


def array_form(path: str, options: ReadOptions) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of the samples of an HDF5, npy or npz file, which may be compressed.

    Raises:
        DataError: As `opened_arrays`.
        CapabilityError: h5py is missing.
    """
    if _begins(path, MAGIC):
        found = open_npy(path, options).x
        return tuple(found.shape), found.dtype
    if not _begins(path, _ZIP):
        with opened_hdf5(path, options) as (x, _):
            return tuple(x.shape), x.dtype
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            x_name, _ = array_names(path, names, options.labelled)
            with archive.open(entry_name(archive, x_name)) as member:
                return array_header(member)[::2]
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: is not an npz file of plain arrays: {error}") from None


def _begins(path: str, magic: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


@contextlib.contextmanager
def opened_arrays(path: str, options: ReadOptions) -> Iterator[tuple[Any, Any]]:
    """Open samples and labels of an HDF5, npy or npz file; the labels are None if they are not read.

    Raises:
        DataError: The file has no such arrays, or they are compressed in npz.
        CapabilityError: h5py is missing.
    """
    if _begins(path, MAGIC):
        yield open_npy(path, options)[:2]
        return
    if not _begins(path, _ZIP):
        with opened_hdf5(path, options) as (x, y):
            yield x, None if isinstance(y, np.ndarray) else y
        return
    try:
        x_name, y_name = array_names(path, names_of(path), options.labelled)
        # CRCs are those of whole arrays, and a span is a part of them: `check_crcs` compares.
        members = {
            name: member._replace(crc=None)
            for name, member in members_of(path, (x_name, y_name)).items()
        }
    except (ValueError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: cannot be read in windows: {error}; write it by np.savez(file, "
            "x=np.ascontiguousarray(x), y=y) or as HDF5, or raise data.memory_mib"
        ) from None
    x = RowsOfFile(path, members[x_name])
    y = RowsOfFile(path, members[y_name]) if y_name else None
    check_arrays(path, x, y if y is not None else np.zeros(len(x) if x.shape else 0))
    yield x, y
