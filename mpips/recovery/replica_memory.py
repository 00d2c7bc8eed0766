"""Sets of segments that belong together: list, mark, link and remove them, or move them to another node.

A set consists of the region of a server or of a copy, `<set>`, and its other segments, `<set>-...`.
Everything here works on the files in /dev/shm, so no process needs to map a set to move it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from mpips.errors import RegionError
from mpips.process.patience import Patience
from mpips.transport.region import (
    MARK,
    SHM,
    TAKE_OVER_S,
    find_segment,
    new_name,
    own_segments,
    region_name,
)

if TYPE_CHECKING:
    from mpi4py import MPI

_NEEDED = "-journal"  # suffix of the segment without which a set is useless
_UNFINISHED = f"{MARK}.new"  # suffix of a mark while it is written
_CHUNK_BYTES = 4 << 20  # bytes of one message
_TAG = 1
_PATTERN = re.compile(r"(?:s(\d+)|r(\d+)g\d+)$")


class CallGuard(Protocol):
    """The type of mpips.mpi.watchdog.Watchdog.guard, without an import of MPI."""

    def __call__(self, what: str) -> AbstractContextManager[None]:
        """Return a context for one call; `what` names the call in the error."""


class Held(NamedTuple):
    """A complete set on a node: index of its server, launch that served from it, and name."""

    server: int
    generation: int
    name: str

    @property
    def is_copy(self) -> bool:
        """True if the set is a copy at a partner."""
        return self.name.startswith("r")


def own_set(server: int) -> str:
    """Return the name of a server's own set."""
    return f"s{server}"


def copy_set(server: int, generation: int) -> str:
    """Return the name of the copy of a server that a launch makes."""
    return f"r{server}g{generation}"


def held(token: str) -> list[Held]:
    """Return the marked sets of a run on this node."""
    found = []
    paths = dict(own_segments(token))
    for part, path in sorted(paths.items()):
        name = part.removesuffix(MARK)
        match = _PATTERN.match(name)
        if name == part or match is None or name + _NEEDED not in paths:
            continue
        text = path.read_text()
        if text.isdigit():
            found.append(Held(int(match[1] or match[2]), int(text), name))
    return found


def mark(token: str, name: str, generation: int) -> None:
    """Write the mark of a set: it is complete, and launch `generation` serves from it.

    The mark replaces an older one atomically.

    Raises:
        RegionError: /dev/shm is full.
    """
    path = find_segment(token, name + MARK) or _new_path(token, name + MARK)
    new = _new_path(token, name + _UNFINISHED)
    try:
        _remove_part(token, name + _UNFINISHED)
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(str(generation))
        os.replace(new, path)
    except OSError as error:
        raise RegionError(f"{path}: {error.strerror}") from None


def remove(token: str, name: str) -> None:
    """Remove a set; its mark goes first, so that a partly removed set is not valid."""
    _remove_part(token, name + MARK)
    for suffix in _suffixes(token, name):
        _remove_part(token, name + suffix)
    _remove_part(token, name + _UNFINISHED)


def remove_all_but(token: str, keep: set[str]) -> None:
    """Remove all sets of a run on this node, complete or incomplete, except those in `keep`."""
    for name in {part.partition("-")[0] for part, _ in own_segments(token)}:
        if _PATTERN.match(name) and name not in keep:
            remove(token, name)


def link(token: str, source: str, target: str) -> None:
    """Give a set a second name by hard links; an older set of that name is removed.

    Raises:
        RegionError: The set does not exist, or /dev/shm is full.
    """
    remove(token, target)
    try:
        for suffix in _suffixes(token, source):
            os.link(_path(token, source + suffix), _new_path(token, target + suffix))
    except OSError as error:
        raise RegionError(f"memory {source}: {error.strerror}") from None


