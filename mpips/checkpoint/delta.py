"""The difference of two checkpoints as a file: the rows and pieces that the first one has not.

A delta is an HDF5 file. With the first checkpoint it gives the second one, byte for byte (`apply_delta`).

    manifest           manifest.json of the second checkpoint
    structure/bytes    its HDF5 file outside the datasets, `structure/offsets` their places
    workers/NAME       its workers' files
    tables/NAME        a dense table has `starts` and `stops` of the pieces that differ, in elements, and
                       their values and states, one piece after the other; an embedding table has the keys
                       of the rows that are new or differ, ascending, their values, states and counts, and
                       `removed`, the keys of rows that the second checkpoint does not have

Values are compared bit by bit, those of a dense table in pieces of PIECE elements. A table that the first
checkpoint has not, or with another shape, dtype or state, is in the delta as a whole. Each dataset has the
attribute `xxh3`, the XXH3-64 of its bytes. Both checkpoints are read in blocks; only keys of changed rows
stay in memory.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint.folder import sync_folder
from mpips.checkpoint.manifest import (
    DTYPES,
    MANIFEST,
    DatasetEntry,
    Manifest,
    TableEntry,
    decode,
    hexsum,
)
from mpips.checkpoint.reader import Checkpoint, open_checkpoint
from mpips.checkpoint.structure import outside, write_all
from mpips.data.hdf5 import load_hdf5
from mpips.errors import CheckpointError, ConfigError

FORMAT = 1
PIECE = 256  # elements of a dense table that are compared together
_BLOCK = 1 << 20  # elements, or bytes of rows, that are read at once
_CHUNK = 1 << 16  # elements of a chunk of the HDF5 file

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


class _Column:
    """A dataset of the delta that grows, with the checksum of its bytes.

    The first _CHUNK elements wait in memory, so that a small dataset has no chunks, whose rest is unused.
    """

    def __init__(
        self, group: Any, name: str, dtype: np.dtype[Any], unit: tuple[int, ...] = ()
    ) -> None:
        self._group, self._name = group, name
        self._sum = _native.Xxh3()
        self._waiting = [np.empty((0, *unit), dtype)]
        self._data: Any = None

    def add(self, array: NDArray[Any]) -> None:
        """Append rows or elements."""
        first = self._waiting[0]
        stored = np.ascontiguousarray(array, first.dtype).reshape(-1, *first.shape[1:])
        self._sum.update(stored.reshape(-1).view(np.uint8))
        self._waiting.append(stored)
        if sum(part.size for part in self._waiting) >= _CHUNK:
            self._flush()

    def _flush(self) -> None:
        stored = np.concatenate(self._waiting)
        self._waiting = [stored[:0]]
        if self._data is None:
            unit = max(1, math.prod(stored.shape[1:]))
            chunks = (max(1, _CHUNK // unit), *stored.shape[1:])
            most = (None, *stored.shape[1:])
            self._data = self._group.create_dataset(
                self._name, data=stored, chunks=chunks, maxshape=most
            )
            return
        at = len(self._data)
        self._data.resize(at + len(stored), axis=0)
        self._data[at:] = stored

    def close(self) -> None:
        """Write the rest, and the checksum."""
        if self._data is not None:
            self._flush()
        else:
            self._data = self._group.create_dataset(self._name, data=np.concatenate(self._waiting))
        self._data.attrs["xxh3"] = f"{self._sum.digest():016x}"


def _array(group: Any, name: str, array: NDArray[Any]) -> None:
    """Write a whole dataset with its checksum."""
    group[name] = array
    group[name].attrs["xxh3"] = hexsum(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def write_delta(first: Checkpoint, second: Checkpoint, out: Path, force: bool = False) -> Delta:
    """Write the delta from one open checkpoint to another. Local, blocking.

    Args:
        first: The base, to which the delta will be applied.
        second: The checkpoint that the delta gives.
        out: File to write; it gets this name when it is complete.
        force: Replace an existing file.

    Raises:
        ConfigError: `out` exists already or cannot be written, or its folder does not exist.
        CapabilityError: h5py is missing.
        CheckpointError: A checkpoint cannot be read.
    """
    h5py = load_hdf5("writing a delta")
    if out.exists() and not force:
        raise ConfigError(f"{out}: already exists; use --force to replace it")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out.absolute().parent}: there is no such folder; create it first")
    new = out.with_name(f".{out.name}-{uuid.uuid4().hex[:8]}")
    tables = []
    try:
        with h5py.File(new, "w") as file:
            _write_head(file, first, second)
            _write_structure(file, second)
            for entry in second.manifest.tables:
                group = file.create_group(entry.group)
                group.attrs["kind"] = entry.kind
                base = _comparable(first.manifest, entry)
                writer = _write_rows if entry.kind == "embedding" else _write_elements
                tables.append(writer(group, first, second, base, entry))
        os.replace(new, out)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        new.unlink(missing_ok=True)
    return Delta(str(out), out.stat().st_size, second.manifest.file.n_bytes, tables)


def _manifest_bytes(checkpoint: Checkpoint) -> bytes:
    try:
        return (checkpoint.path / MANIFEST).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{checkpoint.path / MANIFEST}: cannot be read: {error.strerror}"
        ) from None


def _write_head(file: Any, first: Checkpoint, second: Checkpoint) -> None:
    base = _manifest_bytes(first)
    file.attrs["mpips_delta"] = FORMAT
    for name, checkpoint in (("base", first), ("this", second)):
        m = checkpoint.manifest
        file.attrs[f"{name}_run"] = m.run_id
        file.attrs[f"{name}_step"] = m.step
        file.attrs[f"{name}_generation"] = m.generation
    file.attrs["base_manifest_xxh3"] = hexsum(base)
    _array(file, "manifest", np.frombuffer(_manifest_bytes(second), np.uint8))


def _write_structure(file: Any, second: Checkpoint) -> None:
    extents = [
        (entry.offset, entry.offset + entry.n_bytes)
        for table in second.manifest.tables
        for entry in table.datasets
    ]
    with second.opened() as opened:
        found = list(outside(opened.fileno(), second.manifest.file.n_bytes, extents))
    group = file.create_group("structure")
    places = np.array([(at, len(block)) for at, block in found], np.int64).reshape(-1, 2)
    _array(group, "offsets", places)
    _array(group, "bytes", np.frombuffer(b"".join(block for _, block in found), np.uint8))
    workers = file.create_group("workers")
    for worker in second.manifest.workers:
        for image in worker.files:
            if image.name and not image.error:
                data = (second.path / image.name).read_bytes()
                _array(workers, image.name, np.frombuffer(data, np.uint8))


def _form(table: TableEntry) -> tuple[Any, ...]:
    """Return all that must be equal for values to be compared; the number of rows may differ."""
    shape = table.shape[1:] if table.kind == "embedding" else table.shape
    datasets = [(d.role, d.dtype, d.unit) for d in table.datasets]
    return table.kind, shape, datasets, table.hash_buckets


def _comparable(manifest: Manifest, entry: TableEntry) -> TableEntry | None:
    """Return the table in another manifest; None if it is missing there or has another form."""
    found = next((table for table in manifest.tables if table.name == entry.name), None)
    return found if found is not None and _form(found) == _form(entry) else None


def _columns_of(
    group: Any, entry: TableEntry, extra: dict[str, type[np.generic]]
) -> dict[str, _Column]:
    """Make the datasets of a table, by role, and those of places or keys."""
    columns = {name: _Column(group, name, np.dtype(d)) for name, d in extra.items()}
    for dataset in entry.datasets:
        dtype = np.dtype(DTYPES[dataset.dtype])
        unit = dataset.shape[1:] if entry.kind == "embedding" else ()
        columns[dataset.role] = _Column(group, dataset.role, dtype, unit)
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
    group: Any,
    first: Checkpoint,
    second: Checkpoint,
    base: TableEntry | None,
    entry: TableEntry,
) -> TableDelta:
    n = entry.dataset("values").n_units
    found = TableDelta(entry.name, total=n)
    columns = _columns_of(group, entry, {"starts": np.int64, "stops": np.int64})
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
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
    for column in columns.values():
        column.close()
    return found


def _flat(block: Arrays) -> Arrays:
    return {role: array.reshape(-1) for role, array in block.items()}


def _write_rows(
    group: Any,
    first: Checkpoint,
    second: Checkpoint,
    base: TableEntry | None,
    entry: TableEntry,
) -> TableDelta:
    found = TableDelta(entry.name, total=entry.shape[0])
    columns = _columns_of(group, entry, {"removed": np.int64})
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
    for column in columns.values():
        column.close()
    return found


class _Rows:
    """The rows of a table, read in blocks and taken up to a given key; all columns as stored."""

    def __init__(self, checkpoint: Checkpoint, entry: TableEntry | None) -> None:
        self._checkpoint, self._entry = checkpoint, entry
        self._at = 0
        self.arrays: Arrays = {}
        self.advance()

    def advance(self) -> None:
        """Read the next block if all rows that are in memory were taken."""
        entry = self._entry
        if entry is None or (self.arrays and len(self.arrays["keys"])):
            return
        size = max(1, _BLOCK // sum(d.unit_bytes for d in entry.datasets))
        stop = min(self._at + size, entry.shape[0])
        self.arrays = _block(self._checkpoint, entry, self._at, stop)
        self._at = stop

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
    a, b = _Rows(first, base), _Rows(second, entry)
    while a.last is not None or b.last is not None:
        last = min(key for key in (a.last, b.last) if key is not None)
        yield a.take(last), b.take(last)


# Applying a delta.


def apply_delta(first: Checkpoint, delta: Path, out: Path) -> Path:
    """Make the second checkpoint of a delta from the first. Local, blocking.

    All checksums of the result are compared before it gets its name.

    Args:
        first: The open checkpoint that the delta was made from.
        delta: The file.
        out: Folder to make: the checkpoint itself, or an existing folder in which it gets its own name.

    Returns:
        The folder of the checkpoint.

    Raises:
        ConfigError: The result exists already or cannot be written.
        CapabilityError: h5py is missing.
        CheckpointError: The file is not a delta of this checkpoint, or something is damaged.
    """
    h5py = load_hdf5("reading a delta")
    try:
        file = h5py.File(delta, "r")
    except OSError as error:
        raise CheckpointError(f"{delta}: cannot be read as HDF5: {error}") from None
    with file:
        try:
            manifest, data = _checked_head(file, delta, first)
        except (KeyError, RuntimeError, TypeError, ValueError, OSError) as error:
            raise CheckpointError(f"{delta}: is damaged: {error}") from None
        name = f"step-{manifest.step:012d}"
        path = out / name if out.is_dir() else out
        if path.exists():
            raise ConfigError(f"{path}: already exists; remove it, or name another folder")
        new = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
        try:
            new.mkdir()
            _write_state(file, delta, first, manifest, new)
            for image in file["workers"]:
                (new / image).write_bytes(_read(file["workers"], image, delta).tobytes())
            (new / MANIFEST).write_bytes(data)
            with open_checkpoint(new) as made:
                if damage := made.damage():
                    raise CheckpointError(
                        f"{delta}: does not give the checkpoint that it was made from: {damage[0]}; the "
                        f"delta is damaged, or {first.path} (`mpips ckpt verify`)"
                    )
            sync_folder(new)
            os.replace(new, path)
            sync_folder(path.absolute().parent)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            # Errors of h5py for a file whose structure is damaged.
            raise CheckpointError(f"{delta}: is damaged: {error}") from None
        except OSError as error:
            if error.errno is None:
                raise CheckpointError(f"{delta}: is damaged: {error}") from None
            raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return path


def _checked_head(file: Any, delta: Path, first: Checkpoint) -> tuple[Manifest, bytes]:
    number = file.attrs.get("mpips_delta")
    if number is None:
        raise CheckpointError(f"{delta}: is not a delta of checkpoints")
    if number > FORMAT:
        raise CheckpointError(
            f"{delta}: format {number} of deltas is newer than this mpips, which reads up to {FORMAT}: "
            "install a newer mpips"
        )
    if hexsum(_manifest_bytes(first)) != file.attrs["base_manifest_xxh3"]:
        m = first.manifest
        raise CheckpointError(
            f"{delta}: begins at step {file.attrs['base_step']} of generation "
            f"{file.attrs['base_generation']} of run '{file.attrs['base_run']}', and {first.path} is step "
            f"{m.step} of generation {m.generation} of run '{m.run_id}': apply it to the former"
        )
    data = _read(file, "manifest", delta).tobytes()
    return decode(data, delta), data


def _read(group: Any, name: str, delta: Path) -> NDArray[Any]:
    """Return a whole dataset; compare its checksum."""
    try:
        dataset = group[name]
        array: NDArray[Any] = dataset[...]
        expected = dataset.attrs["xxh3"]
    except (KeyError, OSError) as error:
        raise CheckpointError(f"{delta}: {name} cannot be read: {error}") from None
    if hexsum(np.ascontiguousarray(array).reshape(-1).view(np.uint8)) != expected:
        raise CheckpointError(f"{delta}: {dataset.name}: the checksum does not match")
    return array


def _write_state(
    file: Any, delta: Path, first: Checkpoint, manifest: Manifest, folder: Path
) -> None:
    """Write the HDF5 file: its structure, and the datasets from both sources."""
    fd = os.open(folder / manifest.file.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with contextlib.closing(os.fdopen(fd, "wb", closefd=True)):
        os.ftruncate(fd, manifest.file.n_bytes)
        data = _read(file["structure"], "bytes", delta).tobytes()
        at = 0
        for offset, n in _read(file["structure"], "offsets", delta).tolist():
            write_all(fd, data[at : at + n], offset)
            at += n
        for entry in manifest.tables:
            base = _comparable(first.manifest, entry)
            group = file[entry.group]

            def put(dataset: DatasetEntry, start: int, array: NDArray[Any]) -> None:
                stored = np.ascontiguousarray(array)
                view = stored.reshape(-1).view(np.uint8).data
                write_all(fd, view, dataset.offset + start * dataset.unit_bytes)

            if entry.kind == "embedding":
                _put_rows(group, delta, first, base, entry, put)
            else:
                _put_elements(group, delta, first, base, entry, put)
        os.fsync(fd)


Put = Callable[[DatasetEntry, int, NDArray[Any]], None]


def _put_elements(
    group: Any,
    delta: Path,
    first: Checkpoint,
    base: TableEntry | None,
    entry: TableEntry,
    put: Put,
) -> None:
    starts, stops = (_read(group, name, delta).tolist() for name in ("starts", "stops"))
    for dataset in entry.datasets:
        for start in range(0, dataset.n_units if base is not None else 0, _BLOCK):
            assert base is not None
            stop = min(start + _BLOCK, dataset.n_units)
            put(dataset, start, first.read_stored(base.dataset(dataset.role), start, stop))
        at = 0
        source = group[dataset.role]
        for start, stop in zip(starts, stops, strict=True):
            put(dataset, start, source[at : at + stop - start])
            at += stop - start


def _put_rows(
    group: Any,
    delta: Path,
    first: Checkpoint,
    base: TableEntry | None,
    entry: TableEntry,
    put: Put,
) -> None:
    """Merge the rows that stay with those of the delta, ascending by key."""
    changed = _read(group, "keys", delta)
    gone = np.union1d(_read(group, "removed", delta), changed)
    rows, at, taken = _Rows(first, base), 0, 0
    while rows.last is not None or taken < len(changed):
        # Take rows up to the last key in memory, or all that are left of the delta.
        last = rows.last
        stop = len(changed) if last is None else int(np.searchsorted(changed, last, side="right"))
        stop = min(stop, taken + _BLOCK)
        if last is not None and stop < len(changed) and stop == taken + _BLOCK:
            last = min(last, int(changed[stop - 1]))
        old: Arrays = {} if last is None else rows.take(last)
        keep = ~np.isin(old["keys"], gone) if old else np.zeros(0, np.bool_)
        keys = [old["keys"][keep]] if old else []
        order = np.argsort(np.concatenate([*keys, changed[taken:stop]]), kind="stable")
        for dataset in entry.datasets:
            parts = [old[dataset.role][keep]] if old else []
            parts.append(group[dataset.role][taken:stop])
            put(dataset, at, np.concatenate(parts)[order])
        at += len(order)
        taken = stop
