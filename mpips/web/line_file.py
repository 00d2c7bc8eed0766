"""Reads the lines that are added to a file of a run directory while it grows, is thinned or is replaced."""

from __future__ import annotations

import os
from pathlib import Path

from mpips.rundir.reading import open_regular

_MOST_BYTES = 4 << 20  # bytes that one call reads
_LONGEST_LINE = 16 << 20  # bytes; a longer line is no line of mpips and is skipped


class LineFile:
    """A file that another process appends whole lines to, and replaces by a rename now and then.

    A file that has been replaced has another inode or is shorter than what was read; then it is read from its
    beginning. One thread uses it at a time.

    Attributes:
        offset: Bytes that were returned as lines.
        size: Bytes of the file at the last call.
        at_end: The last call of `read` has come to the end of the file, or to an incomplete line, or the file
            could not be read: there is nothing to read before it changes.
    """

    def __init__(self, path: Path) -> None:
        """Read nothing yet. `path`: the file, which need not exist."""
        self.path = path
        self.offset = self.size = 0
        self.at_end = True
        self._inode = 0
        # Version of the file in which only an incomplete line was left; None: there is none.
        self._torn: tuple[int, int, int] | None = None
        self._head = b""  # first bytes of the file, because an inode may be used again

    def read(self) -> tuple[bool, list[bytes]]:
        """Return the next whole lines, without newlines, at most about 4 MiB of them.

        Returns:
            True if the lines begin the file anew, because it was replaced or has vanished; and the lines. A
            last line without its newline is returned by a later call, when it is complete.
        """
        try:
            fd, status = open_regular(self.path)
        except OSError:
            replaced, self.offset, self.size, self._inode = self.offset > 0, 0, 0, 0
            self.at_end, self._torn = True, None
            return replaced, []
        try:
            replaced = self._is_replaced(fd, status)
            self.size = status.st_size
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            self.at_end = self.size == self.offset or version == self._torn
            if self.at_end:
                return replaced, []
            data = os.pread(fd, _MOST_BYTES, self.offset)
            while b"\n" not in data and len(data) < min(_LONGEST_LINE, self.size - self.offset):
                data += os.pread(fd, _MOST_BYTES, self.offset + len(data)) or b"\n"
        except OSError:
            # A network file system may refuse a handle whose file has just been replaced. The next call tries
            # again; at_end lets the caller wait before it.
            self.at_end = True
            return False, []
        finally:
            os.close(fd)
        end = data.rfind(b"\n") + 1
        if not end and len(data) >= _LONGEST_LINE:
            self.offset += len(data)
            return replaced, []
        if not end:
            # Do not read it again before the file changes.
            self._torn = version
        self.offset += end
        self.at_end = not end or self.size - self.offset < _MOST_BYTES
        return replaced, data[:end].splitlines()

    def _is_replaced(self, fd: int, status: os.stat_result) -> bool:
        """Return True if what was read before is no longer the beginning of the file."""
        head = os.pread(fd, 256, 0)
        known = self._head[: len(head)]
        replaced = self.offset > 0 and (
            status.st_ino != self._inode
            or status.st_size < self.offset
            or head[: len(known)] != known
        )
        if replaced:
            self.offset, self._torn = 0, None
        self._inode, self._head = status.st_ino, head[: max(head.find(b"\n"), 0)]
        return replaced


def sample(path: Path, n: int) -> list[bytes]:
    """Return about `n` lines from places spread evenly over a file, in their order.

    It serves the first read of a long file.

    Args:
        path: The file.
        n: Number of places.
    """
    found: list[bytes] = []
    try:
        fd, status = open_regular(path)
    except OSError:
        return []
    try:
        size = status.st_size
        for i in range(n):
            parts = os.pread(fd, 2048, size * i // n).split(b"\n")
            # The first part is the end of a line, unless it is the first line of the file.
            whole = parts[1:-1] if i else parts[:-1]
            if whole and (not found or whole[0] != found[-1]):
                found.append(whole[0])
    except OSError:
        return found
    finally:
        os.close(fd)
    return found
