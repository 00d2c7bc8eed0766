"""The suite `kernels`: optimizers and memory, in one process on one core.

Arrays have the layout of a server's region: they are consecutive in shared memory, and each starts on a page.
So all of them have the same address modulo 64 KiB (and larger powers of two), which is the worst case for
caches. The measurement of each rule alternates with `x *= a` over the same memory, which is the loop that
changes memory with the least work. All such loops are in C++ for each instruction set, and the fastest one
counts.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mpips import kernels
from mpips.bench import loops
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings, measure_alternately, rates
from mpips.model.optimizer import OPTIMIZERS

Float32 = NDArray[np.float32]
Works = dict[str, Callable[[], object]]  # by instruction set

RULES = ("adam", "sgd", "adagrad", "ftrl")
LEARNING_RATE = 1e-4
N_PARAMETERS = 1 << 24
N_PARAMETERS_QUICK = 1 << 16
CALLS = 3


class Shard:
    """Values, two states and a gradient of n parameters, float32, with the layout of a server's region.

    Attributes:
        whole: The memory of all four, shape (4 n,).
        values: Random weights, shape (n,).
        states: Two states, shape (2, n).
        gradient: Random, shape (n,).
    """

    def __init__(self, n: int) -> None:
        self.whole: Float32 = np.frombuffer(mmap.mmap(-1, 16 * n), np.float32)
        self.values, *_, self.gradient = self.whole.reshape(4, n)
        self.states = self.whole.reshape(4, n)[1:3]
        rng = np.random.default_rng(1)
        self.values[:] = rng.standard_normal(n, np.float32)
        self.gradient[:] = rng.standard_normal(n, np.float32) * np.float32(0.01)

    def update(self, rule: str) -> Callable[[], object]:
        """Return a function that makes one update by a rule, and give its states their initial values."""
        config = OPTIMIZERS[rule](lr=LEARNING_RATE).native()
        states = self.states[: config.n_state]
        for k, state in enumerate(states):
            state[:] = config.initial_state(k)
        return lambda: kernels.update(config, self.values, states, self.gradient, step=10)


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure memory and the rules. `measure.BARS` contains the expected ratios.

    Args:
        suite: "kernels".
        options: Repetitions and sizes.
        nodes: Not used: the suite has one process.
    """
    with one_core():
        shard = Shard(N_PARAMETERS_QUICK if options.quick else N_PARAMETERS)
        found = measure_streams(shard.whole, options)
        for rule in RULES:
            found.add(measure_rule(rule, shard, options))
    return found


@contextmanager
def one_core() -> Iterator[None]:
    """Bind this thread to the last of its cores until the end of the `with` block."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def measure_rule(rule: str, shard: Shard, options: Options) -> Findings:
    """Compare one rule with the in-place stream on the same arrays.

    Args:
        rule: A name in RULES.
        shard: The arrays; changed.
        options: Repetitions.
    """
    n, update = shard.values.size, shard.update(rule)
    streams = in_place_streams(shard.whole)
    works = [update, *streams.values()]
    ours, *others = measure_alternately(works, [CALLS] * len(works), options.repetitions)
    stream = best_of(others, 2 * shard.whole.nbytes)
    # Count bytes: values and states are read and written, the gradient is read.
    n_bytes = n * 4 * (3 + 2 * OPTIMIZERS[rule](lr=LEARNING_RATE).native().n_state)
    comparison = Comparison(
        name=f"{rule}_vs_stream",
        what=f"{rule}: bytes that must move, {n} parameters, one thread, against x *= a",
        unit="GB/s",
        ours=rates(ours, n_bytes / 1e9),
        baseline=stream,
        baseline_name="best in-place stream",
    )
    figure = Figure(
        name=f"{rule}_ns_per_parameter",
        what=f"{rule}: time of one update, arrays in memory",
        unit="ns",
        values=[s / n * 1e9 for s in ours],
    )
    return Findings(comparisons=[comparison], figures=[figure])


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
