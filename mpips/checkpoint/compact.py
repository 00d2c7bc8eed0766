"""Write the whole tables of a link of a chain: in its place, or as a checkpoint in another folder.

In its place, the folder first gets the file of whole tables, which no manifest names yet. The rename of the
new manifest makes the link a whole checkpoint, with `replaces` for the links that follow it. Finally the old
file is removed. So a kill at any point leaves either the link or the whole checkpoint. It may also leave a
file that the manifest does not name, which the next compaction removes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint import worker_files
from mpips.checkpoint.folder import locked, sync_folder, written_elsewhere
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
# Whole tables, and their manifest, that were written beside a link; see `mpips.checkpoint.folding`.
FOLDED = ".folded-state"
FOLDED_MANIFEST = ".folded-manifest"
# Path of the tables in the HDF5 file, and datasets that `create_file` makes from the manifest. All other
# datasets are arrays of the task, and are copied.
_TABLES = "tables/"
_MADE = ("config", "clocks", "data")


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
    links that follow can still be read.

    Args:
        path: Folder of the checkpoint.

    Raises:
        ConfigError: The checkpoint is whole already.
        CapabilityError: h5py is missing.
        CheckpointError: The chain is damaged, the result cannot be written, or another process writes or
            removes checkpoints in the folder.
    """
    load_hdf5("making a link of a chain whole")
    path = Path(os.path.realpath(path))
    try:
        with locked(path.parent):
            remove_unnamed(path)
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
            remove_unnamed(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be made whole: {error.strerror or error}") from None
    return Compacted(str(path), manifest.file.n_bytes, link_bytes)


def fold(checkpoint: Checkpoint, folder: Path, name: str) -> Manifest:
    """Write the whole tables of an open link into a new file `name` of a folder. Local, blocking.

    All checksums of the chain are compared first.

    Returns:
        The manifest of the whole checkpoint, which names the file as state.h5.

    Raises:
        ConfigError: The checkpoint is whole already.
        CapabilityError: h5py is missing.
        CheckpointError: The chain is damaged.
        OSError: The file cannot be written.
    """
    load_hdf5("making a link of a chain whole")
    _check_link(checkpoint)
    return _write(checkpoint, folder, name)


def remove_unnamed(path: Path) -> None:
    """Remove files that an earlier compaction has left, and that the manifest does not name."""
    with open_checkpoint(path) as checkpoint:
        named = checkpoint.manifest.file.name
    for name in (STATE, CHANGES, _NEW, FOLDED, FOLDED_MANIFEST):
        if name != named:
            with suppress(FileNotFoundError):
                os.unlink(path / name)


def write_whole(checkpoint: Checkpoint, out: Path) -> Compacted:
    """Write the whole tables of an open link as a checkpoint elsewhere. Local, blocking.

    Args:
        checkpoint: The link.
        out: Folder to make: the checkpoint itself, or an existing folder in which it gets its own name.

    Raises:
        ConfigError: The checkpoint is whole already, or an error of `written_elsewhere`.
        CapabilityError: h5py is missing.
        CheckpointError: The chain is damaged.
    """
    load_hdf5("making a link of a chain whole")
    _check_link(checkpoint)
    with written_elsewhere(out, checkpoint.manifest.step) as (new, path):
        manifest = _write(checkpoint, new)
        for name in worker_files.names(checkpoint.manifest, checkpoint.path):
            shutil.copyfile(checkpoint.path / name, new / name)
        write_manifest(new, manifest)
        _check_whole(new, manifest)
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


def _write(checkpoint: Checkpoint, folder: Path, name: str = STATE) -> Manifest:
    """Write the file of whole tables, named `name`; return the manifest that names it as state.h5."""
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
        attachments=_task_arrays(checkpoint),
    )
    made = create_file(folder / name, head, manifest.tables, mpips_version())
    sums: dict[str, PieceSums] = {}
    tables: list[TableEntry] = []
    fd = os.open(folder / name, os.O_WRONLY | os.O_CLOEXEC)
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


def _task_arrays(checkpoint: Checkpoint) -> dict[str, NDArray[Any]]:
    """Return the arrays of the task in the file, by their path."""
    h5py = load_hdf5("making a link of a chain whole")
    found: dict[str, NDArray[Any]] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith(_TABLES) and name not in _MADE:
            found[name] = np.array(item)

    try:
        with checkpoint.opened() as opened, h5py.File(opened, "r") as file:
            file.visititems(add)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.path}: cannot be read as HDF5: {error}") from None
    return found
