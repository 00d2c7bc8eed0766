"""A worker that pulls embedding rows continues where servers have different parts of its last clock."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from harness import rows
from recovery_rig import KilledError

from mpips.model.consistency import ASP, BSP, SSP
from mpips.worker.worker import connection_of

CLOCKS = 4
KEYS = np.arange(24, dtype=np.int64)
MODELS = {"bsp": BSP("sum"), "asp": ASP(), "ssp": SSP(1)}


def train(worker, until):
    """Pull and push rows at each step; the pulled rows must be those of the step."""
    table, first = worker.table("e"), worker.now
    while (step := worker.cursor.get("step", 0)) < until:
        pulled = table.pull(KEYS)
        # A repeated step may find later values.
        assert worker.now == first or (pulled == -step).all()
        table.push(KEYS, np.ones((KEYS.size, 4), np.float32))
        worker.set_cursor({"step": step + 1})
        worker.clock()


def finish(worker, until):
    """Check the trained rows, and finish."""
    assert (worker.table("e").pull(KEYS) == -until).all()
    connection_of(worker).finish()


def end_before(launches, write, finishes):
    """Let the worker end before this write of its last clock, or of its last clock and its finish."""
    worker = launches.workers[0]
    train(worker, CLOCKS - 1)
    connection_of(worker).left = write
    with contextlib.suppress(KilledError):
        train(worker, CLOCKS)
        if finishes:
            finish(worker, CLOCKS)
        raise AssertionError("not so many writes")


def to_the_end(launches, until):
    """Train to the end; return the distinct values of all rows."""
    worker = launches.workers[0]
    train(worker, until)
    finish(worker, until)
    found = [server.core.embedding_rows(0) for server in launches.servers]
    assert sorted(int(k) for keys, _ in found for k in keys) == KEYS.tolist()
    return {float(v) for _, values in found for v in values.reshape(-1)}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("n_servers", [2, 3])
def test_rows_are_pulled_again_where_one_server_has_the_tick_and_another_has_not(
    make_launches, n_servers, model
):
    for write in range(2 * n_servers):
        launches = make_launches(rows(consistency=model), n_servers=n_servers)
        end_before(launches, write, finishes=False)
        launches.again()
        assert to_the_end(launches, CLOCKS + 2) == {-float(CLOCKS + 2)}, f"ended before {write}"
        launches.close()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("n_servers", [1, 2, 3])
def test_rows_are_pulled_again_for_evaluation_where_servers_know_that_the_worker_has_finished(
    make_launches, n_servers, model
):
    # Writes: cursor and tick of the last clock, cursor and finish; the last point is after all of them.
    for write in range(3 * n_servers + 1, 4 * n_servers + 1):
        launches = make_launches(rows(consistency=model), n_servers=n_servers)
        if write < 4 * n_servers:
            end_before(launches, write, finishes=True)
        else:
            to_the_end(launches, CLOCKS)
        launches.again()
        assert to_the_end(launches, CLOCKS) == {-float(CLOCKS)}, f"ended before {write}"
        launches.close()
