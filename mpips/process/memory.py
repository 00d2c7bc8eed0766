"""The memory of this process and of its node, as /proc and /dev/shm show it."""

from __future__ import annotations

import os

_PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes


def heap_bytes() -> int:
    """Return the memory of this process that lies in RAM and is shared with no other; 0: unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared = file.read().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE


def shared_memory_bytes(folder: str = "/dev/shm") -> tuple[int, int]:
    """Return the bytes in use in the file system of shared memory, and its size; (0, 0): unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0, 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize
