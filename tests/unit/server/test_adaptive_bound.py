"""SSP("auto"): measured times, decisions, and one bound for all workers at each clock."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Rig, dense, in_threads, rows

from mpips import _native
from mpips.errors import StallError
from mpips.model.adaptive_bound import BoundChoice
from mpips.model.consistency import SSP
from mpips.server.bound_control import BoundControl, bound_in_force
from mpips.worker.worker import connection_of

MOST = 3
AUTO = SSP("auto", max=MOST)


def rig_of(*tables, n_workers=2) -> Rig:
    return Rig(*(tables or (dense(2, consistency=AUTO),)), n_workers=n_workers, n_slots=64)


def control_of(rig) -> BoundControl:
    control = rig.server.bound_control
    assert control is not None
    return control


def decide(rig, bound):
    """Let the server decide on a bound; return what it prints."""
    control = control_of(rig)
    control.choose = lambda: BoundChoice(bound, "by the test")
    return control.poll()


def tick(rig, workers, clocks=1):
    for _ in range(clocks):
        for worker in workers:
            worker.table("w").push(np.ones(2, np.float32))
            worker.clock()
    rig.drain()


def bounds_of(workers):
    return [connection_of(worker).agreed_bound.bound for worker in workers]


def test_a_decision_is_in_force_from_one_clock_on_for_all_workers():
    rig = rig_of()
    workers = [rig.worker(w) for w in range(2)]
    assert bounds_of(workers) == [0, 0]
    tick(rig, workers, MOST + 1)
    assert decide(rig, 2) == ""  # too few clocks are measured
    tick(rig, workers)
    text = decide(rig, 2)
    at = (MOST + 2) + MOST + 2
    assert text == f"bound of SSP('auto') is 2 from clock {at} on, 0 before it: by the test"
    seen = []
    while workers[0].now < at + 2:
        tick(rig, workers)
        seen.append((workers[0].now, bounds_of(workers)))
        assert decide(rig, 2) == ""
    assert seen == [(c, [0, 0] if c < at else [2, 2]) for c in range(MOST + 3, at + 3)]
    assert [(d.clock, d.bound) for d in control_of(rig).decisions] == [(at, 2)]


def test_no_decision_is_taken_before_the_last_one_is_in_force_for_all():
    rig = rig_of()
    workers = [rig.worker(w) for w in range(2)]
    tick(rig, workers, MOST + 2)
    assert decide(rig, 2)
    at = control_of(rig).decisions[0].clock
    tick(rig, workers, at - workers[0].now - 1)
    assert decide(rig, 3) == ""
    assert rig.core.set_bound(1) == 0  # also where only the native server is asked
    tick(rig, workers)
    assert decide(rig, 3)
    assert control_of(rig).decisions[1].clock == at + MOST + 2


def test_pulls_wait_exactly_as_the_bound_of_their_clock_demands():
    rig = rig_of(dense(2, consistency=AUTO), rows(1, consistency=AUTO))
    workers = [rig.worker(w) for w in range(2)]
    tick(rig, workers, MOST + 2)
    decide(rig, 2)
    tick(rig, workers, control_of(rig).decisions[0].clock - workers[0].now)
    # Now bound 2 is in force, and worker 0 goes on alone.
    for ahead in range(MOST + 1):
        pulls = [
            workers[0].table("w").prefetch(),
            workers[0].table("e").prefetch(np.array([3])),
        ]
        rig.drain()
        assert [pull.test() for pull in pulls] == [ahead <= 2] * 2
        if ahead > 2:
            break
        tick(rig, workers[:1])
    tick(rig, workers[1:])
    assert [pull.test() for pull in pulls] == [True, True]


def test_the_direct_path_has_the_bound_of_the_clock():
    rig = rig_of()
    workers = [rig.worker(w, local=False, timeout_s=0.2) for w in range(2)]
    with rig.serving():
        tick_both = [lambda w=w: [one(w) for _ in range(MOST + 2)] for w in workers]

        def one(worker):
            worker.table("w").push(np.ones(2, np.float32))
            worker.clock()

        in_threads(tick_both)
        workers[0].flush(), workers[1].flush()
    decide(rig, 1)
    with rig.serving():
        in_threads(tick_both)
        one(workers[0])
        workers[0].flush()
        direct = workers[0].table("w")._direct
        assert direct.port.pull(np.empty(2, np.float32), direct)  # one clock ahead
        one(workers[0])
        with pytest.raises(StallError, match="to clock"):
            workers[0].table("w").pull()


def test_a_worker_that_is_too_far_ahead_waits_for_the_decision():
    rig = rig_of()
    ahead = rig.worker(0, timeout_s=0.05)
    for _ in range(MOST + 1):
        ahead.clock()
    with pytest.raises(StallError, match=r"at clock 5 is not known before .* clock 1; .*worker 1"):
        ahead.clock()
    # Its bound is one that every decision allows.
    assert bounds_of([ahead]) == [0]


def test_one_worker_alone_never_waits():
    rig = rig_of(n_workers=1)
    assert rig.server.bound_control is None
    worker = rig.worker()
    tick(rig, [worker], 30)
    assert worker.table("w").pull().tolist() == [-30.0] * 2


def test_times_of_workers_leave_out_their_waits():
    """Worker 0 needs 1 s, worker 1 needs 3 s for a clock, and worker 0 waits for worker 1 at each clock."""
    core = rig_of().core
    log = _native.PushIntervals(2, MOST)
    for clock in range(6):
        log.tick(0, clock, False, 3.0 * clock + 1.0)
        log.tick(1, clock, False, 3.0 * clock + 3.0)
        log.reach(clock + 1, 3.0 * clock + 3.0)
    (n, fast), (_, slow) = log.take()
    assert (n, fast, slow) == (5, 5.0, 15.0)
    assert log.take() == [(0, 0.0), (0, 0.0)]
    assert core.take_intervals() == [(0, 0.0), (0, 0.0)]


def test_measured_times_decide(monkeypatch):
    """An uneven job gets the bound that lets its fastest worker go on; an even one keeps 0."""
    for times, bound in (((1, 1), 0), ((1, 3), 2)):
        rig = rig_of()
        control = control_of(rig)
        log = _native.PushIntervals(2, MOST)
        for clock in range(MOST + 2):
            now = float(max(times) * clock)
            for w in range(2):
                log.tick(w, clock, False, now + times[w])
            log.reach(clock + 1, now + max(times))
        monkeypatch.setattr(control, "_core", Timed(rig.core, log))
        workers = [rig.worker(w) for w in range(2)]
        tick(rig, workers, MOST + 2)
        assert bool(control.poll()) == (bound > 0)
        assert control.bound == bound


class Timed:
    """A native server whose times are given."""

    def __init__(self, core, log):
        self._core, self.take_intervals = core, log.take

    def __getattr__(self, name):
        return getattr(self._core, name)


def test_a_later_launch_begins_with_the_bound_in_memory():
    rig = rig_of()
    workers = [rig.worker(w) for w in range(2)]
    assert bound_in_force(rig.region, rig.layout, 0) == 0
    tick(rig, workers, MOST + 2)
    decide(rig, 3)
    assert bound_in_force(rig.region, rig.layout, 0) == 3
    begun = BoundControl(rig.core, 0, MOST, 3)
    assert (begun.bound, begun.decisions) == (3, [])
    # The history check needs the bound of the first clocks.
    assert begun.all_bounds() == ((0, 3),)
    assert BoundControl(rig.core, 0, MOST, 0).all_bounds() == ()
    begun.begin(3)
    # Before its first tick a new worker uses 0, then what the launch has begun with.
    late = rig.worker(0)
    assert bounds_of([late]) == [0]
    connection_of(late).agreed_bound.advance()
    assert bounds_of([late]) == [3]
