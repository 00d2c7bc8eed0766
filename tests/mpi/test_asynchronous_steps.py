"""Asynchronous DiLoCo with several workers: every inner step is counted once, on every transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playing import SIZE, Session, workers_with

from mpips import ASP, SGD, DenseTable, DiLoCo, EmbeddingTable, Worker
from mpips.worker.worker import connection_of

SERVERS = 2 if SIZE > 3 else 1
CASES: list[tuple[dict[str, Any], int, str]] = [
    ({}, SERVERS, "auto"),
    ({"fragments": 2}, 1, "p2p"),
    ({"fragments": 2, "bound": 1}, SERVERS, "rma"),
    ({"steps_by_speed": True}, SERVERS, "auto"),
]
N_STEPS = 41


@pytest.mark.parametrize(("options", "n_servers", "way"), CASES)
def test_the_values_at_the_end_have_each_inner_step_of_each_worker_once(
    session: Session, options: dict[str, Any], n_servers: int, way: str
) -> None:
    consistency = DiLoCo(6, SGD(1.0), asynchronous=True, **options)
    tables = [
        DenseTable("a", (700,), SGD(1.0), consistency),
        DenseTable("b", (9,), SGD(1.0), consistency),
        EmbeddingTable("rows", 3, optimizer=SGD(1.0), consistency=ASP(), init="zeros"),
    ]

    def main(worker: Worker) -> list[float]:
        handles = [worker.table("a"), worker.table("b")]
        for step in range(N_STEPS):
            for i, handle in enumerate(handles):
                handle.push(np.full(handle.shape, float(2**worker.index * (i + 1)), np.float32))
            if step % 5 == worker.index:
                worker.table("rows").push(np.array([4]), np.ones((1, 3), np.float32))
            worker.clock()
        worker.synchronize()
        worker.flush()
        worker.barrier("steps")
        rows = worker.table("rows").pull(np.array([4]))
        return [float(v) for v in (*handles[0].pull()[[0, -1]], handles[1].pull()[4], rows[0, 0])]

    n = workers_with(n_servers)
    way = way if SIZE > 1 else "auto"
    played = session(main, tables, servers=n_servers, transport=way, slot_kib=1, ring_slots=4)
    total = float(N_STEPS * (2**n - 1))
    rows = sum(len(range(w, N_STEPS, 5)) for w in range(n))
    for value in played.values:
        assert value == [-total, -total, -2 * total, -rows]


def test_a_worker_of_half_the_speed_makes_half_of_the_inner_steps(session: Session) -> None:
    """The time of each worker is that of its own steps; no worker measures anything."""

    def main(worker: Worker) -> tuple[int, float]:
        pace = connection_of(worker).local.pace  # type: ignore[union-attr]
        now = 0.0
        pace.now, pace.fastest = lambda: now, lambda: 1.0
        table = worker.table("w")
        table.pull()
        for _ in range(24):
            table.push(np.ones(64, np.float32))
            now += 2.0 if worker.index else 1.0
            worker.clock()
        worker.synchronize()
        worker.flush()
        worker.barrier("steps")
        return worker.inner_steps, float(table.pull()[5])

    consistency = DiLoCo(8, SGD(1.0), asynchronous=True, steps_by_speed=True)
    played = session(main, [DenseTable("w", (64,), SGD(1.0), consistency)], servers=1)
    n = len(played.values)
    assert played.values == [(8 if w == 0 else 4, -24.0 * n) for w in range(n)]


def test_the_scheduler_sends_the_speed_of_the_fastest_worker(session: Session) -> None:
    def main(worker: Worker) -> bool:
        connection = connection_of(worker)
        control, table = connection.control, worker.table("w")
        control.speed = 5.0 + worker.index
        wanted = 4.0 + connection.n_workers
        if connection.n_workers > 1:
            connection.wait_until(lambda: control.fastest == wanted, lambda: "no speed has come")
        worker.barrier("steps")
        table.push(np.ones(64, np.float32))
        worker.clock()
        return True

    consistency = DiLoCo(8, asynchronous=True, steps_by_speed=True)
    played = session(main, [DenseTable("w", (64,), SGD(1.0), consistency)], servers=1)
    assert all(played.values)


def test_a_bound_lets_no_worker_be_more_outer_steps_ahead(session: Session, folder: Path) -> None:
    """Worker 0 begins when another one has come to its bound, and then lets it go on."""
    waits = folder / "waits"

    def main(worker: Worker) -> int:
        connection, table = connection_of(worker), worker.table("w")
        keep_pace = connection.keep_pace

        def note(bound: int) -> None:
            if connection.now > bound:
                waits.touch()
            keep_pace(bound)

        connection.keep_pace = note  # type: ignore[method-assign]
        if worker.index == 0 and connection.n_workers > 1:
            connection.wait_until(waits.exists, lambda: "no worker has come to its bound")
        for _ in range(12):
            table.push(np.ones(8, np.float32))
            worker.clock()
            table.pull()
            target = connection.now - 1
            assert target <= 0 or connection.channels[0].wait_head(0, 0, target, 0.0)
        return connection.now

    consistency = DiLoCo(2, SGD(1.0), asynchronous=True, bound=1)
    played = session(main, [DenseTable("w", (8,), SGD(1.0), consistency)], servers=1)
    assert played.values == [6] * len(played.values)
