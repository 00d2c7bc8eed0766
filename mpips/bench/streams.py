"""Memory bandwidth of one core: simple loops in C++, the best of all instruction sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mpips.bench import loops
from mpips.bench.launching import Options
from mpips.bench.measure import Figure, Findings, measure_alternately, rates

Float32 = NDArray[np.float32]
Works = dict[str, Callable[[], object]]  # by instruction set
CALLS = 3


def in_place_streams(x: Float32) -> Works:
    """Return `x *= 1` by instruction set; each work changes `x` in place."""
    return {name: partial(loops.stream_in_place, x, 1.0, name) for name in loops.stream_names()}


def best_of(seconds: Sequence[Sequence[float]], n_bytes: int) -> list[float]:
    """Return GB/s of the fastest work, by repetition.

    Args:
        seconds: For each work its times in seconds, as `measure_alternately` returns them.
        n_bytes: Bytes that each work moves.
    """
    return rates([min(times) for times in zip(*seconds, strict=True)], n_bytes / 1e9)


def measure_streams(memory: Float32, options: Options) -> Findings:
    """Measure copy, sum, triad, the in-place stream and the memory traffic of updates, for `mpips plan`.

    Args:
        memory: float32, shape (4 n,), aligned to 64 bytes, n a multiple of 16; changed. The in-place stream
            uses all of it, the other loops use quarters.
        options: Repetitions.
    """
    a, b, c, _ = memory.reshape(4, -1)
    names, past = loops.stream_names(), loops.stream_names(past_cache=True)
    line = a.nbytes
    # name -> (description, bytes that one call moves, one work for each instruction set)
    kinds: dict[str, tuple[str, int, list[Callable[[], object]]]] = {
        "memory_in_place": ("x *= a", 8 * line, list(in_place_streams(memory).values())),
        "memory_copy": (
            "memcpy, bytes copied (each is read and written)",
            line,
            [partial(loops.stream_copy, a, c)],
        ),
        "memory_sum": (
            "dst += src",
            3 * line,
            [partial(loops.stream_sum, a, c, name) for name in names],
        ),
        "memory_triad": (
            "a = b + s * c",
            3 * line,
            [partial(loops.stream_triad, a, b, c, 0.5, False, name) for name in names],
        ),
        "memory_triad_past_cache": (
            "a = b + s * c with non-temporal stores",
            3 * line,
            [partial(loops.stream_triad, a, b, c, 0.5, True, name) for name in past],
        ),
        "memory_touch_one_state": (
            "w += g, s += g: the traffic of an update with one state",
            5 * line,
            [partial(loops.stream_touch, a, [b], c, name) for name in names],
        ),
    }
    works = [work for _, _, some in kinds.values() for work in some]
    times = iter(measure_alternately(works, [CALLS] * len(works), options.repetitions))
    found = Findings()
    for name, (what, n_bytes, some) in kinds.items():
        values = best_of([next(times) for _ in some], n_bytes) if some else []
        if values:
            found.figures.append(Figure(name=name, what=what, unit="GB/s", values=values))
    return found
