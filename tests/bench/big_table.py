"""Fill one embedding table row by row; compare its memory with the plan, and its last rate with its first.

The second comparison shows whether pushes slow down as the table grows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time

import numpy as np

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.placement import embedding_memory
from mpips.transport.region import SHM
from mpips.worker.worker import Worker
from tests.bench.processes import memory

N_SERVERS, DIM = 2, 16
_BATCH = 1 << 15
_PARTS = 10
_WARM_PUSHES = 8
# Odd, so that i -> i * _SPREAD is one to one in 64 bits. The keys i * _SPREAD are in no order.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def fill(ranks: BenchRanks, options: Options) -> Findings | None:
    """Push every key once from one worker. Collective.

    Returns:
        Findings on the worker's rank, or on rank 0 if there is too little memory; None elsewhere.

    Raises:
        RuntimeError: The servers have another number of rows than the worker pushed.
    """
    n_rows = 500_000 if options.quick else 50_000_000
    pids = ranks.comm.allgather(os.getpid())[1 : 1 + N_SERVERS]
    table = mpips.EmbeddingTable("rows", DIM, mpips.Adagrad(0.05), mpips.ASP())
    small = mpips.EmbeddingTable("small", DIM, mpips.Adagrad(0.05), mpips.ASP())

    def main(worker: Worker) -> tuple[list[float], list[int]]:
        # Fill every slot of the rings once before memory is measured.
        for _ in range(_WARM_PUSHES):
            _fill(worker, "small", 0, _BATCH)
        before = [memory(pid)["VmRSS"] for pid in pids]
        edges = [n_rows * i // _PARTS for i in range(_PARTS + 1)]
        rates = [_fill(worker, "rows", *edges[i : i + 2]) for i in range(_PARTS)]
        return rates, [memory(pid)["VmRSS"] - b for pid, b in zip(pids, before, strict=True)]

    planned = embedding_memory(table, n_rows, N_SERVERS)
    lacking = ranks.comm.bcast(_claim(N_SERVERS * planned.total_bytes) if ranks.rank == 0 else "")
    if lacking:
        skipped = dict.fromkeys(("table_memory_vs_plan", "table_rate_last_vs_first"), lacking)
        return Findings(skipped=skipped) if ranks.rank == 0 else None
    outcome = mpips.run(
        main, [table, small], comm=ranks.comm, verbose=False, servers=N_SERVERS, timeout_s=120.0
    )
    if not outcome.is_first_worker:
        return None
    rates, resident = outcome.value
    servers = [s["tables"]["rows"] for s in outcome.statistics["servers"]]
    made = sum(s["rows"] for s in servers)
    if made != n_rows:
        raise RuntimeError(
            f"the servers have {made} rows after pushes of {n_rows} keys, expected {n_rows}"
        )
    return _findings(n_rows, rates, resident, planned.total_bytes)


def _claim(n_bytes: int) -> str:
    """Allocate `n_bytes` of shared memory and free them; return why this is impossible, or "".

    A hypervisor may hand memory to a virtual machine only at its first use. This takes longer than anything
    that is measured here, so it must not happen while the first or the last part of the table is filled.
    """
    free = shutil.disk_usage(SHM).free
    if free < 1.1 * n_bytes:
        return f"{SHM} has {free >> 20} MiB free, the table needs {n_bytes >> 20} MiB"
    with tempfile.TemporaryFile(dir=SHM) as file:
        os.posix_fallocate(file.fileno(), 0, n_bytes)
    return ""


def _fill(worker: Worker, name: str, start: int, stop: int) -> float:
    """Push the keys with numbers start to stop - 1; return applied rows per second. Blocks."""
    table = worker.table(name)
    rows = np.full((_BATCH, DIM), 1e-3, np.float32)
    begin = time.perf_counter()
    for first in range(start, stop, _BATCH):
        numbers = np.arange(first, min(first + _BATCH, stop), dtype=np.uint64)
        table.push((numbers * _SPREAD).view(np.int64), rows[: len(numbers)])
    worker.flush()
    return (stop - start) / (time.perf_counter() - begin)


def _findings(n_rows: int, rates: list[float], resident: list[int], planned: int) -> Findings:
    what = f"{n_rows:,} rows of {DIM} floats with Adagrad on {N_SERVERS} servers"
    return Findings(
        comparisons=[
            Comparison(
                name="table_memory_vs_plan",
                what=f"resident memory of {what}",
                unit="bytes",
                ours=[float(r) for r in resident],
                baseline=[float(planned)] * len(resident),
                baseline_name="planned per server",
            ),
            Comparison(
                name="table_rate_last_vs_first",
                what=f"new rows per second of the last tenth of {what}",
                unit="rows/s",
                ours=rates[-1:],
                baseline=rates[:1],
                baseline_name="first tenth",
            ),
        ],
        figures=[
            Figure(
                name="table_rate",
                what=f"new rows pushed from one worker, by tenth of {what}",
                unit="rows/s",
                values=rates,
            )
        ],
    )
