"""SSP: no worker reads values older than the bound; an error after a wait names the late worker."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Rig, dense, in_threads, rows

from mpips.errors import StallError
from mpips.model.consistency import BSP, SSP
from mpips.worker.worker import connection_of


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_ssp_answers_a_pull_exactly_when_the_bound_allows_it(seed, bound):
    n = 3
    model = SSP(bound=bound)
    rig = Rig(dense(2, consistency=model), rows(1, consistency=model), n_workers=n, n_slots=64)
    rng = np.random.default_rng(seed)
    clocks, finished = [0] * n, [False] * n
    workers = [rig.worker(w, timeout_s=60.0) for w in range(n)]
    waiting: dict[int, list] = {}
    for _ in range(120):
        w = int(rng.integers(n))
        rig.drain()
        slowest = min((c for c, f in zip(clocks, finished, strict=True) if not f), default=10**9)
        for v, requests in list(waiting.items()):
            allowed = clocks[v] - slowest <= bound
            assert [request.test() for request in requests] == [allowed] * 2
            if allowed:
                del waiting[v]
        if w in waiting or finished[w]:
            continue
        move = rng.random()
        if move < 0.5:
            workers[w].table("w").push(np.ones(2, np.float32))
            workers[w].table("e").push(np.array([3]), np.ones((1, 1), np.float32))
            workers[w].clock()
            clocks[w] += 1
        elif move < 0.97:
            waiting[w] = [
                workers[w].table("w").prefetch(),
                workers[w].table("e").prefetch(np.array([3])),
            ]
        else:
            connection_of(workers[w]).finish()
            finished[w] = True
    rig.drain()
    assert rig.values().tolist() == [-float(sum(clocks))] * 2


def test_ssp_pull_holds_all_updates_up_to_the_bound():
    n, bound, clocks = 3, 2, 25
    rig = Rig(dense(n, consistency=SSP(bound=bound)), n_workers=n)

    def work(worker):
        mine = np.zeros(n, np.float32)
        mine[worker.index] = -1.0
        for clock in range(clocks):
            seen = worker.table("w").pull()
            assert seen[worker.index] == clock
            assert (seen >= clock - bound).all()
            worker.table("w").push(mine)
            worker.clock()
        connection_of(worker).finish()

    with rig.serving():
        workers = [rig.worker(w, local=False) for w in range(n)]
        in_threads([lambda w=w: work(w) for w in workers])
    assert rig.values().tolist() == [clocks] * n


@pytest.mark.parametrize(("late", "n_ahead"), [(0, 2), (1, 2), (2, 2)])
def test_stall_names_the_worker_that_is_late(late, n_ahead):
    rig = Rig(dense(3, consistency=BSP("sum")), rows(1, consistency=BSP("sum")), n_workers=3)
    ahead = [w for w in range(3) if w != late]
    workers = {w: rig.worker(w, timeout_s=0.05) for w in ahead}
    for worker in workers.values():
        worker.clock()
    for worker in workers.values():
        with pytest.raises(
            StallError, match=rf"server 0 .*'w' to clock 1.*worker {late} at clock 0"
        ):
            worker.table("w").pull()
        with pytest.raises(
            StallError, match=rf"server 0 .*'e'.*waits for worker {late} at clock 0"
        ):
            worker.table("e").pull(np.array([1]))


def test_ssp_stall_names_the_slowest_worker():
    rig = Rig(dense(3, consistency=SSP(bound=1)), n_workers=3)
    for w, clocks in [(0, 2), (1, 1), (2, 3)]:
        for clock in range(clocks):
            rig.writers[w].tick(clock)
    rig.drain()
    worker = rig.worker(2, timeout_s=0.05)
    connection_of(worker).clock_state.now = 3
    with pytest.raises(StallError, match=r"waits for worker 1 at clock 1, this worker is at 3"):
        worker.table("w").pull()
