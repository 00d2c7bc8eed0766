"""Files of workers in a checkpoint: the image of each worker (mpips.checkpoint.worker_image).

Each worker writes its file into the folder of checkpoints, under a temporary name, before its cut record,
which describes the file: name, size, checksum. So all files are there when the rings of all workers are held.
Server 0 links them into the checkpoint before that gets its name, and the manifest has their descriptions.

A finished worker has written its last file. Every later checkpoint of the launch contains it, so its
temporary name stays until the last one is published. If the worker could not write it, for example on a full
disk, it tries again under the same name until the job ends (mpips.worker.image.files). Its position has the
failure of the first time; the file counts as soon as it is there.

Writers and readers. One worker writes a file and gives it its name when it is complete and durable. Server 0
reads descriptions from cut records, which it receives after that; it only links and removes names. A name has
random digits of the worker's process and the number of the cut, so no file is written twice with other bytes.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from mpips import _native
from mpips.checkpoint.file_error import FileError
from mpips.checkpoint.manifest import MANIFEST, ImageFile, Manifest, WorkerState
from mpips.checkpoint.worker_image import (
    WORDS_BYTES,
    Image,
    ImageLayout,
    PartHead,
    PartImage,
    head_end,
    layout_of,
    older_local_layout,
    older_residual_layout,
    pieces,
    read_image,
)
from mpips.errors import CheckpointError

LAST = 0  # number of the cut at the end of a job
# Temporary names: digits of the worker's process, cut, worker. Files of two other kinds have waited for
# checkpoints of format 2.
_WAITING = re.compile(r"\.worker-([0-9a-f]+)-(\d+)-(\d+)(?:\.new)?")
_OLDER = re.compile(r"\.(?:local|residual)-.*")


def name_in(worker: int) -> str:
    """Return the name of a worker's file in a checkpoint."""
    return f"worker-{worker:05d}.image"


def new_digits() -> str:
    """Return the digits of a worker's process, for `temporary_name`."""
    return secrets.token_hex(6)


def temporary_name(digits: str, number: int, worker: int) -> str:
    """Return the name of a worker's file for a cut, until a checkpoint has it."""
    return f".worker-{digits}-{number}-{worker}"


