"""Steps of a worker whose server is on another node: time and bytes on the link, with and without codecs.

A step is a push of a gradient, the end of the clock, and a pull of the new values, of a table with as many
values as a multilayer perceptron 784-2048-2048-10. Its codec encodes pushes. Pulls are in int8 with int8 and
with codecs that have a residual, else in bf16. The bytes are those that the interface of the worker's node
has sent and received. With a residual they are those of steps without pulls, which no such codec encodes.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.codec import CODECS, STATELESS
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable
from mpips.worker.worker import Worker

N = 5_824_522  # values
_N_QUICK = 1 << 18
_STEPS = 3
_INTERFACE = "eth0"
WORKER = 1  # rank
# Seconds of a step, bytes of a step on the link, bytes of a step without a pull.
Side = tuple[float, int, int]


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on two ranks; return findings on the worker's rank, None on the other. Collective."""
    n = _N_QUICK if options.quick else N
    sides: dict[str, list[Side]] = {name: [] for name in ("none", *CODECS)}
    for _ in range(options.repetitions):
        for name, found in sides.items():
            side = session(ranks, name, n)
            if side is not None:
                found.append(side)
    if ranks.rank != WORKER:
        return None
    plain = sides["none"]
    comparisons = []
    for name in CODECS:
        pushes_only = name not in STATELESS
        for what, i, unit in (("step", 0, "s"), ("wire_bytes", 2 if pushes_only else 1, "MB")):
            scale = 1e6 if i else 1.0
            comparisons.append(
                Comparison(
                    name=f"{what}_{name}",
                    what=f"BSP step of {n:,} values, one worker, server on another node, {name}"
                    + (", without pulls" if i == 2 else ""),
                    unit=unit,
                    ours=[side[i] / scale for side in sides[name]],
                    baseline=[side[i] / scale for side in plain],
                    baseline_name="float32",
                )
            )
    return Findings(comparisons=comparisons)


def session(ranks: BenchRanks, codec: str, n: int) -> Side | None:
    """Run one mpips session. Collective. Returns the side on workers, None elsewhere."""
    pull = {"none": "none", "bf16": "bf16", "fp16": "bf16"}.get(codec, "int8")
    table = DenseTable("w", (n,), SGD(0.01), compression=codec, pull_compression=pull)
    side: Side | None = ranks.session(lambda w: steps(w, n), [table], servers=1, timeout_s=120.0)
    return side


def steps(worker: Worker, n: int) -> Side:
    """Make steps; return seconds and bytes of one. Blocks."""
    handle, values = worker.table("w"), np.empty(n, np.float32)
    gradient = np.random.default_rng(worker.index).standard_normal(n, np.float32)
    handle.pull(values)
    worker.barrier("the first pull")
    before, start = _bytes(), time.perf_counter()
    for _ in range(_STEPS):
        handle.push(gradient)
        worker.clock()
        handle.pull(values)
    worker.barrier("the last pull")
    step_s, step_bytes = (time.perf_counter() - start) / _STEPS, (_bytes() - before) // _STEPS
    before = _bytes()
    for _ in range(_STEPS):
        handle.push(gradient)
        worker.clock()
    worker.flush()
    return step_s, step_bytes, (_bytes() - before) // _STEPS


def _bytes() -> int:
    """Return the bytes that the interface of this node has sent and received."""
    # Read the interface of this network namespace; /sys shows that of the process that mounted it.
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.strip().partition(":")
        if name == _INTERFACE:
            received, sent = counts.split()[0], counts.split()[8]
            return int(received) + int(sent)
    return 0
