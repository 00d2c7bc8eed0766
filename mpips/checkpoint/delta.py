"""The difference of two checkpoints as a file: the rows and pieces that the first one has not.

A delta is an HDF5 file behind a head with a checksum (`mpips.checkpoint.delta_file`). With the first
checkpoint it gives the second one, byte for byte (`mpips.checkpoint.delta_apply`).

    manifest           manifest.json of the second checkpoint
    structure/bytes    its HDF5 file outside the datasets, `structure/offsets` their places
    workers/NAME       its workers' files
    tables/NAME        a dense table has `starts` and `stops` of the pieces that differ, in elements, and
                       their values and states, one piece after the other; an embedding table has the keys
                       of the rows that are new or differ, ascending, their values, states and counts, and
                       `removed`, the keys of rows that the second checkpoint does not have

Values are compared bit by bit, those of a dense table in pieces of PIECE elements. A table that the first
checkpoint has not, or with another shape, dtype or state, is in the delta as a whole. Both checkpoints are
read in blocks; only keys of changed rows stay in memory.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint import worker_files
from mpips.checkpoint.delta_file import FORMAT, DeltaColumn, DeltaFile, created, write_array
from mpips.checkpoint.folder import check_place, sync_folder
from mpips.checkpoint.manifest import (
    DTYPES,
    MANIFEST,
    PIECE,
    DatasetEntry,
    Manifest,
    TableEntry,
)
from mpips.checkpoint.reader import Checkpoint
from mpips.checkpoint.structure import outside
from mpips.data.hdf5 import load_hdf5
from mpips.errors import CheckpointError, ConfigError

BLOCK = 1 << 20  # elements, or bytes of rows, that are read at once

Arrays = dict[str, NDArray[Any]]


class TableDelta(msgspec.Struct):
    """The size of one table in a delta.

    Attributes:
        table: Name of the table.
        changed: Number of elements (dense) or rows (embedding) in the delta.
        removed: Embedding: number of rows that the second checkpoint does not have.
        total: Elements or rows of the second checkpoint.
    """

    table: str
    changed: int = 0
    removed: int = 0
    total: int = 0


class Delta(msgspec.Struct):
    """A delta that was written.

    Attributes:
        path: The file.
        n_bytes: Its size.
        full_bytes: Size of the second checkpoint's HDF5 file.
        tables: Sizes of its tables, those of the second checkpoint.
    """

    path: str
    n_bytes: int
    full_bytes: int
    tables: list[TableDelta]


def write_delta(first: Checkpoint, second: Checkpoint, out: Path, force: bool = False) -> Delta:
    """Write the delta from one open checkpoint to another. Local, blocking.

    Args:
        first: The base, to which the delta will be applied.
        second: The checkpoint that the delta gives, which has whole tables.
        out: File to write; it gets this name when it is complete.
        force: Replace an existing file.

    Raises:
        ConfigError: `second` is a link of a chain; `out` exists already, is a folder or a device, lies in a
            checkpoint or cannot be written, or its folder does not exist.
        CapabilityError: h5py is missing.
        CheckpointError: A checkpoint cannot be read.
    """
    h5py = load_hdf5("writing a delta")
    if second.manifest.link is not None:
        raise ConfigError(
            f"{second.path}: is a link of a chain, and a delta gives a whole checkpoint: make it whole first "
            "by `mpips ckpt compact`"
        )
    try:
        _check_out(out, force)
        # The name is short, because that of `out` may be the longest that the file system has.
        new = out.parent / f".delta-{uuid.uuid4().hex[:8]}"
        try:
            tables = _write(h5py, new, first, second)
            os.replace(new, out)
        finally:
            new.unlink(missing_ok=True)
        sync_folder(out.absolute().parent)
        n_bytes = out.stat().st_size
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from None
    return Delta(str(out), n_bytes, second.manifest.file.n_bytes, tables)


def _check_out(out: Path, force: bool) -> None:
    """Raise ConfigError if a file must not be written, or replaced, there."""
    if out.is_dir():
        raise ConfigError(f"{out}: is a folder; give the name of a file")
    if out.exists() and not out.is_file():
        raise ConfigError(f"{out}: is not a regular file; give the name of another file")
    if os.path.lexists(out) and not force:
        raise ConfigError(f"{out}: already exists; use --force to replace it")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out.absolute().parent}: there is no such folder; create it first")
    check_place(out)


def _write(h5py: Any, new: Path, first: Checkpoint, second: Checkpoint) -> list[TableDelta]:
    tables = []
    with created(h5py, new) as (file, out):
        _write_head(file, out, first, second)
        _write_structure(file, out, second)
        for entry in second.manifest.tables:
            group = file.create_group(entry.group)
            group.attrs["kind"] = entry.kind
            base = comparable(first.manifest, entry)
            columns = _columns_of(out, group, entry)
            writer = _write_rows if entry.kind == "embedding" else _write_elements
            tables.append(writer(columns, first, second, base, entry))
            for column in columns.values():
                column.close()
    return tables


def identity(checkpoint: Checkpoint) -> str:
    """Return the checksum of a checkpoint's manifest, or that of the link which it was made from."""
    return checkpoint.manifest.replaces or checkpoint.manifest_xxh3


