"""The place of a worker is known after any number of launches that end at the same clock."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from harness import dense
from long_runs import by_day
from recovery_rig import KilledError

from mpips.model.consistency import ASP, BSP
from mpips.worker.worker import connection_of

CLOCKS = 4  # clocks before the one at which launches end


def train(worker, until):
    """Train a program that stores its step in the cursor and pushes an update of that step."""
    while (step := worker.cursor.get("step", 0)) < until:
        update = np.zeros(8, np.float32)
        update[step] = 1.0
        worker.table("w").push(update)
        worker.set_cursor({"step": step + 1})
        worker.clock()


def end_before_tick(worker):
    """Let the worker end before the first tick of its next clock."""
    connection_of(worker).left, connection_of(worker).counts_places = 0, False
    with pytest.raises(KilledError):
        train(worker, CLOCKS + 1)


@pytest.mark.parametrize("consumed", [True, False])
@pytest.mark.parametrize("model", [BSP("sum"), ASP()])
@pytest.mark.parametrize("n_servers", [1, 2, 3])
@pytest.mark.parametrize("n_launches", [1, 2, 3])
def test_launches_that_end_at_the_same_clock_keep_the_cursor(
    make_launches, n_launches, n_servers, model, consumed
):
    launches = make_launches(dense(8, consistency=model), n_servers=n_servers)
    train(launches.workers[0], CLOCKS)
    for _ in range(n_launches):
        # End when every server has the worker's cursor and none has its tick.
        launches.idle = not consumed
        end_before_tick(launches.workers[0])
        launches.again()
        (place,) = launches.places
        assert (place.clock, place.state.cursor) == (CLOCKS, {"step": CLOCKS})


@pytest.mark.sampled
@pytest.mark.parametrize("n_servers", [1, 2, 3])
@pytest.mark.parametrize("model", [BSP("sum"), ASP()])
def test_wherever_in_a_clock_three_launches_end_every_update_counts_once(
    make_launches, model, n_servers
):
    # A clock writes the worker's cursor and its tick to every server; the last point is after all of them.
    points = range(2 * n_servers + 1)
    # 3, 5 and 7 points: every fourth pair has each point as the first one and as the second one.
    for first, second in by_day(list(itertools.product(points, points)), 4):
        launches = make_launches(dense(8, consistency=model), n_servers=n_servers)
        train(launches.workers[0], CLOCKS)
        for write in (first, second, first):
            end_somewhere(launches.workers[0], write)
            launches.again()
        assert to_the_end(launches.workers[0]) == [8, *(-1.0,) * 8], (first, second, first)
        launches.close()


def end_somewhere(worker, write):
    """Let the worker end before this write, or before the first one of a clock that follows."""
    connection_of(worker).left = write
    with contextlib.suppress(KilledError):
        train(worker, CLOCKS + 1)
        connection_of(worker).left = 0
        worker.clock()


def to_the_end(worker):
    """Train to the end; return the clock and the values."""
    train(worker, 8)
    now = worker.now
    connection_of(worker).finish()
    return [now, *worker.table("w").pull().tolist()]
