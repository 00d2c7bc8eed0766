"""The distance of cores: the time in which a changed cache line goes from one to another."""

from __future__ import annotations

import os
import threading

import numpy as np

from mpips import _native

# The least of some short parts counts: other programs may interrupt one of the cores.
_PARTS, _CALLS = 20, 50
_LIMIT_S = 2.0


def round_trip(first: int, second: int) -> float:
    """Return the seconds in which a flag goes from one core to another and back. Blocks for some seconds.

    Args:
        first: A core that this process may use.
        second: Another one.

    Raises:
        RuntimeError: A core did not run its thread.
        OSError: A core cannot be used.
    """
    memory = np.zeros(24, np.uint64)
    start = -memory.ctypes.data % 64 // 8
    words = memory[start : start + 16]
    found: list[float] = []
    errors: list[Exception] = []

    def run(core: int, is_first: bool) -> None:
        try:
            os.sched_setaffinity(0, {core})  # of this thread
            for _ in range(_PARTS):
                found.append(_native.flag_round_trip(words, is_first, _CALLS, _LIMIT_S))
        except (OSError, RuntimeError) as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=a) for a in ((first, True), (second, False))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return min(found)


def measure(cores: list[int]) -> dict[tuple[int, int], float]:
    """Return the round trips from the first core to the second, the middle and the last one, in seconds."""
    others = {cores[1], cores[len(cores) // 2], cores[-1]} if len(cores) > 1 else set()
    return {(cores[0], other): round_trip(cores[0], other) for other in sorted(others)}
