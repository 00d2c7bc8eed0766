"""Measure samples per second of whole jobs; about half of the ranks are servers, the others workers."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mpips.bench.launching import Options
from mpips.bench.measure import Figure, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.bench.rank.workloads import job_config, session, timed_epochs, w6a_file
from mpips.training.epochs import Inputs
from mpips.worker.worker import Worker


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Run both jobs under BSP; return their rates on worker 0's rank, None elsewhere. Collective."""
    servers = (ranks.size - 1) // 2
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        file, data = w6a_file(Path(folder))
        jobs = [
            ("w6a", "logistic", file, f"logistic on {data}", 1 if options.quick else 12),
            ("digits", "mlp", "digits", "mlp on digits", 3 if options.quick else 150),
        ]
        for name, task, train, what, n_epochs in jobs:
            config = job_config(task, train, servers)
            rate, _ = session(ranks, config, lambda w, i, n=n_epochs: _rate(w, i, n))  # type: ignore[misc]
            if rate:
                found.figures.append(Figure(name=name, what=what, unit="samples/s", values=[rate]))
    return found if found.figures else None


def _rate(worker: Worker, inputs: Inputs, n_epochs: int) -> float:
    """Return samples per second of all workers together on worker 0, and 0.0 elsewhere."""
    mine = timed_epochs(worker, inputs, n_epochs)
    parts = worker.gather("samples", f"{mine.samples} {mine.seconds!r}".encode(), everyone=False)
    rows = [part.decode().split() for part in parts]
    if not rows:
        return 0.0
    return sum(int(n) for n, _ in rows) / max(float(s) for _, s in rows)
