"""Reads files of a run directory that may be anything: other users may also write into a folder of runs.

The path of a file may name a pipe, which blocks the process that opens it, a device without an end, or a
symbolic link to another user's file. The content may be JSON that is nested too deeply to be decoded. All of
these are errors here, and each costs a bounded time and memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import msgspec

MOST_BYTES = (
    64 << 20
)  # bytes of a file that is read as a whole; those of a run have a few MB at most
MOST_END_BYTES = 1 << 20  # of a log, where a stack or the last lines are

# What decoding a damaged file or line raises; RecursionError: it is nested too deeply.
DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def open_regular(path: Path, within: Path | None = None) -> tuple[int, os.stat_result]:
    """Open a regular file for reading, without ever waiting for a writer.

    A file that is itself a symbolic link is refused, and so is a link in place of a folder between `within`
    and the file, because who reads a run may read files that its owner may not. The path of `within` itself
    may lead through links, such as one to a run directory on a larger disk. Every folder is opened relative
    to the one above it, so a folder that is replaced by a link meanwhile is also refused.

    Args:
        path: The file.
        within: The run directory, a folder above the file; None: the folder of the file.

    Returns:
        Descriptor and state of the file. The caller closes the descriptor.

    Raises:
        OSError: There is no such file, it is not a regular file, it may not be read, or there is a link.
        ValueError: `path` does not lie below `within`.
    """
    fd = _open_below(path, within, os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def names_in(folder: Path, within: Path) -> list[str]:
    """Return the names of the files and folders in a folder, sorted; empty if it does not exist.

    Args:
        folder: The folder.
        within: The run directory, above the folder.

    Raises:
        OSError: It is not a folder, it may not be read, or it or a folder above it is a symbolic link.
    """
    try:
        fd = _open_below(folder, within, os.O_DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        return sorted(os.listdir(fd))
    finally:
        os.close(fd)


def _open_below(path: Path, within: Path | None, flags: int) -> int:
    """Open a file or folder for reading; no part of its path below `within` may be a link."""
    if within is None:
        return _open_at(None, str(path), os.O_RDONLY | flags, path)
    *folders, name = path.relative_to(within).parts
    if ".." in (*folders, name):
        raise ValueError(f"{path}: does not lie below {within}")
    above = os.open(within, os.O_PATH | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = _open_at(above, folder, os.O_PATH | os.O_DIRECTORY, path)
            os.close(above)
            above = below
        return _open_at(above, name, os.O_RDONLY | flags, path)
    finally:
        os.close(above)


def _open_at(above: int | None, name: str, flags: int, path: Path) -> int:
    """Open a part of `path` in the folder with the descriptor `above`, unless it is a link."""
    try:
        return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        # A link in place of a folder is ENOTDIR.
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(above, name):
            text = "is a symbolic link, which mpips does not follow in a run directory"
            raise OSError(errno.ELOOP, text, str(path)) from None
        if above is None:
            raise
        # Name the whole path, not its part.
        raise OSError(error.errno, error.strerror, str(path)) from None


def _is_link(above: int | None, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except OSError:
        return False


def read_regular(path: Path, most: int = MOST_BYTES, within: Path | None = None) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file.
        most: Bytes that it may have.
        within: As in `open_regular`.

    Raises:
        OSError: There is no such file, it is not a regular file, it is longer, or it may not be read.
    """
    fd, _ = open_regular(path, within)
    with os.fdopen(fd, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"has more than {most} bytes", str(path))
    return content


def end_of(path: Path, most: int = MOST_END_BYTES, within: Path | None = None) -> str:
    """Return the last part of a regular file as text; "" if it cannot be read.

    A log may have grown for months. Bytes that are not UTF-8 are replaced.

    Args:
        path: The file.
        most: Bytes that are read, at most.
        within: As in `open_regular`.
    """
    try:
        fd, status = open_regular(path, within)
    except OSError:
        return ""
    try:
        return os.pread(fd, most, max(status.st_size - most, 0)).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
