"""Files of tables with named and typed columns: Parquet and Arrow IPC (also called Feather), by pyarrow.

An Arrow file has the file format, which begins with ARROW1 and names the place of each batch of rows, or the
stream format, of which the batches must be passed over one after the other. Both are mapped into memory:
batches that are not compressed are read where they are used, and others one by one. A process that touches
a mapped page behind the end of a file that became shorter is killed by SIGBUS, so the size of the file is
checked before each few rows. Parquet is read, not mapped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from mpips.errors import CapabilityError, DataError

_ARROW_FILE = b"ARROW1"
_FEATHER_1 = b"FEA1"
_BUFFER_BYTES = 1 << 20  # of a column of Parquet that are read at once


class TableFile(Protocol):
    """An open file. Its rows lie in groups, which can be read one by one.

    Attributes:
        schema: Names and types of its columns, of class pyarrow.Schema.
    """

    schema: Any

    def group_rows(self) -> list[int]:
        """Return the number of rows of each group."""

    def batches(
        self, n_rows: int, columns: Sequence[str], groups: Sequence[int] | None = None
    ) -> Iterator[Any]:
        """Yield the rows of groups in order, of class pyarrow.RecordBatch.

        Args:
            n_rows: Greatest number of rows of a batch.
            columns: Names of the columns that are read.
            groups: The groups; None: all.
        """


class _ParquetFile:
    """A Parquet file, whose groups are its row groups; see TableFile."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.schema = file.schema_arrow

    def group_rows(self) -> list[int]:
        """Return the number of rows of each row group."""
        meta = self._file.metadata
        return [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]

    def batches(
        self, n_rows: int, columns: Sequence[str], groups: Sequence[int] | None = None
    ) -> Iterator[Any]:
        """Yield rows."""
        groups = range(self._file.num_row_groups) if groups is None else groups
        found: Iterator[Any] = self._file.iter_batches(
            n_rows, row_groups=list(groups), columns=list(columns), use_threads=False
        )
        return found


class _ArrowFile:
    """An Arrow file in the file format or the stream format, whose groups are its batches; see TableFile."""

    def __init__(self, path: str, source: Any, is_stream: bool) -> None:
        """Read the schema; `source`: the mapped file."""
        self._path = path
        self._source = source
        self._is_stream = is_stream
        self.schema = self._reader([]).schema

    def group_rows(self) -> list[int]:
        """Return the number of rows of each batch. Reads the first column of compressed ones."""
        names = self.schema.names[:1]
        return [batch.num_rows for _, batch in self._groups(names, None)] if names else []

    def batches(
        self, n_rows: int, columns: Sequence[str], groups: Sequence[int] | None = None
    ) -> Iterator[Any]:
        """Yield rows."""
        for _, batch in self._groups(columns, groups):
            for start in range(0, batch.num_rows, n_rows):
                self._check_size()
                rows = batch.slice(start, n_rows)
                # Offsets and places in dictionaries come from the file, and can lead outside of its arrays.
                rows.validate(full=True)
                yield rows

    def _groups(
        self, columns: Sequence[str], groups: Sequence[int] | None
    ) -> Iterator[tuple[int, Any]]:
        reader = self._reader(columns)
        if not self._is_stream:
            for place in range(reader.num_record_batches) if groups is None else groups:
                self._check_size()
                yield place, reader.get_batch(place)
            return
        last = max(groups, default=-1) if groups is not None else None
        for place, batch in enumerate(reader):
            self._check_size()
            if groups is None or place in groups:
                yield place, batch
            if place == last:
                return

    def _check_size(self) -> None:
        """Raise DataError if the file is shorter than the map."""
        if os.path.getsize(self._path) < self._source.size():
            raise DataError(
                f"{self._path}: has become shorter while it was read; start the job again"
            )

    def _reader(self, columns: Sequence[str]) -> Any:
        """Return a reader of some columns, from the beginning of the file on; []: of all."""
        from pyarrow import ipc

        self._check_size()
        names = self.schema.names if columns else []
        fields = sorted(names.index(column) for column in columns)
        options = ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        if not self._is_stream:
            return ipc.open_file(self._source, options=options)
        self._source.seek(0)
        return ipc.open_stream(self._source, options=options)


@contextlib.contextmanager
def opened_parquet(path: str) -> Iterator[TableFile]:
    """Open a file such that columns of text are read as places in a dictionary, as most files have them.

    Raises:
        CapabilityError: pyarrow is missing.
        OSError: The file cannot be opened.
        DataError: The file is not a Parquet file, or is damaged; also raised within the block.
    """
    with _errors(path, "Parquet"):
        from pyarrow import parquet

        schema = parquet.read_schema(path)
        text = [field.name for field in schema if is_text(field.type)]
        # Read a few pages at a time, not the column chunks of all row groups.
        with parquet.ParquetFile(
            path, read_dictionary=text, buffer_size=_BUFFER_BYTES, pre_buffer=False
        ) as file:
            yield _ParquetFile(file)


@contextlib.contextmanager
def opened_arrow(path: str) -> Iterator[TableFile]:
    """Open an Arrow file. Raises as `opened_parquet` does."""
    with _errors(path, "Arrow"):
        import pyarrow

        with open(path, "rb") as file:
            start = file.read(len(_ARROW_FILE))
        if start.startswith(_FEATHER_1):
            raise DataError(
                f"{path}: is Feather of version 1; write it again, by pyarrow.feather.write_feather"
            )
        if not start:
            raise DataError(f"{path}: is empty")
        with pyarrow.memory_map(path) as source:
            yield _ArrowFile(path, source, start != _ARROW_FILE)


# By the name of the format: opens a file.
OPENED_TABLES: dict[str, Callable[[str], contextlib.AbstractContextManager[TableFile]]] = {
    "parquet": opened_parquet,
    "arrow": opened_arrow,
}


@contextlib.contextmanager
def _errors(path: str, kind: str) -> Iterator[None]:
    """Turn errors of pyarrow in the block into errors of mpips.

    Raises:
        CapabilityError: pyarrow is missing.
        DataError: The file is damaged.
        OSError: It cannot be opened.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise CapabilityError(
            f"{path}: reading {kind} needs pyarrow (pip install pyarrow): {error}"
        ) from None
    # Raise the usual errors of files before those of pyarrow.
    with open(path, "rb"):
        pass
    try:
        yield
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is no {kind} file, or a damaged one: {error}") from None
    except OSError as error:
        # pyarrow has no number for a damaged file.
        if error.errno is None:
            raise DataError(f"{path}: is no {kind} file, or a damaged one: {error}") from None
        raise


def is_text(kind: Any) -> bool:
    """Return True for a type of pyarrow that is text, or a dictionary of texts."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    # Old versions of pyarrow have no views.
    tests = (types.is_string, types.is_large_string, getattr(types, "is_string_view", None))
    return any(test is not None and test(kind) for test in tests)
