"""The suite `scale` with imitated ranks: what one rank costs in jobs of many workers, and how it grows.

Each part of the job runs alone, in this process, for three sizes of the job. A figure grows as n^e with the
number of workers n, where servers are as many times more; e is its exponent. What one rank does may grow no
faster than the job, and what it does for one other rank may not grow at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from mpips.bench.measure import Figure, Findings
from mpips.bench.simulated import scheduler, server, startup, worker
from mpips.terminal.table import text_table

LINEAR, CONSTANT = 1.1, 0.1  # greatest exponents
_STEPS = (100, 10, 1)  # divisors of the numbers of workers and servers

# name of a figure -> (unit, greatest exponent, description)
FIGURES: Mapping[str, tuple[str, float, str]] = {
    "cpu_s_per_s": ("s/s", LINEAR, "scheduler: processor time for heartbeats and reports"),
    "end_cpu_s": ("s", LINEAR, "scheduler: processor time for the end of the job"),
    "bye_bytes_per_rank": ("bytes", CONSTANT, "scheduler: last message to a rank, on average"),
    "status_cpu_s_per_s": ("s/s", LINEAR, "scheduler: processor time for the files of a run"),
    "status_bytes_per_s": ("bytes/s", LINEAR, "scheduler: bytes of these files"),
    "clock_s": ("s", LINEAR, "server: a push and a tick of every worker, BSP"),
    "tick_s": ("s", LINEAR, "server: a tick of every worker, BSP"),
    "idle_s": ("s", LINEAR, "server: one look at all rings"),
    "ring_bytes": ("bytes", CONSTANT, "server: ring of a worker, dense tables"),
    "row_ring_bytes": ("bytes", CONSTANT, "server: ring of a worker, embedding tables"),
    "journal_bytes": ("bytes", CONSTANT, "server: journal, for each worker"),
    "mirror_bytes": ("bytes", CONSTANT, "worker: memory for a remote server, after small pushes"),
    "startup_s": ("s", LINEAR, "every rank: roles and placement"),
    "startup_bytes": ("bytes", LINEAR, "every rank: memory of roles and placement"),
    "checkpoint_s": ("s", LINEAR, "server: plan of a checkpoint"),
    "checkpoint_bytes": ("bytes", LINEAR, "server: memory of that plan"),
    "manifest_bytes": ("bytes", LINEAR, "states of the workers in a checkpoint"),
}


def run(n_workers: int, n_servers: int) -> Findings:
    """Measure jobs of this size, of a tenth and of a hundredth of it; return figures and a table of them.

    Blocks, for about half a minute with 10,000 workers.

    Args:
        n_workers: Number of imitated workers, at least 1000.
        n_servers: Number of imitated servers.
    """
    sizes = [(max(n_workers // k, 1), max(n_servers // k, 1)) for k in _STEPS]
    found = [measure(*size) for size in sizes]
    rows = [["figure", *(f"{w:,} x {s:,}" for w, s in sizes), "exponent", "bar"]]
    figures = []
    for name, (unit, bar, what) in FIGURES.items():
        values = [figures_of[name] for figures_of in found]
        grown = exponent([w for w, _ in sizes], values)
        verdict = "" if grown <= bar else "  NOT met"
        cells = [f"{value:.3g} {unit}" for value in values]
        rows.append([what, *cells, f"{grown:.2f}", f"<= {bar:g}{verdict}"])
        figures.append(Figure(name=name, what=what, unit=unit, values=values[-1:]))
        figures.append(
            Figure(name=f"{name}_exponent", what=f"growth: {what}", unit="", values=[grown])
        )
    return Findings(figures=figures, notes=["\n".join(text_table(rows, right=[1, 2, 3, 4]))])


def measure(n_workers: int, n_servers: int, seconds: float = 4.0) -> dict[str, float]:
    """Return the figures of FIGURES, and others, for a job of this size. Blocks.

    Args:
        n_workers: Number of imitated workers.
        n_servers: Number of imitated servers.
        seconds: Seconds of the job during which the scheduler is measured.
    """
    parts: Sequence[Callable[[], dict[str, float]]] = (
        lambda: scheduler.measure(n_workers, n_servers, seconds),
        lambda: server.measure(n_workers),
        lambda: worker.measure(n_workers, n_servers),
        lambda: startup.measure(n_workers, n_servers),
    )
    found: dict[str, float] = {}
    for part in parts:
        found |= part()
    return found


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return e for values that grow as size^e, from the first and the last size; 0 if nothing grows."""
    if values[-1] <= values[0] or sizes[-1] == sizes[0]:
        return 0.0
    return math.log(values[-1] / max(values[0], 1e-12)) / math.log(sizes[-1] / sizes[0])
