"""Staging memory of one worker: shared with the servers of its node, which read updates in it in place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.transport.region import as_region_error

Float32 = NDArray[np.float32]


class Staging:
    """The worker's end of its staging memory. Memory is reserved for good, in whole cache lines.

    Attributes:
        memory: The memory; None: this worker has none.
    """

    def __init__(self, memory: _native.SharedMemory | None) -> None:
        """Nothing of `memory` is reserved yet."""
        self.memory = memory
        self._used = 0  # bytes

    def reserve(self, n_bytes: int, share: float) -> int | None:
        """Return the offset of `n_bytes` new bytes; None if more than `share` of the memory would be in use.

        Raises:
            RegionError: /dev/shm has too little room.
        """
        if self.memory is None:
            return None
        whole_lines = -(-n_bytes // _native.LINE_BYTES) * _native.LINE_BYTES
        if self._used + whole_lines > share * self.memory.n_bytes:
            return None
        with as_region_error():
            self.memory.commit(self._used, whole_lines)
        offset = self._used
        self._used += whole_lines
        return offset

    def offset_of(self, array: Float32) -> int | None:
        """Return the offset of an array that lies wholly in staging memory, else None."""
        if self.memory is None:
            return None
        offset = array.ctypes.data - self.memory.address
        if 0 <= offset <= self.memory.n_bytes - array.nbytes:
            return int(offset)
        return None