def write_file(folder: Path, name: str, image: Image) -> ImageFile:
    """Write an image as a file of the folder of checkpoints, durably. Blocks.

    The file gets its name when it is complete: a checkpoint may have a link to an earlier one of this name.

    Returns:
        The description of the file, with the failure if it could not be written; there is no file then.
    """
    path, new, total, n_bytes = folder / name, folder / f"{name}.new", _native.Xxh3(), 0
    parts = list(pieces(image))
    for piece in parts:
        total.update(piece)
        n_bytes += len(piece)
    described = ImageFile(name, n_bytes, f"{total.digest():016x}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new.open("wb") as file:
            for piece in parts:
                file.write(piece.data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        failure = FileError.of(error)
        text = f"{path}: {error.strerror or failure.text}"
        return msgspec.structs.replace(described, error=text, is_full=failure.is_full)
    return described


def adopt(
    folder: Path, temporary: Path, workers: Sequence[WorkerState], finished: Path | None = None
) -> tuple[WorkerState, ...]:
    """Link the workers' files into a checkpoint, and return the states with their new names. Blocks.

    Args:
        folder: Folder of checkpoints, with the temporary names.
        temporary: Folder of the checkpoint that is written.
        workers: States of the workers at the cut.
        finished: Folder with the files of workers that have finished; None: `folder`.

    Raises:
        CheckpointError: A worker has written no file, but others have; or its file is not there.
        DiskFullError: A worker could not write its file, because the disk was full.
    """
    lacking = [state.worker for state in workers if not state.files]
    if 0 < len(lacking) < len(workers):
        raise CheckpointError(f"worker {lacking[0]} has written no image, but other workers have")

    def place(file: ImageFile) -> Path:
        match = _WAITING.fullmatch(file.name)
        return finished if finished is not None and match and int(match[2]) == LAST else folder

    return tuple(
        msgspec.structs.replace(
            state,
            files=tuple(_adopt(place(f), temporary, state.worker, f) for f in state.files),
        )
        for state in workers
    )


def _adopt(folder: Path, temporary: Path, worker: int, file: ImageFile) -> ImageFile:
    source, target = folder / file.name, temporary / name_in(worker)
    if file.error and not source.exists():
        failure = FileError(file.error, file.is_full)
        raise failure.raised(f"worker {worker} could not write its image: {file.error}")
    try:
        _link(source, target)
        n_bytes = target.stat().st_size
    except OSError as error:
        raise CheckpointError(
            f"{source}: the image of worker {worker} cannot be read: {error.strerror}; the folder of "
            "checkpoints must be visible to all workers"
        ) from None
    if n_bytes != file.n_bytes:
        raise CheckpointError(f"{source}: has {n_bytes:,} bytes instead of {file.n_bytes:,}")
    return msgspec.structs.replace(file, name=target.name, error="", is_full=False)


def _link(source: Path, target: Path) -> None:
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
    present = {m[1] for s in workers for f in s.files if (m := _WAITING.fullmatch(f.name))}
    for path in folder.iterdir():
        found = _WAITING.fullmatch(path.name)
        if (found and found[1] not in present) or _OLDER.fullmatch(path.name):
            with suppress(OSError):
                path.unlink()


def remove(folder: Path, workers: Sequence[WorkerState]) -> None:
    """Remove the temporary names of files that a published checkpoint has; not of finished workers."""
    for file in (file for state in workers for file in state.files):
        match = _WAITING.fullmatch(file.name)
        if match and int(match[2]) != LAST:
            with suppress(OSError):
                (folder / file.name).unlink()


def discard(folder: Path) -> None:
    """Remove all files that wait for a checkpoint, after the last one. Blocks; on server 0."""
    sweep(folder, ())


def read(path: Path, file: ImageFile) -> dict[str, PartImage]:
    """Return the parts of the image in a worker's file. Blocks.

    Args:
        path: Folder of the checkpoint.
        file: Its description in the manifest.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    place = _place(path, file)
    try:
        data = np.fromfile(place, np.uint8)
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be read: {error.strerror}") from None
    total = _native.Xxh3()
    total.update(data)
    if (f"{total.digest():016x}", len(data)) != (file.xxh3, file.n_bytes):
        raise CheckpointError(f"{place}: the checksum does not match")
    return read_image(data, _layout(file, data[: head_end(data[:8].tobytes())].tobytes()))


def read_heads(path: Path, state: WorkerState) -> dict[str, PartHead]:
    """Return the heads of the parts in a worker's files, by part. Blocks; arrays are not read.

    Raises:
        CheckpointError: A file cannot be read, or has no head.
    """
    found = {}
    for described in state.files:
        place, first = _place(path, described), b""
        try:
            with place.open("rb") as file:
                if not described.tables:
                    first = file.read(WORDS_BYTES)
                    first += file.read(min(head_end(first), described.n_bytes))
        except OSError as error:
            raise CheckpointError(f"{place}: cannot be read: {error.strerror}") from None
        found.update({part.name: part for part in _layout(described, first).parts})
    return found


def read_worker(path: Path, state: WorkerState) -> dict[str, PartImage]:
    """Return the parts of a worker's image in a checkpoint, without arrays that another worker has. Blocks.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    found = {}
    for file in state.files:
        for name, part in read(path, file).items():
            own = {key: array for key, array in part.arrays.items() if key not in file.without}
            found[name] = part._replace(arrays=own)
    return found


def _place(path: Path, file: ImageFile) -> Path:
    """Return the path of a file of a checkpoint.

    Raises:
        CheckpointError: The manifest names a file elsewhere.
    """
    place = path / file.name
    if place.parent != path or place.name in ("", ".."):
        raise CheckpointError(f"{path}: names a file in another folder: {place}")
    return place


def _layout(file: ImageFile, first: bytes) -> ImageLayout:
    if file.tables:
        return older_residual_layout(file.tables)
    return older_local_layout(first) if file.name.endswith(".local") else layout_of(first)


def names(manifest: Manifest, where: Path) -> list[str]:
    """Return the names of the workers' files in a checkpoint.

    Args:
        manifest: Manifest of the checkpoint.
        where: File or folder with the manifest, for errors.

    Raises:
        CheckpointError: A name leads to another folder, or is that of another file of the checkpoint.
    """
    files = [file for worker in manifest.workers for file in worker.files]
    found = [file.name for file in files if file.name and not file.error]
    everything = [MANIFEST, manifest.file.name, *found]
    for name in everything:
        plain = name not in ("", "..") and Path(name).name == name
        if not plain or everything.count(name) > 1:
            raise CheckpointError(f"{where}: {name!r} is not a name of a file in the checkpoint")
    return found


def damage(path: Path, workers: Sequence[WorkerState]) -> list[str]:
    """Return a sentence for each file of a worker that is damaged. Blocks."""
    found = []
    for state in workers:
        for file in state.files:
            try:
                read(path, file)
            except CheckpointError as error:
                found.append(f"image of worker {state.worker}: {error}")
    return found
