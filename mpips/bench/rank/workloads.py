"""The training jobs of the benchmarks, made of the same parts as `mpips train`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpips.bench.rank.ranks import BenchRanks
from mpips.config.options import SessionOptions
from mpips.config.schema import JobConfig
from mpips.config.sections import DataConfig, TrainConfig
from mpips.data import Cursor
from mpips.mpi.cluster import Cluster
from mpips.session.job import Job
from mpips.training.epochs import Inputs, train_epochs
from mpips.training.prepare import prepare, ready
from mpips.training.result import Result
from mpips.worker.worker import Worker

BATCH = 256
SEED = 0
# Of w6a: number of samples, of features, of features in a sample; share of the class 1.
_SHAPE = (17_188, 300, 12, 0.03)


class Timed(NamedTuple):
    """Time and amount of the work of one worker."""

    seconds: float
    samples: int
    steps: int


def w6a_file(folder: Path) -> tuple[str, str]:
    """Return (file, description): the data set w6a if this machine has it, else generated data of its shape.

    Args:
        folder: Receives generated data. Every rank may call this function with its own folder.
    """
    real = data_folder() / "w6a.train.svm"
    if real.is_file():
        return str(real), "w6a"
    made = folder / "generated.svm"
    if not made.exists():
        _generate(made)
    return str(made), "generated data of the shape of w6a"


def _generate(path: Path) -> None:
    """Write sparse binary samples; the frequency of feature k is proportional to 1 / k (Zipf's law)."""
    n, d, k, share = _SHAPE
    rng = np.random.default_rng(6)
    frequency = 1.0 / np.arange(1, d + 1)
    weights = rng.normal(size=d)
    picks = rng.choice(d, size=(n, k), p=frequency / frequency.sum())
    scores = weights[picks].sum(axis=1) + rng.normal(size=n)
    labels = np.where(scores > np.quantile(scores, 1 - share), 1, -1)
    lines = [
        f"{label} " + " ".join(f"{key + 1}:1" for key in sorted(set(keys.tolist())))
        for label, keys in zip(labels, picks, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")


def data_folder() -> Path:
    """Return the folder of real data, which may not exist."""
    root = Path(__file__).resolve().parents[3]
    return Path(os.environ.get("MPIPS_TEST_DATA", root.parent / "shared" / "data"))


def job_config(task: str, train: str, servers: int = 0, **options: Any) -> JobConfig:
    """Return the configuration of a job with the defaults of its task, except for the batch size.

    Args:
        task: Name of the task.
        train: Training data.
        servers: Number of servers; 0: the default.
        options: Other sections of the configuration.
    """
    return JobConfig(
        task=task,
        data=DataConfig(train=train),
        train=TrainConfig(batch_size=BATCH),
        cluster=SessionOptions(servers=servers, timeout_s=60.0),
        **options,
    )


def session(
    ranks: BenchRanks, config: JobConfig, work: Callable[[Worker, Inputs], Any]
) -> tuple[Any, Inputs]:
    """Run `work` on the workers of one job. Collective.

    Returns:
        The value of `work` (None on ranks that are not workers) and the inputs of the job.
    """
    with Cluster(ranks.comm, config.cluster.servers or None, config.cluster.timeout_s) as cluster:
        inputs = prepare(cluster, len(cluster.assignment.workers), config)
        value, _ = Job(cluster, inputs.tables, config.cluster).run(lambda w: work(w, inputs))
        return value, inputs


def timed_epochs(worker: Worker, inputs: Inputs, n_epochs: int) -> Timed:
    """Train `n_epochs` epochs after one that warms up. Collective over workers, which start together. Blocks.

    The measurement ends when all updates of this worker are applied.
    """
    loader = ready(worker, inputs, SEED)
    train_epochs(worker, replace(inputs, n_epochs=1), loader, 0, Result())
    worker.flush()
    worker.barrier("warm")
    loader.cursor = Cursor(1, 0)
    result = Result()
    start = time.perf_counter()
    train_epochs(worker, replace(inputs, n_epochs=1 + n_epochs), loader, 0, result)
    worker.flush()
    seconds = time.perf_counter() - start
    return Timed(seconds, result.samples, n_epochs * loader.steps_per_epoch)
