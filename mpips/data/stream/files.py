"""The files of a conversion, and an estimate of the memory that their samples need."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import msgspec
import numpy as np

from mpips.data.arrays import ArraySource
from mpips.data.compressed import beginning, compression_of
from mpips.data.csv_dialect import DELIMITERS
from mpips.data.options import ReadOptions
from mpips.data.readers import READERS
from mpips.data.table_files import OPENED_TABLES
from mpips.errors import DataError

# Bytes of text for each byte of a compressed file.
_PACKED = {"": 1, ".gz": 4, ".bz2": 5, ".xz": 6, ".zst": 4}
_SAMPLE = 1 << 20  # bytes of text by which its samples are estimated
_ENTRY_BYTES = 20  # of a cell of Parquet or Arrow in memory


class File(msgspec.Struct, frozen=True):
    """A file of the data.

    Attributes:
        path: Its path.
        size, changed_ns: Its bytes and the time of its last change.
        format: A name in `READERS`.
    """

    path: str
    size: int
    changed_ns: int
    format: str

    def check(self) -> None:
        """Raise DataError if this process finds another file than the one of the plan."""
        found = os.stat(self.path)
        if (found.st_size, found.st_mtime_ns) != (self.size, self.changed_ns):
            raise DataError(
                f"{self.path}: has changed while it was read, or is another file on this node: "
                f"{found.st_size:,} bytes instead of {self.size:,}; all workers must read the same files"
            )


def is_streamed(files: Sequence[File], options: ReadOptions, share_of: int, memory: int) -> bool:
    """Return True if the samples of a worker are estimated to need more memory than they may.

    Args:
        files: The files.
        options: Options of the readers.
        share_of: Number of workers.
        memory: Bytes that a worker may use for samples.
    """
    densities: dict[str, float] = {}
    return sum(_estimate(file, options, densities) for file in files) > memory * share_of


def _estimate(file: File, options: ReadOptions, densities: dict[str, float]) -> int:
    """Return about how many bytes the samples of a file need in memory.

    Args:
        file: The file.
        options: Options of the readers.
        densities: Bytes in memory for each byte of text, by format; the first file of a format decides.
    """
    if file.format in OPENED_TABLES:
        with OPENED_TABLES[file.format](file.path) as table:
            return sum(table.group_rows()) * len(table.schema.names) * _ENTRY_BYTES
    source = READERS[file.format].source(file.path, options)
    if isinstance(source, ArraySource):
        shape, dtype = source.form()
        number = 4 if np.can_cast(dtype, np.float32) else 8
        return shape[0] * (8 + number * math.prod(shape[1:]))
    if file.format not in densities:
        densities[file.format] = _density(file)
    return int(file.size * _PACKED[compression_of(file.path)] * densities[file.format])


def _density(file: File) -> float:
    """Return the bytes that samples take in memory for each byte of text, by the beginning of a file."""
    text = beginning(file.path, _SAMPLE)
    if not text:
        return 0.0
    lines = text.count(b"\n") + 1
    if file.format == "libsvm":
        return (12 * text.count(b":") + 16 * lines) / len(text)
    cells = max(text.count(delimiter.encode()) for delimiter in DELIMITERS) + lines
    return (16 * cells + 16 * lines) / len(text)
