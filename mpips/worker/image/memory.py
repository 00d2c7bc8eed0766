"""The memory in which one worker keeps, over a launch, what no server has.

    64 bytes    a magic number, and the generation number of the last launch that used the memory
    residuals   for each table with such a codec, and each server that has a part of it: a line with two tags,
    two
                halves (native/src/ring/feedback.hpp)
    image       tables under LocalSGD and DiLoCo: a line with two tags, two halves with an image each

The memory is a persistent shared-memory file on the worker's node. Without later launches it is private: the
residuals have one half then, which is changed in place, and there is no image.

Halves and tags. Two halves are written in turn. A tag names the place in the worker's program after which a
half holds. It is removed before the half changes, and stored when the half is complete. Writers and readers:
one worker writes, and after the end of its process one worker of a later launch reads and goes on writing. So
no order between threads matters, and the end of a process keeps the order of its stores: a half with a tag is
complete. The places differ. A residual changes with each push to its server, so its tag is the number
of a record of that push, and native code writes the half while it encodes (mpips.worker.feedback.residuals).
Local training changes with each inner step, and may be repeated from each outer step.

Images. The worker writes the state after outer step number n (clock n of the servers) into half n % 2, with
the tag n + 1, before any server gets the tick of that step. So a launch that ends at any place leaves the
image of the clock at which the worker continues: the greatest of its clocks over all servers, or, where a
server lacks pushes, the least (mpips.recovery.memory). The image of the next clock may also be there; it
stays until the worker writes that clock again (mpips.worker.local.tables).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpips import _native
from mpips.checkpoint.worker_image import Bytes, Image, PartImage, pieces, read_image
from mpips.errors import RegionError
from mpips.model.placement import Placement
from mpips.model.table import DenseTable, Table
from mpips.worker.feedback.residuals import HEAD_BYTES, residual_layout
from mpips.worker.local.state import local_image_bytes

_MAGIC = 0x324547414D49  # "IMAGE2"
_TAGS_BYTES = 64


class WorkerBytes(NamedTuple):
    """The size of a worker's memory, and its parts.

    Attributes:
        n_bytes: Size of the memory; 0: the worker needs none.
        halves: Halves of each residual.
        image_at: Offset of the tags of images.
        image_bytes: Bytes of an image; 0: the memory has no images.
    """

    n_bytes: int
    halves: int
    image_at: int
    image_bytes: int


def worker_bytes(
    tables: Sequence[Table], placement: Placement, local: Sequence[DenseTable], warm: bool
) -> WorkerBytes:
    """Return the size of a worker's memory.

    Args:
        tables: All tables of the job as servers have them.
        placement: Shards of each server.
        local: Its tables under LocalSGD and DiLoCo, with the inner rules.
        warm: The memory outlives a launch.
    """
    halves = 2 if warm else 1
    n_bytes = residual_layout(tables, placement, halves)[1]
    image_at = n_bytes or HEAD_BYTES
    image = local_image_bytes(local) if warm and local else 0
    if image:
        n_bytes = image_at + _TAGS_BYTES + 2 * image
    return WorkerBytes(n_bytes, halves, image_at, image)


class WorkerMemory:
    """The memory of one worker, new or of an earlier launch; see the module."""

    def __init__(self, memory: _native.SharedMemory, size: WorkerBytes) -> None:
        """Use memory of this size.

        Raises:
            RegionError: The memory is smaller.
        """
        if memory.n_bytes < size.n_bytes:
            raise RegionError(
                f"the memory of a worker has {memory.n_bytes:,} bytes instead of {size.n_bytes:,}"
            )
        self.memory, self.size = memory, size
        self._head = memory.view(0, HEAD_BYTES, True).view(np.uint64)
        self.images = (
            ImageHalves(memory, size.image_at, size.image_bytes) if size.image_bytes else None
        )

    @property
    def generation(self) -> int:
        """Generation number of the last launch that used the memory; -1: none has."""
        return int(self._head[1]) if int(self._head[0]) == _MAGIC else -1

    def mark(self, generation: int) -> None:
        """Store the generation number of the launch that uses the memory."""
        self._head[1] = generation
        self._head[0] = _MAGIC


class ImageHalves:
    """The two images in a worker's memory; see the module. Not thread-safe."""

    def __init__(self, memory: _native.SharedMemory, offset: int, n_bytes: int) -> None:
        """Take the part of the memory from `offset` on; `n_bytes` is the most that an image has."""
        whole: Bytes = memory.view(offset, _TAGS_BYTES + 2 * n_bytes, True)
        self._tags = whole[:16].view(np.uint64)
        first = whole[_TAGS_BYTES:]
        self._halves = first[:n_bytes], first[n_bytes:]
        self._memory = memory  # the arrays refer to it

    def holds(self, clock: int) -> bool:
        """Return True if the image of this clock is there and complete."""
        return int(self._tags[clock % 2]) == clock + 1

    def read(self, clock: int) -> dict[str, PartImage]:
        """Return the image of a clock that `holds` has found; its arrays are views of the memory."""
        return read_image(self._halves[clock % 2])

    def write(self, clock: int, image: Image) -> None:
        """Write the image of a clock over that of two clocks before."""
        half, at = self._halves[clock % 2], 0
        self._tags[clock % 2] = 0
        _native.fault_point("local-saving")
        for piece in pieces(image):
            half[at : at + len(piece)] = piece
            at += len(piece)
        self._tags[clock % 2] = clock + 1
