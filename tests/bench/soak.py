"""The suite `soak`: push and pull without pause; growth of memory, /dev/shm and open files of all ranks."""

from __future__ import annotations

import os
import statistics
import time

import numpy as np

import mpips
from mpips.bench.launching import on_ranks
from mpips.bench.measure import Figure, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.config.options import SessionOptions
from mpips.model.table import Table
from mpips.mpi.cluster import Cluster
from mpips.session.job import Job
from mpips.worker.worker import Worker
from tests.bench.options import SuiteOptions
from tests.bench.processes import memory, open_files, shared_memory

_N_RANKS = 4
_SAMPLES = 40
_WARM_SHARE = 0.1  # of the time: no samples until buffers have reached their largest size
_DENSE, _KEYS, _DIM = 16_384, 20_000, 8

# Resident bytes by rank, open files by rank, (files, bytes) of the job in shared memory.
Sample = tuple[list[int], list[int], tuple[int, int]]


def run(suite: str, options: SuiteOptions, nodes: int) -> Findings:
    """Measure on this machine. `nodes` has no effect.

    Raises:
        BenchError: The launch failed.
    """
    return on_ranks("tests.bench.soak:push", _N_RANKS, options, timeout_s=options.seconds + 120.0)


def push(ranks: BenchRanks, options: SuiteOptions) -> Findings | None:
    """Make steps with one server until the given number or time is over. Collective.

    Returns:
        Findings on worker 0's rank, else None.
    """
    seconds = min(options.seconds, 3.0) if options.quick else options.seconds
    pids = ranks.comm.allgather(os.getpid())
    settings = SessionOptions(servers=1, timeout_s=60.0)
    tables: list[Table] = [
        mpips.DenseTable("dense", (_DENSE,), mpips.Adam(1e-3)),
        mpips.DenseTable("free", (_DENSE,), mpips.SGD(1e-3), mpips.ASP()),
        mpips.EmbeddingTable("rows", _DIM, mpips.Adagrad(0.01)),
    ]
    with Cluster(ranks.comm, settings.servers, settings.timeout_s) as cluster:
        job = Job(cluster, tables, settings)
        token = cluster.token
        value, _ = job.run(lambda worker: _work(worker, options.steps, seconds, pids, token))
    if not value:
        return None
    steps, samples = value
    return _findings(steps, samples, len(pids))


def _work(
    worker: Worker, n_steps: int, seconds: float, pids: list[int], token: str
) -> tuple[int, list[Sample]] | None:
    """Make steps; worker 0 samples all processes at even intervals.

    Args:
        worker: This worker.
        n_steps: Number of steps; 0: as many as fit into `seconds`.
        seconds: Length of the measurement, unless `n_steps` is given.
        pids: Process ids by rank; all on this node.
        token: Token in the names of the job's shared-memory files.

    Returns:
        Number of steps and samples on worker 0; None elsewhere.
    """
    names = ("dense", "free", "rows")
    dense, free, rows = (worker.table(name) for name in names)
    rng = np.random.default_rng(worker.index)
    update = np.full(_DENSE, 1e-6, np.float32)
    staged = worker.allocate(_DENSE)
    staged[...] = 1e-6
    everything = np.arange(_KEYS)
    rows.push(everything, np.zeros((_KEYS, _DIM), np.float32))
    worker.clock()

    samples: list[Sample] = []
    # Measure progress in steps, or in seconds.
    start, steps = time.monotonic(), 0
    length = n_steps or seconds
    next_sample, interval = _WARM_SHARE * length, (1 - _WARM_SHARE) * length / _SAMPLES

    def progress() -> float:
        return steps if n_steps else time.monotonic() - start

    while progress() < length:
        keys = rng.integers(0, _KEYS, rng.integers(1, 500))
        rows.prefetch(keys)
        values = rows.pull(keys)
        dense.pull()
        request = free.push(staged)
        dense.push(update)
        rows.push(keys, 1e-3 * values)
        worker.clock()
        free.pull()
        request.wait()
        steps += 1
        if worker.index == 0 and progress() >= next_sample:
            next_sample += interval
            samples.append(_look(pids, token))
    worker.flush()
    return (steps, samples) if worker.index == 0 else None


def _look(pids: list[int], token: str) -> Sample:
    resident = [memory(pid)["VmRSS"] for pid in pids]
    return resident, [open_files(pid) for pid in pids], shared_memory(token)


def growth(values: list[float]) -> float:
    """Return the median of the last quarter of `values` minus the median of the first quarter."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[-quarter:]) - statistics.median(values[:quarter])


def _findings(steps: int, samples: list[Sample], n_ranks: int) -> Findings:
    roles = ["scheduler", "server_0", *(f"worker_{i}" for i in range(n_ranks - 2))]
    figures = [
        Figure(name="soak_steps", what="of one worker", unit="steps", values=[steps]),
        _figure("soak_shm_growth", "of the job in /dev/shm", [s[2][1] for s in samples], "bytes"),
        _figure(
            "soak_segments_growth", "of the job in /dev/shm", [s[2][0] for s in samples], "files"
        ),
    ]
    for i, role in enumerate(roles):
        figures += [
            _figure(f"soak_rss_growth_{role}", "resident", [s[0][i] for s in samples], "bytes"),
            _figure(f"soak_fd_growth_{role}", "descriptors", [s[1][i] for s in samples], "files"),
        ]
    return Findings(figures=figures)


def _figure(name: str, what: str, values: list[int], unit: str) -> Figure:
    change = growth([float(v) for v in values])
    return Figure(name=name, what=f"{what}, from {values[0]:,}", unit=unit, values=[change])
