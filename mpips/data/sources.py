"""Files of samples: each format gives a `SampleSource`, which reads its file in blocks.

The same blocks serve for data in memory, for the conversion into a cache and for predictions. Data in memory
is all blocks as one. A conversion reads spans, which cover the file. Processes that predict share the blocks
of the whole file, and each converts its own only. The blocks depend on the content of the file and on their
size.

A span is a range of one file. One worker converts it without reading the others. A span of text that is not
compressed has the records that end in it: it begins behind the end of the record that contains its first
byte, and ends behind the record that contains the first byte of the next span. A line end within quotes ends
no record of CSV, so a worker must know whether a span begins within quotes. For this, each span is surveyed
first: `CsvSource.survey` returns what follows for the end of a span from each assumption about its beginning;
`mpips.data.stream.conversion` composes the answers of all spans. A compressed file is one span.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from mpips._native import count_csv_lines
from mpips.data.columns import TableColumns
from mpips.data.compressed import compression_of
from mpips.data.dataset import Dataset
from mpips.data.info import Part
from mpips.data.options import Share
from mpips.errors import DataError

MAX_RECORD_BYTES = 64 << 20  # a longer line or record is rather a quote that is not closed
_READ = 1 << 20  # bytes that are read at a time where only the end of a record is sought


class Span(msgspec.Struct, frozen=True):
    """A range of a file.

    Attributes:
        file: Place of the file in the list of files.
        start, stop: First byte, row or group of rows, and the one behind the last; 0, 0 for compressed text.
        is_last: No span of the file follows.
    """

    file: int
    start: int
    stop: int
    is_last: bool


class Converted(NamedTuple):
    """The samples of a block.

    Attributes:
        data: The samples; labels are numbers of the file, or places in `label_names`.
        label_names: The labels that are text, sorted; (): numbers.
        min_index, max_index: LIBSVM: least and greatest index, as written; -1: no indices.
        base: LIBSVM: the number that was subtracted from the indices as written.
        crcs: npz: CRC-32 of the bytes of the samples, and of their labels if they are read.
    """

    data: Dataset
    label_names: tuple[str, ...] = ()
    min_index: int = -1
    max_index: int = -1
    base: int = 0
    crcs: tuple[int, ...] = ()


class BlockSize(NamedTuple):
    """The size of blocks.

    Attributes:
        n_bytes: Bytes of text that are read at a time.
        rows: Returns the rows of a table or an array from the number of columns and the bytes of a row.
    """

    n_bytes: int
    rows: Callable[[int, int], int]

    @classmethod
    def of_bytes(cls, n_bytes: int) -> BlockSize:
        """Return the size of blocks of about `n_bytes` bytes."""
        return cls(n_bytes, lambda _, row_bytes: max(1, n_bytes // max(1, row_bytes)))


SIZE = BlockSize.of_bytes(4 << 20)


class SampleSource(Protocol):
    """A file. The constructor takes a path and options and reads nothing yet.

    Attributes:
        done: Share of the present span that was read, 0 to 1; of compressed text, of the compressed bytes.
    """

    done: float

    @property
    def columns(self) -> TableColumns | None:
        """The columns that are used; None for formats without names. Opens the file if it was not yet."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user; see `columns`."""

    def read(self, share: Share) -> Part:
        """Return the samples of a share of the whole file as one. Blocks.

        Raises:
            DataError: The file is malformed; names the place.
            CapabilityError: A library is missing.
            OSError: The file cannot be read.
        """

    def ends(self) -> list[int]:
        """Return the places that divide the file into spans, its beginning and its end among them."""

    def blocks(
        self,
        span: Span | None = None,
        inside: tuple[bool, bool] = (False, False),
        turns: Iterator[bool] | None = None,
    ) -> Iterator[Converted | None]:
        """Yield the samples of a span in order, in blocks. Reads while iterated over; raises as `read`.

        Args:
            span: The span; None: the whole file.
            inside: CSV: whether the beginning and the end of the span are within quotes.
            turns: For each block whether it is converted; None is yielded in the place of one that is not.
                None: all are.
        """


def every_turn(turns: Iterator[bool] | None) -> Iterator[bool]:
    """Return whether each block is converted; see `SampleSource.blocks`."""
    return itertools.repeat(True) if turns is None else turns


def text_ends(path: str, n_bytes: int) -> list[int]:
    """Return the ends of spans of text of about `n_bytes` bytes; of one if it is compressed."""
    if compression_of(path):
        return [0, 0]
    size = os.path.getsize(path)
    n = max(1, -(-size // n_bytes))
    return [size * i // n for i in range(n + 1)]


class TextFile:
    """Bytes of a text file by place, of which few are in memory at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._file).st_size

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> TextFile:
        """Return this file, which the block closes."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes; fewer at the end of the file."""
        parts = []
        while start < stop and (part := os.pread(self._file, stop - start, start)):
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def find(self, start: int, end_in: Callable[[bytes], int]) -> int:
        """Return the place that a function finds in the text from `start` on, or the end of the file.

        Args:
            start: Place in the file at which the text begins.
            end_in: Returns a place in a text, or the length of the text if it has no such place.

        Raises:
            DataError: The place is more than `MAX_RECORD_BYTES` behind `start`.
        """
        n = _READ
        while True:
            text = self.read(start, start + n)
            place = end_in(text)
            if place < len(text) or start + len(text) >= self.size:
                return start + place
            if n >= MAX_RECORD_BYTES:
                raise DataError(
                    f"{self._path}: a line or record is longer than {MAX_RECORD_BYTES >> 20} MiB"
                )
            n *= 4

    def lines_before(self, end: int) -> int:
        """Return the number of line ends before a place."""
        blocks = range(0, end, _READ)
        return sum(count_csv_lines(self.read(at, min(at + _READ, end))) for at in blocks)
