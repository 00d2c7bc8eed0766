"""The folder of checkpoints: names, listing, lock, and publication of a new checkpoint.

checkpoints/
    step-000000001234     complete; written under a temporary name and renamed once
    step-000000001234.2   a second checkpoint of the same step, written after a restart from an earlier one
    latest                a symbolic link to the checkpoint that was published last, for users
    .writing-...          being written, or left by a writer that failed
    .removing-...         being removed, or left by a process that failed
    .lock                 locked by the one process that writes or removes

Only names that begin with "step-" are read. The lock is the kernel's (flock), so the kernel releases it when
its owner exits for any reason. The owner of the lock may therefore remove everything that begins with
.writing- or .removing-.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from mpips.checkpoint.manifest import CHANGES, MANIFEST, STATE
from mpips.errors import CheckpointError, ConfigError
from mpips.process import forked
from mpips.process.path_text import check_path_text

FOLDER = "checkpoints"
LATEST = "latest"
_LOCK = ".lock"
_WRITING = ".writing-"
_REMOVING = ".removing-"
_POINTING = ".latest-"
_NAME = re.compile(r"step-(\d{12,19})(?:\.([1-9]\d{0,8}))?")
# Errors of file systems without flock. There, only the lease of the run prevents two writers at a time.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class CheckpointName(msgspec.Struct, frozen=True):
    """A published checkpoint: its path, its step, and its number (1, ...) among those of the same step."""

    path: Path
    step: int
    attempt: int


def parse_name(path: Path) -> CheckpointName | None:
    """Return the parts of a published checkpoint's name, or None for any other path."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    return CheckpointName(path, int(match[1]), int(match[2] or 1))


def list_checkpoints(folder: Path) -> list[CheckpointName]:
    """Return all published checkpoints, damaged ones too, sorted by step and attempt.

    Raises:
        ConfigError: The folder cannot be read.
    """
    try:
        found = [parse_name(path) for path in folder.iterdir()]
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from None
    names = [name for name in found if name is not None]
    return sorted(names, key=lambda name: (name.step, name.attempt))


def check_writable(name: str, folder: Path, make: bool) -> None:
    """Check that checkpoints can be written into a folder, as far as this process can tell.

    Args:
        name: Name of the option that has the folder, for the error.
        folder: The folder, which need not exist.
        make: Make it: a file system can refuse that although the access rights allow it.

    Raises:
        ConfigError: It is not a folder, cannot be made, or cannot be written to, or its name is not UTF-8.
    """
    check_path_text(folder, name)
    path = folder.absolute()
    try:
        if make:
            path.mkdir(parents=True, exist_ok=True)
        existing = next(one for one in (path, *path.parents) if one.exists())
        reason = "" if os.access(existing, os.W_OK | os.X_OK) else "it cannot be written to"
        if not existing.is_dir():
            reason = f"{existing} is not a folder"
    except OSError as error:
        reason = str(error.strerror)
    if reason:
        raise ConfigError(
            f"{name} = {str(folder)!r}: {reason}; name a folder that all hosts can write to"
        )


def find_folder(path: Path) -> Path:
    """Return the folder of checkpoints for a user's path: the path itself, or the folder of a run there.

    Raises:
        ConfigError: There is no such folder.
    """
    if (path / FOLDER).is_dir():
        return path / FOLDER
    if path.is_dir() and (path.name == FOLDER or list_checkpoints(path)):
        return path
    if not path.is_dir():
        raise ConfigError(f"no folder '{path}'; give the folder of a run, or its {FOLDER!r} folder")
    raise ConfigError(
        f"no checkpoints in '{path}'; give the folder of a run, or its {FOLDER!r} folder"
    )


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Blocking."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FolderLock:
    """The lock of a folder, for a process that writes or removes checkpoints; held until `release`."""

    def __init__(self, folder: Path) -> None:
        """Acquire the lock. Not blocking.

        Raises:
            CheckpointError: Another process has the lock.
            OSError: The folder cannot be written to.
        """
        self._fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        forked.register(self)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            self.release()
            if error.errno != errno.EWOULDBLOCK:
                raise
            raise CheckpointError(
                f"{folder}: another process is writing or removing checkpoints there; end it, or use "
                "another folder"
            ) from None

    def disown(self) -> None:
        """Close the inherited descriptor in a forked child, which would hold the lock as long as it runs."""
        self.release()

    def release(self) -> None:
        """Release the lock; no effect when repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder within the block; errors are those of `FolderLock`."""
    lock = FolderLock(folder)
    try:
        yield
    finally:
        lock.release()


