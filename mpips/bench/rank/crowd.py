"""Do the same work per worker on any number of ranks; measure messages, memory and scheduler work."""

from __future__ import annotations

import os
import time

import numpy as np

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Figure, Findings
from mpips.bench.rank.processes import cpu_seconds, memory, proportional
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.table import Table
from mpips.worker.worker import Worker, connection_of

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


def run(ranks: BenchRanks, options: Options) -> Findings | None:
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
