"""Reader of LIBSVM (svmlight) text: `label index:value index:value ... # comment`, one sample per line.

Of several labels, a line has a list such as `1,3,7` in the place of the label, or nothing; see `label_sets`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import IO, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from mpips._native import LibsvmError, parse_libsvm
from mpips.data.compressed import beginning, opened, opened_to_map
from mpips.data.csv_plan import MAX_RECORD_BYTES
from mpips.data.dataset import SparseData
from mpips.data.info import MOST_LABEL, Part, describe, label_text
from mpips.data.label_sets import N_FIELDS, only_features
from mpips.data.options import ReadOptions, Share
from mpips.errors import DataError

# First line of a file in which features are the columns of an array, counted from 0, also if no sample has
# the first one. `mpips.fit` writes such files.
OF_ARRAY = b"# mpips: features are the columns of an array, counted from 0\n"
_READ = 4 << 20  # bytes that are read at a time where only the base is sought


def is_of_array(path: str) -> bool:
    """Return True if a file has the columns of an array; raises as `beginning`."""
    return beginning(path, len(OF_ARRAY)) == OF_ARRAY


def read_libsvm(path: str, options: ReadOptions, share: Share) -> Part:
    """Read a share of a LIBSVM file; in the result, features are numbered from 0.

    The file is mapped, not copied. Each worker scans all of it, so that all workers find the same number of
    samples and of features, and the same base. `qid:` fields are ignored; unsorted indices are sorted.

    Raises:
        DataError: A line is malformed; names file, line and column.
        OSError: The file cannot be opened.
    """
    base = -1 if options.index_base == "auto" else int(options.index_base)
    of_array = is_of_array(path)
    if of_array:
        base = 0
    with opened_to_map(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise DataError(f"{path}: contains no samples")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            try:
                parsed = parse_libsvm(
                    text,
                    share.stride,
                    share.offset,
                    base,
                    share.shares == "mixed",
                    share.first,
                    options.wants == "several",
                )
            except LibsvmError as error:
                raise DataError(f"{path}:{error}") from None
    labels, indptr, indices, values, n_samples, _, max_index, base, fields = parsed
    n_features = max_index + 1 - base if max_index >= 0 else 0
    data = SparseData(indptr, indices, values, labels, n_features)
    if options.wants == "several":
        data = msgspec.structs.replace(data, fields=fields, n_fields=N_FIELDS)
    if options.wants == "classes":
        check_labels(path, labels)
    part = describe(data, n_samples, path, index_base=base, wants=options.wants)
    return replace(part, info=replace(part.info, of_array=of_array))


def check_labels(path: str, labels: npt.NDArray[np.float64]) -> None:
    """Raise DataError for a class that float64 does not tell from others."""
    beyond = np.flatnonzero(np.abs(labels) > MOST_LABEL)
    if len(beyond):
        raise DataError(
            f"{path}: label {label_text(labels[beyond[0]])} is beyond 2**53, where different whole numbers "
            "are one float64: number the classes anew"
        )


def base_of(paths: Sequence[str], several: bool) -> int:
    """Return the number of the first feature in files: 0 if index 0 occurs in any of them, else 1. Blocks."""
    for path in paths:
        if is_of_array(path):
            continue
        with opened(path) as file:
            for text in whole_lines(path, file, _READ):
                if parse_text(path, text, 0, lambda: 0, several).min_index == 0:
                    return 0
    return 1


class ParsedText(NamedTuple):
    """Samples of some lines of LIBSVM text.

    Attributes:
        data: The samples, with features numbered from the base that the text was parsed with.
        min_index, max_index: Least and greatest index, as written; -1 if there is none.
    """

    data: SparseData
    min_index: int
    max_index: int


def parse_text(
    path: str,
    text: bytes,
    base: int,
    lines_before: Callable[[], int],
    several: bool = False,
    labelled: bool = True,
) -> ParsedText:
    """Return the samples in whole lines of text.

    Args:
        path: The file, for errors.
        text: The lines.
        base: Number of the first feature, 0 or 1.
        lines_before: Returns the number of lines of the file before these; called for an error.
        several: A sample has any number of labels; see `label_sets`.
        labelled: False: several labels are left out.

    Raises:
        DataError: A line is malformed; names file, line and column.
    """
    try:
        labels, indptr, indices, values, _, low, high, _, fields = parse_libsvm(
            text, 1, 0, base, several=several
        )
    except LibsvmError as error:
        line, _, rest = str(error).partition(":")
        raise DataError(f"{path}:{int(line) + lines_before()}:{rest}") from None
    n_features = high + 1 - base if high >= 0 else 0
    data = SparseData(indptr, indices, values, labels, n_features)
    if labelled and not several:
        check_labels(path, labels)
    if several:
        data = msgspec.structs.replace(data, fields=fields, n_fields=N_FIELDS)
        data = data if labelled else only_features(data)
    return ParsedText(data, low, high)


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
