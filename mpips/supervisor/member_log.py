"""The bound of the log of a member of [producers].

A program writes into its log by itself, so no program waits for a reader. All writes append (O_APPEND), so
the file may be shortened at any time. A log that has become too long is cut in place: the beginning stays,
where a program prints its parameters, and the end, where the cause of a failure is. A line between them has
the number of missing bytes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_PIECE = 1 << 20  # bytes that are moved at a time
_CUT = re.compile(rb"^--- (\d{1,18}) bytes were cut here \(producers\.log_mib\)\n", re.M)
_MOST_CUT = 80  # bytes of that line, at most


def cut_line(n: int) -> bytes:
    """Return the line in place of `n` bytes."""
    return b"--- %d bytes were cut here (producers.log_mib)\n" % n


def cut_log(path: Path, most: int) -> bool:
    """Cut a log that has more than `most` bytes: its first quarter and its last half are left.

    Both consist of whole lines, unless a line is longer than a quarter. Text that programs print meanwhile
    belongs to the end; only text of the microseconds before the last call may be lost.

    Args:
        path: The log; other processes append to it.
        most: Bytes, 1 KiB or more; 0: no bound.

    Returns:
        True if it was cut.

    Raises:
        OSError: The file cannot be read or written.
    """
    if not most:
        return False
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size <= most:
            return False
        _cut(fd, size, most)
    finally:
        os.close(fd)
    return True


def _cut(fd: int, size: int, most: int) -> None:
    beginning = os.pread(fd, most // 4 + _MOST_CUT, 0)
    earlier = _CUT.search(beginning)  # a program may print such lines behind it
    before = b""
    if earlier is not None:
        head, cut = earlier.start(), int(earlier[1]) - (earlier.end() - earlier.start())
    else:
        head, cut = beginning.rfind(b"\n", 0, most // 4) + 1, 0
        if head == 0:
            head, before = most // 4, b"\n"
    # The end begins with a line.
    at = size - most // 2
    at += max(os.pread(fd, most // 4, at - 1).find(b"\n"), 0)
    to = _write(fd, before + cut_line(cut + at - head), head)
    # Move the end. A program that prints faster than this moves loses its newest lines.
    end = at + 2 * most
    while at < end and (piece := os.pread(fd, _PIECE, at)):
        at += len(piece)
        to = _write(fd, piece, to)
    os.ftruncate(fd, to)


def _write(fd: int, data: bytes, at: int) -> int:
    """Write all of `data` at a place; return the place after it."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, at)
        view, at = view[n:], at + n
    return at