def send(
    comm: MPI.Intracomm, rank: int, token: str, name: str, alone: bool, guard: CallGuard
) -> None:
    """Send a set byte for byte to a rank that calls `receive`. Blocking.

    Args:
        comm: Communicator on which nothing else uses the tags.
        rank: Rank of the receiver.
        token: Token of the run.
        name: Name of the set.
        alone: Raise RegionError if a running process uses the set.
        guard: Context in which a call that never returns ends the process.

    Raises:
        RegionError: The set does not exist or is in use; `receive` also raises it.
    """
    files: list[tuple[str, int]] = []
    error = ""
    # Open and lock all segments before anything is sent.
    try:
        for suffix in _suffixes(token, name):
            files.append((suffix, os.open(_path(token, name + suffix), os.O_RDWR | os.O_CLOEXEC)))
        if not files:
            error = "it is not there"
        for _, fd in files if alone else ():
            _lock(fd)
    except OSError as failure:
        error = failure.strerror or str(failure)
    # Send the list of segments or the error, then the parts of each segment that contain data.
    try:
        sizes = [] if error else [(s, *_shape(fd)) for s, fd in files]
        with guard(f"sending memory {name} to rank {rank}"):
            comm.send((error, sizes), rank, _TAG)
        if error:
            raise RegionError(f"memory {name}: {error}")
        for (_, fd), (_, _, _, extents) in zip(files, sizes, strict=True):
            for start, stop in _chunks(extents):
                with guard(f"sending memory {name} to rank {rank}"):
                    comm.Send(_read(fd, start, stop), rank, _TAG)
    finally:
        for _, fd in files:
            os.close(fd)


def receive(comm: MPI.Intracomm, rank: int, token: str, name: str, guard: CallGuard) -> None:
    """Create a set from what `rank` sends, without a mark; an older set of that name is removed. Blocking.

    The arguments are those of `send`.

    Raises:
        RegionError: The sender has no such set, or there is no room here. Everything that was sent has been
            received nevertheless, so the sender does not block.
    """
    remove(token, name)
    with guard(f"receiving memory {name} from rank {rank}"):
        error, sizes = comm.recv(source=rank, tag=_TAG)
    if error:
        raise RegionError(f"memory {name}: {error}")
    failure = ""
    # Receive everything, even after a failure: the sender sends everything.
    for suffix, size, whole, extents in sizes:
        fd = -1
        try:
            path = _new_path(token, name + suffix)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.ftruncate(fd, size)
            if whole:
                os.posix_fallocate(fd, 0, size)
        except OSError as problem:
            failure = failure or f"{suffix}: {problem.strerror}"
        for start, stop in _chunks(extents):
            data = np.empty(stop - start, np.uint8)
            with guard(f"receiving memory {name} from rank {rank}"):
                comm.Recv(data, rank, _TAG)
            failure = failure or _write(fd, data, start)
        if fd >= 0:
            os.close(fd)
    if failure:
        remove(token, name)
        raise RegionError(
            f"memory {name} from rank {rank} cannot be stored here: {failure}; enlarge /dev/shm of this "
            "host, or set redundancy.partner = false"
        )


def _path(token: str, part: str) -> Path:
    """Return the path of a segment; if it does not exist, a path for the error."""
    return find_segment(token, part) or SHM / region_name(token, part)


def _new_path(token: str, part: str) -> Path:
    """Return the path of a segment that is to be made."""
    return SHM / new_name(token, part)


def _remove_part(token: str, part: str) -> None:
    for name, path in own_segments(token):
        if name == part:
            path.unlink(missing_ok=True)


def _suffixes(token: str, name: str) -> list[str]:
    """Return what follows the set's name in the names of its segments; the region's, which is "", first."""
    found = [part for part, _ in own_segments(token) if part == name or part.startswith(f"{name}-")]
    return sorted(s for s in (part.removeprefix(name) for part in found) if not s.startswith(MARK))


def _lock(fd: int) -> None:
    wait = Patience(TAKE_OVER_S)
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait.is_over:
                raise OSError(errno.EBUSY, "a running process uses it") from None
        time.sleep(0.02)


def _shape(fd: int) -> tuple[int, bool, list[tuple[int, int]]]:
    """Return a file's length in bytes, True if all its pages are allocated, and the ranges that hold data."""
    status = os.fstat(fd)
    extents, at = [], 0
    while at < status.st_size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        at = os.lseek(fd, start, os.SEEK_HOLE)
        extents.append((start, at))
    return status.st_size, status.st_blocks * 512 >= status.st_size, extents


def _chunks(extents: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for start, stop in extents:
        for at in range(start, stop, _CHUNK_BYTES):
            yield at, min(at + _CHUNK_BYTES, stop)


def _read(fd: int, start: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    data = np.zeros(stop - start, np.uint8)
    at = 0
    while at < data.size and (n := os.preadv(fd, [data.data[at:]], start + at)):
        at += n
    return data


def _write(fd: int, data: np.ndarray[tuple[int], np.dtype[np.uint8]], start: int) -> str:
    """Write data at an offset; return the error, "" if it did not fail."""
    at = 0
    try:
        while at < data.size:
            at += os.pwrite(fd, data.data[at:], start + at)
    except OSError as error:
        return error.strerror or str(error)
    return ""
