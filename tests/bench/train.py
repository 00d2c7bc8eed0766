"""The suite `train`: time that mpips adds to a training step, idle processor time, and more ranks than cores.

Its programs on ranks: `steps` compares training with one server and one worker under BSP with one plain NumPy
process; `idle` measures the processor time that scheduler and servers use while the worker sleeps; `samples`
and `pushes` measure rates of a launch.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np

import mpips
from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Comparison, Figure, Findings
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
from tests.bench.plain import PlainLogistic, PlainMlp
from tests.bench.processes import cpu_seconds

# Ranks: one scheduler, then servers, then workers.
_ALONE = 1 + 1 + 1
_CROWDED = 1 + 2 + 3
_FOUR_WORKERS = 1 + 1 + 4
_IDLE_SERVERS = 2
_SETTLE_S = 0.5
_PUSHED = 1024  # float32 values of a push of 4 KiB


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure all parts on this machine. `nodes` has no effect.

    Raises:
        BenchError: A launch failed.
    """
    found = on_ranks("tests.bench.train:steps", 2, options)
    found.add(on_ranks("tests.bench.train:idle", 4, options))
    found.add(_oversubscribed(options))
    found.add(_ring_scaling(options))
    return found


def alternate(program: str, sizes: tuple[int, int], options: Options) -> tuple[Findings, Findings]:
    """Launch a program alternately on two numbers of ranks.

    Args:
        program: Name of a program of this module.
        sizes: The two numbers of ranks.
        options: Repetitions and sizes.

    Returns:
        Findings of each number of ranks; a figure has one value per launch, in the order of the launches.
    """
    sides = Findings(), Findings()
    for _ in range(options.repetitions):
        for side, n in zip(sides, sizes, strict=True):
            for figure in on_ranks(f"tests.bench.train:{program}", n, options).figures:
                known = next((f for f in side.figures if f.name == figure.name), None)
                if known is None:
                    side.figures.append(figure)
                else:
                    known.values += figure.values
    return sides


def _oversubscribed(options: Options) -> Findings:
    """Compare six ranks with three.

    Only w6a has a bar: its steps are short, so the way in which ranks wait decides the result.
    """
    many, few = alternate("samples", (_CROWDED, _ALONE), options)
    found = Findings()
    for ours, baseline in zip(many.figures, few.figures, strict=True):
        name = "oversubscribed" if ours.name == "w6a" else f"oversubscribed_{ours.name}"
        found.comparisons.append(
            Comparison(
                name=name,
                what=f"{ours.what} under BSP, 2 servers and 3 workers",
                unit=ours.unit,
                ours=ours.values,
                baseline=baseline.values,
                baseline_name="1 server, 1 worker",
            )
        )
    return found


def _ring_scaling(options: Options) -> Findings:
    four, one = alternate("pushes", (_FOUR_WORKERS, _ALONE), options)
    comparison = Comparison(
        name="ring_scaling",
        what="pushes of 4 KiB (ASP, dense) into one server from 4 workers together",
        unit="pushes/s",
        ours=four.figures[0].values,
        baseline=one.figures[0].values,
        baseline_name="1 worker",
    )
    return Findings(comparisons=[comparison])


def steps(ranks: BenchRanks, options: Options) -> Findings | None:
    """Compare steps of both models with NumPy; return findings on rank 1, None on rank 0. Collective.

    Rank 0 is scheduler and server, rank 1 the worker. In each repetition a session trains; then the worker's
    rank trains the same model on the same batches in NumPy, while rank 0 waits.
    """
    found = Findings()
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        file, data = w6a_file(Path(folder))
        jobs = [
            ("train_overhead_digits", "mlp", "digits", "digits", 3 if options.quick else 150),
            ("train_overhead_w6a", "logistic", file, data, 1 if options.quick else 12),
        ]
        for name, task, train, data, n_epochs in jobs:
            pairs = _in_turn(ranks, job_config(task, train), options.repetitions, n_epochs)
            if ranks.rank == 1:
                found.comparisons.append(_step_comparison(name, f"{task} on {data}", pairs))
    return found if ranks.rank == 1 else None


