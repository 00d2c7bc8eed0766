"""Memory for the values of a streamed model: blocks that serve one layer after the other.

malloc would not do. It cuts small pieces, such as saved activations, out of memory that a layer has left, so
that the next layer no longer fits there, and in the course of a forward pass the heap grows by the whole
model. Blocks are mapped apart from the heap. Their pages stay mapped while they wait for the next layer.

A block is free again when the last tensor that refers to its memory is gone: torch then drops the NumPy array
behind the tensor, and a finalizer of that array puts the block back. All blocks together never exceed what
was in use at one time: free blocks are unmapped before a new one would do so.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import weakref
from collections.abc import Sequence

import numpy as np
import torch

_FROM_BYTES = 1 << 18  # smaller tensors come from torch's own allocator
_PAGE = mmap.PAGESIZE

_M_MMAP_THRESHOLD = -3  # of mallopt in glibc


def map_large_allocations() -> None:
    """Let malloc map large memory apart from its heap, and unmap it when it is freed, for this process.

    Gradients are allocated by torch. glibc would take them from the heap after the first ones, where each one
    that is freed can be too small for the next: aligned memory needs a little more than it has in the end.
    Without effect where the C library has no mallopt.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _FROM_BYTES)


class Blocks:
    """Blocks of memory. Not thread-safe."""

    def __init__(self) -> None:
        """Map nothing yet."""
        self._free: list[mmap.mmap] = []
        self._in_use = 0  # bytes
        self._most_in_use = 0  # bytes

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor with any values, of dense strides.

        Raises:
            MemoryError: There is no memory for it.
        """
        # Autograd refuses memory that was made within torch.inference_mode, and a block may stay longer.
        with torch.inference_mode(False):
            return self._empty(size, stride, dtype)

    def _empty(
        self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        n_bytes = math.prod(size) * dtype.itemsize
        if n_bytes < _FROM_BYTES:
            return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
        block = self._block(-(-n_bytes // _PAGE) * _PAGE)
        array = np.frombuffer(block, np.uint8, n_bytes)
        self._in_use += len(block)
        self._most_in_use = max(self._most_in_use, self._in_use)
        weakref.finalize(array, self._put_back, block).atexit = False
        return torch.from_numpy(array).view(dtype).as_strided(size, stride)

    def _block(self, n_bytes: int) -> mmap.mmap:
        """Return a free block of n_bytes or, where it wastes little, more; else map a new one."""
        fitting = [block for block in self._free if n_bytes <= len(block) <= n_bytes * 9 // 8]
        if fitting:
            block = min(fitting, key=len)
            self._free.remove(block)
            return block
        most = max(self._most_in_use, self._in_use + n_bytes)
        while self._free and self._in_use + sum(map(len, self._free)) + n_bytes > most:
            self._free.pop(0)
        try:
            return mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"cannot map {n_bytes} bytes: {error}") from None

    def _put_back(self, block: mmap.mmap) -> None:
        self._in_use -= len(block)
        self._free.append(block)
