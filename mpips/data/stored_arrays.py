"""Arrays of NumPy in files: npy files, and the members of npz files that are not compressed."""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterable
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from mpips.errors import DataError

_ENCRYPTED = 1  # flag of an entry of a zip file
_LOCAL_HEADER = 30  # bytes of a zip file's local header before the name
_P = 0xEDB88320  # the polynomial of CRC-32; bit 31 is the coefficient of x^0
_ONE = 1 << 31
# Errors of NumPy's functions for bytes that are not the header of an array.
HEADER_ERRORS = (
    ValueError,
    TypeError,
    SyntaxError,
    OverflowError,
    RecursionError,
    MemoryError,
    EOFError,
    tokenize.TokenError,
)


def array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether columns are contiguous, and dtype of the NumPy array that begins here.

    Raises:
        ValueError: The bytes are not the header of an array.
    """
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = read(file)
    except HEADER_ERRORS as error:
        # NumPy's sentence about a long header has several lines, and a wrong one is evaluated as Python.
        raise ValueError(str(error).partition("\n")[0] or type(error).__name__) from None
    if version == (3, 0) and dtype.names is not None:
        # The names of fields are UTF-8, which NumPy's function for version 2 reads as Latin-1.
        dtype.names = tuple(name.encode("latin-1").decode() for name in dtype.names)
    return tuple(shape), bool(by_columns), dtype


class Member(NamedTuple):
    """An array in a file.

    Attributes:
        offset: Place of its first byte in the file.
        dtype, shape: Dtype and shape of the array.
        begin: Place of the first byte that `crc` counts.
        crc: CRC-32 of the bytes from `begin` to the end of the array; None: unknown.
        by_columns: The columns are contiguous, not the rows.
    """

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int = 0
    crc: int | None = None
    by_columns: bool = False

    def check(self, path: str, crc: int) -> None:
        """Raise DataError if this CRC-32 of the bytes from `begin` on is not that of the file `path`."""
        if crc != self.crc:
            raise DataError(
                f"{path}: is damaged: the CRC of an array is {crc:08x}, expected {self.crc:08x}; write the "
                "file again"
            )


Members: TypeAlias = dict[str, Member]


def names_of(path: str) -> list[str]:
    """Return the names of the arrays of an npz file.

    Raises:
        OSError, zipfile.BadZipFile: The file cannot be read, or is not an npz file.
    """
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def members_of(path: str, wanted: Collection[str] | None = None) -> Members:
    """Return arrays of an npz file, which are not compressed, by name.

    Args:
        path: The file.
        wanted: Their names; the file may contain anything else. None: all.

    Raises:
        OSError, ValueError, zipfile.BadZipFile: The file cannot be read, or is not a file of such arrays.
    """
    found: Members = {}
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if wanted is not None and name not in wanted:
                continue
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
                raise ValueError(f"{entry.filename} is compressed or encrypted")
            if name in found:
                raise ValueError(f"{name} occurs twice")
            file.seek(entry.header_offset)
            header = file.read(_LOCAL_HEADER)
            lengths = [int.from_bytes(header[at : at + 2], "little") for at in (26, 28)]
            begin = entry.header_offset + _LOCAL_HEADER + sum(lengths)
            file.seek(begin)
            shape, by_columns, dtype = array_header(file)
            if (by_columns and len(shape) > 1) or dtype.hasobject:
                raise ValueError(f"{entry.filename} is not in the order of rows")
            n_bytes = file.tell() - begin + dtype.itemsize * math.prod(shape)
            if n_bytes > entry.file_size:
                raise ValueError(f"{entry.filename} has fewer bytes than its header says")
            crc = entry.CRC if n_bytes == entry.file_size else None
            found[name] = Member(file.tell(), dtype, shape, begin, crc)
    return found


class RowsOfFile:
    """An array in a file, of which rows are read; as `array[start:stop]` of NumPy. Not thread-safe.

    Files are read, not mapped: a process that touches a page behind the end of a file that became shorter
    is killed by SIGBUS. If all rows are read in order, the CRC of the array is checked with the last ones.

    Attributes:
        shape, dtype: Shape and dtype of the array.
        checks: The CRC is checked.
    """

    def __init__(self, path: str, member: Member) -> None:
        """Open the file; raises OSError."""
        self.dtype, self.shape = member.dtype, member.shape
        self.checks = member.crc is not None
        self._path = path
        self._member = member
        self._next = 0  # rows that were read in order
        self._crc = 0  # CRC-32 of the bytes up to there
        self._file = -1
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._state = self._found()

    def __del__(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        """Return consecutive rows, a new array. Blocks.

        Raises:
            DataError: The file has changed since it was opened, or its content is not what was written.
            OSError: It cannot be read.
        """
        start, stop, _ = rows.indices(len(self))
        member, n = self._member, max(0, stop - start)
        if member.by_columns:
            columns = np.empty((math.prod(self.shape[1:]), n), self.dtype)
            for i, column in enumerate(columns):
                self._fill(column, member.offset + (i * len(self) + start) * self.dtype.itemsize)
            out = columns.reshape(*self.shape[:0:-1], n).T
        else:
            out = np.empty((n, *self.shape[1:]), self.dtype)
            row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
            self._fill(out, member.offset + start * row_bytes)
            self._check(out, start)
        if self._found() != self._state:
            raise DataError(f"{self._path}: has changed while it was read; start the job again")
        return out

    def column(self, place: int) -> RowsOfFile:
        """Return a column of an array of shape (n, d) with contiguous columns."""
        offset = self._member.offset + place * len(self) * self.dtype.itemsize
        return RowsOfFile(self._path, Member(offset, self.dtype, self.shape[:1]))

    @property
    def by_columns(self) -> bool:
        """True if the columns are contiguous in the file."""
        return self._member.by_columns

    def _found(self) -> tuple[int, int]:
        """Return size and time of the last change of the file."""
        found = os.fstat(self._file)
        return found.st_size, found.st_mtime_ns

    def _fill(self, out: npt.NDArray[Any], at: int) -> None:
        """Read bytes of the file from a place on into an array."""
        left = memoryview(out.reshape(-1).view(np.uint8).data)
        while len(left):
            n = os.preadv(self._file, [left], at)
            if n == 0:
                raise DataError(
                    f"{self._path}: is shorter than when the job began; start the job again"
                )
            left, at = left[n:], at + n

    def _check(self, rows: npt.NDArray[Any], start: int) -> None:
        """Check the CRC of the array if these rows, from row `start` on, are the last ones."""
        member = self._member
        if not self.checks or start != self._next:
            return
        if start == 0:
            header = np.empty(member.offset - member.begin, np.uint8)
            self._fill(header, member.begin)
            self._crc = zlib.crc32(header.data)
        self._crc = zlib.crc32(rows.reshape(-1).view(np.uint8).data, self._crc)
        self._next += len(rows)
        if self._next == len(self):
            member.check(self._path, self._crc)


def joined_crc(parts: Iterable[tuple[int, int]]) -> int:
    """Return the CRC-32 of consecutive parts, as `crc32_combine` of zlib.

    A CRC is a polynomial modulo P over GF(2), and n more bytes multiply it by x^(8 n).

    Args:
        parts: CRC-32 and number of bytes of each, in order.
    """
    crc = 0
    for own, n_bytes in parts:
        crc = _product(_power(8 * n_bytes), crc) ^ own
    return crc


def _product(a: int, b: int) -> int:
    """Return a b modulo P."""
    found = 0
    bit = _ONE
    while bit:
        if a & bit:
            found ^= b
        bit >>= 1
        b = (b >> 1) ^ _P if b & 1 else b >> 1
    return found


def _power(n: int) -> int:
    """Return x^n modulo P."""
    found, square = _ONE, _ONE >> 1
    while n:
        if n & 1:
            found = _product(square, found)
        square = _product(square, square)
        n >>= 1
    return found
