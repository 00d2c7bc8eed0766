"""Apply a delta: the second checkpoint from the first one and the file.

The rows that stay are merged with those of the delta, ascending by key; pieces of dense tables are written
over the elements of the first checkpoint. The result is written under a temporary name and verified.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from mpips.checkpoint import worker_files
from mpips.checkpoint.delta import (
    BLOCK,
    Arrays,
    BlockedRows,
    ascends,
    comparable,
    identity,
    place_names,
    unit_shape,
)
from mpips.checkpoint.delta_file import opened
from mpips.checkpoint.folder import written_elsewhere
from mpips.checkpoint.manifest import (
    DTYPES,
    MANIFEST,
    DatasetEntry,
    Manifest,
    TableEntry,
    decode,
)
from mpips.checkpoint.reader import Checkpoint, open_checkpoint
from mpips.checkpoint.structure import write_all
from mpips.data.hdf5 import load_hdf5
from mpips.errors import CheckpointError

# Errors of h5py and NumPy for a file with another structure.
_DAMAGED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)

# Writes entries of a dataset of the result, from an entry on.
Put = Callable[[DatasetEntry, int, NDArray[Any]], None]


def apply_delta(first: Checkpoint, delta: Path, out: Path) -> Path:
    """Make the second checkpoint of a delta from the first. Local, blocking.

    The checksum of the delta is compared first, and all checksums of the result before it gets its name.

    Args:
        first: The open checkpoint that the delta was made from.
        delta: The file.
        out: Folder to make: the checkpoint itself, or an existing folder in which it gets its own name.

    Returns:
        The folder of the checkpoint.

    Raises:
        ConfigError: The result exists already, lies in a checkpoint or cannot be written.
        CapabilityError: h5py is missing.
        CheckpointError: The file is not a delta of this checkpoint, or something is damaged.
    """
    h5py = load_hdf5("reading a delta")
    with opened(h5py, delta) as file:
        try:
            manifest, data = _checked_head(file, delta, first)
            return _apply(file, delta, first, manifest, data, out)
        except _DAMAGED as error:
            # The checksum is right, so this file was written with another structure.
            raise CheckpointError(f"{delta}: is damaged: {error}") from None


def _apply(
    file: Any, delta: Path, first: Checkpoint, manifest: Manifest, data: bytes, out: Path
) -> Path:
    try:
        with written_elsewhere(out, manifest.step) as (new, path):
            _write_state(file, delta, first, manifest, new)
            _write_workers(file, delta, manifest, new)
            (new / MANIFEST).write_bytes(data)
            _check_result(delta, first, new)
    except OSError as error:
        # Errors of HDF5 have no number.
        raise CheckpointError(f"{delta}: is damaged: {error}") from None
    return path


def _check_result(delta: Path, first: Checkpoint, folder: Path) -> None:
    """Raise CheckpointError if a folder has not the checkpoint that its manifest describes."""
    try:
        with open_checkpoint(folder) as made:
            damage = made.damage()
    except CheckpointError as error:
        damage = [str(error)]
    if damage:
        raise CheckpointError(
            f"{delta}: does not give the checkpoint that it was made from: {damage[0]}; the delta is "
            f"damaged, or {first.path} (`mpips ckpt verify`)"
        )


def _checked_head(file: Any, delta: Path, first: Checkpoint) -> tuple[Manifest, bytes]:
    if identity(first) != file.attrs["base_manifest_xxh3"]:
        m = first.manifest
        raise CheckpointError(
            f"{delta}: begins at step {file.attrs['base_step']} of generation "
            f"{file.attrs['base_generation']} of run '{file.attrs['base_run']}', and {first.path} is step "
            f"{m.step} of generation {m.generation} of run '{m.run_id}': apply it to the former"
        )
    data = _read(file, "manifest", delta, np.uint8).tobytes()
    return decode(data, delta), data


def _dataset(
    group: Any, name: str, delta: Path, dtype: npt.DTypeLike, unit: tuple[int, ...] = ()
) -> Any:
    """Return a dataset with entries of this dtype and shape."""
    dataset = group[name]
    if dataset.dtype != dtype or dataset.shape[:1] + unit != dataset.shape:
        raise CheckpointError(
            f"{delta}: is damaged: {dataset.name} has shape {dataset.shape} and dtype {dataset.dtype}"
        )
    return dataset


def _read(
    group: Any, name: str, delta: Path, dtype: npt.DTypeLike, unit: tuple[int, ...] = ()
) -> NDArray[Any]:
    """Return a whole dataset with entries of this dtype and shape."""
    array: NDArray[Any] = _dataset(group, name, delta, dtype, unit)[...]
    return array


def _write_workers(file: Any, delta: Path, manifest: Manifest, folder: Path) -> None:
    names = worker_files.names(manifest, delta)
    if sorted(file["workers"]) != sorted(names):
        raise CheckpointError(f"{delta}: is damaged: it has other workers' files than its manifest")
    for name in names:
        (folder / name).write_bytes(_read(file["workers"], name, delta, np.uint8).tobytes())


def _write_state(
    file: Any, delta: Path, first: Checkpoint, manifest: Manifest, folder: Path
) -> None:
    """Write the HDF5 file: its structure, and the datasets from both sources."""
    worker_files.names(manifest, delta)
    fd = os.open(folder / manifest.file.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with contextlib.closing(os.fdopen(fd, "wb", closefd=True)):
        os.ftruncate(fd, manifest.file.n_bytes)
        _write_outside(file["structure"], delta, manifest, fd)
        for entry in manifest.tables:
            base = comparable(first.manifest, entry)
            columns = _columns(file[entry.group], delta, entry)

            def put(dataset: DatasetEntry, start: int, array: NDArray[Any]) -> None:
                if start + len(array) > dataset.n_units:
                    raise CheckpointError(
                        f"{delta}: is damaged, or {first.path} is (`mpips ckpt verify`): {dataset.path} "
                        f"has more than {dataset.n_units:,} entries"
                    )
                stored = np.ascontiguousarray(array)
                view = stored.reshape(-1).view(np.uint8).data
                write_all(fd, view, dataset.offset + start * dataset.unit_bytes)

            writer = _put_rows if entry.kind == "embedding" else _put_elements
            writer(columns, delta, first, base, entry, put)
        os.fsync(fd)


def _write_outside(group: Any, delta: Path, manifest: Manifest, fd: int) -> None:
    """Write the bytes of the HDF5 file outside the datasets."""
    data = _read(group, "bytes", delta, np.uint8).tobytes()
    at = 0
    for offset, n in _read(group, "offsets", delta, np.int64, (2,)).tolist():
        if not 0 <= offset <= offset + n <= manifest.file.n_bytes or at + n > len(data):
            raise CheckpointError(f"{delta}: is damaged: {group.name}/offsets has a wrong range")
        write_all(fd, data[at : at + n], offset)
        at += n


def _columns(group: Any, delta: Path, entry: TableEntry) -> dict[str, Any]:
    """Return the datasets of a table, by role, and those of places or keys, whole."""
    columns: dict[str, Any] = {n: _read(group, n, delta, np.int64) for n in place_names(entry)}
    for dataset in entry.datasets:
        unit, dtype = unit_shape(entry, dataset), np.dtype(DTYPES[dataset.dtype])
        columns[dataset.role] = _dataset(group, dataset.role, delta, dtype, unit)
    lengths = {len(columns[dataset.role]) for dataset in entry.datasets}
    if len(lengths) > 1:
        raise CheckpointError(
            f"{delta}: is damaged: the datasets of {group.name} have different lengths"
        )
    return columns


def _put_elements(
    columns: dict[str, Any],
    delta: Path,
    first: Checkpoint,
    base: TableEntry | None,
    entry: TableEntry,
    put: Put,
) -> None:
    starts, stops = columns["starts"], columns["stops"]
    if len(starts) != len(stops) or (stops - starts).sum() != len(columns["values"]):
        raise CheckpointError(f"{delta}: is damaged: {entry.group} has other pieces than values")
    edges = np.stack([starts, stops], axis=1).reshape(-1)
    if (np.diff(edges, prepend=0) < 0).any():
        raise CheckpointError(f"{delta}: is damaged: the pieces of {entry.group} do not ascend")
    for dataset in entry.datasets:
        for start in range(0, dataset.n_units if base is not None else 0, BLOCK):
            assert base is not None
            stop = min(start + BLOCK, dataset.n_units)
            put(dataset, start, first.read_stored(base.dataset(dataset.role), start, stop))
        at = 0
        source = columns[dataset.role]
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            put(dataset, start, source[at : at + stop - start])
            at += stop - start


def _put_rows(
    columns: dict[str, Any],
    delta: Path,
    first: Checkpoint,
    base: TableEntry | None,
    entry: TableEntry,
    put: Put,
) -> None:
    """Merge the rows that stay with those of the delta, ascending by key."""
    changed = columns["keys"][...]
    if not ascends(changed):
        raise CheckpointError(f"{delta}: is damaged: the keys of {entry.group} do not ascend")
    gone = np.union1d(columns["removed"], changed)
    rows, at, taken = BlockedRows(first, base), 0, 0
    while rows.last is not None or taken < len(changed):
        # Take rows up to the last key in memory, or all that are left of the delta.
        last = rows.last
        stop = len(changed) if last is None else int(np.searchsorted(changed, last, side="right"))
        stop = min(stop, taken + BLOCK)
        if last is not None and stop < len(changed) and stop == taken + BLOCK:
            last = min(last, int(changed[stop - 1]))
        old: Arrays = {} if last is None else rows.take(last)
        keep = ~np.isin(old["keys"], gone) if old else np.zeros(0, np.bool_)
        keys = [old["keys"][keep]] if old else []
        order = np.argsort(np.concatenate([*keys, changed[taken:stop]]), kind="stable")
        for dataset in entry.datasets:
            parts = [old[dataset.role][keep]] if old else []
            parts.append(columns[dataset.role][taken:stop])
            put(dataset, at, np.concatenate(parts)[order])
        at += len(order)
        taken = stop
