"""Reader of LIBSVM (svmlight) text: `label index:value index:value ... # comment`, one sample per line.

If samples have several labels, a line has a list such as `1,3,7` in the place of the label, or nothing; see
`label_sets`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt

from mpips._native import LibsvmError, parse_libsvm
from mpips.data.bad_lines import BadLines, good_libsvm
from mpips.data.columns import TableColumns
from mpips.data.compressed import (
    PackedPlace,
    beginning,
    compression_of,
    opened,
    opened_to_map,
)
from mpips.data.dataset import N_FIELDS, SparseData
from mpips.data.info import MOST_LABEL, Part, describe, label_text
from mpips.data.label_sets import only_features
from mpips.data.options import ReadOptions, Share
from mpips.data.sources import (
    MAX_RECORD_BYTES,
    SIZE,
    BlockSize,
    Converted,
    Span,
    TextFile,
    every_turn,
    text_ends,
)
from mpips.errors import DataError

# First line of a file in which features are the columns of an array, counted from 0, also if no sample has
# the first one. `mpips.fit` writes such files.
OF_ARRAY = b"# mpips: features are the columns of an array, counted from 0\n"


def is_of_array(path: str) -> bool:
    """Return True if a file has the columns of an array; raises as `beginning`."""
    return beginning(path, len(OF_ARRAY)) == OF_ARRAY


class LibsvmSource:
    """A file of LIBSVM text; see `mpips.data.sources.SampleSource`."""

    columns: TableColumns | None = None
    notes: tuple[str, ...] = ()

    def __init__(
        self, path: str, options: ReadOptions, size: BlockSize = SIZE, bad: BadLines | None = None
    ) -> None:
        """Read nothing yet; `bad`: bad lines are left out and added here; None: they are errors."""
        self.done = 0.0
        self._path = path
        self._options = options
        self._size = size
        self._bad = bad

    def read(self, share: Share) -> Part:
        """Read a share of the file; in the result, features are numbered from 0.

        The file is mapped, not copied. Each worker scans all of it, so that all workers find the same number
        of samples and of features, and the same base. `qid:` fields are ignored; unsorted indices are sorted.
        """
        path, options = self._path, self._options
        of_array = is_of_array(path)
        base = -1 if options.index_base == "auto" else int(options.index_base)
        with opened_to_map(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise DataError(f"{path}: contains no samples")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                try:
                    parsed = parse_libsvm(
                        text,
                        share.stride,
                        share.offset,
                        0 if of_array else base,
                        share.shares == "mixed",
                        share.first,
                        options.wants == "several",
                    )
                except LibsvmError as error:
                    raise DataError(f"{path}:{error}") from None
        found = _samples(path, parsed, options)
        part = describe(found.data, parsed[4], path, index_base=parsed[7], wants=options.wants)
        return replace(part, info=replace(part.info, of_array=of_array))

    def ends(self) -> list[int]:
        """Return the ends of spans of text."""
        return text_ends(self._path, self._size.n_bytes)

    def blocks(
        self,
        span: Span | None = None,
        inside: tuple[bool, bool] = (False, False),
        turns: Iterator[bool] | None = None,
    ) -> Iterator[Converted | None]:
        """Yield the samples of a span. If the base is not known, features have their indices as written."""
        path, options, turns = self._path, self._options, every_turn(turns)
        base = 1 if options.index_base == 1 and not is_of_array(path) else 0
        for text, lines_before in self._texts(span):
            if not next(turns):
                yield None
                continue
            if self._bad is not None:
                several = options.wants == "several"
                text = good_libsvm(path, text, base, self._bad, lines_before, several)
            yield parse_text(path, text, base, lines_before, options)

    def _texts(self, span: Span | None) -> Iterator[tuple[bytes, Callable[[], int]]]:
        """Yield whole lines of a span, and a function that returns the number of lines before them."""
        if span is not None and not compression_of(self._path):
            with TextFile(self._path) as file:
                begin = file.find(span.start, _line_end) if span.start else 0
                end = span.stop if span.is_last else file.find(span.stop, _line_end)
                yield file.read(begin, end), lambda: file.lines_before(begin)
            return
        line = 0
        with opened(self._path, place := PackedPlace()) as packed:
            for text in whole_lines(self._path, packed, self._size.n_bytes):
                self.done = place.share
                yield text, lambda before=line: before  # type: ignore[misc]
                line += text.count(b"\n")


def _line_end(text: bytes) -> int:
    found = text.find(b"\n")
    return found + 1 if found >= 0 else len(text)


def check_labels(path: str, labels: npt.NDArray[np.float64]) -> None:
    """Raise DataError for a class that float64 does not distinguish from others."""
    beyond = np.flatnonzero(np.abs(labels) > MOST_LABEL)
    if len(beyond):
        raise DataError(
            f"{path}: label {label_text(labels[beyond[0]])} is beyond 2**53, where different whole numbers "
            "are one float64: number the classes anew"
        )


def base_of(paths: Sequence[str], options: ReadOptions) -> int:
    """Return the number of the first feature in files: 0 if index 0 occurs in any of them, else 1. Blocks."""
    options = msgspec.structs.replace(options, index_base="auto")
    found = (
        block
        for path in paths
        if not is_of_array(path)
        for block in LibsvmSource(path, options).blocks()
    )
    return 0 if any(block is not None and block.min_index == 0 for block in found) else 1


def parse_text(
    path: str, text: bytes, base: int, lines_before: Callable[[], int], options: ReadOptions
) -> Converted:
    """Return the samples in whole lines of text.

    Args:
        path: The file, for errors.
        text: The lines.
        base: Number of the first feature, 0 or 1.
        lines_before: Returns the number of lines of the file before these; called for an error.
        options: Options of the reader.

    Raises:
        DataError: A line is malformed; names file, line and column.
    """
    try:
        parsed = parse_libsvm(text, 1, 0, base, several=options.wants == "several")
    except LibsvmError as error:
        line, _, rest = str(error).partition(":")
        raise DataError(f"{path}:{int(line) + lines_before()}:{rest}") from None
    return _samples(path, parsed, options)


def _samples(path: str, parsed: Any, options: ReadOptions) -> Converted:
    """Return what the native parser has found."""
    labels, indptr, indices, values, _, low, high, base, fields = parsed
    n_features = high + 1 - base if high >= 0 else 0
    data = SparseData(indptr, indices, values, labels, n_features)
    if options.wants == "several":
        data = msgspec.structs.replace(data, fields=fields, n_fields=N_FIELDS)
        data = data if options.labelled else only_features(data)
    elif options.wants == "classes" and options.labelled:
        check_labels(path, labels)
    return Converted(data, (), low, high, base)


def whole_lines(path: str, file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the text of an open file in pieces of whole lines.

    Args:
        path: The file, for errors.
        file: It.
        size: Bytes that are read at a time.

    Raises:
        DataError: A line is longer than `MAX_RECORD_BYTES`.
    """
    left = b""
    while block := file.read(size):
        text = left + block
        # The last line may go on in the next block.
        end = text.rfind(b"\n") + 1
        if end:
            yield text[:end]
        left = text[end:]
        if len(left) > MAX_RECORD_BYTES:
            raise DataError(f"{path}: a line is longer than {MAX_RECORD_BYTES >> 20} MiB")
    if left:
        yield left
