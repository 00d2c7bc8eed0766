"""Reads files of a run directory that may be anything: a folder of runs is written by others, too.

In place of a file there may be a pipe, which blocks whoever opens it, a link to a device without an end, or
JSON so deep that decoding it exhausts the stack. All of these are errors here, and none costs more than a
bounded time and memory.
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


def open_regular(path: Path, links: bool = True) -> tuple[int, os.stat_result]:
    """Open a regular file for reading, without ever waiting for a writer.

    Args:
        path: The file.
        links: It may be a link to a regular file.

    Returns:
        Descriptor and state of the file. The caller closes the descriptor.

    Raises:
        OSError: There is no such file, it is no regular file, or it may not be read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(path, flags if links else flags | os.O_NOFOLLOW)
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
