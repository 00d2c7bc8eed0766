"""The suite `kernels`: optimizers, memory and the row map, in one process on one core.

Arrays have the layout of a server's region: they are consecutive in shared memory, and each starts on a page.
So all of them have the same address modulo 64 KiB (and larger powers of two), which is the worst case for
caches. The measurement of each rule alternates with two baselines: `x *= a` over the same memory, which is
the loop that changes memory with the least work, and torch's fused rule on the same values and states.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from mpips import kernels
from mpips.bench.fused import FUSED_RULES, fused_step
from mpips.bench.launching import Options
from mpips.bench.maps import measure_map
from mpips.bench.measure import Comparison, Figure, Findings, measure_alternately, rates
from mpips.bench.streams import best_of, in_place_streams, measure_streams
from mpips.errors import CapabilityError
from mpips.model.optimizer import OPTIMIZERS

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
        self.whole: NDArray[np.float32] = np.frombuffer(mmap.mmap(-1, 16 * n), np.float32)
        self.values, *_, self.gradient = self.whole.reshape(4, n)
        self.states = self.whole.reshape(4, n)[1:3]
        rng = np.random.default_rng(1)
        self.values[:] = rng.standard_normal(n, np.float32)
        self.gradient[:] = rng.standard_normal(n, np.float32) * np.float32(0.01)


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure memory, the rules and the row map. `measure.BARS` contains the expected ratios.

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
        del shard
        found.add(measure_map(options))
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
    """Compare one rule with the in-place stream and with torch's fused rule on the same arrays.

    Args:
        rule: A name in RULES.
        shard: The arrays; changed.
        options: Repetitions.
    """
    n = shard.values.size
    config = OPTIMIZERS[rule](lr=LEARNING_RATE).native()
    states = shard.states[: config.n_state]
    for k, state in enumerate(states):
        state[:] = config.initial_state(k)
    found = Findings()
    works: list[Callable[[], object]] = [
        lambda: kernels.update(config, shard.values, states, shard.gradient, step=10)
    ]
    if rule in FUSED_RULES:
        try:
            works.append(fused_step(rule, shard.values, states, shard.gradient, LEARNING_RATE))
        except CapabilityError as error:
            found.skipped[f"{rule}_vs_torch_fused"] = str(error)
    streams = in_place_streams(shard.whole)

    ours, *others = measure_alternately(
        [*works, *streams.values()],
        [CALLS] * (len(works) + len(streams)),
        options.repetitions,
    )
    if len(works) == 2:
        found.comparisons.append(_compare_with_torch(rule, n, ours, others.pop(0)))
    stream = best_of(others, 2 * shard.whole.nbytes)
    found.comparisons.append(_compare_with_stream(rule, n, len(states), ours, stream))
    found.figures.append(
        Figure(
            name=f"{rule}_ns_per_parameter",
            what=f"{rule}: time of one update, arrays in memory",
            unit="ns",
            values=[s / n * 1e9 for s in ours],
        )
    )
    return found


def _compare_with_stream(
    rule: str, n: int, n_state: int, ours: list[float], stream: list[float]
) -> Comparison:
    # Count bytes: values and states are read and written, the gradient is read.
    n_bytes = n * 4 * (3 + 2 * n_state)
    return Comparison(
        name=f"{rule}_vs_stream",
        what=f"{rule}: bytes that must move, {n} parameters, one thread, against x *= a",
        unit="GB/s",
        ours=rates(ours, n_bytes / 1e9),
        baseline=stream,
        baseline_name="best in-place stream",
    )


def _compare_with_torch(rule: str, n: int, ours: list[float], torch: list[float]) -> Comparison:
    return Comparison(
        name=f"{rule}_vs_torch_fused",
        what=f"{rule}: {n} parameters, one thread, against torch.optim with fused=True",
        unit="Mparam/s",
        ours=rates(ours, n / 1e6),
        baseline=rates(torch, n / 1e6),
        baseline_name="torch fused",
    )
