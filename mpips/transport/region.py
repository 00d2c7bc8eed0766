"""Regions: the shared-memory segments of a job, their names, and their removal.

A name holds the user's id and 128 random bits, so it can neither be guessed nor made beforehand by
another user; segments are created exclusively with mode 0600. Every process that maps a segment holds a
lock on it, so `sweep` can tell the segments that no living process uses
(native/src/shm/shared_memory.hpp).

Segments of a supervised run outlive its processes: the next launch takes them over. Their names say so,
and `sweep` leaves them alone until no process has touched them for a day. The run itself removes them.
All users can list the names in /dev/shm, and the 128 bits of a run are those of its first launch. So each
process adds random digits of its own to the names that it makes, `mpips-kept-UID-TOKEN.DIGITS-PART`: no
other user can take the name of a segment that a later launch will make. A segment of a run is found by
its part and its owner; files of other users that bear such names are left out everywhere.
"""

from __future__ import annotations

import os
import re
import resource
import secrets
import stat
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from mpips import _native
from mpips.errors import RegionError
from mpips.process import forked

SHM = Path("/dev/shm")
PREFIX = "mpips"
MOST_RESERVED = 1 << 40  # bytes of address space of one segment

# Bytes of address space that the embedding tables of one server share: a process has 128 TiB, and may hold
# the copy of another server as well. Rows and keys that outgrow their part move, buffers cannot.
_ROW_ADDRESSES = 16 << 40
_BUFFER_ADDRESSES = 24 << 40
_FIRST_BYTES = 64 << 20  # of shared memory that the new embedding tables of one server take
_SPARE_FILES = 256  # descriptors that a process needs beside those of its segments

_PERSISTENT_WORD = "kept"
_PERSISTENT = "k"  # first letter of a kept token; the others are hexadecimal digits
MARK = "-mark"  # ends the name of the file that says that a set of segments is complete
KEEP_S = 24 * 3600.0
TAKE_OVER_S = 2.0  # a process that was killed may hold its memory for a moment
TOUCH_S = 600.0  # how often a rank renews the modification time of the segments of its run
_REST = re.compile(r"(?:\.[0-9a-f]+)?-(.+)")  # of a name, behind user and token


def persistent(token: str) -> str:
    """The token of a job whose segments outlive it."""
    return token if token.startswith(_PERSISTENT) else _PERSISTENT + token


def is_persistent(token: str) -> bool:
    """Whether a job's segments outlive it."""
    return token.startswith(_PERSISTENT)


def new_token() -> str:
    """128 random bits as hexadecimal text; names every region of one job."""
    return secrets.token_hex(16)


def region_name(token: str, part: str, digits: str = "") -> str:
    """The segment name of one part of a job ("s0": server 0, "w3": worker 3's staging, ...).

    Args:
        token: Of the job.
        part: What lies in the segment.
        digits: Hexadecimal, of the process that makes the segment, where segments outlive the job.
    """
    dot = f".{digits}" if digits else ""
    return f"{_prefix(token)}{dot}-{part}"


def _prefix(token: str) -> str:
    if token.startswith(_PERSISTENT):
        return f"{PREFIX}-{_PERSISTENT_WORD}-{os.geteuid()}-{token.removeprefix(_PERSISTENT)}"
    return f"{PREFIX}-{os.geteuid()}-{token}"


def new_name(token: str, part: str) -> str:
    """A name for a segment of a supervised run that is to be made; no other user can know it."""
    return region_name(token, part, secrets.token_hex(8))


