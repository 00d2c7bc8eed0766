"""Jobs of the suite `adaptive`: three workloads with uneven workers, and the times to the loss of BSP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpips.bench.adaptive import ADAPTIVE, FIXED, JOBS, WORKLOADS, Times, compared
from mpips.bench.launching import Options
from mpips.bench.measure import Findings
from mpips.bench.rank.ranks import BenchRanks
from mpips.model.consistency import ASP, BSP, SSP, Consistency, Reject, Switch
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.worker.worker import Worker

Float32 = NDArray[np.float32]

_STEPS, _QUICK_STEPS = 240, 24  # of BSP
_COMPUTE_S, _QUICK_COMPUTE_S = 0.008, 0.001  # of a step of a worker that is not slow
_SLOW = 3.0  # factor of the slow worker
# A stall of 5 s comes once a minute; here both are shorter in proportion, by steps of the other workers.
_STALL_EVERY, _STALL_STEPS = 120, 10
_LATE = 1  # index of the slow worker, and of the one that stalls; worker 0 looks at the loss
_LONGEST = 1.5  # times of BSP after which a model has not come to the target
_BATCH = 32
# A part of the run that Sync-Switch spends under BSP: the first choice of its search.
_SWITCH_SHARE = 16


class Progress(NamedTuple):
    """The seconds since the start and the loss after each step, as worker 0 sees them."""

    seconds: list[float]
    losses: list[float]


class Site(NamedTuple):
    """One session: the job, its size, and when its workers end.

    Attributes:
        job: A name in JOBS.
        compute_s: Seconds of a step of a worker that is not slow.
        bsp_steps: Steps of a worker under BSP.
        n_steps: Most steps of a worker.
        most_s: Seconds after which no worker begins a step; infinite: all make `n_steps`.
    """

    job: str
    compute_s: float
    bsp_steps: int
    n_steps: int
    most_s: float


class Work(NamedTuple):
    """A workload.

    Attributes:
        tables: Returns its tables under a consistency model.
        step: Pulls, and pushes the gradient of a batch; returns nothing.
        loss: Returns the loss on all samples by values that it pulls.
    """

    tables: Callable[[Consistency], list[Table]]
    step: Callable[[Worker, np.random.Generator], None]
    loss: Callable[[Worker], float]


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure all models in turn; return findings on rank 0, None on others. Collective."""
    n_steps = _QUICK_STEPS if options.quick else _STEPS
    compute_s = _QUICK_COMPUTE_S if options.quick else _COMPUTE_S
    times: Times = {
        job: {name: {model: [] for model in (*FIXED, *ADAPTIVE)} for name in WORKLOADS}
        for job in JOBS
    }
    for _ in range(options.repetitions):
        for job, by_workload in times.items():
            for name, by_model in by_workload.items():
                _measure(
                    ranks, name, Site(job, compute_s, n_steps, n_steps, float("inf")), by_model
                )
    return compared(times) if ranks.rank == 0 else None


def _measure(ranks: BenchRanks, name: str, site: Site, times: dict[str, list[float]]) -> None:
    """Add a time of each model for a workload. BSP is the first, and sets the target. Collective."""
    first = _session(ranks, name, site, "bsp")
    target, bsp_s = first.losses[-1], first.seconds[-1]
    # Workers of faster models make more steps, and slower ones end in time.
    later = site._replace(n_steps=100 * site.n_steps, most_s=_LONGEST * bsp_s)
    for model, found in times.items():
        if model == "bsp":
            found.append(seconds_to(first, target))
        elif not (model == "reject_auto" and name == "rows"):
            # Servers estimate a threshold only for dense tables.
            found.append(seconds_to(_session(ranks, name, later, model), target))


def seconds_to(progress: Progress, target: float) -> float:
    """Return when the loss was at or below the target for the first time; infinite: it never was."""
    pairs = zip(progress.seconds, progress.losses, strict=True)
    return next((at for at, loss in pairs if loss <= target), float("inf"))


