"""Choose a reader by the name of the format or the extension of the file, and read one worker's share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from mpips.data.arrays import ArraySource, opened_hdf5, opened_npz
from mpips.data.by_content import format_of
from mpips.data.columns import exactly
from mpips.data.compressed import compression_of, inner_name
from mpips.data.criteo import criteo_source
from mpips.data.csv_table import CsvSource
from mpips.data.digits import DigitsSource
from mpips.data.info import DataInfo, Part
from mpips.data.libsvm import LibsvmSource
from mpips.data.npy import opened_npy
from mpips.data.options import ReadOptions, Share
from mpips.data.several import files_of, read_files
from mpips.data.shares import Shares
from mpips.data.sources import SampleSource
from mpips.data.typed_tables import TableSource
from mpips.errors import CapabilityError, ConfigError, DataError
from mpips.model.accepted import unknown_name


class Reader(msgspec.Struct, frozen=True):
    """A format of files.

    Attributes:
        name: Name of the format, as in the option data.format.
        endings: Extensions of files of this format, with the dot, in small letters. Files with other ones are
            recognised by their content.
        source: Class of `mpips.data.sources.SampleSource`, which takes path, options, size of blocks, and the
            `BadLines` to which lines are added that are left out (None: they are errors).
        in_windows: Data in files of this format can be larger than memory.
    """

    name: str
    endings: tuple[str, ...]
    source: Callable[..., SampleSource]
    in_windows: bool = True


READERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("libsvm", (".svm", ".libsvm", ".svmlight"), LibsvmSource),
        Reader("csv", (".csv", ".tsv"), CsvSource),
        Reader("criteo", (), criteo_source),
        Reader("parquet", (".parquet", ".pq"), partial(TableSource, "parquet")),
        Reader("arrow", (".arrow", ".feather", ".arrows"), partial(TableSource, "arrow")),
        Reader("npz", (".npz",), partial(ArraySource, opened_npz)),
        Reader("npy", (".npy",), partial(ArraySource, opened_npy)),
        Reader("hdf5", (".h5", ".hdf5"), partial(ArraySource, opened_hdf5)),
        Reader("digits", (), DigitsSource, in_windows=False),
    )
}


# Formats of text, which can be compressed.
TEXT_FORMATS = ("libsvm", "csv", "criteo")


def read(
    path: str | os.PathLike[str],
    *,
    stride: int = 1,
    offset: int = 0,
    options: ReadOptions | None = None,
    like: DataInfo | None = None,
    shares: Shares = "interleaved",
) -> Part:
    """Read one worker's share of the samples of a file.

    Not collective; blocks until the file is read. The path "digits" means the digits of scikit-learn.

    Args:
        path: A file in one of the formats in `READERS`; or a pattern of several, which are read as one in the
            order of their names (`mpips.data.several`).
        stride: Number of workers.
        offset: Index of this worker.
        options: Options of the reader; None: the defaults.
        like: Description of the training data, for data to evaluate on. Features are then numbered from the
            same base. Columns of a CSV file are found by the names of the training data's columns, in their
            order; a missing column is an error, an additional one is left out with a note.
        shares: The rule that divides samples among workers (`mpips.data.shares`). "interleaved": the
            samples i with i % stride == offset.

    Returns:
        The samples and their description.

    Raises:
        ConfigError: The format is unknown.
        DataError: The file cannot be read; names file, place, what was found and what is accepted.
        CapabilityError: This worker's share does not fit into memory, or a library is missing.
    """
    path, options = os.fspath(path), options or ReadOptions()
    if like is not None:
        options = as_in_training(options, like)
    share, files = Share(stride, offset, shares), files_of(path)
    if len(files) == 1:
        return _read_file(files[0], options, share, like)
    one = partial(_read_file, like=like)
    return read_files(path, files, options, share, one)


def _read_file(path: str, options: ReadOptions, share: Share, like: DataInfo | None) -> Part:
    """Read a share of one file; see `read`."""
    reader = reader_of(path, options)
    try:
        part = reader.source(path, options).read(share)
        if like is not None:
            check_form(path, part.info.kind, bool(part.info.columns), like)
        if like is not None and options.labelled and part.info.label_names != like.label_names:
            raise DataError(
                f"{path}: its labels are {', '.join(part.info.class_names[:10])}, those of the training data "
                f"{', '.join(like.class_names[:10])}; use files with the same labels"
            )
        if (
            like is not None
            and like.of_array
            and reader.name == "libsvm"
            and not part.info.of_array
        ):
            return replace(part, notes=(*part.notes, base_note(path, part.info.index_base)))
        return part
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise CapabilityError(
            f"{path}: does not fit into memory: {error}; use fewer workers on this node, or more nodes"
        ) from None


def base_note(path: str, base: int) -> str:
    """Return the sentence on the base of a file, where the training data was an array."""
    how = "index 0 occurs" if base == 0 else "index 0 does not occur"
    return (
        f"{path}: features are counted from {base}, since {how} (data.index_base); column 0 of the training "
        f"data is feature {base}"
    )


def check_form(path: str, kind: str, has_columns: bool, like: DataInfo) -> None:
    """Raise DataError for hashed columns where the training data has numbered features."""
    if kind == like.kind == "sparse" and has_columns and not like.columns:
        raise DataError(
            f"{path}: has named columns, the training data lists of numbered features; use LIBSVM text or a "
            "sparse matrix"
        )


def reader_of(path: str, options: ReadOptions) -> Reader:
    """Return the reader of a file.

    Raises:
        ConfigError: The format is unknown.
        DataError: The file is compressed as a whole, and its format is not text; or it cannot be read.
    """
    reader = choose_reader(path, options.format)
    if options.wants == "several" and options.labelled and reader.name != "libsvm":
        raise ConfigError(
            f"{path}: options.labels = 'several' is for LIBSVM text, whose lines begin with lists of labels; "
            f'{reader.name} has several labels in columns: name them, such as data.label = ["a", "b"]'
        )
    if compression_of(path) and reader.name not in TEXT_FORMATS:
        raise DataError(
            f"{path}: {reader.name} is read in place and cannot be compressed as a whole; decompress the file"
        )
    return reader


def as_in_training(options: ReadOptions, like: DataInfo) -> ReadOptions:
    """Return the options with what the training data has decided: base, columns, labels and their column."""
    changes: dict[str, Any] = {"wants": like.wants, "words": like.words}
    if like.kind == "dense":
        changes["n_features"] = like.n_features
    if like.kind == "sparse" and not like.of_array:
        changes["index_base"] = 1 if like.index_base else 0
    if like.columns:
        changes |= {"label": like.label_column, "columns": like.columns, "finds_text": False}
        changes["label_names"] = like.label_names if like.wants == "classes" else ()
        if like.categorical:
            changes["categorical"] = tuple(map(exactly, like.categorical))
    return msgspec.structs.replace(options, **changes)


def choose_reader(path: str, name: str) -> Reader:
    """Return the reader of a format; if that is "auto", by the extension, else by the content of the file.

    Raises:
        ConfigError: The format is unknown.
        DataError: The file cannot be read.
    """
    if name != "auto":
        if name not in READERS:
            raise unknown_name("data format", name, ["auto", *READERS])
        return READERS[name]
    if path == "digits":
        return READERS[path]
    ending = os.path.splitext(inner_name(path))[1].lower()
    named = next((reader for reader in READERS.values() if ending in reader.endings), None)
    # Click logs of Criteo often have the ending of tables with a header.
    if named is not None and ending != ".tsv":
        return named
    try:
        found = format_of(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if named is not None:
        return READERS["criteo"] if found == "criteo" else named
    if found is not None:
        return READERS[found]
    first, *others = [name for name, reader in READERS.items() if reader.endings]
    raise ConfigError(
        f"{path}: cannot tell the format from the extension '{ending}' or the content; add "
        f"--set data.format={first} (or {', '.join(others)})"
    )
