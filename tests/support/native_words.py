"""Words inside objects of the native module that no function sets: for tests that begin near their limit."""

from __future__ import annotations

import ctypes

from mpips._native import RowMap


def set_generation(rows: RowMap, n_clears: int) -> None:
    """Change a small empty row map as after `n_clears` calls of `clear`.

    A pybind11 object has the pointer to its C++ object behind Python's own two words. The last words of a
    RowMap are shift and generation, 32 bits each, and its size (native/src/keys/row_map.hpp).
    """
    n_bytes = rows.memory_bytes() % 64 or 64
    pointer = ctypes.c_void_p.from_address(id(rows) + 16).value
    assert pointer is not None
    size = ctypes.c_uint64.from_address(pointer + n_bytes - 8)
    generation = ctypes.c_uint32.from_address(pointer + n_bytes - 12)
    shift = ctypes.c_uint32.from_address(pointer + n_bytes - 16)
    # A map of one page has 64 buckets.
    assert (size.value, generation.value % 8, shift.value) == (0, 0, 64 - 6)
    generation.value = n_clears * 8 % 2**32
