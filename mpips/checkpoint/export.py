"""Export of a checkpoint as npz, CSV or Parquet, in blocks of bounded size.

npz: one file with arrays "TABLE/values" and "TABLE/state/NAME", and for embedding tables also "TABLE/keys"
and "TABLE/steps". It is not compressed, so that NumPy can map it.

With `row_dtype = "int8"` rows of npz and Parquet have whole numbers from -127 to 127, and a float32 scale for
each row, "TABLE/scale" or the column `scale`: its greatest magnitude / 127. Rounded to the nearest,
so a value is `values * scale` to half of the scale, in a quarter of the bytes.

CSV: one file for each table, with one line for each element (with its index along each axis) or each row
(with its key). Numbers are written with %.9g, from which every float32 can be read back exactly.

Parquet: one file for each table. A row of an embedding table is a row with its key. A dense table has a row
for each index of its first axis, and a column for each element there.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mpips.checkpoint.export_folder import check_replaceable, mark, remove
from mpips.checkpoint.manifest import DTYPES, DatasetEntry, TableEntry
from mpips.checkpoint.reader import Checkpoint
from mpips.errors import CapabilityError, ConfigError

_USES = ("last_clock", "clocks_used")  # columns of the use of rows
FORMATS = ("npz", "csv", "parquet")
ROW_TYPES = ("float32", "int8")
_ARRAYS = {**DTYPES, "bfloat16": "<f4", "int8": "i1"}  # dtypes of arrays, by that of the dataset
_BLOCK_BYTES = 8 << 20  # bytes that are read at once for npz
_CSV_ROWS = 1 << 14  # elements or rows that are read at once for CSV
_MOST_COLUMNS = 1 << 14  # columns of a file of Parquet


def export(
    checkpoint: Checkpoint,
    kind: str,
    out: Path,
    tables: Sequence[str] = (),
    force: bool = False,
    state: bool = True,
    row_dtype: str = "float32",
) -> list[Path]:
    """Write tables into a new file (npz), or into a file for each table in a new folder. Local, blocking.

    Args:
        checkpoint: An open checkpoint.
        kind: One of FORMATS.
        out: The file or folder to write; it gets this name when it is complete.
        tables: Names of the tables; empty: all tables.
        force: Replace an existing file, or a folder that contains an earlier export alone.
        state: Also write the state of the optimizers.
        row_dtype: One of ROW_TYPES: type of the values of embedding tables.

    Returns:
        Paths of the files that were written.

    Raises:
        ConfigError: `out` exists already, or is a folder with other files; its folder does not exist, or it
            cannot be written; or a table has no form in Parquet, or rows have no form as int8 (CSV, infinity,
            NaN).
        CapabilityError: pyarrow is missing.
        CheckpointError: A table does not exist, or the checkpoint cannot be read.
    """
    entries = [checkpoint.manifest.table(name) for name in tables] or checkpoint.manifest.tables
    entries = entries if state else [_without_state(entry) for entry in entries]
    source: _Source = checkpoint
    if row_dtype == "int8":
        if kind == "csv":
            raise ConfigError("row_dtype = 'int8' with CSV, which is text: use npz or parquet")
        source = _Int8Rows(checkpoint)
        entries = [_as_int8(entry) for entry in entries]
    if out.exists() and not force:
        raise ConfigError(f"{out}: already exists; use --force to replace it")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out.absolute().parent}: there is no such folder; create it first")
    expected = [] if kind == "npz" else [f"{entry.name}.{kind}" for entry in entries]
    # Refuse before minutes of work, and again before files are removed.
    if out.is_dir():
        check_replaceable(out, expected)
    # Write under a temporary name, and rename what is complete.
    new = out.with_name(f".{out.name}-{uuid.uuid4().hex[:8]}")
    try:
        if kind == "csv":
            names = _write_csv(checkpoint, entries, new)
        else:
            names = (_write_npz if kind == "npz" else _write_parquet)(source, entries, new)
        if new.is_dir():
            mark(new, names)
        if out.is_dir():
            remove(out, expected)
        os.replace(new, out)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        if new.is_dir():
            shutil.rmtree(new, ignore_errors=True)
        else:
            # On a read-only file system this is an error even if there is no such file.
            with contextlib.suppress(OSError):
                new.unlink()
    return [out / name for name in names]


def _without_state(entry: TableEntry) -> TableEntry:
    """Return a table with its keys and values alone."""
    datasets = tuple(d for d in entry.datasets if d.role in ("keys", "values"))
    return msgspec.structs.replace(entry, state=(), counts_steps=False, datasets=datasets)


def _as_int8(entry: TableEntry) -> TableEntry:
    """Return an embedding table whose values are int8, with a scale for each row; others as they are."""
    if entry.kind != "embedding":
        return entry
    values = entry.dataset("values")
    scale = msgspec.structs.replace(values, role="scale", shape=values.shape[:1], unit=1)
    datasets = []
    for dataset in entry.datasets:
        if dataset.role == "values":
            datasets += [msgspec.structs.replace(dataset, dtype="int8"), scale]
        else:
            datasets.append(dataset)
    return msgspec.structs.replace(entry, datasets=tuple(datasets))


class _Int8Rows:
    """A checkpoint that is read with values of rows as int8 and with their scales."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.manifest = checkpoint.manifest

    def read(self, entry: DatasetEntry, start: int, stop: int) -> NDArray[Any]:
        """Read units of a dataset; see `_as_int8`."""
        if entry.role != "scale" and entry.dtype != "int8":
            return self._checkpoint.read(entry, start, stop)
        table = next(t for t in self.manifest.tables if f"{t.group}/values" == entry.path)
        values = self._checkpoint.read(table.dataset("values"), start, stop)
        if not np.isfinite(values).all():
            raise ConfigError(
                f"table '{table.name}' has rows with infinity or NaN, which int8 lacks: use float32"
            )
        greatest = np.abs(values).max(axis=1, initial=0).astype(np.float32)
        # The least float keeps a row of denormal numbers from a division by 0.
        scale = np.maximum(greatest / np.float32(127), np.float32(np.finfo(np.float32).tiny))
        # 127 times the scale of the greatest floats must not round to infinity.
        with np.errstate(over="ignore"):
            is_over = np.isinf(scale * np.float32(127))
        scale = np.where(is_over, np.nextafter(scale, np.float32(0)), scale)
        if entry.role == "scale":
            return np.where(greatest > 0, scale, np.float32(0))
        codes: NDArray[np.int8] = np.rint(values / scale[:, None]).clip(-127, 127).astype(np.int8)
        return codes


