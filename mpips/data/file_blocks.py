"""Samples of a file to be predicted or evaluated, block by block, in bounded memory.

The blocks of a file depend on its content and format alone: pieces of text of whole records, or a number of
rows. So several processes can share the blocks of a file, and predict each of them as one process would.
Every process passes over the whole file, but converts its own blocks only.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Generator, Iterator, Sequence

import msgspec
import numpy as np

from mpips._native import count_csv_lines
from mpips.data.arrays import hdf5_blocks, npz_blocks
from mpips.data.compressed import opened
from mpips.data.criteo import criteo_options
from mpips.data.csv_labels import CsvLabels
from mpips.data.csv_plan import CsvPlan
from mpips.data.csv_quick import QuickReader
from mpips.data.csv_table import builder_of, csv_errors, read_records
from mpips.data.dataset import Dataset, SparseData
from mpips.data.info import DataInfo, align, has_usual_labels, label_text, meanings, relabel
from mpips.data.label_sets import LabelSets, all_labels
from mpips.data.libsvm import base_of, is_of_array, parse_text, whole_lines
from mpips.data.npy import npy_blocks, open_npy
from mpips.data.options import ReadOptions
from mpips.data.readers import as_in_training, base_note, check_form, read, reader_of
from mpips.data.several import files_of
from mpips.data.stream.cache import Converted
from mpips.data.summary import matching_text
from mpips.data.typed_tables import table_blocks
from mpips.errors import CapabilityError, DataError
from mpips.model.distinct import distinct

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
    options = msgspec.structs.replace(options, labelled=False)
    turns = (i % parts == part for i in itertools.count())
    for _, block in _converted(path, options, info, turns, _once(say)):
        yield as_trained(block.data, info)


def labelled_blocks(
    path: str | os.PathLike[str],
    options: ReadOptions,
    info: DataInfo,
    *,
    say: Say = lambda note: None,
) -> Iterator[Dataset]:
    """Yield the samples of a file with their labels; see `blocks`.

    The numbers that stand for two classes are found first: the file is read until two labels are known.
    """
    say_once = _once(say)

    def labelled() -> Generator[tuple[str, Dataset], None, None]:
        for file, block in _converted(path, options, info, itertools.repeat(True), say_once):
            if block.label_names and not info.label_names:
                raise DataError(
                    f"{file}: its labels are {', '.join(block.label_names[:10])}, those of the training data "
                    f"{', '.join(info.class_names[:10])}; use files with the same labels"
                )
            yield file, block.data

    sets = LabelSets.of(info)
    meant: dict[float, float] = {}
    if has_usual_labels(info) and options.wants == "classes":
        with contextlib.closing(labelled()) as found:
            meant = meanings(info, _first_labels(data for _, data in found))
    if meant:
        say_once(matching_text(os.fspath(path), meant))
    for file, data in labelled():
        if sets is not None:
            for note in sets.unknown(distinct(all_labels(data, "several")).tolist(), file):
                say_once(note)
            yield align(sets.taken_out(data), info)
            continue
        strange = data.labels[~np.isin(data.labels, list(meant))]
        if meant and len(strange):
            raise DataError(
                f"{file}: label {label_text(strange[0])} is none of the two labels before it, "
                f"{' and '.join(map(label_text, meant))}; use files with the labels of the training "
                f"data, {' and '.join(info.class_names)}"
            )
        yield align(relabel(data, meant), info)


def _first_labels(found: Iterator[Dataset]) -> tuple[float, ...]:
    """Return the distinct labels of the first blocks that have two together, ascending."""
    labels: set[float] = set()
    for data in found:
        labels.update(distinct(data.labels).tolist())
        if len(labels) > 1:
            break
    return tuple(sorted(labels))


def _once(say: Say) -> Say:
    """Return a function that calls `say` with each sentence once."""
    known: set[str] = set()

    def say_once(note: str) -> None:
        if note not in known:
            known.add(note)
            say(note)

    return say_once


def _converted(
    path: str | os.PathLike[str],
    options: ReadOptions,
    info: DataInfo,
    turns: Iterator[bool],
    say: Say,
) -> Iterator[tuple[str, Converted]]:
    """Yield the blocks whose turn is True, each with its file; see `blocks`."""
    options = as_in_training(options, info)
    files = files_of(os.fspath(path))
    if info.of_array and options.index_base == "auto":
        options = _with_base(options, files, say)
    for file in files:
        reader = reader_of(file, options)
        try:
            for block in BLOCKS[reader.name](file, options, turns, say):
                if block is not None:
                    data = block.data
                    has_columns = isinstance(data, SparseData) and data.fields is not None
                    if reader.name != "libsvm":
                        kind = "sparse" if isinstance(data, SparseData) else "dense"
                        check_form(file, kind, has_columns, info)
                    yield file, block
        except OSError as error:
            raise DataError(f"{file}: cannot be read: {error.strerror or error}") from error
        except MemoryError as error:
            raise CapabilityError(
                f"{file}: a block does not fit into memory: {error}; use fewer processes on this node"
            ) from None


def _with_base(options: ReadOptions, files: Sequence[str], say: Say) -> ReadOptions:
    """Return the options with the base of the files of LIBSVM text among these."""
    texts = [file for file in files if reader_of(file, options).name == "libsvm"]
    try:
        written = [file for file in texts if not is_of_array(file)]
        base = base_of(written, options.wants == "several") if written else 0
    except OSError as error:
        raise DataError(f"{files[0]}: cannot be read: {error.strerror or error}") from error
    for file in written:
        say(base_note(file, base))
    return msgspec.structs.replace(options, index_base=1 if base else 0)


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
) -> Iterator[Converted | None]:
    with opened(path) as file, csv_errors(path):
        plan = CsvPlan.of(path, file, options)
        for note in plan.columns.notes:
            say(note)
        quick, labels, line = QuickReader(plan), CsvLabels(plan), plan.n_header_lines
        for text in plan.texts(file, _PIECE_BYTES):
            if next(turns):
                rows, places = read_records(plan, text, line, labels, quick)
                builder = builder_of(plan)
                builder.add(rows.cells(), rows.n)
                line += rows.n_lines
                names = labels.names()
                yield Converted(builder.samples(labels.values(places, names)), names)
            else:
                line += count_csv_lines(text)
                yield None


def _libsvm(
    path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Converted | None]:
    # The training data has decided about the base.
    base = int(options.index_base) if options.index_base != "auto" else 1
    if is_of_array(path):
        base = 0
    several = options.wants == "several"
    line = 0

    def lines_before() -> int:
        return line

    with opened(path) as file:
        for text in whole_lines(path, file, _PIECE_BYTES):
            if next(turns):
                found = parse_text(path, text, base, lines_before, several, options.labelled)
                yield Converted(found.data)
            else:
                yield None
            line += text.count(b"\n")


def _table(
    kind: str, path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Converted | None]:
    for found in table_blocks(kind, path, options, turns, _n_rows):
        if found is None:
            yield None
            continue
        data, names, notes = found
        for note in notes:
            say(note)
        yield Converted(data, names)


def _npz(
    path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Converted | None]:
    return _arrays(npz_blocks(path, options, turns, _n_rows))


def _npy(
    path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Converted | None]:
    file = open_npy(path, options)
    for note in file.notes:
        say(note)
    return _arrays(npy_blocks(path, file, turns, _n_rows))


def _hdf5(
    path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Converted | None]:
    return _arrays(hdf5_blocks(path, options, turns, _n_rows))


def _arrays(found: Iterator[Dataset | None]) -> Iterator[Converted | None]:
    return (None if data is None else Converted(data) for data in found)


def _digits(
    path: str, options: ReadOptions, turns: Iterator[bool], say: Say
) -> Iterator[Converted | None]:
    yield Converted(read(path, options=options).data) if next(turns) else None


# By the name of the format: yields the blocks of one file, None for those whose turn is False.
BLOCKS: dict[str, Callable[[str, ReadOptions, Iterator[bool], Say], Iterator[Converted | None]]] = {
    "libsvm": _libsvm,
    "csv": _csv,
    "criteo": lambda path, options, *more: _csv(path, criteo_options(options), *more),
    "parquet": functools.partial(_table, "parquet"),
    "arrow": functools.partial(_table, "arrow"),
    "npz": _npz,
    "npy": _npy,
    "hdf5": _hdf5,
    "digits": _digits,
}