def is_own(path: Path) -> bool:
    """Whether a path is a regular file of this user."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode)


def own_segments(token: str) -> Iterator[tuple[str, Path]]:
    """The segments of a job on this node that belong to this user: part and path of each, sorted."""
    prefix = _prefix(token)
    for path in sorted(SHM.glob(f"{prefix}[.-]*")):
        match = _REST.fullmatch(path.name.removeprefix(prefix))
        if match is not None and is_own(path):
            yield match[1], path


def find_segment(token: str, part: str) -> Path | None:
    """The segment of one part of a job that belongs to this user, or None."""
    return next((path for name, path in own_segments(token) if name == part), None)


def token_words(token: str) -> tuple[int, int]:
    """The token as the two words that lie in the head of a region."""
    digits = token.removeprefix(_PERSISTENT)
    return int(digits[:16], 16), int(digits[16:], 16)


class EmbeddingMemory(NamedTuple):
    """Sizes of the segments of one embedding table at one server, in bytes.

    Attributes:
        first: Of the rows, and of the keys, of a new table.
        reserve: Address space of the rows, and of the keys. A table that outgrows it moves.
        buffers: Of the sparse segment of its unfinished pushes.
    """

    first: int
    reserve: int
    buffers: int


def embedding_memory(n_tables: int) -> EmbeddingMemory:
    """What each of `n_tables` embedding tables of a server gets; the same in every launch."""
    n = max(n_tables, 1)
    return EmbeddingMemory(
        first=min(1 << 20, max(1 << 16, _FIRST_BYTES // (2 * n))),
        reserve=min(MOST_RESERVED, _ROW_ADDRESSES // (2 * n)),
        buffers=min(MOST_RESERVED, _BUFFER_ADDRESSES // n),
    )


def allow_open_files(n: int) -> None:
    """Raise this process's limit of open files, if need be, so that `n` more segments can be open.

    Raises:
        RegionError: The hard limit is too small for it.
    """
    needed = n + len(os.listdir("/proc/self/fd")) + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise RegionError(
            f"the limit of open files is {hard}, but this server needs {needed}: an embedding table "
            "needs up to three; raise the hard limit (ulimit -Hn, LimitNOFILE of the batch system's "
            "daemon) or use fewer embedding tables"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def sweep(spare: str = "") -> list[str]:
    """Remove this user's segments that no process uses; returns their names.

    Args:
        spare: Token of a run; if its segments outlive a launch they stay, whatever their age.
    """
    if not SHM.is_dir():
        return []
    uid = os.geteuid()
    found = list(SHM.glob(f"{PREFIX}-{uid}-*"))
    found += [p for p in SHM.glob(f"{PREFIX}-{_PERSISTENT_WORD}-{uid}-*") if is_old(p)]
    if is_persistent(spare):
        spared = (f"{_prefix(spare)}.", f"{_prefix(spare)}-")
        found = [p for p in found if not p.name.startswith(spared)]
    return [p.name for p in sorted(found) if _native.SharedMemory.remove_if_unused(p.name)]


def is_old(path: Path) -> bool:
    """Whether no process has touched a segment of a supervised run for a day."""
    # Whatever the wall clock says, no segment is older than the machine has been up.
    if time.clock_gettime(time.CLOCK_BOOTTIME) <= KEEP_S:
        return False
    try:
        return time.time() - path.lstat().st_mtime > KEEP_S
    except FileNotFoundError:
        return False


def unlink_job(token: str) -> None:
    """Remove the names of all regions of a job on this node; mapped memory stays usable.

    For a rank that is about to die: the others may be killed before they can clean up.
    """
    for _, path in own_segments(token):
        path.unlink(missing_ok=True)


def staging_part(worker: int, generation: int) -> str:
    """The part that is a worker's staging memory, in a job whose segments outlive it."""
    return f"w{worker}-{generation}"


def unlink_staging(token: str, generation: int, keep: Container[str]) -> None:
    """Remove the names of staging memory of launches before `generation` on this node, but for `keep`.

    Each launch has its own: what it pushes must not change what is still to be read of the one before.
    """
    for part, path in own_segments(token):
        old = part.rpartition("-")[2]
        is_staging = part.startswith("w") and old.isdigit()
        if is_staging and int(old) < generation and part not in keep:
            path.unlink(missing_ok=True)


