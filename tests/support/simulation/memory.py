"""Shared memory that outlives a launch, in one process."""

from __future__ import annotations

import itertools
import os
from typing import Any
from unittest import mock

from mpips import _native
from mpips.errors import RegionError
from mpips.server import server as server_module
from mpips.transport import region
from mpips.transport.region import SHM, EmbeddingMemory, Regions

_numbers = itertools.count()


class Node:
    """The shared-memory files of one node. They stay when a launch ends.

    They have no owner, because one process is all launches: memory to which a dead actor still refers is in
    use for as long as this process lives.

    Attributes:
        files: Names in /dev/shm by part.
    """

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self._name = f"mpips-simulation-{os.getpid()}-{next(_numbers)}"

    def make(self, part: str, n_bytes: int) -> _native.SharedMemory:
        """Return new memory, all zero, which takes pages where it is used.

        Raises:
            RegionError: There is a file of this part already.
        """
        if part in self.files:
            raise RegionError(f"a file of {part} is there already")
        name = self.files[part] = f"{self._name}-{next(_numbers)}-{part}"
        fd = os.open(SHM / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(fd, max(n_bytes, 1))
        os.close(fd)
        return self.open(part)

    def open(self, part: str) -> _native.SharedMemory:
        """Return the memory of a part.

        Raises:
            RegionError: There is none.
        """
        if part not in self.files:
            raise RegionError(f"the file of {part} is not there")
        return _native.SharedMemory.attach(self.files[part], 1 << 62)

    def copy_of(self, server: int) -> dict[str, bytes]:
        """Return the content of a server's files by part."""
        own = (f"s{server}", f"s{server}-")
        mine = [part for part in self.files if part == own[0] or part.startswith(own[1])]
        return {part: (SHM / self.files[part]).read_bytes() for part in mine}

    def restore(self, copy: dict[str, bytes]) -> None:
        """Give files the content that they had at a copy. No live actor may use them."""
        for part, content in copy.items():
            (SHM / self.files[part]).write_bytes(content)

    def remove(self) -> None:
        """Remove all files."""
        for name in self.files.values():
            (SHM / name).unlink()
        self.files = {}


class NodeRegions(Regions):
    """`Regions` of a launch on a node of the simulation."""

    def __init__(self, node: Node) -> None:
        super().__init__("51" * 16, shared=False)
        self.node = node

    def create(self, part: str, n_bytes: int, reserve: int = 0) -> _native.SharedMemory:
        """Make memory."""
        return self.node.make(part, n_bytes)

    def create_sparse(self, part: str, n_bytes: int) -> _native.SharedMemory:
        """Make memory."""
        return self.node.make(part, n_bytes)

    def reopen(self, part: str, reserve: int = 0) -> _native.SharedMemory:
        """Return the memory that an earlier launch has left."""
        return self.node.open(part)


def small_tables() -> Any:
    """Within this context the memory of an embedding table begins small."""
    sizes = EmbeddingMemory(first=1 << 16, reserve=1 << 16, buffers=1 << 20)
    assert region.embedding_memory(1).first > sizes.first
    return mock.patch.object(server_module, "embedding_memory", return_value=sizes)