def _manifest_bytes(checkpoint: Checkpoint) -> bytes:
    """Return the manifest as it is in the checkpoint's folder.

    Raises:
        CheckpointError: It cannot be read.
    """
    try:
        return (checkpoint.path / MANIFEST).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{checkpoint.path / MANIFEST}: cannot be read: {error.strerror}"
        ) from None


def _write_head(file: Any, out: DeltaFile, first: Checkpoint, second: Checkpoint) -> None:
    file.attrs["mpips_delta"] = FORMAT
    for name, checkpoint in (("base", first), ("this", second)):
        m = checkpoint.manifest
        file.attrs[f"{name}_run"] = m.run_id
        file.attrs[f"{name}_step"] = m.step
        file.attrs[f"{name}_generation"] = m.generation
    file.attrs["base_manifest_xxh3"] = identity(first)
    write_array(out, file, "manifest", np.frombuffer(_manifest_bytes(second), np.uint8))


def _write_structure(file: Any, out: DeltaFile, second: Checkpoint) -> None:
    extents = [
        (entry.offset, entry.offset + entry.n_bytes)
        for table in second.manifest.tables
        for entry in table.datasets
    ]
    try:
        with second.opened() as source:
            found = list(outside(source.fileno(), second.manifest.file.n_bytes, extents))
    except OSError as error:
        raise CheckpointError(f"{second.path}: cannot be read: {error}") from None
    group = file.create_group("structure")
    places = np.array([(at, len(block)) for at, block in found], np.int64).reshape(-1, 2)
    write_array(out, group, "offsets", places)
    write_array(out, group, "bytes", np.frombuffer(b"".join(block for _, block in found), np.uint8))
    workers = file.create_group("workers")
    for name in worker_files.names(second.manifest, second.path):
        try:
            data = (second.path / name).read_bytes()
        except OSError as error:
            raise CheckpointError(
                f"{second.path / name}: cannot be read: {error.strerror}"
            ) from None
        write_array(out, workers, name, np.frombuffer(data, np.uint8))


def _form(table: TableEntry) -> tuple[Any, ...]:
    """Return all that must be equal for values to be compared; the number of rows may differ."""
    shape = table.shape[1:] if table.kind == "embedding" else table.shape
    datasets = [(d.role, d.dtype, d.unit) for d in table.datasets]
    return table.kind, shape, datasets, table.hash_buckets


def comparable(manifest: Manifest, entry: TableEntry) -> TableEntry | None:
    """Return the table in another manifest; None if it is missing there or has another form."""
    found = next((table for table in manifest.tables if table.name == entry.name), None)
    return found if found is not None and _form(found) == _form(entry) else None


def place_names(entry: TableEntry) -> tuple[str, ...]:
    """Return the datasets of a table in a delta beside those of the checkpoint; int64."""
    return ("removed",) if entry.kind == "embedding" else ("starts", "stops")


def unit_shape(entry: TableEntry, dataset: DatasetEntry) -> tuple[int, ...]:
    """Return the shape of an entry of a dataset: an element, or what a row has."""
    return tuple(dataset.shape[1:]) if entry.kind == "embedding" else ()


def _columns_of(out: DeltaFile, group: Any, entry: TableEntry) -> dict[str, DeltaColumn]:
    """Make the datasets of a table, by role, and those of places or keys."""
    columns = {
        name: DeltaColumn(out, group, name, np.dtype(np.int64)) for name in place_names(entry)
    }
    for dataset in entry.datasets:
        dtype = np.dtype(DTYPES[dataset.dtype])
        columns[dataset.role] = DeltaColumn(
            out, group, dataset.role, dtype, unit_shape(entry, dataset)
        )
    return columns


def _differing(a: Arrays, b: Arrays) -> NDArray[np.bool_]:
    """Return which units of two equal blocks differ in any bit of any array."""
    n = len(next(iter(b.values())))
    differs = np.zeros(n, np.bool_)
    for role, array in b.items():
        x = np.ascontiguousarray(array).view(np.uint8).reshape(n, -1)
        y = np.ascontiguousarray(a[role]).view(np.uint8).reshape(n, -1)
        differs |= (x != y).any(axis=1)
    return differs