def model_of(name: str, n_steps: int) -> Consistency:
    """Return a model of consistency. All apply the sum of what they apply together, with one rate.

    Args:
        name: A name in FIXED or in ADAPTIVE.
        n_steps: Steps of BSP.
    """
    at = max(1, n_steps // _SWITCH_SHARE)
    if name.startswith("ssp_") and name != "ssp_auto":
        return SSP(int(name.removeprefix("ssp_")))
    known: dict[str, Consistency] = {
        "bsp": BSP("sum"),
        "asp": ASP(),
        "ssp_auto": SSP("auto"),
        "reject_auto": ASP(Reject("auto")),
        "switch": Switch(BSP("sum"), ASP(), at),
    }
    return known[name]


def _session(ranks: BenchRanks, name: str, site: Site, model: str) -> Progress:
    """Run a session with one model; return what worker 0 has seen, on all ranks. Collective."""
    work = _works()[name]
    tables = work.tables(model_of(model, site.bsp_steps))
    value = ranks.session(lambda w: _train(w, work, site), tables, servers=1)
    found = [each for each in ranks.comm.allgather(value) if each is not None]
    progress: Progress = found[0]
    return progress


def _train(worker: Worker, work: Work, site: Site) -> Progress | None:
    """Make the steps of a worker; return what worker 0 has seen. Blocks."""
    draws = np.random.default_rng([17, worker.index])
    progress = Progress([], [])
    worker.barrier("the first step")
    began = time.perf_counter()
    for step in range(site.n_steps):
        if time.perf_counter() - began > site.most_s:
            break
        time.sleep(_pause(worker.index, step, site))
        work.step(worker, draws)
        worker.clock()
        if worker.index == 0:
            progress.losses.append(work.loss(worker))
            progress.seconds.append(time.perf_counter() - began)
    return progress if worker.index == 0 else None


def _pause(worker: int, step: int, site: Site) -> float:
    """Return the seconds that a worker computes in a step."""
    if worker != _LATE or site.job == "even":
        return site.compute_s
    if site.job == "slow_worker":
        return _SLOW * site.compute_s
    stalls = step % _STALL_EVERY == _STALL_EVERY // 2
    return site.compute_s * (_STALL_STEPS if stalls else 1)


def _works() -> dict[str, Work]:
    """Return the workloads by name, with data that are the same on all ranks."""
    return {"logistic": _logistic(), "rows": _rows(), "network": _network()}


def _dense(sizes: dict[str, tuple[int, ...]], lr: float) -> Callable[[Consistency], list[Table]]:
    def tables(model: Consistency) -> list[Table]:
        return [
            DenseTable(name, shape, SGD(lr), model, init="normal(0.1)")
            for name, shape in sizes.items()
        ]

    return tables


def _logistic() -> Work:
    """Logistic regression: 40 dense features."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1500, 40), np.float32)
    y = (x @ rng.standard_normal(40) + rng.standard_normal(1500) > 0).astype(np.float32)

    def step(worker: Worker, draws: np.random.Generator) -> None:
        w, i = worker.table("w").pull(), draws.integers(0, len(x), _BATCH)
        error = 1 / (1 + np.exp(-(x[i] @ w))) - y[i]
        worker.table("w").push((x[i].T @ error / _BATCH).astype(np.float32), base=w)

    def loss(worker: Worker) -> float:
        score = x @ worker.table("w").pull()
        return float(np.mean(np.logaddexp(0, score) - y * score))

    return Work(_dense({"w": (40,)}, 0.05), step, loss)


def _rows() -> Work:
    """Factorization of a matrix: a row of 4 numbers for each of 60 users and 40 items."""
    rng = np.random.default_rng(2)
    n_users, n_items = 60, 40
    true = rng.standard_normal((n_users, 4)) @ rng.standard_normal((n_items, 4)).T
    keys = np.arange(n_users + n_items)

    def tables(model: Consistency) -> list[Table]:
        return [EmbeddingTable("e", 4, SGD(0.02), model, init="normal(0.3)")]

    def step(worker: Worker, draws: np.random.Generator) -> None:
        users, items = draws.integers(0, n_users, _BATCH), draws.integers(0, n_items, _BATCH)
        asked, at = np.unique(np.concatenate([users, n_users + items]), return_inverse=True)
        rows = worker.table("e").pull(asked)
        u, v = rows[at[:_BATCH]], rows[at[_BATCH:]]
        error = ((u * v).sum(1) - true[users, items])[:, None]
        gradient = np.zeros_like(rows)
        np.add.at(gradient, at[:_BATCH], error * v)
        np.add.at(gradient, at[_BATCH:], error * u)
        worker.table("e").push(asked, gradient.astype(np.float32))

    def loss(worker: Worker) -> float:
        rows = worker.table("e").pull(keys)
        return float(np.mean((rows[:n_users] @ rows[n_users:].T - true) ** 2))

    return Work(tables, step, loss)


def _network() -> Work:
    """A network with one layer of 16 hidden units, for a function of 8 numbers."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1000, 8), np.float32)
    y = np.sin(x[:, :1] * x[:, 1:2]) + np.tanh(x[:, 2:3])

    def gradients(w: Float32, v: Float32, i: Any) -> tuple[Float32, Float32, float]:
        hidden = np.tanh(x[i] @ w)
        error = hidden @ v - y[i]
        back = (error @ v.T) * (1 - hidden**2)
        of_w, of_v = x[i].T @ back / len(error), hidden.T @ error / len(error)
        return of_w.astype(np.float32), of_v.astype(np.float32), float(np.mean(error**2))

    def step(worker: Worker, draws: np.random.Generator) -> None:
        w, v = worker.table("w").pull(), worker.table("v").pull()
        of_w, of_v, _ = gradients(w, v, draws.integers(0, len(x), _BATCH))
        worker.table("w").push(of_w, base=w)
        worker.table("v").push(of_v, base=v)

    def loss(worker: Worker) -> float:
        return gradients(worker.table("w").pull(), worker.table("v").pull(), slice(None))[2]

    return Work(_dense({"w": (8, 16), "v": (16, 1)}, 0.05), step, loss)
