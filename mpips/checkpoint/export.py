"""Export of a checkpoint as npz or CSV, in blocks of bounded size.

npz: one file with arrays "TABLE/values" and "TABLE/state/NAME", and for embedding tables also "TABLE/keys"
and "TABLE/steps". It is not compressed, so that NumPy can map it.

CSV: one file for each table, with one line for each element (with its index along each axis) or each row
(with its key). Numbers are written with %.9g, from which every float32 can be read back exactly.
"""

from __future__ import annotations

import io
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from mpips.checkpoint.manifest import DTYPES, DatasetEntry, TableEntry
from mpips.checkpoint.reader import Checkpoint
from mpips.errors import CheckpointError, ConfigError

FORMATS = ("npz", "csv")
_BLOCK_BYTES = 8 << 20  # bytes that are read at once for npz
_CSV_ROWS = 1 << 14  # elements or rows that are read at once for CSV


def export(
    checkpoint: Checkpoint, kind: str, out: Path, tables: Sequence[str] = (), force: bool = False
) -> list[Path]:
    """Write tables into a new file (npz), or into files TABLE.csv of a new folder (csv). Local, blocking.

    Args:
        checkpoint: An open checkpoint.
        kind: One of FORMATS.
        out: The file or folder to write; it gets this name when it is complete.
        tables: Names of the tables; empty: all tables.
        force: Replace an existing file or folder.

    Returns:
        Paths of the files that were written.

    Raises:
        ConfigError: `out` exists already, or its folder does not exist.
        CheckpointError: A table does not exist, or a file cannot be read or written.
    """
    entries = [checkpoint.manifest.table(name) for name in tables] or checkpoint.manifest.tables
    if out.exists() and not force:
        raise ConfigError(f"{out}: already exists; use --force to replace it")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out.absolute().parent}: there is no such folder; create it first")
    writer: Callable[[Checkpoint, Sequence[TableEntry], Path], list[str]]
    writer = _write_npz if kind == "npz" else _write_csv
    # Write under a temporary name, and rename what is complete.
    new = out.with_name(f".{out.name}-{uuid.uuid4().hex[:8]}")
    try:
        names = writer(checkpoint, entries, new)
        if out.is_dir():
            shutil.rmtree(out)
        os.replace(new, out)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        if new.is_dir():
            shutil.rmtree(new, ignore_errors=True)
        else:
            new.unlink(missing_ok=True)
    return [out / name for name in names]


def _write_npz(checkpoint: Checkpoint, entries: Sequence[TableEntry], out: Path) -> list[str]:
    with zipfile.ZipFile(out, "x", zipfile.ZIP_STORED) as archive:
        for table in entries:
            for entry in table.datasets:
                name = f"{table.name}/{entry.role}.npy"
                with archive.open(name, "w", force_zip64=True) as member:
                    _write_array(checkpoint, entry, member)
    return [""]


def _write_array(checkpoint: Checkpoint, entry: DatasetEntry, out: IO[bytes]) -> None:
    header = io.BytesIO()
    npy.write_array_header_1_0(
        header,
        {"descr": DTYPES[entry.dtype], "fortran_order": False, "shape": tuple(entry.shape)},
    )
    out.write(header.getvalue())
    size = max(1, _BLOCK_BYTES // entry.unit_bytes)
    for start in range(0, entry.n_units, size):
        block = checkpoint.read(entry, start, min(start + size, entry.n_units))
        out.write(np.ascontiguousarray(block, DTYPES[entry.dtype]).tobytes())


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
    names = [f"{name}_{j}" for name in ("value", *table.state) for j in range(dim)]
    file.write(",".join(["key", *names, *(["steps"] if table.counts_steps else [])]) + "\n")
    for block in checkpoint.iter_rows(table.name, block_rows=_CSV_ROWS):
        columns = [block.keys.tolist()]
        for array in (block.values, *block.state.values()):
            columns += [_texts(array[:, j]) for j in range(dim)]
        if block.steps is not None:
            columns.append(block.steps.tolist())
        file.writelines(",".join(map(str, line)) + "\n" for line in zip(*columns, strict=True))


def _texts(values: np.ndarray) -> list[str]:
    return [f"{value:.9g}" for value in values.tolist()]