class Regions:
    """The segments that this process made for one job. Not collective; owned by the session."""

    def __init__(self, token: str, shared: bool, supervised: bool = False) -> None:
        """Nothing is made yet.

        Args:
            token: Of the job.
            shared: False: the memory is private to the process (one-process jobs).
            supervised: The token is that of earlier launches too, so other users can know it.
        """
        self.token = token
        self.shared = shared
        self._known = supervised or is_persistent(token)
        self._names: list[str] = []
        self._there: dict[str, Path] = {}  # by part, as last seen; a job has thousands of segments
        self._looked = False
        forked.register(self)

    def disown(self) -> None:
        """Leave the names to the parent of a forked child."""
        self._names.clear()

    def create(self, part: str, n_bytes: int, reserve: int = 0) -> _native.SharedMemory:
        """Make a segment with all its pages; up to `reserve` bytes it grows without moving.

        Raises:
            RegionError: /dev/shm, or this machine's memory, is too small or cannot be used.
        """
        if not self.shared:
            _check_available(n_bytes)
            with as_region_error():
                return _native.SharedMemory.anonymous(n_bytes, reserve)
        name = self._new_name(part)
        with as_region_error():
            memory = _native.SharedMemory.create(name, n_bytes, reserve)
        return self._note(name, memory)

    def create_sparse(self, part: str, n_bytes: int) -> _native.SharedMemory:
        """Make a segment whose pages are taken later by `commit`."""
        if not self.shared:
            with as_region_error():
                return _native.SharedMemory.anonymous(n_bytes, 0)
        name = self._new_name(part)
        with as_region_error():
            memory = _native.SharedMemory.create_sparse(name, n_bytes)
        return self._note(name, memory)

    def _new_name(self, part: str) -> str:
        """A name for a new segment.

        Raises:
            RegionError: The run has a segment of this part already.
        """
        if not self._known:
            return region_name(self.token, part)
        if (path := self._find(part)) is not None:
            raise RegionError(f"cannot create shared memory {path}: File exists")
        name = new_name(self.token, part)
        self._there[part] = SHM / name
        return name

    def _find(self, part: str, look: bool = False) -> Path | None:
        """Return the segment of a part that belongs to this user; `look`: also one that is new."""
        path = self._there.get(part)
        if (path is None and look) or not self._looked:
            self._looked = True
            self._there = {}
            for name, found in own_segments(self.token):
                self._there.setdefault(name, found)
            path = self._there.get(part)
        return path if path is not None and is_own(path) else None

    def reopen(self, part: str, reserve: int = 0) -> _native.SharedMemory:
        """Take over a segment that an earlier process of this job left, as if it had been made here.

        Raises:
            RegionError: It is not there, a living process uses it, or it belongs to somebody else.
        """
        path = self._find(part, look=True) if is_persistent(self.token) else None
        name = path.name if path is not None else _name_of(self.token, part)
        deadline = time.monotonic() + TAKE_OVER_S
        while True:
            with as_region_error():
                try:
                    return self._note(name, _native.SharedMemory.reopen(name, reserve))
                except _native.SharedMemoryBusy:
                    if time.monotonic() > deadline:
                        raise
            time.sleep(0.02)

    def _note(self, name: str, memory: _native.SharedMemory) -> _native.SharedMemory:
        self._names.append(name)
        if self.token.startswith(_PERSISTENT):
            memory.keep()
        return memory

    def touch(self) -> None:
        """Renew the modification time of all segments of the job on this node.

        `sweep` tells by it what a run has left behind. Staging memory of earlier launches, which records
        still point to, belongs to no living process: so every rank renews all of them.
        """
        for _, path in own_segments(self.token):
            with suppress(FileNotFoundError):
                os.utime(path)

    def leave(self) -> None:
        """Remove the names, unless they are kept for another launch."""
        if not is_persistent(self.token):
            self.unlink()

    def unlink(self) -> None:
        """Remove the names of everything made here; memory stays mapped while arrays point to it."""
        for name in self._names:
            (SHM / name).unlink(missing_ok=True)
        self._names.clear()


def _check_available(n_bytes: int) -> None:
    """Refuse memory of this process that the machine does not have: the kernel would kill it at first use.

    Raises:
        RegionError: More than is available, swap included.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return
    found = {line.partition(":")[0]: line.split()[1] for line in lines}
    available = 1024 * sum(int(found.get(name, 0)) for name in ("MemAvailable", "SwapFree"))
    if n_bytes > available > 0:
        raise RegionError(
            f"memory is too small: {n_bytes >> 20:,} MiB are needed, {available >> 20:,} MiB are available; "
            "use fewer or smaller tables, or servers on several nodes"
        )


@contextmanager
def as_region_error() -> Iterator[None]:
    """Give what the native module says of shared memory its type."""
    try:
        yield
    except _native.SharedMemoryError as error:
        raise RegionError(str(error)) from None


def attach(token: str, part: str, writable: int) -> _native.SharedMemory:
    """Map another process's segment; only its first `writable` bytes may be written.

    Raises:
        RegionError: It does not exist here, belongs to somebody else, or cannot be mapped.
    """
    with as_region_error():
        return _native.SharedMemory.attach(_name_of(token, part), writable)


def _name_of(token: str, part: str) -> str:
    """The name of a segment that should be there."""
    name = region_name(token, part)
    if not is_persistent(token) and is_own(SHM / name):
        return name
    path = find_segment(token, part)
    return path.name if path is not None else name
