"""Measure pushes with and without replicas on two nodes: one server on each node, a worker on the second.

Sessions without and with replicas alternate. All of them write a journal, as under `mpips run`. The measured
values are:

* near: pushes to the server on the worker's node. Without a replica they need no network, so a replica costs
  most here.
* far: pushes to the server on the other node.
* step: push, clock and pull under BSP. The worker waits for the replicas before it ticks.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.config.options import SessionOptions
from mpips.model.consistency import ASP, BSP
from mpips.model.optimizer import SGD
from mpips.model.partition import LayerPartition
from mpips.model.table import DenseTable, Table
from mpips.mpi.cluster import Cluster
from mpips.rundir.directory import GENERATION, RUN_DIR, RunFolder, current, replace_json
from mpips.rundir.files import Lease
from mpips.session.job import Job
from mpips.worker.worker import Worker, connection_of

BYTES = 64 << 10
MODES = {"none": False, "sync": True}  # name -> with replicas
_WHAT = {
    "near": "pushes of 64 KiB within a node",
    "far": "pushes of 64 KiB to another node",
    "step": "BSP steps",
}
Times = dict[str, float]  # name of an operation -> seconds per call
_TIMEOUT_S = 60.0


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure both modes on four ranks; return findings on the worker's rank, None elsewhere. Collective."""
    calls = 20 if options.quick else 300
    repetitions: list[dict[str, Times]] = []
    for _ in range(options.repetitions):
        repetitions.append(
            {mode: session(ranks, partners, calls) for mode, partners in MODES.items()}
        )
    return findings(repetitions) if repetitions[0]["none"] else None


def tables() -> list[Table]:
    """Return the tables: one on each server for pushes, and one for steps."""
    shape, whole = (BYTES // 4,), LayerPartition()
    return [
        DenseTable("a", shape, SGD(1e-3), ASP(), partition=whole),
        DenseTable("b", shape, SGD(1e-3), ASP(), partition=whole),
        DenseTable("step", shape, SGD(1e-3), BSP()),
    ]


def session(ranks: BenchRanks, has_partners: bool, calls: int) -> Times:
    """Run one job as an attempt of `mpips run`. Collective.

    Args:
        ranks: All four ranks.
        has_partners: Each server has a replica on the other node.
        calls: Pushes in a measurement.

    Returns:
        Seconds per call on the worker's rank; empty elsewhere.
    """
    comm = ranks.comm
    # Make the run directory in the folder for findings, which both nodes see; temporary folders are per node.
    parent = Path(sys.argv[-1])
    folder = comm.bcast(str(RunFolder.create(parent, "x").path) if ranks.rank == 0 else "")
    if ranks.rank == 0:
        lease = Lease(generation=0, host="", pid=os.getpid(), time_s=time.time())
        replace_json(RunFolder(Path(folder)).lease_file, lease)
    comm.Barrier()
    os.environ.update({RUN_DIR: folder, GENERATION: "0"})
    try:
        run = current()
        with Cluster(comm, 2, _TIMEOUT_S, run) as cluster:
            options = SessionOptions(servers=2, timeout_s=_TIMEOUT_S)
            job = Job(cluster, tables(), options, run=run, has_partners=has_partners)
            servers = {name: job.placement.dense[name][0].server for name in ("a", "b")}
            found: Any = job.run(lambda worker: work(worker, servers, calls))[0]
        return found or {}
    finally:
        del os.environ[RUN_DIR], os.environ[GENERATION]


def work(worker: Worker, servers: dict[str, int], calls: int) -> Times:
    """Measure on the worker; return seconds per call. Blocks.

    Args:
        worker: The only worker.
        servers: Name of a table for pushes -> index of its server.
        calls: Pushes in a measurement.
    """
    update = np.random.default_rng(3).standard_normal(BYTES // 4, np.float32)
    near = next(
        s for s, channel in enumerate(connection_of(worker).channels) if channel.name == "shm"
    )
    times: Times = {}
    for name, server in servers.items():
        table = worker.table(name)
        for _ in range(10):
            table.push(update)
        worker.flush()
        start = time.perf_counter()
        for _ in range(calls):
            table.push(update)
        worker.flush()
        times["near" if server == near else "far"] = (time.perf_counter() - start) / calls
    steps = max(calls // 4, 1)
    table = worker.table("step")
    start = time.perf_counter()
    for _ in range(steps):
        table.push(update)
        worker.clock()
        table.pull()
    times["step"] = (time.perf_counter() - start) / steps
    return times


def findings(repetitions: list[dict[str, Times]]) -> Findings:
    """Return the ratios and the cost of replicas; `repetitions` has one entry per repetition."""
    found = Findings()
    for what, text in _WHAT.items():
        found.comparisons.append(
            Comparison(
                name=f"partner_sync_{what}",
                what=f"{text} with a replica",
                unit="1/s",
                ours=[1 / repetition["sync"][what] for repetition in repetitions],
                baseline=[1 / repetition["none"][what] for repetition in repetitions],
                baseline_name="without",
            )
        )
    costs = {
        what: [
            1 - repetition["none"][what] / repetition["sync"][what] for repetition in repetitions
        ]
        for what in _WHAT
    }
    worst = max(costs, key=lambda what: float(np.median(costs[what])))
    found.figures.append(
        Figure(
            name="partner_cost_sync",
            what=f"share of the rate that a replica costs, worst of 3 ({_WHAT[worst]})",
            unit="",
            values=costs[worst],
        )
    )
    return found
