"""Regions: the shared-memory segments of a job, their names, and their removal.

A name holds the user's id and 128 random bits, so it can neither be guessed nor made beforehand by
somebody else; segments are created exclusively with mode 0600. Whoever maps a segment holds a lock on
it, so `sweep` can tell the segments that no living process uses (native/src/ring/shared_memory.hpp).

Segments of a supervised run outlive its processes: the next launch takes them over. Their names say so,
and `sweep` leaves them alone until nobody has touched them for a day. The run itself removes them.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpips import _native
from mpips.errors import RegionError

SHM = Path("/dev/shm")
PREFIX = "mpips"
EMBEDDING_RESERVE = 1 << 40  # address space per embedding table and server; memory comes as rows do


_KEPT_WORD = "kept"
_KEPT = "k"  # first letter of a kept token; the others are hexadecimal digits
MARK = "-mark"  # ends the name of the file that says that a set of segments is complete
KEEP_S = 24 * 3600.0
TAKE_OVER_S = 2.0  # a process that was killed may hold its memory for a moment
TOUCH_S = 600.0  # how often a server says that its segments are in use


def kept(token: str) -> str:
    """The token of a job whose segments outlive it."""
    return token if token.startswith(_KEPT) else _KEPT + token


def is_kept(token: str) -> bool:
    """Whether a job's segments outlive it."""
    return token.startswith(_KEPT)


def new_token() -> str:
    """128 random bits as hexadecimal text; names every region of one job."""
    return secrets.token_hex(16)


def region_name(token: str, part: str) -> str:
    """The segment name of one part of a job ("s0": server 0, "w3": worker 3's staging, ...)."""
    if token.startswith(_KEPT):
        return f"{PREFIX}-{_KEPT_WORD}-{os.geteuid()}-{token.removeprefix(_KEPT)}-{part}"
    return f"{PREFIX}-{os.geteuid()}-{token}-{part}"


def token_words(token: str) -> tuple[int, int]:
    """The token as the two words that lie in the head of a region."""
    digits = token.removeprefix(_KEPT)
    return int(digits[:16], 16), int(digits[16:], 16)


def sweep() -> list[str]:
    """Remove this user's segments that no process uses; returns their names."""
    if not SHM.is_dir():
        return []
    uid = os.geteuid()
    found = list(SHM.glob(f"{PREFIX}-{uid}-*"))
    found += [p for p in SHM.glob(f"{PREFIX}-{_KEPT_WORD}-{uid}-*") if _is_old(p)]
    return [p.name for p in sorted(found) if _native.SharedMemory.remove_if_unused(p.name)]


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > KEEP_S
    except FileNotFoundError:
        return False


def unlink_job(token: str) -> None:
    """Remove the names of all regions of a job on this node; mapped memory stays usable.

    For a rank that is about to die: the others may be killed before they can clean up.
    """
    for path in SHM.glob(region_name(token, "*")):
        path.unlink(missing_ok=True)


def staging_part(worker: int, generation: int) -> str:
    """The part that is a worker's staging memory, in a job whose segments outlive it."""
    return f"w{worker}-{generation}"


def unlink_staging(token: str, generation: int, keep: Container[str]) -> None:
    """Remove the names of staging memory of launches before `generation` on this node, but for `keep`.

    Each launch has its own: what it pushes must not change what is still to be read of the one before.
    """
    prefix = region_name(token, "")
    for path in SHM.glob(region_name(token, "w*-*")):
        part = path.name.removeprefix(prefix)
        old = part.rpartition("-")[2]
        if old.isdigit() and int(old) < generation and part not in keep:
            path.unlink(missing_ok=True)


class Regions:
    """The segments that this process made for one job. Not collective; owned by the session."""

    def __init__(self, token: str, shared: bool) -> None:
        """With `shared` False the memory is private to the process (one-process jobs)."""
        self.token = token
        self.shared = shared
        self._names: list[str] = []

    def create(self, part: str, n_bytes: int, reserve: int = 0) -> _native.SharedMemory:
        """Make a segment with all its pages; it grows in place up to `reserve` bytes.

        Raises:
            RegionError: /dev/shm is too small or cannot be used.
        """
        if not self.shared:
            with as_region_error():
                return _native.SharedMemory.anonymous(n_bytes, reserve)
        name = region_name(self.token, part)
        with as_region_error():
            memory = _native.SharedMemory.create(name, n_bytes, reserve)
        return self._note(name, memory)

    def create_sparse(self, part: str, n_bytes: int) -> _native.SharedMemory:
        """Make a segment whose pages are taken later by `commit`."""
        if not self.shared:
            with as_region_error():
                return _native.SharedMemory.anonymous(n_bytes, 0)
        name = region_name(self.token, part)
        with as_region_error():
            memory = _native.SharedMemory.create_sparse(name, n_bytes)
        return self._note(name, memory)

    def reopen(self, part: str, reserve: int = 0) -> _native.SharedMemory:
        """Take over a segment that an earlier process of this job left, as if it had been made here.

        Raises:
            RegionError: It is not there, a living process uses it, or it belongs to somebody else.
        """
        name = region_name(self.token, part)
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
        if self.token.startswith(_KEPT):
            memory.keep()
        return memory

    def touch(self) -> None:
        """Say that the segments are in use: `sweep` tells by their age what a run has left behind."""
        for name in self._names:
            for path in (SHM / name, SHM / f"{name}{MARK}"):
                with suppress(FileNotFoundError):
                    os.utime(path)

    def leave(self) -> None:
        """Remove the names, unless they are kept for another launch."""
        if not is_kept(self.token):
            self.unlink()

    def unlink(self) -> None:
        """Remove the names of everything made here; memory stays mapped while arrays point to it."""
        for name in self._names:
            (SHM / name).unlink(missing_ok=True)
        self._names.clear()


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
        return _native.SharedMemory.attach(region_name(token, part), writable)
