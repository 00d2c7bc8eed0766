"""Write the whole tables of a link of a chain: in its place, or as a checkpoint elsewhere.

In its place the folder first gets the file of whole tables, which no manifest names yet. The rename of the
new manifest makes the link a whole checkpoint, with `replaces` for the links that follow it. At last the old
file is removed. So a kill at any point leaves either the link or the whole checkpoint, and perhaps a file
that neither names, which the next compaction removes.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint.delta import check_place, worker_names
from mpips.checkpoint.folder import locked, sync_folder
from mpips.checkpoint.manifest import (
    CHANGES,
    DTYPES,
    MANIFEST,
    STATE,
    DatasetEntry,
    FileEntry,
    Manifest,
    TableEntry,
)
from mpips.checkpoint.reader import Checkpoint, open_checkpoint, open_data
from mpips.checkpoint.record import PieceSums, mpips_version, with_pieces, write_manifest
from mpips.checkpoint.shards import ManifestHead
from mpips.checkpoint.structure import create_file, write_all
from mpips.data.hdf5 import load_hdf5
from mpips.errors import CheckpointError, ConfigError

BLOCK_BYTES = 8 << 20  # bytes that are read and written at once
_NEW = ".manifest-new"
# What a file has beside the arrays of the task: made anew from the manifest.
_OWN = ("tables/", "config", "clocks", "data")


class Compacted(msgspec.Struct, frozen=True):
    """A whole checkpoint that was made from a link.

    Attributes:
        path: Its folder.
        n_bytes: Size of its HDF5 file.
        link_bytes: Size of the link's file.
    """

    path: str
    n_bytes: int
    link_bytes: int


def compact(path: Path) -> Compacted:
    """Make a link of a chain a whole checkpoint, in its place. Local, blocking; memory holds one block.

    All checksums of the chain are compared first, and those of the result before it replaces the link. The
    links that follow stay usable.

    Args:
        path: Folder of the checkpoint.

    Raises:
        ConfigError: It is whole already.
        CapabilityError: h5py is missing.
        CheckpointError: The chain is damaged, the result cannot be written, or another process writes or
            removes checkpoints in the folder.
    """
    load_hdf5("making a link of a chain whole")
    path = Path(os.path.realpath(path))
    try:
        with locked(path.parent):
            _remove_unnamed(path)
            with open_checkpoint(path) as checkpoint:
                _check_link(checkpoint)
                manifest = _write(checkpoint, path)
                write_manifest(path, manifest, _NEW)
                _check_whole(path, manifest)
                sync_folder(path)
                _native.fault_point("compacted")
                os.replace(path / _NEW, path / MANIFEST)
                sync_folder(path)
                link_bytes = checkpoint.manifest.file.n_bytes
            _native.fault_point("whole")
            _remove_unnamed(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be made whole: {error.strerror or error}") from None
    return Compacted(str(path), manifest.file.n_bytes, link_bytes)


def _remove_unnamed(path: Path) -> None:
    """Remove files that an earlier compaction has left, and that the manifest does not name."""
    with open_checkpoint(path) as checkpoint:
        named = checkpoint.manifest.file.name
    for name in (STATE, CHANGES, _NEW):
        if name != named:
            with suppress(FileNotFoundError):
                os.unlink(path / name)


def write_whole(checkpoint: Checkpoint, out: Path) -> Compacted:
    """Write the whole tables of an open link as a checkpoint elsewhere. Local, blocking.

    Args:
        checkpoint: The link.
        out: Folder to make: the checkpoint itself, or an existing folder in which it gets its own name.

    Raises:
        ConfigError: It is whole already, `out` exists already, lies in a checkpoint or cannot be written.
        CapabilityError: h5py is missing.
        CheckpointError: The chain is damaged.
    """
    load_hdf5("making a link of a chain whole")
    _check_link(checkpoint)
    path = out / f"step-{checkpoint.manifest.step:012d}" if out.is_dir() else out
    if os.path.lexists(path):
        raise ConfigError(f"{path}: already exists; remove it, or name another folder")
    check_place(path)
    new = path.parent / f".whole-{uuid.uuid4().hex[:8]}"
    try:
        try:
            new.mkdir()
            manifest = _write(checkpoint, new)
            for name in worker_names(checkpoint.manifest, checkpoint.path):
                shutil.copyfile(checkpoint.path / name, new / name)
            write_manifest(new, manifest)
            _check_whole(new, manifest)
            sync_folder(new)
            os.replace(new, path)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        sync_folder(path.absolute().parent)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
    return Compacted(str(path), manifest.file.n_bytes, checkpoint.manifest.file.n_bytes)


def _check_link(checkpoint: Checkpoint) -> None:
    if checkpoint.manifest.link is None:
        raise ConfigError(f"{checkpoint.path}: is whole already")
    checkpoint.verify()


def _check_whole(path: Path, manifest: Manifest) -> None:
    with open_data(path, manifest) as made:
        damage = made.damage()
    if damage:
        raise CheckpointError(f"{path}: the file of whole tables is damaged: {damage[0]}")


def _write(checkpoint: Checkpoint, folder: Path) -> Manifest:
    """Write the file of whole tables; return the manifest that names it."""
    manifest = checkpoint.manifest
    head = ManifestHead(
        run_id=manifest.run_id,
        generation=manifest.generation,
        step=manifest.step,
        wall_time_s=manifest.wall_time_s,
        tables=(),
        workers=manifest.workers,
        config=manifest.config,
        data=manifest.data,
        attachments=_arrays_beside(checkpoint),
    )
    made = create_file(folder / STATE, head, manifest.tables, mpips_version())
    sums: dict[str, PieceSums] = {}
    tables: list[TableEntry] = []
    fd = os.open(folder / STATE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for table, offsets in zip(manifest.tables, made.offsets, strict=True):
            datasets = tuple(
                replace(entry, offset=offset)
                for entry, offset in zip(table.datasets, offsets, strict=True)
            )
            tables.append(replace(table, datasets=datasets))
            _write_table(checkpoint, table.datasets, datasets, fd, sums)
        os.fsync(fd)
    finally:
        os.close(fd)
    pieces = {path: one.close() for path, one in sums.items()}
    return replace(
        manifest,
        tables=tuple(with_pieces(tables, [pieces])),
        file=FileEntry(name=STATE, n_bytes=made.n_bytes, structure_xxh3=made.structure_xxh3),
        link=None,
        replaces=checkpoint.manifest_xxh3,
    )


def _write_table(
    checkpoint: Checkpoint,
    sources: Sequence[DatasetEntry],
    datasets: Sequence[DatasetEntry],
    fd: int,
    sums: dict[str, PieceSums],
) -> None:
    for source, entry in zip(sources, datasets, strict=True):
        size = max(1, BLOCK_BYTES // entry.unit_bytes)
        for start in range(0, entry.n_units, size):
            block = checkpoint.read_stored(source, start, min(start + size, entry.n_units))
            data = np.ascontiguousarray(block, DTYPES[entry.dtype])
            sums.setdefault(entry.path, PieceSums()).add(start, data)
            view = data.reshape(-1).view(np.uint8).data
            write_all(fd, view, entry.offset + start * entry.unit_bytes)


def _arrays_beside(checkpoint: Checkpoint) -> dict[str, NDArray[Any]]:
    """Read the arrays of the file beside the tables, by their path."""
    h5py = load_hdf5("making a link of a chain whole")
    found: dict[str, NDArray[Any]] = {}
    with checkpoint.opened() as opened, h5py.File(opened, "r") as file:

        def add(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and not name.startswith(_OWN[0]) and name not in _OWN:
                found[name] = np.array(item)

        file.visititems(add)
    return found
