"""Samples of a file to be predicted, block by block, in bounded memory.

The blocks of a file depend on its content and format alone: pieces of text of whole records, or a number of
rows. So several processes can share the blocks of a file, and predict each of them as one process would.
Every process passes over the whole file, but converts its own blocks only.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from mpips._native import count_csv_lines
from mpips.data.arrays import hdf5_blocks, npz_blocks
from mpips.data.compressed import opened
from mpips.data.csv_labels import CsvLabels
from mpips.data.csv_plan import CsvPlan
from mpips.data.csv_quick import QuickReader
from mpips.data.csv_table import builder_of, csv_errors, read_records
from mpips.data.dataset import Dataset, SparseData
from mpips.data.info import DataInfo, align
from mpips.data.libsvm import parse_text, whole_lines
from mpips.data.options import ReadOptions
from mpips.data.parquet import parquet_blocks
from mpips.data.readers import as_in_training, read, reader_of
from mpips.data.several import files_of
from mpips.errors import CapabilityError, DataError

_PIECE_BYTES = 4 << 20  # bytes of text that are read at a time
_MOST_ROWS = 1 << 14  # rows of a block
_MOST_NUMBERS = 1 << 21  # numbers of a block

Say = Callable[[str], None]


def blocks(
    path: str | os.PathLike[str],
    options: ReadOptions,
    info: DataInfo,
    *,
    part: int = 0,
    parts: int = 1,
    say: Say = lambda note: None,
) -> Iterator[Dataset]:
    """Yield the samples of a file, or of several that a pattern names, in blocks, in the order of the file.

    Labels are not read. Not collective; reads while it is iterated over.

    Args:
        path: As of `mpips.data.read`.
        options: Options with which the training data was read.
        info: Description of the training data. The samples have its columns and base.
        part: Index of this process.
        parts: Number of processes that share the blocks: this one gets the blocks i with i % parts == part.
        say: Called with sentences for the user, each once.

    Raises:
        DataError: A file cannot be read, or does not fit; names file and place.
        ConfigError: The format is unknown.
        CapabilityError: A block does not fit into memory, or a library is missing.
    """
    options = as_in_training(msgspec.structs.replace(options, labelled=False), info)
    turns = (i % parts == part for i in itertools.count())
    known: set[str] = set()

    def say_once(note: str) -> None:
        if note not in known:
            known.add(note)
            say(note)

    for file in files_of(os.fspath(path)):
        reader = reader_of(file, options)
        try:
            for block in BLOCKS[reader.name](file, options, turns, say_once):
                if block is not None:
                    yield as_trained(block, info)
        except OSError as error:
            raise DataError(f"{file}: cannot be read: {error.strerror or error}") from error
        except MemoryError as error:
            raise CapabilityError(
                f"{file}: a block does not fit into memory: {error}; use fewer processes on this node"
            ) from None


def as_trained(data: Dataset, info: DataInfo) -> Dataset:
    """Return samples without labels in the form of the training data.

    Raises:
        DataError: They have another form.
    """
    some = info.labels[0] if info.labels else 0.0
    labels = np.full(data.n, some)
    if isinstance(data, SparseData) and info.kind == "dense":
        raise DataError(
            "the training data is dense, this data is sparse; give an array or a file of rows"
        )
    return align(msgspec.structs.replace(data, labels=labels), info)


def _n_rows(n_columns: int) -> int:
    """Return the number of rows of a block with so many columns."""
    return max(1, min(_MOST_ROWS, _MOST_NUMBERS // max(n_columns, 1)))


def _csv(
    path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Dataset | None]:
    with opened(path) as file, csv_errors(path):
        plan = CsvPlan.of(path, file, options)
        for note in plan.columns.notes:
            say(note)
        quick, line = QuickReader(plan), plan.n_header_lines
        for text in plan.texts(file, _PIECE_BYTES):
            if next(turns):
                rows, _ = read_records(plan, text, line, CsvLabels(plan), quick)
                builder = builder_of(plan)
                builder.add(rows.cells(), rows.n)
                line += rows.n_lines
                yield builder.samples(np.zeros(rows.n))
            else:
                line += count_csv_lines(text)
                yield None


def _libsvm(
    path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Dataset | None]:
    # The training data has decided about the base.
    base = int(options.index_base) if options.index_base != "auto" else 1
    line = 0

    def lines_before() -> int:
        return line

    with opened(path) as file:
        for text in whole_lines(path, file, _PIECE_BYTES):
            yield parse_text(path, text, base, lines_before).data if next(turns) else None
            line += text.count(b"\n")


def _parquet(
    path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Dataset | None]:
    for found in parquet_blocks(path, options, turns, _n_rows):
        if found is None:
            yield None
            continue
        data, notes = found
        for note in notes:
            say(note)
        yield data


def _npz(
    path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Dataset | None]:
    return npz_blocks(path, options, turns, _n_rows)


def _hdf5(
    path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Dataset | None]:
    return hdf5_blocks(path, options, turns, _n_rows)


def _digits(
    path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Dataset | None]:
    yield read(path, options=options).data if next(turns) else None


# By the name of the format: yields the blocks of one file, None for those whose turn is False.
BLOCKS: dict[str, Callable[[str, ReadOptions, Iterator[bool], Say], Iterator[Dataset | None]]] = {
    "libsvm": _libsvm,
    "csv": _csv,
    "parquet": _parquet,
    "npz": _npz,
    "hdf5": _hdf5,
    "digits": _digits,
}
