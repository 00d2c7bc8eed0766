"""Samples of a file to be predicted or evaluated, block by block, in bounded memory.

The blocks of a file depend on its content and format alone: pieces of text of whole records, or a number of
rows. So several processes can share the blocks of a file, and predict each of them as one process would.
Every process passes over the whole file, but converts its own blocks only.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Generator, Iterator, Sequence

import msgspec
import numpy as np

from mpips.data.dataset import Dataset, SparseData, all_labels
from mpips.data.info import DataInfo, align, has_usual_labels, label_text, meanings, relabel
from mpips.data.label_sets import LabelSets
from mpips.data.libsvm import base_of, is_of_array
from mpips.data.options import ReadOptions
from mpips.data.readers import as_in_training, base_note, check_form, reader_of
from mpips.data.several import files_of
from mpips.data.sources import BlockSize, Converted
from mpips.data.summary import matching_text
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
            source = reader.source(file, options, BlockSize(_PIECE_BYTES, _n_rows))
            for block in itertools.chain(source.blocks(turns=turns), (None,)):
                # Behind the last block, too: a file may have no block.
                for note in source.notes:
                    say(note)
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
        base = base_of(written, options) if written else 0
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


def _n_rows(n_columns: int, row_bytes: int) -> int:
    """Return the number of rows of a block with so many columns."""
    return max(1, min(_MOST_ROWS, _MOST_NUMBERS // max(n_columns, 1)))
