"""Steps of a worker whose server is on another node: time and bytes on the link, with and without codecs.

A step is a push of a gradient, the end of the clock, and a pull of the new values, of a table with as many
values as a multilayer perceptron 784-2048-2048-10. Its codec encodes pushes and pulls; pulls are in bf16 with
fp16, in topk with randomk, and in int8 with shared_int8. The bytes are those that the interface of the
worker's node has sent and received. "auto" chooses from the codecs without a residual.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.ranks import BenchRanks, alternate
from mpips.model.codec import CODECS, STATELESS, Auto, Bf16, Fp16, Int8, PullCodec, PushCodec
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable
from mpips.worker.worker import Worker

N = 5_824_522  # values
N_QUICK = 1 << 18
_STEPS = 3
_INTERFACE = "eth0"
WORKER = 1  # rank
Side = tuple[float, int]  # seconds of a step, and its bytes on the link


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on two ranks; return findings on the worker's rank, None on the other. Collective."""
    n = N_QUICK if options.quick else N
    sides = alternate(options, ("none", *CODECS, "auto"), lambda name: session(ranks, name, n))
    if ranks.rank != WORKER:
        return None
    plain = sides["none"]
    comparisons = []
    for name in CODECS:
        for what, i, unit in (("step", 0, "s"), ("wire_bytes", 1, "MB")):
            scale = 1e6 if i else 1.0
            comparisons.append(
                Comparison(
                    name=f"{what}_{name}",
                    what=f"BSP step of {n:,} values, one worker, server on another node, {name}",
                    unit=unit,
                    ours=[side[i] / scale for side in sides[name]],
                    baseline=[side[i] / scale for side in plain],
                    baseline_name="float32",
                )
            )
    best = min(("none", *STATELESS), key=lambda name: median(step for step, _ in sides[name]))
    comparisons.append(
        Comparison(
            name="step_auto",
            what=f"BSP step of {n:,} values, one worker, server on another node, Auto of bf16, fp16 and int8",
            unit="s",
            ours=[step for step, _ in sides["auto"]],
            baseline=[step for step, _ in sides[best]],
            baseline_name=f"the best choice, {best}",
        )
    )
    return Findings(comparisons=comparisons)


def session(ranks: BenchRanks, codec: str, n: int) -> Side | None:
    """Run one mpips session. Collective. Returns the side on workers, None elsewhere."""
    pull = {"fp16": "bf16", "randomk": "topk", "shared_int8": "int8"}.get(codec, codec)
    codecs: tuple[PushCodec | str, PullCodec | str] = (codec, pull)
    if codec == "auto":
        codecs = Auto(Bf16(), Fp16(), Int8()), Auto(Bf16(), Int8())
    table = DenseTable("w", (n,), SGD(0.01), compression=codecs[0], pull_compression=codecs[1])
    side: Side | None = ranks.session(lambda w: steps(w, n), [table], servers=1, timeout_s=120.0)
    return side


def steps(worker: Worker, n: int) -> Side:
    """Make steps; return seconds and bytes of one. Blocks."""
    handle, values = worker.table("w"), np.empty(n, np.float32)
    gradient = np.random.default_rng(worker.index).standard_normal(n, np.float32)
    # The first clock of shared_int8 has no scales.
    handle.push(gradient)
    worker.clock()
    handle.pull(values)

    def step() -> None:
        handle.push(gradient)
        worker.clock()
        handle.pull(values)

    return measured(worker, step, _STEPS)


def measured(worker: Worker, step: Callable[[], None], n_steps: int) -> Side:
    """Call `step` so many times on all workers; return seconds and bytes of one. Collective; blocks."""
    worker.barrier("the first step")
    before, start = _bytes(), time.perf_counter()
    for _ in range(n_steps):
        step()
    worker.barrier("the last pull")
    return (time.perf_counter() - start) / n_steps, (_bytes() - before) // n_steps


def _bytes() -> int:
    """Return the bytes that the interface of this node has sent and received."""
    # Read the interface of this network namespace; /sys shows that of the process that mounted it.
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.strip().partition(":")
        if name == _INTERFACE:
            received, sent = counts.split()[0], counts.split()[8]
            return int(received) + int(sent)
    return 0
