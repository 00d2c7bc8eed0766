"""Choose a reader by name or by the file's ending, and read one worker's share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from mpips.data.arrays import read_hdf5, read_npz
from mpips.data.csv_table import read_csv
from mpips.data.digits import read_digits
from mpips.data.info import DataInfo, Part
from mpips.data.libsvm import read_libsvm
from mpips.data.options import ReadOptions, Share
from mpips.data.shares import Shares
from mpips.errors import CapabilityError, ConfigError, DataError


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
    shares: Shares = "interleaved",
) -> Part:
    """Read one worker's share of the samples of a file.

    Not collective. The path "digits" means scikit-learn's bundled digits.

    Args:
        path: A file in one of the formats in `READERS`.
        stride: Number of workers.
        offset: This worker's index.
        options: How to read; the defaults if None.
        like: The training data's description, when reading data to evaluate on: features are then
            counted from the same base, and columns of a CSV file are taken by the names of the training
            data's, in their order. A missing column is an error, others are left out with a note.
        shares: The rule that divides samples among workers (`mpips.data.shares`). "interleaved": the
            samples i with i % stride == offset.

    Raises:
        ConfigError: The format is unknown.
        DataError: The file cannot be read; names file, place, what was found and what is accepted.
        CapabilityError: This worker's share does not fit into memory.
    """
    path, options = os.fspath(path), options or ReadOptions()
    if like is not None:
        options = _as_in_training(options, like)
    reader = _choose(path, options.format)
    try:
        return reader.read(path, options, Share(stride, offset, shares))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise CapabilityError(
            f"{path}: does not fit into memory: {error}; use fewer workers on this node, or more nodes"
        ) from None


def _as_in_training(options: ReadOptions, like: DataInfo) -> ReadOptions:
    changes: dict[str, Any] = {"wants": like.wants}
    if like.kind == "sparse":
        changes["index_base"] = 1 if like.index_base else 0
    if like.label_column:
        changes |= {"label": like.label_column, "columns": like.columns}
    return msgspec.structs.replace(options, **changes)


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
    first, *others = [name for name, reader in READERS.items() if reader.endings]
    raise ConfigError(
        f"{path}: cannot tell the format from the extension '{ending}'; add --set data.format={first} (or "
        f"{', '.join(others)})"
    )
