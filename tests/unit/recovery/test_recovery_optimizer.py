"""Hyperparameters after launches that end anywhere in a clock in which they change."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from harness import dense, rows
from long_runs import by_day
from recovery_rig import KilledError, Launches

from mpips.model.consistency import ASP, BSP, SSP
from mpips.model.optimizer import SGD
from mpips.worker.worker import Worker, connection_of

CLOCKS = 4
N = 3000  # elements; each server has a part
KEYS = np.array([3, 8, 1])
SCALE = 2.0 ** np.arange(0, -CLOCKS, -1)  # learning rates


def train(worker: Worker, until: int) -> None:
    """Train a program that halves the rate at every clock."""
    while (clock := worker.now) < until:
        for name in ("w", "e"):
            worker.table(name).set_optimizer(SGD(SCALE[clock]))
        worker.table("w").push(np.full(N, 8.0, np.float32))
        worker.table("e").push(KEYS, np.full((3, 4), 8.0, np.float32))
        worker.set_cursor({"step": clock + 1})
        worker.clock()


def end_somewhere(worker: Worker, write: int) -> None:
    connection_of(worker).left = write
    with contextlib.suppress(KilledError):
        train(worker, CLOCKS)


@pytest.mark.sampled
@pytest.mark.parametrize("model", [BSP("sum"), SSP(1), ASP()], ids=["bsp", "ssp", "asp"])
@pytest.mark.parametrize("n_servers", [1, 2, 3])
@pytest.mark.parametrize("consumed", [True, False])
def test_wherever_two_launches_end_every_push_has_the_rate_of_its_clock(
    make_launches, n_servers, model, consumed
):
    # A clock writes two changes, the worker's cursor and its tick to every server.
    per_clock = 4 * n_servers
    points = range(per_clock, 2 * per_clock + 1, n_servers)
    tables = dense(N, consistency=model), rows(4, consistency=model)
    pairs = list(itertools.product(points, range(0, per_clock + 1, 2)))
    # So many pairs still have every first and every second point.
    for first, second in by_day(pairs, 4 if n_servers > 1 else 2):
        launches = make_launches(*tables, n_servers=n_servers, n_slots=64)
        assert len(launches.placement.dense["w"]) == n_servers
        for write in (first, second):
            launches.idle = not consumed
            end_somewhere(launches.workers[0], write)
            launches.again()
        launches.idle = False
        check_to_the_end(launches, f"ended before writes {first} and {second}")
        launches.close()


def check_to_the_end(launches: Launches, story: str) -> None:
    (worker,) = launches.workers
    train(worker, CLOCKS)
    worker.flush()
    total = -8.0 * SCALE.sum()
    assert (worker.table("w").pull() == total).all(), story
    assert (worker.table("e").pull(KEYS) == total).all(), story
    for server in launches.servers:
        for table in range(2):
            found = server.core.optimizer(table).lr, server.core.configured_at(table)
            assert found == (SCALE[-1], CLOCKS), story


def begin_with_another_rate(worker: Worker) -> None:
    worker.table("w").set_optimizer(SGD(0.25))
    worker.table("w").push(np.ones(N, np.float32))
    worker.clock()


def test_a_restart_with_another_declared_rate_keeps_the_rate_in_force(make_launches):
    launches = make_launches(dense(N), rows(4), n_servers=2)
    begin_with_another_rate(*launches.workers)
    launches.tables = [dense(N, optimizer=SGD(4.0)), rows(4, optimizer=SGD(4.0))]
    launches.again()
    (worker,) = launches.workers
    worker.table("w").push(np.ones(N, np.float32))
    worker.table("e").push(KEYS, np.ones((3, 4), np.float32))
    worker.clock()
    assert (worker.table("w").pull() == -0.5).all()
    assert (worker.table("e").pull(KEYS) == -4.0).all()
