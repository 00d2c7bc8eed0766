"""Compare the time of a training step with one server and one worker under BSP with one plain NumPy process.

Rank 0 is scheduler and server, rank 1 the worker. In each repetition a session trains; then the worker's rank
trains the same model on the same batches in NumPy, while rank 0 waits.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.plain import PlainLogistic, PlainMlp
from mpips.bench.rank.ranks import BenchRanks
from mpips.bench.rank.workloads import SEED, Timed, job_config, session, timed_epochs, w6a_file
from mpips.config.schema import JobConfig
from mpips.data import DenseData, Loader, SparseData
from mpips.model.optimizer import FTRL, Adagrad
from mpips.model.table import DenseTable
from mpips.tasks.logistic import LogisticOptions
from mpips.tasks.mlp import MlpOptions
from mpips.training.epochs import Inputs
from mpips.worker.worker import Worker


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure both models; return findings on the worker's rank, None on the other. Collective."""
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        file, data = w6a_file(Path(folder))
        jobs = [
            ("train_overhead_digits", "mlp", "digits", "digits", 3 if options.quick else 150),
            ("train_overhead_w6a", "logistic", file, data, 1 if options.quick else 12),
        ]
        for name, task, train, data, n_epochs in jobs:
            pairs = _alternate(ranks, job_config(task, train), options.repetitions, n_epochs)
            if ranks.rank == 1:
                found.comparisons.append(_comparison(name, f"{task} on {data}", pairs))
    return found if ranks.rank == 1 else None


def _comparison(name: str, job: str, pairs: list[tuple[Timed, Timed]]) -> Comparison:
    return Comparison(
        name=name,
        what=f"a step of {job}, batch 256, 1 server and 1 worker under BSP",
        unit="us",
        ours=[1e6 * ours.seconds / ours.steps for ours, _ in pairs],
        baseline=[1e6 * plain.seconds / plain.steps for _, plain in pairs],
        baseline_name="one NumPy process",
    )


def _alternate(
    ranks: BenchRanks, config: JobConfig, repetitions: int, n_epochs: int
) -> list[tuple[Timed, Timed]]:
    """Return (session, NumPy) by repetition on the worker, and [] on the other rank. Collective.

    One more repetition before the others warms up.
    """
    pairs = []
    for _ in range(1 + repetitions):
        got, inputs = session(ranks, config, lambda w, i: _train(w, i, n_epochs))
        if got is not None:
            ours, initial = got
            pairs.append((ours, plain_epochs(inputs, initial, n_epochs)))
    return pairs[1:]


def _train(worker: Worker, inputs: Inputs, n_epochs: int) -> tuple[Timed, list[object]]:
    # Pull the initial values, so that the NumPy model starts from them.
    dense = [t.name for t in inputs.tables if isinstance(t, DenseTable)]
    initial: list[object] = [worker.table(name).pull() for name in dense]
    return timed_epochs(worker, inputs, n_epochs), initial


def plain_model(inputs: Inputs, initial: list[object]) -> PlainMlp | PlainLogistic:
    """Make the same model without mpips.

    Args:
        inputs: Inputs of the job.
        initial: Initial values of the dense tables, float32 arrays in the order of `inputs.tables`.
    """
    assert isinstance(inputs.train, SparseData | DenseData)
    optimizer = inputs.tables[0].optimizer
    if isinstance(optimizer, FTRL):
        return PlainLogistic(inputs.train, LogisticOptions(), optimizer)
    assert isinstance(optimizer, Adagrad)
    return PlainMlp(inputs.train, MlpOptions(), optimizer, initial)  # type: ignore[arg-type]


def plain_epochs(inputs: Inputs, initial: list[object], n_epochs: int) -> Timed:
    """Train the NumPy model like `timed_epochs`: `n_epochs` epochs after one that warms up. Blocks."""
    assert inputs.train is not None
    model = plain_model(inputs, initial)
    loader = Loader(inputs.train, inputs.train.n, 1, 0, inputs.batch_size, SEED)
    steps = samples = 0
    start = 0.0
    for cursor, batch in loader.until(1 + n_epochs):
        if cursor.epoch == 1 and cursor.step == 0:
            start, steps, samples = time.perf_counter(), 0, 0
        model.step(batch)
        steps, samples = steps + 1, samples + batch.n
    return Timed(time.perf_counter() - start, samples, steps)
