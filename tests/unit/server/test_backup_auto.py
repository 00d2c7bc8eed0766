"""BSP(backup="auto"): measured times of the workers, decisions, and the number in force at each clock."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from harness import Rig, clock_of, dense, in_threads, rows
from journal_rig import Rig as JournalRig

from mpips import _native
from mpips.errors import RecoveryError
from mpips.model.backup_choice import BackupChoice
from mpips.model.consistency import BSP
from mpips.model.optimizer import Adam
from mpips.server.backup_control import BackupControl
from mpips.snapshot.server_part import ServerPart
from mpips.transport.region import unlink_job

MOST = 2
AUTO = BSP("sum", backup="auto", max=MOST)


def rig_of(*tables, n_workers=3) -> Rig:
    rig = Rig(*(tables or (dense(3, consistency=AUTO),)), n_workers=n_workers, n_slots=64)
    control_of(rig).every = 1
    control_of(rig).begin(0)
    return rig


def control_of(rig) -> BackupControl:
    control = rig.server.backup_control
    assert control is not None
    return control


def decide(rig, backup):
    """Let the server decide on a number; return what it prints."""
    control = control_of(rig)
    control.choose = lambda: BackupChoice(backup, "by the test")
    control._next_s = 0.0
    return control.poll()


def tick(rig, clock, workers, value=1.0):
    """Push and end a clock for each of these workers."""
    for w in workers:
        clock_of(rig, w, clock, [value * 10**w])
    rig.drain()


def test_a_decision_is_in_force_from_the_next_clock_on():
    rig = rig_of()
    assert decide(rig, 1) == ""  # no clock is measured
    tick(rig, 0, [0, 1, 2])
    assert rig.core.open_clock() == 1
    assert decide(rig, 1) == (
        "backup workers of BSP(backup='auto') are 1 from clock 2 on, 0 before it: by the test"
    )
    # Clock 1 is open, and goes on without backup workers.
    tick(rig, 1, [0, 1])
    assert rig.core.open_clock() == 1
    tick(rig, 1, [2])
    assert rig.values().tolist() == [-222.0] * 3
    tick(rig, 2, [0, 2])
    assert rig.core.open_clock() == 3
    assert rig.values().tolist() == [-222.0 - 101] * 3
    tick(rig, 2, [1])  # late
    assert rig.core.stats(0)["late"] == 1
    # Back to 0.
    assert decide(rig, 0)
    tick(rig, 3, [0, 1])
    assert rig.core.open_clock() == 4
    tick(rig, 3, [2])
    tick(rig, 4, [0, 1])
    assert rig.core.open_clock() == 4
    tick(rig, 4, [2])
    assert rig.core.open_clock() == 5
    assert [tuple(d) for d in control_of(rig).decisions] == [
        (2, 1, "by the test"),
        (4, 0, "by the test"),
    ]


def test_no_decision_is_taken_before_the_last_one_is_in_force():
    rig = rig_of()
    assert rig.core.set_backup(1) == 1
    assert rig.core.set_backup(2) == 0
    tick(rig, 0, [0, 1, 2])
    assert rig.core.set_backup(2) == 2
    with pytest.raises(ValueError, match="backup = 3: at most 2"):
        rig.core.set_backup(3)
    with pytest.raises(ValueError, match="backup = 1: at most 0"):
        Rig(dense(3, consistency=BSP(backup=1)), n_workers=3).core.set_backup(1)


def test_a_greater_number_does_not_close_the_open_clock():
    rig = rig_of()
    tick(rig, 0, [0])
    rig.core.set_backup(2)
    tick(rig, 0, [1])
    assert rig.core.open_clock() == 0
    tick(rig, 0, [2])
    tick(rig, 1, [1])
    assert rig.core.open_clock() == 2


@pytest.mark.parametrize("n_workers", [1, 3])
def test_without_backup_workers_in_force_the_bits_are_those_of_bsp(n_workers):
    def values(model):
        tables = dense(50, optimizer=Adam(0.1), consistency=model), rows(4, consistency=model)
        rig = Rig(*tables, n_workers=n_workers, n_slots=64)
        assert (rig.server.backup_control is None) == (n_workers == 1 or model.backup == 0)
        workers = [rig.worker(w, local=False) for w in range(n_workers)]

        def work(w):
            rng = np.random.default_rng(w)
            for _ in range(5):
                found = workers[w].table("w").pull()
                workers[w].table("w").push(np.sin(found + rng.random(50, np.float32)))
                workers[w].table("e").push(np.array([w, 7]), rng.random((2, 4), np.float32))
                workers[w].clock()

        with rig.serving():
            in_threads([lambda w=w: work(w) for w in range(n_workers)])
            [worker.flush() for worker in workers]
        return rig.values().tobytes(), rig.table_rows(1)

    assert values(BSP(backup="auto")) == values(BSP())


def test_times_leave_out_waits_and_have_those_of_late_workers():
    log = _native.BackupTimes(3)
    now = 0.0
    log.close([0, 1, 2], now)  # all begin clock 0
    for _ in range(2):
        log.tick(0, now + 1.0)
        log.tick(1, now + 2.0)
        now += 2.0  # one backup worker: the clock closes
        log.close([0, 1], now)
    # Worker 2 ends clock 0 at 5 s, when clock 2 is open, which it ends at 11 s as the last one of all.
    log.tick(2, 5.0)
    log.tick(0, 6.0)
    log.tick(1, 6.5)
    log.tick(2, 11.0)
    log.close([0, 1, 2], 11.0)
    assert log.take(11.5) == [[1.0, 1.0, 2.0], [2.0, 2.0, 2.5], [5.0, 6.0]]
    # A worker that ends no clock has the time of the one that it is in, a finished one has none.
    log.finish(0)
    log.tick(1, 12.0)
    assert log.take(20.0) == [[], [1.0], [9.0]]
    with pytest.raises(IndexError):
        log.tick(3, 1.0)


def test_a_finished_worker_has_no_times_though_it_is_in_the_clock_that_closes():
    """It ends clock 1 in time, and finishes before this clock closes."""
    log = _native.BackupTimes(3)
    log.close([0, 1, 2], 0.0)
    for w in (0, 1):
        log.tick(w, 1.0)
    log.finish(0)
    log.tick(2, 3.0)
    log.close([0, 1, 2], 3.0)
    log.tick(1, 4.0)
    assert log.take(9.0) == [[], [1.0, 1.0], [3.0]]
    # The native server notes it.
    rig = rig_of()
    for clock in range(2):
        tick(rig, clock, [0, 1, 2])
    clock_of(rig, 0, 2, [1.0])
    rig.writers[0].finish(3)
    rig.drain()
    tick(rig, 2, [1, 2])
    assert rig.core.open_clock() == 3
    assert [len(own) for own in rig.core.take_backup_times()] == [0, 2, 2]
    assert [len(own) for own in rig.core.take_backup_times()] == [0, 1, 1]


def test_a_worker_that_ends_no_clock_of_a_launch_is_in_one_since_the_first_that_closes():
    log = _native.BackupTimes(3)
    log.tick(0, 1.0)
    log.close([0], 1.0)
    log.tick(0, 2.0)
    log.close([0], 2.0)
    assert log.take(5.0) == [[1.0], [4.0], [4.0]]
    log.tick(1, 6.0)
    assert log.take(7.0) == [[5.0], [5.0], [6.0]]


def test_only_the_newest_times_are_stored():
    log = _native.BackupTimes(1)
    log.close([0], 0.0)
    for i in range(100):
        log.tick(0, 2.0 * i)
        log.close([0], 2.0 * i + 1)
    [times] = log.take(300.0)
    assert len(times) == 64
    assert times == [1.0] * 64  # the first one, of 0 s, is replaced


def test_a_slow_worker_becomes_a_backup_worker(monkeypatch):
    """Times of the native server decide: worker 2 needs three times as long as the others."""
    for slow, expected in ((3.0, 1), (1.2, 0)):
        rig = rig_of()
        control, log = control_of(rig), _native.BackupTimes(3)
        log.close([0, 1, 2], 0.0)
        for clock in range(16):
            for w in range(3):
                log.tick(w, slow * clock + (slow if w == 2 else 1.0))
            log.close([0, 1, 2], slow * (clock + 1))
        monkeypatch.setattr(control, "_core", Timed(rig.core, log, slow * 16))
        tick(rig, 0, [0, 1, 2])
        assert bool(control.poll()) == bool(expected)
        assert control.backup == expected
        assert rig.server.figures().backup == expected
        assert rig.server.statistics()["backups"] == [list(d) for d in control.decisions]


class Timed:
    """A native server whose times are given."""

    def __init__(self, core, log, now):
        self._core, self.take_backup_times = core, lambda: log.take(now)

    def __getattr__(self, name):
        return getattr(self._core, name)


def test_the_native_server_measures_ticks():
    rig = rig_of()
    assert rig.core.take_backup_times() == [[], [], []]
    tick(rig, 0, [0, 1, 2])
    rig.core.take_backup_times()
    tick(rig, 1, [0, 1, 2])
    tick(rig, 2, [0, 1, 2])
    assert [len(own) for own in rig.core.take_backup_times()] == [2, 2, 2]
    control = control_of(rig)
    control.every = 2
    control.begin(0)
    asked = []
    control.choose = lambda: asked.append(rig.core.open_clock())
    for clock in range(3, 9):
        control._next_s = 0.0
        rig.server.poll_decisions()
        tick(rig, clock, [0, 1, 2])
    assert asked == [5, 7]


def test_decisions_take_a_small_part_of_the_time(monkeypatch):
    rig, now = rig_of(), [100.0]
    control = control_of(rig)
    monkeypatch.setattr("mpips.server.backup_control.time.monotonic", lambda: now[0])

    def choose():
        now[0] += 0.25

    control.choose = choose
    tick(rig, 0, [0, 1, 2])
    control.poll()
    assert now[0] == 100.25
    tick(rig, 1, [0, 1, 2])
    now[0] = 124.9
    control.poll()
    assert now[0] == 124.9
    now[0] = 125.0
    control.poll()
    assert now[0] == 125.25


def test_a_launch_goes_on_with_the_decision_in_the_memory():
    rig = rig_of()
    tick(rig, 0, [0, 1, 2])
    decide(rig, 2)
    again = BackupControl(rig.core, 0, MOST, is_warm=True)
    assert (again.backup, again.decisions) == (2, [])
    # Clock 1 still needs all workers, clock 2 only one.
    tick(rig, 1, [0, 1])
    assert rig.core.open_clock() == 1
    tick(rig, 1, [2])
    tick(rig, 2, [2])
    assert rig.core.open_clock() == 3
    with pytest.raises(RecoveryError, match="the memory has 2 backup workers, of at most 1"):
        BackupControl(rig.core, 0, 1, is_warm=True)
    again.begin(9)
    assert again.backup == MOST


@pytest.mark.parametrize("is_in_force", [False, True])
def test_a_warm_server_goes_on_with_the_number(is_in_force):
    """A process takes over the memory of a killed one, before the clock of the decision or after it."""
    rig = JournalRig(dense(3, consistency=AUTO), n_workers=3)
    try:
        tick(rig, 0, [0, 1, 2])
        control_of(rig).every = 1
        control_of(rig).begin(0)
        tick(rig, 1, [0, 1, 2])
        assert "are 1 from clock 3 on" in decide(rig, 1)
        if is_in_force:
            tick(rig, 2, [0, 1, 2])
        rig.again()
        assert control_of(rig).backup == rig.server.figures().backup == 1
        # It measures for as many clocks as any other launch before it decides anew.
        assert decide(rig, 2) == ""
        if not is_in_force:
            tick(rig, 2, [0, 1])
            assert rig.core.open_clock() == 2
            tick(rig, 2, [2])
        tick(rig, 3, [0, 2])
        assert rig.core.open_clock() == 4
    finally:
        unlink_job(rig.token)


def test_an_only_worker_that_has_not_finished_changes_nothing():
    rig = rig_of()
    tick(rig, 0, [0, 1, 2])
    decide(rig, 1)
    for w in (1, 2):
        rig.writers[w].finish(1)
    tick(rig, 1, [0])
    tick(rig, 2, [0])
    assert BackupControl.choose(control_of(rig)) is None


def test_a_cut_has_the_number_that_was_decided_on_last():
    rig = rig_of()
    tick(rig, 0, [0, 1, 2])
    decide(rig, 2)
    fixed = Rig(dense(3, consistency=BSP(backup=1)), n_workers=3)
    for server, expected in ((rig.server, 2), (fixed.server, -1)):
        part = SimpleNamespace(_server=server, _n_workers=3)
        assert ServerPart._state(part).backup == expected


def test_a_job_of_fewer_workers_has_fewer_backup_workers():
    """A checkpoint of a job with five workers has 4 of at most 9."""
    rig = Rig(dense(3, consistency=BSP("sum", "auto", 9)), n_workers=3, n_slots=64)
    control_of(rig).begin(4)
    assert (control_of(rig).most, control_of(rig).backup) == (2, 2)
