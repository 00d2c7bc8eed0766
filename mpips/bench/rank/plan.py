"""Measure the seconds per step of whole jobs, to compare them with the predictions of `mpips plan`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from mpips.bench.launching import Options
from mpips.bench.measure import Figure, Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.bench.rank.workloads import data_folder, job_config, session, timed_epochs, w6a_file
from mpips.config.schema import JobConfig
from mpips.config.sections import DataConfig, TrainConfig


class PlannedJob(NamedTuple):
    """A job whose step `mpips bench plan` compares with its prediction.

    Attributes:
        config: Configuration of the job.
        n_epochs: Epochs that are measured.
        what: Description in one line.
    """

    config: JobConfig
    n_epochs: int
    what: str


def planned_jobs(folder: Path, servers: int) -> dict[str, PlannedJob]:
    """Return three jobs by name: dense, sparse with short steps, sparse with rows of factors.

    Args:
        folder: Receives generated data.
        servers: Number of servers of each job.
    """
    file, data = w6a_file(folder)
    clicks, click_data = criteo_file(folder)
    logistic, mlp = (job_config(t, f, servers) for t, f in (("logistic", file), ("mlp", "digits")))
    columns = DataConfig(train=clicks, categorical=("C*",), numeric="log", empty="zero")
    fm = msgspec.structs.replace(
        job_config("fm", clicks, servers), data=columns, train=TrainConfig(batch_size=16)
    )
    return {
        "digits_mlp": PlannedJob(mlp, 100, "mlp on digits, batch 256"),
        "w6a_logistic": PlannedJob(logistic, 12, f"logistic on {data}, batch 256"),
        "criteo_fm": PlannedJob(fm, 60, f"fm on {click_data}, batch 16"),
    }


def criteo_file(folder: Path) -> tuple[str, str]:
    """Return (file, description): a sample of Criteo's clicks, or generated data, as `w6a_file` does."""
    real = data_folder() / "criteo_sample.csv"
    if real.is_file():
        return str(real), "criteo"
    made = folder / "clicks.csv"
    if not made.exists():
        rng = np.random.default_rng(7)
        names = [f"I{i}" for i in range(1, 14)] + [f"C{i}" for i in range(1, 27)]
        lines = [",".join(["label", *names])]
        for _ in range(200):
            counts = rng.integers(0, 1000, 13).tolist()
            words = rng.zipf(1.5, 26).tolist()
            lines.append(",".join(map(str, [int(rng.integers(0, 2)), *counts, *words])))
        made.write_text("\n".join(lines) + "\n")
    return str(made), "generated data of the shape of criteo"


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
