"""Measure the seconds per step of whole jobs, to compare them with the predictions of `mpips plan`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from mpips.bench.launching import Options
from mpips.bench.measure import Figure, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.bench.rank.workloads import planned_jobs, session, timed_epochs


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Run each job under BSP; return its seconds per step on worker 0's rank. Collective."""
    servers = max(1, (ranks.size - 1) // 2)
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        for name, job in planned_jobs(Path(folder), servers).items():
            n_epochs = 1 if options.quick else job.n_epochs
            timed, _ = session(ranks, job.config, lambda w, i, n=n_epochs: timed_epochs(w, i, n))  # type: ignore[misc]
            if timed is not None:
                seconds = timed.seconds / timed.steps
                found.figures.append(Figure(name=name, what=job.what, unit="s", values=[seconds]))
    first = ranks.rank == (1 if ranks.size == 2 else 1 + servers)
    return found if first else None
