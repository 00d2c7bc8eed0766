"""Regions: the shared-memory segments of a job, their names, and their removal.

A name holds the user's id and 128 random bits, so it can neither be guessed nor made beforehand by
somebody else; segments are created exclusively with mode 0600. Whoever maps a segment holds a lock on
it, so `sweep` can tell the segments that no living process uses (native/src/ring/shared_memory.hpp).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpips import _native
from mpips.errors import RegionError

SHM = Path("/dev/shm")
PREFIX = "mpips"
EMBEDDING_RESERVE = 1 << 40  # address space per embedding table and server; memory comes as rows do


def new_token() -> str:
    """128 random bits as hexadecimal text; names every region of one job."""
    return secrets.token_hex(16)


def region_name(token: str, part: str) -> str:
    """The segment name of one part of a job ("s0": server 0, "w3": worker 3's staging, ...)."""
    return f"{PREFIX}-{os.geteuid()}-{token}-{part}"


def token_words(token: str) -> tuple[int, int]:
    """The token as the two words that lie in the head of a region."""
    return int(token[:16], 16), int(token[16:], 16)


def sweep() -> list[str]:
    """Remove this user's segments that no process uses; returns their names."""
    removed = []
    for path in sorted(SHM.glob(f"{PREFIX}-{os.geteuid()}-*")) if SHM.is_dir() else []:
        if _native.SharedMemory.remove_if_unused(path.name):
            removed.append(path.name)
    return removed


def unlink_job(token: str) -> None:
    """Remove the names of all regions of a job on this node; mapped memory stays usable.

    For a rank that is about to die: the others may be killed before they can clean up.
    """
    for path in SHM.glob(f"{PREFIX}-{os.geteuid()}-{token}-*"):
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
        self._names.append(name)
        return memory

    def create_sparse(self, part: str, n_bytes: int) -> _native.SharedMemory:
        """Make a segment whose pages are taken later by `commit`."""
        if not self.shared:
            with as_region_error():
                return _native.SharedMemory.anonymous(n_bytes, 0)
        name = region_name(self.token, part)
        with as_region_error():
            memory = _native.SharedMemory.create_sparse(name, n_bytes)
        self._names.append(name)
        return memory

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