def _step_comparison(name: str, job: str, pairs: list[tuple[Timed, Timed]]) -> Comparison:
    return Comparison(
        name=name,
        what=f"a step of {job}, batch 256, 1 server and 1 worker under BSP",
        unit="us",
        ours=[1e6 * ours.seconds / ours.steps for ours, _ in pairs],
        baseline=[1e6 * plain.seconds / plain.steps for _, plain in pairs],
        baseline_name="one NumPy process",
    )


def _in_turn(
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


def idle(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure all processes from the worker; return findings on its rank, None elsewhere. Collective."""
    pids = ranks.comm.allgather(os.getpid())
    seconds = (1.0 if options.quick else 10.0) / options.repetitions

    def main(worker: Worker) -> list[list[float]]:
        # Use the table and every server once; then let them become idle.
        table = worker.table("w")
        for _ in range(20):
            table.push(np.ones(table.shape, np.float32))
            worker.clock()
            table.pull()
        time.sleep(_SETTLE_S)
        rows = []
        for _ in range(options.repetitions):
            before, start = (
                [cpu_seconds(pid) for pid in pids[: 1 + _IDLE_SERVERS]],
                time.monotonic(),
            )
            time.sleep(seconds)
            took = time.monotonic() - start
            rows.append(
                [(cpu_seconds(pid) - was) / took for pid, was in zip(pids, before, strict=False)]
            )
        return rows

    rows = ranks.session(main, [mpips.DenseTable("w", (4096,))], servers=_IDLE_SERVERS)
    return _idle_findings(rows) if rows is not None else None


def _idle_findings(rows: list[list[float]]) -> Findings:
    found = Findings()
    names = ["scheduler", *(f"server_{i}" for i in range(_IDLE_SERVERS))]
    for i, name in enumerate(names):
        found.figures.append(
            Figure(
                name=f"idle_cpu_{name}",
                what=f"of the idle {name.replace('_', ' ')} while workers sleep",
                unit="cores",
                values=[row[i] for row in rows],
            )
        )
    found.comparisons.append(
        Comparison(
            name="idle_cpu",
            what="the busiest of scheduler and servers while workers sleep",
            unit="cores",
            ours=[max(row) for row in rows],
            baseline=[1.0] * len(rows),
            baseline_name="one core",
        )
    )
    return found


def samples(ranks: BenchRanks, options: Options) -> Findings | None:
    """Run both jobs under BSP; return their rates on worker 0's rank, None elsewhere. Collective.

    About half of the ranks are servers, the others workers.
    """
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


def pushes(ranks: BenchRanks, options: Options) -> Findings | None:
    """Push 4 KiB (ASP, dense) to one server; return the rate on worker 0's rank. Collective.

    All ranks but the scheduler and the server are workers.
    """
    total = 4_000 if options.quick else 120_000

    def main(worker: Worker) -> float:
        table = worker.table("w")
        update = np.full(_PUSHED, 1e-6, np.float32)
        each = total // worker.n_workers
        for _ in range(each // 10):
            table.push(update)
        worker.flush()
        worker.barrier("warm")
        start = time.perf_counter()
        for _ in range(each):
            table.push(update)
        worker.flush()
        seconds = time.perf_counter() - start
        parts = worker.gather("rates", repr(seconds).encode(), everyone=False)
        # All workers start together; the slowest one ends the measurement.
        return each * worker.n_workers / max(float(part) for part in parts) if parts else 0.0

    table = mpips.DenseTable("w", (_PUSHED,), mpips.SGD(0.01), mpips.ASP())
    rate = ranks.session(main, [table], servers=1)
    if not rate:
        return None
    what = f"pushes of 4 KiB from {ranks.size - 2} workers"
    return Findings(figures=[Figure(name="rate", what=what, unit="pushes/s", values=[rate])])
