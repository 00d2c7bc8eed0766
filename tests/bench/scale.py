"""The suite `scale`: memory, messages and rates with more ranks and more rows.

With `--workers` the ranks are imitated: each part of the job runs alone, in this process, for three sizes of
the job. A figure grows as n^e with the number of workers n, where servers are as many times more; e is its
exponent. What one rank does may grow no faster than the job, and what it does for one other rank may not grow
at all. Otherwise real ranks do the same work per worker (`crowd`), and one table is filled row by row
(big_table.py).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

import mpips
from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Figure, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.table import Table
from mpips.terminal.table import text_table
from mpips.worker.worker import Worker, connection_of
from tests.bench.options import SuiteOptions
from tests.bench.processes import cpu_seconds, memory, proportional
from tests.bench.simulated import scheduler, server, startup, worker

_SIZES = (1, 2, 4, 8, 16, 32)
_QUICK_SIZES = (1, 2, 4)
_BIG_TABLE_RANKS = 1 + 2 + 1

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


DENSE, KEYS, DIM = 16_384, 4096, 8

# name of a figure -> (unit, description)
WHAT = {
    "records": ("records", "sent per worker, server and clock"),
    "region_bytes": ("bytes", "of mailboxes per worker and server"),
    "seconds": ("s", "of the job; every rank sends one heartbeat per second"),
    "messages": ("messages", "received by the scheduler, per rank"),
    "polls": ("1/s", "polls of the scheduler for messages, all ranks together"),
    "scheduler_cpu": ("cores", "used by the scheduler's rank per rank of the job"),
    "worker_anon": ("bytes", "of private memory of the largest worker"),
    "server_anon": ("bytes", "of private memory of the largest server"),
    "scheduler_anon": ("bytes", "of private memory of the scheduler"),
    "rank_pss": ("bytes", "of memory per rank; a page of k processes counts 1/k in each"),
}


def run(suite: str, options: SuiteOptions, nodes: int) -> Findings:
    """Measure on this machine. `nodes` has no effect.

    Raises:
        BenchError: A launch failed.
    """
    if options.workers:
        return imitated(options.workers, options.servers or max(options.workers // 10, 1))
    found = _crowds(options)
    found.add(on_ranks("tests.bench.big_table:fill", _BIG_TABLE_RANKS, options))
    return found


def _crowds(options: Options) -> Findings:
    """Launch each number of ranks; return figures `ranks_<n>_<name>` and a note with a table of them."""
    sizes = _QUICK_SIZES if options.quick else _SIZES
    columns = {n: on_ranks("tests.bench.scale:crowd", n, options).figures for n in sizes}
    found = Findings(notes=[_table(columns)])
    for n, figures in columns.items():
        for f in figures:
            name = f"ranks_{n}_{f.name}"
            found.figures.append(Figure(name=name, what=f.what, unit=f.unit, values=f.values))
    return found


def _table(columns: dict[int, list[Figure]]) -> str:
    rows = [["per number of ranks", *(str(n) for n in columns)]]
    for i, first in enumerate(next(iter(columns.values()))):
        cells = [_short(figures[i].median, first.unit) for figures in columns.values()]
        rows.append([f"{first.name} ({first.what})", *cells])
    return "\n".join(text_table(rows, right=range(1, len(rows[0]))))


def _short(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 2**20:.1f} MiB"
    return f"{value:.4g} {unit}"


def imitated(n_workers: int, n_servers: int) -> Findings:
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


def crowd(ranks: BenchRanks, options: Options) -> Findings | None:
    """Run fixed work per worker under BSP; return findings on worker 0's rank, None elsewhere. Collective."""
    steps = 10 if options.quick else 100
    pids = ranks.comm.allgather(os.getpid())
    tables: list[Table] = [
        mpips.DenseTable("dense", (DENSE,), mpips.SGD(0.01)),
        mpips.EmbeddingTable("rows", DIM, mpips.Adagrad(0.01)),
    ]

    def main(worker: Worker) -> dict[str, float]:
        _work(worker, 3)
        worker.barrier("warm")
        cpu, start = cpu_seconds(pids[0]), time.monotonic()
        _work(worker, steps)
        worker.barrier("worked")
        seconds = time.monotonic() - start
        found = {"scheduler_cpu": (cpu_seconds(pids[0]) - cpu) / seconds / len(pids)}
        found |= _memory(pids, len(connection_of(worker).channels))
        layout = connection_of(worker).channels[0].layout
        found["region_bytes"] = layout.geometry.mailbox_bytes
        worker.barrier("looked")
        return found

    start = time.monotonic()
    outcome = mpips.run(main, tables, comm=ranks.comm, verbose=False, timeout_s=120.0)
    seconds = time.monotonic() - start
    if not outcome.is_first_worker:
        return None
    found: dict[str, float] = dict(outcome.value)
    servers, work = outcome.statistics["servers"], outcome.statistics["scheduler"]
    pairs = len(servers) * len(outcome.statistics["workers"])
    records = sum(s["counters"]["records"] for s in servers)
    found["records"] = records / pairs / (3 + steps)
    found["seconds"] = seconds
    found["messages"] = work["messages"] / len(pids)
    found["polls"] = work["polls"] / seconds
    return Findings(
        figures=[
            Figure(name=name, what=what, unit=unit, values=[float(found[name])])
            for name, (unit, what) in WHAT.items()
        ]
    )


def _work(worker: Worker, steps: int) -> None:
    """Push and pull a dense tensor and some rows in each step, so that every server has work."""
    dense, rows = worker.table("dense"), worker.table("rows")
    rng = np.random.default_rng([worker.index, worker.now])
    update = np.full(DENSE, 1e-3, np.float32)
    for _ in range(steps):
        keys = rng.integers(0, KEYS, 256)
        values = rows.pull(keys)
        dense.pull()
        dense.push(update)
        rows.push(keys, values + 1)
        worker.clock()
    worker.flush()


def _memory(pids: list[int], n_servers: int) -> dict[str, float]:
    """Return bytes of private memory of the largest process of each role, and the mean memory of a rank.

    Args:
        pids: By rank: scheduler, servers, workers.
        n_servers: Number of servers.
    """
    anon = [memory(pid)["RssAnon"] for pid in pids]
    # With one or two ranks, a rank has several roles.
    servers = anon[1 : 1 + n_servers] if len(pids) > 2 else anon[:1]
    workers = anon[1 + n_servers :] if len(pids) > 2 else anon[-1:]
    return {
        "scheduler_anon": anon[0],
        "server_anon": max(servers),
        "worker_anon": max(workers),
        "rank_pss": sum(proportional(pid) for pid in pids) / len(pids),
    }