def _block(checkpoint: Checkpoint, entry: TableEntry, start: int, stop: int) -> Arrays:
    return {d.role: checkpoint.read_stored(d, start, stop) for d in entry.datasets}


def _write_elements(
    columns: dict[str, DeltaColumn],
    first: Checkpoint,
    second: Checkpoint,
    base: TableEntry | None,
    entry: TableEntry,
) -> TableDelta:
    n = entry.dataset("values").n_units
    found = TableDelta(entry.name, total=n)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        mine = _flat(_block(second, entry, start, stop))
        differs = np.ones(stop - start, np.bool_)
        if base is not None:
            differs = _differing(_flat(_block(first, base, start, stop)), mine)
        # Widen to whole pieces, and join pieces beside each other.
        pieces = np.logical_or.reduceat(differs, np.arange(0, stop - start, PIECE))
        edges = np.flatnonzero(np.diff(np.concatenate(([False], pieces, [False])).astype(np.int8)))
        for low, high in edges.reshape(-1, 2).tolist():
            part = slice(low * PIECE, min(high * PIECE, stop - start))
            columns["starts"].add(np.array([start + part.start]))
            columns["stops"].add(np.array([start + part.stop]))
            found.changed += part.stop - part.start
            for role, array in mine.items():
                columns[role].add(array[part])
    return found


def _flat(block: Arrays) -> Arrays:
    return {role: array.reshape(-1) for role, array in block.items()}


def _write_rows(
    columns: dict[str, DeltaColumn],
    first: Checkpoint,
    second: Checkpoint,
    base: TableEntry | None,
    entry: TableEntry,
) -> TableDelta:
    found = TableDelta(entry.name, total=entry.shape[0])
    for old, new in _merged(first, base, second, entry):
        common, i, j = np.intersect1d(
            old["keys"], new["keys"], assume_unique=True, return_indices=True
        )
        changed = np.ones(len(new["keys"]), np.bool_)
        if len(common):
            pairs = [{role: rows[role][at] for role in new} for rows, at in ((old, i), (new, j))]
            changed[j] = _differing(*pairs)
        removed = np.delete(old["keys"], i)
        columns["removed"].add(removed)
        for role, array in new.items():
            columns[role].add(array[changed])
        found.changed += int(changed.sum())
        found.removed += len(removed)
    return found


def ascends(keys: NDArray[Any]) -> bool:
    """Return True if each key is greater than the one before it."""
    return bool((keys[1:] > keys[:-1]).all())


class BlockedRows:
    """The rows of a table, read in blocks and taken up to a given key; all columns as stored."""

    def __init__(self, checkpoint: Checkpoint, entry: TableEntry | None) -> None:
        self._checkpoint, self._entry = checkpoint, entry
        self._at = 0
        self._before: int | None = None  # last key of the blocks that were read
        self.arrays: Arrays = {}
        self.advance()

    def advance(self) -> None:
        """Read the next block if all rows that are in memory were taken."""
        entry = self._entry
        if entry is None or (self.arrays and len(self.arrays["keys"])):
            return
        size = max(1, BLOCK // sum(d.unit_bytes for d in entry.datasets))
        stop = min(self._at + size, entry.shape[0])
        self.arrays = _block(self._checkpoint, entry, self._at, stop)
        self._at = stop
        keys = self.arrays["keys"]
        if self._before is not None:
            keys = np.concatenate([[self._before], keys])
        if not ascends(keys):
            raise CheckpointError(
                f"{self._checkpoint.path}: is damaged: the keys of table {entry.name!r} do not ascend"
            )
        self._before = self.last

    @property
    def last(self) -> int | None:
        """Last key in memory; None if no row is left."""
        keys = self.arrays.get("keys")
        return int(keys[-1]) if keys is not None and len(keys) else None

    def take(self, last: int) -> Arrays:
        """Return and remove the rows up to this key, among those in memory."""
        keys = self.arrays.get("keys", np.zeros(0, np.int64))
        n = int(np.searchsorted(keys, last, side="right"))
        taken = {role: array[:n] for role, array in self.arrays.items()} or {"keys": keys}
        self.arrays = {role: array[n:] for role, array in self.arrays.items()}
        self.advance()
        return taken


def _merged(
    first: Checkpoint, base: TableEntry | None, second: Checkpoint, entry: TableEntry
) -> Iterator[tuple[Arrays, Arrays]]:
    """Yield rows of both checkpoints in the same ranges of keys, ascending."""
    a, b = BlockedRows(first, base), BlockedRows(second, entry)
    while a.last is not None or b.last is not None:
        last = min(key for key in (a.last, b.last) if key is not None)
        yield a.take(last), b.take(last)
