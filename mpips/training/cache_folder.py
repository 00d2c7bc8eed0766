"""The folder of a cache while it is written: its lock, and the removal of what killed jobs have left.

Worker 0 of a job that converts holds a shared lock on the file `.lock` in the folder of its cache, from
before the first piece to behind the index; the kernel releases it when the process ends for any reason. A
folder without an index that no process has locked belongs to no job. Two jobs may write the same cache at a
time: both have the lock, and write the same files.

A job that removes a folder has its lock alone while it renames it. A job that has waited for the lock, or got
it behind the rename, sees that `.lock` is no longer the file that it has locked, and makes the folder anew.

Some file systems have locks within one node only, or none. So a folder is removed or emptied only if, in
addition, nothing in it has changed for an hour.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
import uuid
from pathlib import Path

from mpips.data.stream.cache import INDEX

_LOCK = ".lock"
_REMOVING = ".removing-"
_KEY = re.compile(r"[0-9a-f]{16}")
_QUIET_S = 3600.0  # s without a change, after which a folder that nobody has locked is removed


class CacheFolder:
    """The folder of a cache that this process writes; it has the lock until `release`."""

    def __init__(self, folder: Path) -> None:
        """Make the folder if it is not there, and lock it. Blocks only while another job empties it.

        Files that a killed job has left in it are removed, unless it has changed lately or another job writes
        there.

        Raises:
            OSError: The folder cannot be made.
        """
        self._fd = -1
        while not self._lock(folder):
            self.release()

    def _lock(self, folder: Path) -> bool:
        """Lock the folder; return False if another job has removed it meanwhile."""
        folder.mkdir(parents=True, exist_ok=True)
        is_quiet = _is_quiet(folder)
        try:
            self._fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return False
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_quiet and _is_at(folder, self._fd):
                _empty(folder)
        # File systems without locks refuse; then the folder is protected by its recent changes.
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):
            os.utime(folder / _LOCK)
        return _is_at(folder, self._fd)

    def release(self) -> None:
        """Release the lock; no effect when repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def remove_orphans(root: Path) -> list[Path]:
    """Remove the folders of caches that killed jobs have not completed; return them. Not collective.

    Args:
        root: Folder of caches; it need not exist. Other things in it are not touched.
    """
    removed = []
    with contextlib.suppress(OSError):
        for folder in sorted(root.iterdir()):
            if _KEY.fullmatch(folder.name) and _remove(folder):
                removed.append(folder)
            elif folder.name.startswith(_REMOVING) and _is_quiet(folder):
                shutil.rmtree(folder, ignore_errors=True)
    return removed


def _remove(folder: Path) -> bool:
    """Remove a folder that has no index, is not locked and has not changed for long."""
    if _has_index(folder) or not _is_quiet(folder):
        return False
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _has_index(folder):
            return False
        # Nobody finds half of the folder under its name.
        away = folder.parent / f"{_REMOVING}{folder.name}-{uuid.uuid4().hex[:8]}"
        folder.rename(away)
    except OSError:
        return False
    finally:
        os.close(lock)
    shutil.rmtree(away, ignore_errors=True)
    return True


def _is_quiet(folder: Path) -> bool:
    """Return True if nothing in a folder has changed for long."""
    try:
        if folder.is_symlink() or not folder.is_dir():
            return False
        newest = max(entry.lstat().st_mtime for entry in (folder, *folder.iterdir()))
    except OSError:
        return False
    return time.time() - newest >= _QUIET_S


def _has_index(folder: Path) -> bool:
    """Return True if a cache is complete, perhaps for another version of mpips, or cannot be examined."""
    try:
        (folder / INDEX).lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _is_at(folder: Path, fd: int) -> bool:
    """Return True if an open lock is the one in the folder."""
    try:
        return os.path.samestat(os.stat(folder / _LOCK), os.fstat(fd))
    except OSError:
        return False


def _empty(folder: Path) -> None:
    """Remove the pieces in a folder that has no index. The caller has the lock alone."""
    if _has_index(folder):
        return
    for entry in folder.iterdir():
        # Unfinished files have a random text behind their ending: .000001-0000.npz-1f2e3d4c
        if entry.suffix in (".npz", ".json") or "-" in entry.suffix:
            entry.unlink(missing_ok=True)
