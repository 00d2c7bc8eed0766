"""Switch: BSP up to one clock of the run for all workers, and ASP with a corrected rate from it on."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Rig, dense, in_threads, rows

from mpips.errors import StallError
from mpips.model.consistency import ASP, BSP, Reject, Scale, Switch
from mpips.model.optimizer import SGD, Momentum
from mpips.server.server import Server
from mpips.worker.worker import connection_of

AT = 3


def switch(at=AT, reduce="sum", **options) -> Switch:
    return Switch(BSP(reduce=reduce), ASP(**options), at)


def rig_of(*tables, n_workers=2) -> Rig:
    return Rig(*(tables or (dense(2, consistency=switch()),)), n_workers=n_workers, n_slots=64)


def one(worker, value=1.0, name="w"):
    """Push the same value to all elements, and end the clock."""
    worker.table(name).push(np.full(2, -value, np.float32))
    worker.clock()


def test_pulls_see_whole_clocks_up_to_the_switch_and_single_pushes_after_it():
    rig = rig_of()
    workers = [rig.worker(w) for w in range(2)]
    for clock in range(AT):
        workers[0].table("w").push(-np.ones(2, np.float32))
        rig.drain()
        assert rig.values().tolist() == [2.0 * clock] * 2  # a sum is applied as a whole
        assert workers[1].table("w").pull().tolist() == [2.0 * clock] * 2
        workers[0].clock()
        one(workers[1])
        rig.drain()
    assert rig.core.has_switched()
    assert rig.values().tolist() == [6.0, 6.0]
    # From here on nobody waits: worker 0 goes on alone.
    for ahead in range(1, 5):
        one(workers[0])
        rig.drain()
        assert workers[0].table("w").pull().tolist() == [6.0 + ahead] * 2
    assert workers[1].table("w").pull().tolist() == [10.0] * 2


def test_no_worker_reads_or_changes_values_behind_the_switch_before_all_have_come_to_it():
    tables = dense(2, consistency=switch()), rows(2, consistency=switch())
    rig = rig_of(*tables)
    ahead, late = (rig.worker(w, local=False, timeout_s=0.1) for w in range(2))
    for _ in range(AT):
        one(ahead)
    ahead.table("e").push(np.array([5]), -np.ones((1, 2), np.float32))
    for _ in range(2):  # clocks behind the switch
        one(ahead)
    rig.drain()
    assert not rig.core.has_switched()
    assert rig.values().tolist() == [0.0] * 2
    pulled = ahead.table("e").prefetch(np.array([5]))
    rig.drain()
    assert not pulled.test()
    with pytest.raises(StallError, match="to clock"):
        ahead.table("w").pull()
    for clock in range(AT):
        one(late)
        rig.drain()
        assert rig.core.has_switched() == (clock == AT - 1)
    assert rig.values().tolist() == [2.0 * AT + 2] * 2
    assert pulled.test()
    assert rig.table_rows(1) == {5: [1.0, 1.0]}


def test_the_direct_path_waits_as_the_model_of_the_clock_demands():
    rig = rig_of()
    workers = [rig.worker(w, local=False, timeout_s=0.2) for w in range(2)]
    with rig.serving():
        one(workers[0])
        direct = workers[0].table("w")._direct
        out = np.empty(2, np.float32)
        assert not direct.port.pull(out, direct)
        one(workers[1])
        workers[1].flush()
        assert direct.port.pull(out, direct)
        in_threads([lambda w=w: [one(w) for _ in range(AT - 1)] for w in workers])
        one(workers[0])
        [w.flush() for w in workers]
        assert direct.port.pull(out, direct)
        assert out.tolist() == [2.0 * AT + 1] * 2  # its own push behind the switch


def test_a_pull_under_bsp_does_not_wait_for_the_workers_own_push():
    # Worker 1's push waits for worker 0, which may wait for worker 1 in a collective operation.
    rig = rig_of()
    second = rig.worker(1, local=False, timeout_s=0.2)
    second.table("w").push(np.ones(2, np.float32))
    rig.drain()
    assert second.table("w").pull().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("n_workers", [1, 2, 4])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_rate_and_momentum_are_those_of_a_simulation(n_workers, reduce):
    """Momentum SGD, whose workers have one gradient g: Sync-Switch goes from rate n * eta to eta."""
    rate, momentum, n_after = 0.5, 0.75, 3
    rig = Rig(
        dense(2, consistency=switch(reduce=reduce), optimizer=Momentum(lr=rate, momentum=momentum)),
        n_workers=n_workers,
        n_slots=64,
    )
    workers = [rig.worker(w) for w in range(n_workers)]
    value, velocity = np.zeros(2, np.float32), np.zeros(2, np.float32)
    for clock in range(AT + n_after):
        gradient = np.float32(clock + 1)
        for worker in workers:
            worker.table("w").push(np.full(2, gradient))
            worker.clock()
            if clock >= AT:
                rig.drain()
        rig.drain()
        steps = n_workers if clock >= AT else 1
        weight = n_workers if reduce == "sum" and clock < AT else 1
        eta = rate / n_workers if reduce == "mean" and clock >= AT else rate
        for _ in range(steps):
            velocity = np.float32(momentum) * velocity - np.float32(eta * weight) * gradient
            value = value + velocity
    assert np.allclose(rig.values(), value, rtol=1e-6)


def test_each_gradient_moves_the_values_by_as_much_with_and_without_a_switch():
    """In sum that is rate * mean / (1 - momentum), also of gradients shortly before the switch."""
    rate, momentum, n = 0.5, 0.5, 4
    ends = []
    for at in (1, 2, 50):
        rule = Momentum(lr=rate, momentum=momentum)
        rig = Rig(dense(2, consistency=switch(at, "mean"), optimizer=rule), n_workers=n, n_slots=64)
        workers = [rig.worker(w) for w in range(n)]
        for clock in range(40):
            for worker in workers:
                worker.table("w").push(np.full(2, np.float32(clock < 4)))
                worker.clock()
            rig.drain()
        ends.append(rig.values()[0])
    assert np.allclose(ends, -4 * rate / (1 - momentum), rtol=1e-6)


def test_an_own_factor_of_the_rate_replaces_the_default():
    model = Switch(BSP(reduce="mean"), ASP(Scale()), AT, rate=0.25)
    rig = Rig(dense(2, consistency=model, optimizer=SGD(lr=1.0)), n_workers=2, n_slots=64)
    workers = [rig.worker(w) for w in range(2)]
    for _ in range(AT):
        [one(w) for w in workers]
    rig.drain()
    assert rig.values()[0] == AT
    [w.table("w").pull() for w in workers]
    one(workers[0], 8.0)  # fresh: 8 * 0.25
    rig.drain()
    assert rig.values()[0] == AT + 2
    workers[1].table("w").push(np.full(2, -8.0, np.float32))  # one update is between
    rig.drain()
    assert rig.values()[0] == AT + 2 + 1
    assert rig.core.stats(0)["scaled"] == 1


def test_policies_begin_with_the_switch():
    model = switch(policy=Reject(0))
    rig = rig_of(dense(2, consistency=model))
    workers = [rig.worker(w) for w in range(2)]
    for _ in range(AT):
        [one(w) for w in workers]
    rig.drain()
    assert rig.core.stats(0)["rejected"] == 0
    [w.table("w").pull() for w in workers]
    one(workers[0])
    one(workers[1])
    rig.drain()
    assert rig.core.stats(0)["rejected"] == 1
    assert rig.values().tolist() == [2.0 * AT + 1] * 2


def test_a_launch_behind_the_switch_begins_under_asp():
    rig = rig_of()
    assert not rig.core.has_switched()
    for before, switched in ((AT - 1, False), (AT, True), (AT + 1, True)):
        other = Server(
            0, rig.tables, rig.placement, rig.regions, 0, True, None, clocks_before=before
        )
        assert other.core.has_switched() == switched


def test_workers_count_the_clocks_of_the_run():
    rig = rig_of()
    worker = rig.worker()
    connection = connection_of(worker)
    assert connection.minimum_clock(rig.tables[0]) == (0, 0)
    connection.clock_state.now = AT + 5
    assert connection.minimum_clock(rig.tables[0]) == (AT, 0)
    connection.position.steps_before = AT - 1
    assert connection.minimum_clock(rig.tables[0]) == (1, 0)
    connection.position.steps_before = AT + 1
    assert connection.minimum_clock(rig.tables[0]) == (0, 0)


def test_finished_workers_do_not_hold_the_switch_back():
    rig = rig_of(n_workers=3)
    workers = [rig.worker(w) for w in range(3)]
    one(workers[0])
    connection_of(workers[0]).finish()
    for _ in range(AT):
        [one(w) for w in workers[1:]]
    rig.drain()
    assert rig.core.has_switched()
    assert rig.values().tolist() == [2.0 * AT + 1] * 2
