"""Tables of stages over MPI: means of the workers of a stage, checkpoints of the whole model, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playing import SIZE, Session, counts, workers_with

from mpips import BSP, SGD, SSP, ConfigError, DenseTable, EmbeddingTable, Worker

N_CLOCKS, N_DENSE, N_KEYS, DIM = 3, 300, 20, 4
KEYS = np.arange(N_KEYS)
SMALL_RINGS = {"slot_kib": 1, "ring_slots": 4}


def tables_of(n_stages: int, divided: bool) -> list[Any]:
    """Return a dense table under BSP, rows and a table under SSP for each stage, and one of all workers."""
    rule, found = SGD(1.0), list[Any]()
    for s in range(n_stages):
        stage = s if divided else None
        found.append(DenseTable(f"w{s}", (N_DENSE,), rule, BSP(), stage=stage))
        found.append(EmbeddingTable(f"e{s}", DIM, rule, BSP(), stage=stage))
        found.append(DenseTable(f"s{s}", (3,), rule, SSP(1), stage=stage))
    return [*found, DenseTable("all", (N_DENSE,), rule, BSP())]


def names_of(worker: Worker, n_stages: int) -> list[int]:
    """Return the stages whose tables a worker has."""
    return list(range(n_stages)) if worker.stages == 1 else [worker.stage]


def train(worker: Worker, n_stages: int, first: int, n_members: int) -> None:
    """Push whole numbers in each clock, times the number of pushes that the mean is over."""
    for clock in range(first, first + N_CLOCKS):
        for s in names_of(worker, n_stages):
            # Each worker that has the stage pushes the same, so the values depend on the clock alone.
            worker.table(f"w{s}").push(-counts(s, clock, N_DENSE), closes=clock % 2 == 0)
            worker.table(f"e{s}").push(KEYS, -counts(s, clock, (N_KEYS, DIM)))
            worker.table(f"s{s}").push(-counts(s, clock, 3) * np.float32(12 / n_members))
        worker.table("all").push(-counts(9, clock, N_DENSE))
        worker.clock()


def expected(s: int, n_clocks: int) -> list[np.ndarray]:
    """Return the values of the tables of a stage, and of the table of all workers, after so many clocks."""
    clocks = range(n_clocks)
    return [
        sum(counts(s, clock, N_DENSE) for clock in clocks),
        sum(counts(s, clock, (N_KEYS, DIM)) for clock in clocks),
        sum(12 * counts(s, clock, 3) for clock in clocks),
        sum(counts(9, clock, N_DENSE) for clock in clocks),
    ]


def is_right(worker: Worker, n_stages: int, n_clocks: int) -> list[bool]:
    """Return whether all tables of this worker have their values, once all workers have come here."""
    worker.flush()
    worker.barrier("all pushes are applied")
    found = list[bool]()
    for s in names_of(worker, n_stages):
        handles = [worker.table(name) for name in (f"w{s}", f"e{s}", f"s{s}", "all")]
        values = [h.pull(KEYS) if i == 1 else h.pull() for i, h in enumerate(handles)]
        found += [np.array_equal(a, b) for a, b in zip(values, expected(s, n_clocks), strict=True)]
    # A server applies the next pushes under SSP as they come.
    worker.barrier("all have looked")
    return found


def refusal(worker: Worker) -> str:
    """Return the error of a use of another stage's table; "": the worker has all of them."""
    if worker.stages == 1:
        return ""
    try:
        worker.table(f"w{(worker.stage + 1) % worker.stages}")
    except ConfigError as error:
        return str(error)
    return "no error"


@pytest.mark.two_ranks
@pytest.mark.one_of("way")
@pytest.mark.parametrize("way", ["shm", "rma", "p2p"])
def test_a_model_in_stages_is_that_of_all_workers_also_from_its_checkpoint(
    comm: Any,
    session: Session,
    parallel_assert: Any,
    folder: Path,
    way: str,
    servers: int,
) -> None:
    n_workers = workers_with(servers)
    n_stages = n_workers if n_workers in (2, 3) else 2
    n_members = max(1, n_workers // n_stages)

    def divided(worker: Worker) -> tuple[Any, ...]:
        first = worker.start.clock if worker.start is not None else 0
        train(worker, n_stages, first, n_members)
        place = (worker.stages, worker.stage, worker.pipeline)
        return place, is_right(worker, n_stages, first + N_CLOCKS), refusal(worker)

    def whole(worker: Worker) -> list[bool]:
        found = is_right(worker, n_stages, N_CLOCKS)
        train(worker, n_stages, N_CLOCKS, n_workers)
        return found + is_right(worker, n_stages, 2 * N_CLOCKS)

    transport = way if SIZE > 1 else "local"
    options = {"servers": servers, "transport": transport, "save": folder, **SMALL_RINGS}
    for n_before in (0, 2):
        played = session(divided, tables_of(n_stages, True), **options)
        for w, (place, right, error) in enumerate(played.values):
            n = 1 if n_workers == 1 else n_stages
            parallel_assert(comm, place == (n, w % n, w // n), str(place))
            parallel_assert(comm, right and all(right), f"worker {w} after {n_before}: {right}")
            text = (
                f"belongs to stage {(w + 1) % n} of the model, and worker {w} computes"
                if n > 1
                else ""
            )
            parallel_assert(comm, text in error, error)
        if n_before == 0:
            played = session(whole, tables_of(n_stages, False), **options)
            parallel_assert(comm, all(map(all, played.values)), str(played.values))


@pytest.mark.mpi(min_size=4)
def test_a_number_of_workers_that_is_no_multiple_is_refused(
    comm: Any, session: Session, parallel_assert: Any
) -> None:
    n = workers_with(1) + 1
    error = ""
    try:
        session(lambda worker: None, tables_of(n, True), servers=1)
    except ConfigError as problem:
        error = str(problem)
    parallel_assert(comm, f"{n - 1} workers: the tables have stages 0 to {n - 1}" in error, error)


@pytest.mark.mpi(min_size=4)
@pytest.mark.skipif(SIZE % 2, reason="an even number of workers")
def test_groups_are_refused(comm: Any, session: Session, parallel_assert: Any) -> None:
    error = ""
    try:
        session(lambda worker: None, tables_of(2, True), servers=1, topology="node")
    except ConfigError as problem:
        error = str(problem)
    parallel_assert(comm, "'node' with tables that belong to stages" in error, error)