_Source: TypeAlias = Checkpoint | _Int8Rows  # of npz and Parquet


def _write_npz(checkpoint: _Source, entries: Sequence[TableEntry], out: Path) -> list[str]:
    with zipfile.ZipFile(out, "x", zipfile.ZIP_STORED) as archive:
        for table in entries:
            for entry in table.datasets:
                name = f"{table.name}/{entry.role}.npy"
                with archive.open(name, "w", force_zip64=True) as member:
                    _write_array(checkpoint, entry, member)
    return [""]


def _unit_bytes(entry: DatasetEntry) -> int:
    return entry.unit * np.dtype(_ARRAYS[entry.dtype]).itemsize


def _write_array(checkpoint: _Source, entry: DatasetEntry, out: IO[bytes]) -> None:
    header = io.BytesIO()
    npy.write_array_header_1_0(
        header,
        {"descr": _ARRAYS[entry.dtype], "fortran_order": False, "shape": tuple(entry.shape)},
    )
    out.write(header.getvalue())
    size = max(1, _BLOCK_BYTES // _unit_bytes(entry))
    for start in range(0, entry.n_units, size):
        block = checkpoint.read(entry, start, min(start + size, entry.n_units))
        out.write(np.ascontiguousarray(block, _ARRAYS[entry.dtype]).tobytes())


def _write_csv(checkpoint: Checkpoint, entries: Sequence[TableEntry], out: Path) -> list[str]:
    out.mkdir()
    names = []
    for table in entries:
        names.append(f"{table.name}.csv")
        with open(out / names[-1], "x", encoding="utf-8") as file:
            if table.kind == "embedding":
                _write_row_lines(checkpoint, table, file)
            else:
                _write_element_lines(checkpoint, table, file)
    return names


def _write_element_lines(checkpoint: Checkpoint, table: TableEntry, file: IO[str]) -> None:
    axes = [f"index_{axis}" for axis in range(len(table.shape))]
    file.write(",".join([*axes, "value", *table.state]) + "\n")
    n = table.dataset("values").n_units
    for start in range(0, n, _CSV_ROWS):
        stop = min(start + _CSV_ROWS, n)
        values, state = checkpoint.read_dense(table.name, start, stop)
        places = np.unravel_index(np.arange(start, stop), table.shape) if table.shape else ()
        columns = [*(p.tolist() for p in places), *map(_texts, (values, *state.values()))]
        file.writelines(",".join(map(str, line)) + "\n" for line in zip(*columns, strict=True))


def _write_row_lines(checkpoint: Checkpoint, table: TableEntry, file: IO[str]) -> None:
    dim = table.shape[1]
    wide = [name for name in table.state if len(table.dataset(f"state/{name}").shape) > 1]
    names = [f"{name}_{j}" for name in ("value", *wide) for j in range(dim)]
    names += [name for name in table.state if name not in wide]
    names += ["steps"] if table.counts_steps else []
    names += _USES if table.notes_uses else ()
    file.write(",".join(["key", *names]) + "\n")
    for block in checkpoint.iter_rows(table.name, block_rows=_CSV_ROWS):
        columns = [block.keys.tolist()]
        for array in (block.values, *(block.state[name] for name in wide)):
            columns += [_texts(array[:, j]) for j in range(dim)]
        columns += [_texts(array) for name, array in block.state.items() if name not in wide]
        if block.steps is not None:
            columns.append(block.steps.tolist())
        if block.uses is not None:
            columns += [block.uses[:, 0].tolist(), block.uses[:, 1].tolist()]
        file.writelines(",".join(map(str, line)) + "\n" for line in zip(*columns, strict=True))


def _texts(values: np.ndarray) -> list[str]:
    return [f"{value:.9g}" for value in values.tolist()]


def _write_parquet(checkpoint: _Source, entries: Sequence[TableEntry], out: Path) -> list[str]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise CapabilityError(
            f"--format parquet needs pyarrow (pip install pyarrow): {error}"
        ) from None
    out.mkdir()
    for table in entries:
        blocks = _row_blocks if table.kind == "embedding" else _element_blocks
        with contextlib.ExitStack() as opened:
            writer: Any = None
            for columns in blocks(checkpoint, table):
                found = pyarrow.table(columns)
                if writer is None:
                    path = out / f"{table.name}.parquet"
                    writer = opened.enter_context(pyarrow.parquet.ParquetWriter(path, found.schema))
                writer.write_table(found)
    return [f"{table.name}.parquet" for table in entries]


def _row_blocks(checkpoint: _Source, table: TableEntry) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield rows of an embedding table as columns, once at least."""
    _check_columns(table, table.shape[1])
    size = max(1, _BLOCK_BYTES // sum(map(_unit_bytes, table.datasets)))
    for start in range(0, max(table.shape[0], 1), size):
        stop = min(start + size, table.shape[0])
        columns: dict[str, NDArray[Any]] = {}
        for dataset in table.datasets:
            array = checkpoint.read(dataset, start, stop)
            columns |= _columns(dataset.role, array)
        yield columns


def _element_blocks(checkpoint: _Source, table: TableEntry) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield rows of a dense table as columns, once at least."""
    n_rows = table.shape[0] if table.shape else 1
    width = math.prod(table.shape[1:])
    _check_columns(table, width)
    size = max(1, _BLOCK_BYTES // (4 * max(width, 1) * (1 + len(table.state))))
    for start in range(0, max(n_rows, 1), size):
        stop = min(start + size, n_rows)
        columns: dict[str, NDArray[Any]] = {"row": np.arange(start, stop)}
        for dataset in table.datasets:
            array = checkpoint.read(dataset, start * width, stop * width)
            columns |= _columns(dataset.role, array.reshape(stop - start, width))
        yield columns


def _columns(role: str, array: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return an array, shape (n,) or (n, dim), as columns."""
    name = {"keys": "key", "values": "value", "steps": "steps"}.get(
        role, role.removeprefix("state/")
    )
    if array.ndim == 1:
        return {name: array}
    if role == "uses":
        return {name: np.ascontiguousarray(array[:, j]) for j, name in enumerate(_USES)}
    return {f"{name}_{j}": np.ascontiguousarray(array[:, j]) for j in range(array.shape[1])}


def _check_columns(table: TableEntry, width: int) -> None:
    if width * (1 + len(table.state)) > _MOST_COLUMNS:
        raise ConfigError(
            f"table '{table.name}' of shape {table.shape} would have more than {_MOST_COLUMNS:,} columns in "
            "Parquet; use npz"
        )
