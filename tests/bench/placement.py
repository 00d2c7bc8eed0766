"""The suite `placement`: placement = "auto" against the better of servers and replicated tables.

A step is a push of each table by each worker, the end of the clock, and a pull of all new values. Ranks are a
scheduler, the servers and the workers. Sessions of all placements take turns.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.optimizer import Adam
from mpips.model.table import DenseTable
from mpips.worker.worker import Worker

# name -> (number of servers, number of workers, sizes of the tables in float32 values).
JOBS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "small": (1, 2, (1 << 10,) * 16),
    "mlp": (1, 2, (784 * 512, 512, 512 * 512, 512, 512 * 10, 10)),
    "large": (1, 2, (1 << 22, 1 << 20, 1 << 10)),
    "servers": (2, 1, (1 << 21, 1 << 10)),
}
KINDS = ("servers", "replicated", "auto")
N_RANKS = 4
_QUICK_VALUES = 1 << 12  # of a table, at most
_STEPS, _WARM_STEPS = 20, 3


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure on this machine. `nodes` has no effect.

    Raises:
        BenchError: The launch failed.
    """
    return on_ranks("tests.bench.placement:steps_of_jobs", N_RANKS, options)


def steps_of_jobs(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure all jobs; return findings on the rank of worker 0, None on others. Collective."""
    found = Findings()
    for name, (n_servers, n_workers, sizes) in JOBS.items():
        if options.quick:
            sizes = tuple(min(size, _QUICK_VALUES) for size in sizes)
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(options.repetitions):
            for kind, values in times.items():
                seconds = _session(ranks, kind, n_servers, sizes, options.quick)
                if seconds is not None:
                    values.append(1e6 * seconds)
        if times["auto"]:
            found.comparisons.append(_comparison(name, n_servers, n_workers, sizes, times))
    return found if found.comparisons else None


def _comparison(
    name: str, n_servers: int, n_workers: int, sizes: tuple[int, ...], times: dict[str, list[float]]
) -> Comparison:
    best = min(KINDS[:2], key=lambda kind: statistics.median(times[kind]))
    counts = ", ".join(f"{n:,}" for n in sorted(set(sizes), reverse=True))
    return Comparison(
        name=f"placement_vs_best_{name}",
        what=(
            f"a BSP step with Adam of {len(sizes)} tables of {counts} values with placement = 'auto', "
            f"{n_workers} workers, {n_servers} servers on one node"
        ),
        unit="us",
        ours=times["auto"],
        baseline=times[best],
        baseline_name=f"all {'on servers' if best == 'servers' else 'replicated'}",
    )


def _session(
    ranks: BenchRanks, kind: str, n_servers: int, sizes: tuple[int, ...], quick: bool
) -> float | None:
    """Run one session. Collective. Returns seconds of a step on worker 0, None elsewhere."""
    tables = [DenseTable(f"t{i}", (n,), Adam(0.001), placement=kind) for i, n in enumerate(sizes)]

    def main(worker: Worker) -> float | None:
        seconds = _steps(worker, sizes, 2 if quick else _STEPS)
        return seconds if worker.index == 0 else None

    seconds: float | None = ranks.session(main, tables, servers=n_servers, timeout_s=120.0)
    return seconds


def _steps(worker: Worker, sizes: tuple[int, ...], n_steps: int) -> float:
    """Make steps; return the seconds of one. Blocks."""
    random = np.random.default_rng(worker.index)
    gradients = [random.standard_normal(n, np.float32) for n in sizes]
    values = [np.empty(n, np.float32) for n in sizes]
    handles = [worker.table(f"t{i}") for i in range(len(sizes))]
    start = 0.0
    for step in range(_WARM_STEPS + n_steps):
        if step == _WARM_STEPS:
            worker.barrier("warm")
            start = time.perf_counter()
        for handle, gradient in zip(handles, gradients, strict=True):
            handle.push(gradient)
        worker.clock()
        for handle, out in zip(handles, values, strict=True):
            handle.pull(out)
    return (time.perf_counter() - start) / n_steps
