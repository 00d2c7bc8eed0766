"""Write predictions piece by piece to a file or to stdout: CSV, npz or Parquet.

A writer has two halves. `encode` turns the predictions of a block into bytes, on the rank that made them;
`add` writes the bytes of all blocks in the order of the samples, on rank 0. No writer holds more than a few
blocks in memory.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import os
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import numpy as np
from numpy.lib import format as npy

from mpips.errors import CapabilityError, ConfigError
from mpips.inference.content import Numbers
from mpips.inference.model import Model

_ROWS = 1 << 14  # rows that are converted at once
_GROUP_ROWS = 1 << 17  # rows of a row group of Parquet


class ToColumns(Protocol):
    """Turns the predictions of a block into columns.

    Attributes:
        names: Names of the columns.
    """

    names: tuple[str, ...]

    def __call__(self, scores: Numbers, /) -> dict[str, Numbers]:
        """Return the columns of some samples."""


class ColumnsOf:
    """Turns what a model predicts into columns of equal length.

    Attributes:
        names: "prediction", the label or the number of each sample; for classes also "probability_LABEL",
            float32, for each label. For each of several labels its name (0 or 1), then the probabilities.
    """

    def __init__(self, model: Model) -> None:
        """Take the names of the classes."""
        self._model = model
        wants = model.info.wants
        classes = model.info.class_names if wants in ("classes", "several") else ()
        probabilities = (f"probability_{name}" for name in classes)
        first = classes if wants == "several" else ("prediction",)
        self.names: tuple[str, ...] = (*first, *probabilities)

    def __call__(self, scores: Numbers) -> dict[str, Numbers]:
        """Return the columns of samples whose `scores` are those of `Model.scores`."""
        if len(self.names) == 1:
            return {"prediction": scores}
        probabilities = self._model.all_classes(scores)
        labels = self._model.labels_of(probabilities)
        first = labels.T if labels.ndim > 1 else (labels,)
        columns = (*first, *probabilities.T)
        return dict(zip(self.names, columns, strict=True))


class OwnColumns:
    """The columns of a task that has its own (`mpips.tasks.base.Task.columns`), as those of a model.

    Rows with a field for each column, as `joined` makes them, take the place of scores.

    Attributes:
        names: Names of the columns.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Take the names, at least one."""
        self.names = tuple(names)

    def __call__(self, rows: Numbers) -> dict[str, Numbers]:
        """Return the columns of some rows."""
        return {name: rows[name] for name in self.names}

    def joined(self, columns: Mapping[str, Numbers]) -> Numbers:
        """Return arrays of equal length by name as one structured array, shape (n,)."""
        arrays = {name: _plain(columns[name]) for name in self.names}
        n = len(arrays[self.names[0]])
        rows = np.empty(n, [(name, a.dtype, a.shape[1:]) for name, a in arrays.items()])
        for name, array in arrays.items():
            rows[name] = array
        return rows


def _plain(values: Any) -> Numbers:
    """Return a column as an array; texts for objects of mixed types."""
    array = np.asarray(values)
    if array.dtype.kind == "O":
        array = np.array(array.tolist())
    return array if array.dtype.kind != "O" else array.astype(np.str_)


class Writer(Protocol):
    """A form of the output; see the top of this module."""

    def __init__(self, to_columns: ToColumns, file: IO[bytes]) -> None:
        """Write into an open file, on rank 0. `to_columns`: that of the model."""

    @staticmethod
    def encode(to_columns: ToColumns, scores: Numbers) -> bytes:
        """Return the predictions of one block as bytes."""

    def add(self, encoded: bytes) -> None:
        """Write the predictions of a block."""

    def close(self) -> None:
        """Write what is still missing."""


class CsvWriter:
    """CSV with a header; %.9g, from which every float32 can be read back exactly."""

    def __init__(self, to_columns: ToColumns, file: IO[bytes]) -> None:
        """See Writer."""
        self._file = file
        file.write(_lines([to_columns.names]))

    @staticmethod
    def encode(to_columns: ToColumns, scores: Numbers) -> bytes:
        """Return the lines of a block."""
        columns = list(to_columns(scores).values())
        parts = []
        for start in range(0, len(scores), _ROWS):
            rows = zip(*(_texts(column[start : start + _ROWS]) for column in columns), strict=True)
            parts.append(_lines(rows))
        return b"".join(parts)

    def add(self, encoded: bytes) -> None:
        """Write the lines of a block."""
        self._file.write(encoded)

    def close(self) -> None:
        """Write what Python still holds."""
        self._file.flush()


def _lines(rows: Iterable[Sequence[str]]) -> bytes:
    """Return rows of cells as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _texts(values: Numbers) -> list[str]:
    if values.dtype.kind == "f":
        return [f"{value:.9g}" for value in values.tolist()]
    return [str(value) for value in values.tolist()]


