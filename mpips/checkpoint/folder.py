"""Folders of checkpoints: names, what is there, how one is made and published.

checkpoints/
    step-000000001234     complete; made under a temporary name and renamed once
    step-000000001234.2   a second one of the same step (a restart got there again)
    latest                a symbolic link to the one published last, for people
    .writing-...          being written, or left by a writer that died
    .removing-...         being removed
    .lock                 held by the one process that writes or removes

A name that does not begin with "step-" is never read. The lock is the kernel's (flock), so that a
dead writer holds none; whoever has it may remove what begins with .writing- and .removing-.
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
from dataclasses import dataclass
from pathlib import Path

from mpips.errors import CheckpointError, ConfigError
from mpips.process import forked

FOLDER = "checkpoints"
LATEST = "latest"
_LOCK = ".lock"
_WRITING = ".writing-"
_REMOVING = ".removing-"
_POINTING = ".latest-"
_NAME = re.compile(r"step-(\d{12,19})(?:\.([1-9]\d{0,8}))?")
# File systems without flock: one writer at a time is then up to the run's own lease.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True)
class CheckpointName:
    """A published folder: the step in its name, and which one of that step (1, 2, ...)."""

    path: Path
    step: int
    attempt: int


def parse_name(path: Path) -> CheckpointName | None:
    """The name of a published checkpoint, or None."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    return CheckpointName(path, int(match[1]), int(match[2] or 1))


def list_checkpoints(folder: Path) -> list[CheckpointName]:
    """All published checkpoints, by step and attempt, whether good or not.

    Raises:
        ConfigError: The folder cannot be read.
    """
    try:
        found = [parse_name(path) for path in folder.iterdir()]
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from None
    names = [name for name in found if name is not None]
    return sorted(names, key=lambda name: (name.step, name.attempt))


def find_folder(path: Path) -> Path:
    """The folder of checkpoints that a user means: itself, or a run's.

    Raises:
        ConfigError: There is none.
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
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FolderLock:
    """The right to write into a folder and to remove from it; held until `release`."""

    def __init__(self, folder: Path) -> None:
        """Take it at once.

        Raises:
            CheckpointError: Another process has it.
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
                f"{folder}: another process is writing or removing checkpoints there"
            ) from None

    def disown(self) -> None:
        """Leave the lock to the parent: in a forked child it would last as long as the child."""
        self.release()

    def release(self) -> None:
        """Give it back; harmless when repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder."""
    lock = FolderLock(folder)
    try:
        yield
    finally:
        lock.release()


def leftovers(folder: Path) -> list[Path]:
    """What a dead writer has left, if nobody holds the lock."""
    prefixes = (_WRITING, _REMOVING, _POINTING)
    return sorted(p for p in folder.iterdir() if p.name.startswith(prefixes))


def sweep(folder: Path) -> list[str]:
    """Remove what dead writers have left; the names. The caller holds the lock."""
    left = leftovers(folder)
    for path in left:
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    return [path.name for path in left]


def make_temporary(folder: Path, step: int) -> Path:
    """A new folder to write a checkpoint in. The caller holds the lock."""
    path = folder / f"{_WRITING}{step:012d}-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    return path


def publish(temporary: Path, step: int) -> Path:
    """Give a complete checkpoint its name, durably; the new path. What was there stays.

    The rename is what makes it a checkpoint. All in it must be durable already.
    """
    folder = temporary.parent
    for attempt in range(1, 1_000_000):
        target = folder / (f"step-{step:012d}" + (f".{attempt}" if attempt > 1 else ""))
        if target.exists():
            continue
        os.rename(temporary, target)
        sync_folder(folder)
        return target
    raise CheckpointError(f"{folder}: holds too many checkpoints of step {step}")


def point_latest(target: Path) -> None:
    """Let `latest` be a link to this checkpoint, atomically."""
    new = target.parent / f"{_POINTING}{uuid.uuid4().hex[:8]}"
    os.symlink(target.name, new)
    try:
        os.replace(new, target.parent / LATEST)
    except OSError:
        new.unlink()
        raise
    sync_folder(target.parent)


def remove(path: Path) -> None:
    """Remove a checkpoint: first its name, so that nobody takes half of it for a whole."""
    away = path.parent / f"{_REMOVING}{path.name}-{uuid.uuid4().hex[:8]}"
    os.rename(path, away)
    shutil.rmtree(away)