def leftovers(folder: Path) -> list[Path]:
    """Return temporary files in a folder; if no process holds the lock, failed processes have left them."""
    prefixes = (_WRITING, _REMOVING, _POINTING)
    return sorted(p for p in folder.iterdir() if p.name.startswith(prefixes))


def sweep(folder: Path) -> list[str]:
    """Remove what failed processes have left, and return the names. The caller holds the lock."""
    left = leftovers(folder)
    for path in left:
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    return [path.name for path in left]


def make_temporary(folder: Path, step: int) -> Path:
    """Create and return a folder in which a checkpoint is written. The caller holds the lock."""
    path = folder / f"{_WRITING}{step:012d}-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    return path


def publish(temporary: Path, step: int) -> Path:
    """Rename a complete checkpoint durably, and return its new path. The caller holds the lock. Blocking.

    The rename turns the folder into a checkpoint, so everything in it must be durable before. An existing
    checkpoint of the same step remains, and the new one gets the next number.

    Raises:
        CheckpointError: No number is free.
        OSError: The folder cannot be renamed or synced.
    """
    folder = temporary.parent
    for attempt in range(1, 1_000_000):
        target = folder / (f"step-{step:012d}" + (f".{attempt}" if attempt > 1 else ""))
        if target.exists():
            continue
        os.rename(temporary, target)
        sync_folder(folder)
        return target
    raise CheckpointError(
        f"{folder}: contains too many checkpoints of step {step}; remove some by `mpips ckpt prune`"
    )


def point_latest(target: Path) -> None:
    """Make `latest` a link to this checkpoint, atomically and durably."""
    new = target.parent / f"{_POINTING}{uuid.uuid4().hex[:8]}"
    os.symlink(target.name, new)
    try:
        os.replace(new, target.parent / LATEST)
    except OSError:
        new.unlink()
        raise
    sync_folder(target.parent)


def check_place(out: Path) -> None:
    """Raise ConfigError for a path in a checkpoint."""
    for folder in (Path(os.path.realpath(out.parent)) / out.name).parents:
        if (folder / MANIFEST).is_file() and any((folder / n).is_file() for n in (STATE, CHANGES)):
            raise ConfigError(f"{out}: lies in the checkpoint {folder}; name a place outside")


@contextlib.contextmanager
def written_elsewhere(out: Path, step: int) -> Iterator[tuple[Path, Path]]:
    """Write a checkpoint outside of a run: it is complete and durable, or it is not there. Blocking.

    Args:
        out: Folder to make: the checkpoint itself, or an existing folder in which it gets its own name.
        step: Step of the checkpoint.

    Yields:
        An empty temporary folder, which the block fills, and the path that it gets at the end of the block.

    Raises:
        ConfigError: The path exists already, lies in a checkpoint, or cannot be written. An OSError of the
            block that has a number is raised as this error.
        OSError: The block has raised one without a number, as HDF5 does.
    """
    path = out
    try:
        path = out / f"step-{step:012d}" if out.is_dir() else out
        if os.path.lexists(path):
            raise ConfigError(f"{path}: already exists; remove it, or name another folder")
        check_place(path)
        # The name is short, because that of the result may be the longest that the file system has.
        new = path.parent / f".making-{uuid.uuid4().hex[:8]}"
        try:
            new.mkdir()
            yield new, path
            sync_folder(new)
            os.replace(new, path)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        sync_folder(path.absolute().parent)
    except OSError as error:
        if error.errno is None:
            raise
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def remove(path: Path) -> None:
    """Remove a checkpoint. It is renamed first, so that a partly removed one is never read."""
    away = path.parent / f"{_REMOVING}{path.name}-{uuid.uuid4().hex[:8]}"
    os.rename(path, away)
    shutil.rmtree(away)