class _Scores(msgspec.Struct, array_like=True):
    """The scores of a block as bytes."""

    dtype: Any
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def pack(cls, scores: Numbers) -> bytes:
        """Return scores as bytes."""
        little = np.ascontiguousarray(scores, scores.dtype.newbyteorder("<"))
        descr = npy.dtype_to_descr(little.dtype)
        return msgspec.msgpack.encode(cls(descr, scores.shape, little.tobytes()))

    @staticmethod
    def unpack(data: bytes) -> Numbers:
        """Return the scores that `pack` packed."""
        found = msgspec.msgpack.decode(data, type=_Scores)
        return np.frombuffer(found.data, npy.descr_to_dtype(found.dtype)).reshape(found.shape)


class NpzWriter:
    """The arrays of `np.savez`, one for each column.

    A file in this form has one column after the other, so the scores go into a temporary file without a name
    first.
    """

    def __init__(self, to_columns: ToColumns, file: IO[bytes]) -> None:
        """See Writer."""
        self._to_columns = to_columns
        self._file = file
        # Closed by `close`, or with this object after an error.
        self._spool = tempfile.TemporaryFile(dir=Path(file.name).parent)  # noqa: SIM115
        self._sizes: list[int] = []

    @staticmethod
    def encode(to_columns: ToColumns, scores: Numbers) -> bytes:
        """Return the scores of a block."""
        return _Scores.pack(scores)

    def add(self, encoded: bytes) -> None:
        """Write the scores of a block into the temporary file."""
        self._spool.write(encoded)
        self._sizes.append(len(encoded))

    def close(self) -> None:
        """Write all columns."""
        with self._spool, zipfile.ZipFile(self._file, "w", allowZip64=True) as archive:
            first = self._to_columns(next(self._blocks()))
            n = sum(len(block) for block in self._blocks())
            for name, column in first.items():
                dtype = column.dtype
                if dtype.kind == "U":
                    # Texts of other blocks may be longer.
                    others = (self._to_columns(block)[name].dtype for block in self._blocks())
                    dtype = functools.reduce(np.promote_types, others, dtype)
                header = {
                    "descr": npy.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": (n, *column.shape[1:]),
                }
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    npy.write_array_header_1_0(member, header)
                    for block in self._blocks():
                        member.write(self._to_columns(block)[name].astype(dtype).tobytes())

    def _blocks(self) -> Iterator[Numbers]:
        self._spool.seek(0)
        for size in self._sizes:
            yield _Scores.unpack(self._spool.read(size))


class ParquetWriter:
    """Parquet, by pyarrow."""

    def __init__(self, to_columns: ToColumns, file: IO[bytes]) -> None:
        """See Writer.

        Raises:
            CapabilityError: pyarrow is missing.
        """
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise CapabilityError(
                f"writing Parquet needs pyarrow (pip install pyarrow): {error}"
            ) from None
        self._arrow: Any = pyarrow
        self._to_columns = to_columns
        self._file = file
        self._writer: Any = None
        self._held: list[Any] = []
        self._n_held = 0

    @staticmethod
    def encode(to_columns: ToColumns, scores: Numbers) -> bytes:
        """Return the scores of a block."""
        return _Scores.pack(scores)

    def add(self, encoded: bytes) -> None:
        """Write a row group when there are enough rows."""
        table = self._arrow.table(self._to_columns(_Scores.unpack(encoded)))
        self._held.append(table)
        self._n_held += len(table)
        if self._n_held >= _GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        table = self._arrow.concat_tables(self._held)
        if self._writer is None:
            self._writer = self._arrow.parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        self._held, self._n_held = [], 0

    def close(self) -> None:
        """Write the last row group and the end of the file."""
        if self._held:
            self._write()
        self._writer.close()


WRITERS: dict[str, type[Writer]] = {
    ".csv": CsvWriter,
    ".npz": NpzWriter,
    ".parquet": ParquetWriter,
}


def writer_of(out: Path | None) -> type[Writer]:
    """Return the writer for a file, by its extension; None: stdout, which gets CSV.

    Raises:
        ConfigError: The extension means no format.
    """
    if out is None:
        return CsvWriter
    if out.suffix.lower() not in WRITERS:
        raise ConfigError(
            f"{out}: cannot tell the format: use an extension of {', '.join(WRITERS)}"
        )
    return WRITERS[out.suffix.lower()]


@contextlib.contextmanager
def new_file(out: Path) -> Iterator[IO[bytes]]:
    """Open a new file for the block, which replaces `out` when the block ends without an error.

    Raises:
        ConfigError: It cannot be written, for example because the disk is full. Nothing of it remains then.
    """
    new = out.with_name(f".{out.name}-{uuid.uuid4().hex[:8]}")
    try:
        with open(new, "xb") as file:
            yield file
        os.replace(new, out)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        # On a read-only file system this is an error even if there is no such file.
        with contextlib.suppress(OSError):
            new.unlink()
