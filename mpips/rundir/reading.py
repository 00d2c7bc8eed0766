"""Reads files of a run directory that may be anything: a folder of runs is written by others, too.

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

# What decoding a damaged file or line raises; RecursionError: it is nested too deeply.
DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def open_regular(path: Path) -> tuple[int, os.stat_result]:
    """Open a regular file for reading, without ever waiting for a writer.

    The path may lead through links to folders, such as a run directory on a larger disk. A file that is
    itself a symbolic link is refused, because who reads a run may read files that its owner may not.

    Args:
        path: The file.

    Returns:
        Descriptor and state of the file. The caller closes the descriptor.

    Raises:
        OSError: There is no such file, it is no regular file, or it may not be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            text = "is a symbolic link, which mpips does not follow in a run directory"
            raise OSError(errno.ELOOP, text, str(path)) from None
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def read_regular(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Args:
        path: The file.
        most: Bytes that it may have.

    Raises:
        OSError: There is no such file, it is no regular file, it is longer, or it may not be read.
    """
    fd, _ = open_regular(path)
    with os.fdopen(fd, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"has more than {most} bytes", str(path))
    return content
