"""Handles that close their table: what a worker may do then, and what servers do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from harness import Rig, dense

from mpips.errors import ConfigError
from mpips.model.consistency import ASP, BSP, SSP, Consistency
from mpips.model.optimizer import SGD
from mpips.model.table import DenseTable
from mpips.worker.dense import DenseHandle
from mpips.worker.worker import Worker

N = 8
ONES = np.ones(N, np.float32)
Use = Callable[[DenseHandle], Any]
USES: dict[str, Use] = {
    "a push to": lambda handle: handle.push(ONES),
    "a closing push to": lambda handle: handle.push(ONES, closes=True),
    "a pull of": lambda handle: handle.pull(),
    "a prefetch of": lambda handle: handle.prefetch(),
    "a view of": lambda handle: handle.view(),
    "new hyperparameters of": lambda handle: handle.set_optimizer(SGD(0.5)),
}


def table(consistency: Consistency, **options: Any) -> DenseTable:
    return dense(N, consistency=consistency, **options)


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("clip_norm", [0.0, 1e6])  # with it there is no direct path
@pytest.mark.parametrize("use", USES)
def test_a_closed_table_is_not_used_before_the_clock_ends(use, clip_norm, local):
    rig = Rig(table(BSP("sum"), clip_norm=clip_norm), n_slots=16)
    worker = rig.worker(local=local)
    handle = worker.table("w")
    with nullcontext() if local else rig.serving():
        before = handle.pull()
        handle.push(2 * ONES)
        handle.push(3 * ONES, closes=True)
        what = use.replace("closing push", "push").replace("prefetch", "pull")
        with pytest.raises(ConfigError, match=f"^{what} table 'w' at clock 0, which this worker"):
            USES[use](handle)
        worker.clock()
        assert np.array_equal(handle.pull(), before - 5)
        USES[use](handle)


@pytest.mark.parametrize("consistency", [ASP(), SSP(3), BSP("sum", backup=1)])
def test_closing_has_no_effect_where_clocks_do_not_sum_in_order(consistency):
    rig = Rig(table(consistency), n_workers=2, n_slots=16)
    workers = [rig.worker(w) for w in range(2)]
    before = workers[0].table("w").pull()
    for worker in workers:
        for _ in range(3):
            worker.table("w").push(ONES, closes=True)
    for worker in workers:
        worker.clock()
    rig.drain()
    if not isinstance(consistency, BSP):
        assert np.array_equal(workers[0].table("w").pull(), before - 6)


def test_a_prefetch_that_is_not_waited_for_in_time_is_an_error():
    worker = Rig(table(BSP("sum")), n_slots=16).worker()
    handle = worker.table("w")
    request = handle.prefetch()
    handle.push(ONES, closes=True)
    with pytest.raises(ConfigError, match="a pull of table 'w' at clock 0"):
        request.wait()


def test_a_refused_push_does_not_close():
    worker = Rig(table(BSP("sum")), n_slots=16).worker()
    handle = worker.table("w")
    before = handle.pull()
    with pytest.raises(ValueError, match="nan"):
        handle.push(np.full(N, np.nan, np.float32), closes=True)
    handle.push(ONES)
    worker.clock()
    assert np.array_equal(handle.pull(), before - 1)


def test_the_next_worker_does_not_wait_for_the_tick_and_reads_the_sum_before_it():
    rig = Rig(table(BSP("sum")), n_workers=2, n_slots=16)
    first, second = (rig.worker(w) for w in range(2))
    before = first.table("w").pull()
    second.table("w").push(ONES, closes=True)
    first.table("w").push(ONES, closes=True)
    rig.drain()
    assert rig.core.version(0) == 1
    first.clock()
    rig.drain()
    # The clock of the other worker is open, and this one goes on.
    assert rig.core.clock(1) == 0
    assert np.array_equal(first.table("w").pull(), before - 2)


def test_a_worker_that_closes_a_table_in_each_clock_trains_as_without():
    def values(closes: bool) -> Any:
        rig = Rig(table(BSP("mean")), n_workers=3, n_slots=16)
        workers: list[Worker] = [rig.worker(w) for w in range(3)]
        rng = np.random.default_rng(1)
        for _ in range(20):
            updates = rng.normal(size=(3, N)).astype(np.float32)
            for w in rng.permutation(3):
                draw = rng.random()
                workers[w].table("w").push(updates[w], closes=closes and draw < 0.8)
            for worker in workers:
                worker.clock()
        return workers[0].table("w").pull().tobytes()

    assert values(True) == values(False)
