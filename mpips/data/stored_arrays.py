"""Arrays of NumPy in files: npy files, and the members of npz files that are not compressed."""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from mpips.errors import DataError

_LOCAL_HEADER = 30  # bytes of a zip file's local header before the name
# What NumPy raises for a header that is none of an array.
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
        ValueError: It is no such array.
    """
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = read(file)
    except HEADER_ERRORS as error:
        # NumPy's sentence about a long header has several lines, and a wrong one is evaluated as Python.
        raise ValueError(str(error).partition("\n")[0] or type(error).__name__) from None
    return tuple(shape), bool(by_columns), dtype


class Member(NamedTuple):
    """An array in a file of the cache.

    Attributes:
        offset: Place of its first byte in the file.
        dtype, shape: Of the array.
    """

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


Members: TypeAlias = dict[str, Member]


def members_of(path: str) -> Members:
    """Return the arrays of an npz file that are not compressed, by name.

    Raises:
        OSError, ValueError, zipfile.BadZipFile: It is no such file.
    """
    found = {}
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{entry.filename} is compressed")
            file.seek(entry.header_offset)
            header = file.read(_LOCAL_HEADER)
            lengths = [int.from_bytes(header[at : at + 2], "little") for at in (26, 28)]
            begin = entry.header_offset + _LOCAL_HEADER + sum(lengths)
            file.seek(begin)
            shape, by_columns, dtype = array_header(file)
            if (by_columns and len(shape) > 1) or dtype.hasobject:
                raise ValueError(f"{entry.filename} is not in the order of rows")
            n_bytes = dtype.itemsize * math.prod(shape)
            if file.tell() - begin + n_bytes > entry.file_size:
                raise ValueError(f"{entry.filename} has fewer bytes than its header says")
            found[entry.filename.removesuffix(".npy")] = Member(file.tell(), dtype, shape)
    return found


def read_rows(file: int, path: str, member: Member, start: int, stop: int) -> npt.NDArray[Any]:
    """Return rows of an array in an open file, a new array. Blocks; releases the GIL while reading.

    Raises:
        DataError: The file is shorter than it was.
        OSError: It cannot be read.
    """
    out = np.empty((stop - start, *member.shape[1:]), member.dtype)
    left = memoryview(out.reshape(-1).view(np.uint8).data)
    row_bytes = member.dtype.itemsize * int(np.prod(member.shape[1:], dtype=np.int64))
    at = member.offset + start * row_bytes
    while len(left):
        n = os.preadv(file, [left], at)
        if n == 0:
            raise DataError(f"{path}: is shorter than when the job began; start the job again")
        left, at = left[n:], at + n
    return out


def mapped_member(path: str, member: Member) -> npt.NDArray[Any]:
    """Map an array of an npz file into memory. Raises OSError."""
    # An array without elements cannot be mapped.
    if not math.prod(member.shape) * member.dtype.itemsize:
        return np.empty(member.shape, member.dtype)
    return np.memmap(path, member.dtype, "r", member.offset, member.shape)
