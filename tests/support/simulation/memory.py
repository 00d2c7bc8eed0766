"""Shared memory that outlives a launch, in one process: that of several nodes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from mpips import _native
from mpips.errors import RegionError
from mpips.process import forked
from mpips.recovery import replica_memory
from mpips.recovery.exchange import remove_exchange
from mpips.server import server as server_module
from mpips.session import startup
from mpips.transport import region
from mpips.transport.region import SHM, EmbeddingMemory, Regions, is_own, own_segments, unlink_job
from simulation.world import World

_numbers = itertools.count()
OPEN_FILES = 4000  # of one history at most, beside those that earlier ones have left open


def files_of(pid: int) -> list[Path]:
    """Return the files in /dev/shm that simulations of a process have made."""
    return list(SHM.glob(f"mpips-kept-{os.geteuid()}-{pid:08x}*"))


class Node:
    """The shared memory of one node: files of real names. They stay when a launch ends.

    Each node has a token of its own, so that it does not see the files of others.

    Files have no owner, because one process is all launches: memory to which a dead actor still refers is in
    use for as long as this process lives.
    """

    def __init__(self) -> None:
        self.token = f"k{os.getpid():08x}{next(_numbers):024x}"

    def remove(self) -> None:
        """Remove all files, as the loss of the node does."""
        unlink_job(self.token)
        remove_exchange(self.token)

    @property
    def n_files(self) -> int:
        """Number of its files."""
        return len(list(own_segments(self.token)))


class SimulatedRegions(Regions):
    """`Regions` of a rank."""

    world: World  # set by `simulated_memory`

    def create(self, part: str, n_bytes: int, reserve: int = 0) -> _native.SharedMemory:
        """Make memory, all zero, which takes pages where it is used."""
        if not self.shared:
            return super().create(part, n_bytes, reserve)
        path = SHM / self._new_name(part)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(fd, max(n_bytes, 1))
        os.close(fd)
        return _native.SharedMemory.attach(path.name, 1 << 62)

    def create_sparse(self, part: str, n_bytes: int) -> _native.SharedMemory:
        """Make memory."""
        return self.create(part, n_bytes)

    def reopen(self, part: str, reserve: int = 0) -> _native.SharedMemory:
        """Return the memory that an earlier launch has left.

        Raises:
            RegionError: There is none.
        """
        path = self._find(part, look=True)
        if path is None or not is_own(path):
            raise RegionError(f"the file of {part} is not there")
        return _native.SharedMemory.attach(path.name, 1 << 62)

    def unlink_part(self, part: str) -> None:
        """Remove a file; not while a killed launch is unwound: a killed process removes nothing."""
        if not self.world.ending:
            super().unlink_part(part)

    def leave(self) -> None:
        """Leave all files."""


def _nothing(*_: object, **__: object) -> None:
    pass


@contextmanager
def simulated_memory(world: World) -> Iterator[None]:
    """Within this context start-up makes memory of the simulation, and that of embedding tables is small."""
    sizes = EmbeddingMemory(first=1 << 16, reserve=1 << 16, buffers=1 << 20)
    assert region.embedding_memory(1).first > sizes.first
    region.allow_open_files(OPEN_FILES)
    regions: Any = type("WorldRegions", (SimulatedRegions,), {"world": world})
    with ExitStack() as stack:
        for patch in (
            mock.patch.object(server_module, "embedding_memory", return_value=sizes),
            mock.patch.object(startup, "Regions", regions),
            mock.patch.object(startup, "sweep", _nothing),
            # Actors that died have the files of their launch open.
            mock.patch.object(replica_memory, "_lock", _nothing),
            # One process has the files of all ranks open, and forks none.
            mock.patch.object(server_module, "allow_open_files", _nothing),
            mock.patch.object(forked, "register", _nothing),
            mock.patch.object(forked, "forget", _nothing),
        ):
            stack.enter_context(patch)
        yield
