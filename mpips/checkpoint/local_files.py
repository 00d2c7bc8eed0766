"""Files of workers in a checkpoint: their values and inner states of tables under LocalSGD and DiLoCo.

Each worker writes its file into the folder of checkpoints, under a temporary name, before its cut record, so
all files are there when the rings of all workers are held (mpips.worker.local.tables). Server 0 links them
into the checkpoint before that gets its name. The manifest has their names, sizes and checksums.

A finished worker has written its last file. Every later checkpoint of the launch contains it, so its
temporary name stays until the last one is published. If the worker could not write it, for example on a full
disk, it tries again under the same name until the job ends (`Connection.poll_workers`). Its position has the
failure of the first time; the file counts as soon as it is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint.file_error import FileError
from mpips.checkpoint.manifest import LocalFile, WorkerState
from mpips.errors import CheckpointError

PREFIX = (
    ".local-"  # of temporary names: PREFIX, digits of the worker's process, "-", cut, "-", worker
)


def name_in(worker: int) -> str:
    """Return the name of a worker's file in a checkpoint."""
    return f"worker-{worker}.local"


def adopt(folder: Path, temporary: Path, workers: Sequence[WorkerState]) -> tuple[WorkerState, ...]:
    """Link the workers' files into a checkpoint, and return the states with their new names. Blocks.

    Args:
        folder: Folder of checkpoints, with the temporary names.
        temporary: Folder of the checkpoint that is written.
        workers: States of the workers at the cut.

    Raises:
        CheckpointError: A worker could not write its file, or it is not there.
        DiskFullError: A worker could not write its file, because the disk was full.
    """
    found = []
    for state in workers:
        local = state.local
        if local is None:
            found.append(state)
            continue
        target = temporary / name_in(state.worker)
        if local.error and not (folder / local.name).exists():
            failure = FileError(local.error, local.is_full)
            raise failure.raised(
                f"worker {state.worker} could not write its local values: {local.error}"
            )
        try:
            link(folder / local.name, target)
            n_bytes = target.stat().st_size
        except OSError as error:
            raise CheckpointError(
                f"{folder / local.name}: the local values of worker {state.worker} cannot be read: "
                f"{error.strerror}; the folder of checkpoints must be visible to all workers"
            ) from None
        if n_bytes != local.n_bytes:
            raise CheckpointError(
                f"{folder / local.name}: has {n_bytes:,} bytes instead of {local.n_bytes:,}"
            )
        renamed = LocalFile(target.name, local.n_bytes, local.xxh3)
        found.append(msgspec.structs.replace(state, local=renamed))
    return tuple(found)


def link(source: Path, target: Path) -> None:
    """Give a file a second name; copy it durably where the file system has no hard links."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
        fd = os.open(target, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sweep(folder: Path, workers: Sequence[WorkerState]) -> None:
    """Remove files that workers of earlier launches have left. The caller holds the lock of the folder.

    Args:
        folder: Folder of checkpoints.
        workers: States of the workers of this job at a cut; their processes' files stay.
    """
    present = {
        state.local.name.split("-")[1] for state in workers if state.local and state.local.name
    }
    for path in folder.glob(f"{PREFIX}*"):
        if path.name.split("-")[1] not in present:
            with suppress(OSError):
                path.unlink()


def remove(folder: Path, workers: Sequence[WorkerState]) -> None:
    """Remove the temporary names of files that a published checkpoint has; not of finished workers."""
    for state in workers:
        if state.local is not None and not _is_last(state.local):
            _unlink(folder, state.local)


def remove_last(folder: Path, files: Iterable[LocalFile | None]) -> None:
    """Remove the temporary names of all workers' files when the last checkpoint is published."""
    for file in files:
        if file is not None:
            _unlink(folder, file)


def _is_last(file: LocalFile) -> bool:
    """Return True for a file of no cut: its worker has finished."""
    return file.name.startswith(PREFIX) and file.name.split("-")[2] == "0"


def _unlink(folder: Path, file: LocalFile) -> None:
    if file.name.startswith(PREFIX):
        with suppress(OSError):
            (folder / file.name).unlink()


def read(path: Path, expected: LocalFile) -> NDArray[np.uint8]:
    """Return the bytes of a worker's file.

    Args:
        path: Folder of the checkpoint.
        expected: Its description in the manifest.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    file = path / expected.name
    if file.parent != path:
        raise CheckpointError(f"{path}: names a file in another folder: {file}")
    try:
        image = np.fromfile(file, np.uint8)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
    total = _native.Xxh3()
    total.update(image)
    if len(image) != expected.n_bytes or f"{total.digest():016x}" != expected.xxh3:
        raise CheckpointError(f"{file}: the checksum does not match")
    return image


def damage(path: Path, workers: Sequence[WorkerState]) -> list[str]:
    """Return a sentence for each file of a worker that is damaged. Blocks."""
    found = []
    for state in workers:
        if state.local is not None:
            try:
                read(path, state.local)
            except CheckpointError as error:
                found.append(f"local values of worker {state.worker}: {error}")
    return found
