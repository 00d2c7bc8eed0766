"""Jobs of the suite `adaptive`: uneven workers, and the times to the loss of BSP."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mpips.bench.adaptive import (
    ADAPTIVE,
    FIXED,
    JOBS,
    LONGEST,
    QUICK_FIXED,
    WORKLOADS,
    Times,
    compared,
)
from mpips.bench.launching import Options
from mpips.bench.measure import Findings
from mpips.bench.rank.adapting_works import Steps, data_file, session_of
from mpips.bench.rank.ranks import BenchRanks
from mpips.worker.worker import Worker

_STEPS, _QUICK_STEPS = 192, 12  # of BSP
_COMPUTE_S, _QUICK_COMPUTE_S = 0.01, 0.003  # of a step of a worker that is not slow
_SLOW = 3.0  # factor of the slow worker
# A stall of 5 s comes once a minute; here both are shorter in proportion, in steps of the other workers: a
# stall of 3 in 36.
_STALL_EVERY, _STALL_STEPS = 36, 3
_LATE = 1  # index of the slow worker, and of the one that stalls; worker 0 measures the loss


class TimedLosses(NamedTuple):
    """The seconds since the start and the loss after each step, as worker 0 sees them."""

    seconds: list[float]
    losses: list[float]


class UnevenSession(NamedTuple):
    """One session: the job, its size, and when its workers end.

    Attributes:
        job: A name in JOBS.
        compute_s: Seconds of a step of a worker that is not slow.
        n_steps: Most steps of a worker.
        most_s: Seconds after which no worker begins a step; infinite: all make `n_steps`.
        target: Loss at which the session ends.
        done: A file that worker 0 makes when it has seen this loss.
    """

    job: str
    compute_s: float
    n_steps: int
    most_s: float = float("inf")
    target: float = -float("inf")
    done: Path = Path()


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure all models in turn; return findings on rank 0, None on others. Collective."""
    n_steps = _QUICK_STEPS if options.quick else _STEPS
    compute_s = _QUICK_COMPUTE_S if options.quick else _COMPUTE_S
    fixed = QUICK_FIXED if options.quick else FIXED
    times: Times = {
        job: {name: {model: [] for model in (*fixed, *ADAPTIVE)} for name in WORKLOADS}
        for job in JOBS
    }
    with tempfile.TemporaryDirectory(prefix="mpips-bench-adaptive-") as made:
        folder = Path(ranks.comm.bcast(made))
        if ranks.rank == 0:
            for name in WORKLOADS:
                data_file(name, folder)
        ranks.comm.Barrier()
        for _ in range(options.repetitions):
            for job, by_workload in times.items():
                for name, by_model in by_workload.items():
                    _measure(ranks, folder, name, UnevenSession(job, compute_s, n_steps), by_model)
        ranks.comm.Barrier()
    return compared(times) if ranks.rank == 0 else None


def _measure(
    ranks: BenchRanks, folder: Path, name: str, uneven: UnevenSession, times: dict[str, list[float]]
) -> None:
    """Add a time of each model for a workload. BSP is the first, and sets the target. Collective.

    Args:
        ranks: All ranks.
        folder: Has the data, and receives a file of each session. The same one on all ranks.
        name: The workload.
        uneven: The session of BSP.
        times: The times by model.
    """
    first = _session(ranks, folder, name, uneven, "bsp", uneven.n_steps)
    target, bsp_s = first.losses[-1], first.seconds[-1]
    for model, found in times.items():
        progress = first
        if model != "bsp":
            done = folder / f"{name}-{uneven.job}-{model}-{len(found)}"
            # Workers of faster models make more steps, and slower ones end in time.
            later = uneven._replace(
                n_steps=100 * uneven.n_steps, most_s=LONGEST * bsp_s, target=target, done=done
            )
            progress = _session(ranks, folder, name, later, model, uneven.n_steps)
        found.append(min(seconds_to(progress, target), LONGEST * bsp_s))


def seconds_to(progress: TimedLosses, target: float) -> float:
    """Return when the loss was at or below the target for the first time; infinite: it never was."""
    pairs = zip(progress.seconds, progress.losses, strict=True)
    return next((at for at, loss in pairs if loss <= target), float("inf"))


def _session(
    ranks: BenchRanks, folder: Path, name: str, uneven: UnevenSession, model: str, bsp_steps: int
) -> TimedLosses:
    """Run a session with one model; return what worker 0 has seen, on all ranks. Collective."""
    value = session_of(
        ranks, folder, name, model, bsp_steps, lambda worker, steps: _train(worker, steps, uneven)
    )
    found = [each for each in ranks.comm.allgather(value) if each is not None]
    progress: TimedLosses = found[0]
    return progress


def _train(worker: Worker, steps: Steps, uneven: UnevenSession) -> TimedLosses | None:
    """Make the steps of a worker; return what worker 0 has seen. Blocks."""
    progress = TimedLosses([], [])
    worker.barrier("the first step")
    began = time.perf_counter()
    measured_s = 0.0  # the measurement of the loss takes the place of a part of the next sleep
    for step in range(uneven.n_steps):
        if time.perf_counter() - began > uneven.most_s or uneven.done.is_file():
            break
        compute_s = max(0.0, pause(worker.index, step, uneven) - measured_s)
        steps.step(partial(time.sleep, compute_s))
        worker.clock()
        if worker.index == 0:
            # The measurement has no wait for other workers.
            steps.wait()
            before = time.perf_counter()
            loss = steps.loss()
            after = time.perf_counter()
            measured_s = after - before
            progress.losses.append(loss)
            progress.seconds.append(before - began)
            if loss <= uneven.target:
                uneven.done.touch()
    return progress if worker.index == 0 else None


def pause(worker: int, step: int, uneven: UnevenSession) -> float:
    """Return the seconds that a worker computes in a step."""
    if worker != _LATE or uneven.job == "even":
        return uneven.compute_s
    if uneven.job == "slow_worker":
        return _SLOW * uneven.compute_s
    stalls = step % _STALL_EVERY == _STALL_EVERY // 2
    return uneven.compute_s * (1 + _STALL_STEPS if stalls else 1)
