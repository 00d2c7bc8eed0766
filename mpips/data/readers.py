"""Choose a reader by name or by the file's ending, and read one worker's share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from mpips.data.arrays import read_hdf5, read_npz
from mpips.data.csv_table import read_csv
from mpips.data.digits import read_digits
from mpips.data.info import DataInfo, Part
from mpips.data.libsvm import read_libsvm
from mpips.data.options import ReadOptions, Share
from mpips.errors import ConfigError, DataError


@dataclass(frozen=True)
class Reader:
    """A format: its name, the endings that mean it, and the function that reads a share."""

    name: str
    endings: tuple[str, ...]
    read: Callable[[str, ReadOptions, Share], Part]


READERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("libsvm", (".svm", ".libsvm", ".svmlight", ".txt"), read_libsvm),
        Reader("csv", (".csv",), read_csv),
        Reader("npz", (".npz",), read_npz),
        Reader("hdf5", (".h5", ".hdf5"), read_hdf5),
        Reader("digits", (), read_digits),
    )
}


def read(
    path: str | os.PathLike[str],
    *,
    stride: int = 1,
    offset: int = 0,
    options: ReadOptions | None = None,
    like: DataInfo | None = None,
) -> Part:
    """Read the samples i of a file with i % stride == offset.

    Not collective. The path "digits" means scikit-learn's bundled digits.

    Args:
        path: A file in one of the formats in `READERS`.
        stride: Number of workers.
        offset: This worker's index.
        options: How to read; the defaults if None.
        like: The training data's description, when reading data to evaluate on: features are then
            counted from the same base.

    Raises:
        ConfigError: The format is unknown.
        DataError: The file cannot be read; names file, place, what was found and what is accepted.
    """
    path, options = os.fspath(path), options or ReadOptions()
    if like is not None and like.kind == "sparse":
        options = msgspec.structs.replace(options, index_base=1 if like.index_base else 0)
    reader = _choose(path, options.format)
    try:
        return reader.read(path, options, Share(stride, offset))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _choose(path: str, name: str) -> Reader:
    if name != "auto":
        if name not in READERS:
            raise ConfigError(f"unknown data format '{name}'; known: auto, {', '.join(READERS)}")
        return READERS[name]
    if path in READERS and not READERS[path].endings:
        return READERS[path]
    ending = os.path.splitext(path)[1].lower()
    for reader in READERS.values():
        if ending in reader.endings:
            return reader
    endings = ", ".join(ending for reader in READERS.values() for ending in reader.endings)
    raise ConfigError(
        f"{path}: the ending '{ending}' means no known format; known endings: {endings}; "
        f"or set format to one of {', '.join(READERS)}"
    )
