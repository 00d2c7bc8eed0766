"""Switch at uneven workers: their own times, the gain by them, and the decision of server 0."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from harness import Rig, dense
from recovery_rig import Launches

from mpips import _native
from mpips.model.consistency import ASP, BSP, MODELS, Reject, Scale, Switch
from mpips.model.table_config import from_config, to_config
from mpips.server import switch_control
from mpips.worker.agreed_switch import LEAD
from mpips.worker.worker import connection_of

AUTO = Switch(BSP("sum"), ASP(), "uneven")
FIRST = 4
Times = Sequence[float | None]  # of the workers, seconds; 0: not named, None: has finished


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first window of 4 clocks decides, whatever its gain."""
    for name, value in (("FIRST", FIRST), ("LONGEST", FIRST), ("GAIN", 0.0)):
        monkeypatch.setattr(switch_control, name, value)


def run_bsp(measure: _native.Evenness, clocks: Sequence[Times], other_s: float) -> list[int]:
    """Let workers need these times under BSP; return the numbers of the clocks that decide.

    A clock ends `other_s` after its slowest worker.
    """
    now, found = 1.0, []
    for number, times in enumerate(clocks):
        now += max(t for t in times if t is not None) + other_s
        own_us = [None if t is None else round(1e6 * t) for t in times]
        if measure.close(own_us, now):
            found.append(number)
    return found


def gain_by_simulation(clocks: Sequence[Sequence[float]], other_s: float) -> float:
    """Return the gradients per second under ASP by those under BSP, by playing both.

    Under ASP each worker repeats its own times and never waits, for as long as all clocks take under BSP.
    """
    end = sum(max(times) + other_s for times in clocks)
    n_asp = 0.0
    for own in zip(*clocks, strict=True):
        alone = sum(t + other_s for t in own)
        n_asp += len(own) * end / alone
    return n_asp / (len(clocks) * len(clocks[0]))


@pytest.mark.parametrize("other_s", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(3))
def test_the_gain_is_that_of_a_simulation_of_asp(seed: int, other_s: float) -> None:
    draws = random.Random(seed)
    n = 3 + seed
    clocks = [[0.01 * draws.uniform(0.5, 1.5) for _ in range(n)] for _ in range(17)]
    for times in clocks:
        times[1] *= 3
    measure = _native.Evenness(n, 16, 16, 1.2)
    # The first clock has no begin.
    assert run_bsp(measure, clocks, other_s) == [16]
    last = measure.last()
    assert last.gain == pytest.approx(gain_by_simulation(clocks[1:], other_s), rel=1e-3)
    assert last.clocks == 16
    assert last.slowest == 1
    means = np.mean(clocks[1:], axis=0)
    assert [last.fastest_s, last.slowest_s] == pytest.approx([min(means), max(means)], rel=1e-3)
    assert last.clock_s == pytest.approx(np.mean([max(t) for t in clocks[1:]]) + other_s, rel=1e-3)


def test_equal_workers_gain_nothing_whatever_a_clock_costs_beside_them() -> None:
    for other_s in (0.0, 0.5):
        measure = _native.Evenness(4, 2, 8, 1.0 + 1e-6)
        assert run_bsp(measure, [[0.01] * 4] * 40, other_s) == []
        assert measure.last().gain == pytest.approx(1.0)


def test_a_worker_of_three_times_the_time_gains_little_where_servers_need_most() -> None:
    clocks = [[0.01, 0.01, 0.03]] * 17
    quick, slow = (_native.Evenness(3, 16, 16, 1.0) for _ in range(2))
    run_bsp(quick, clocks, 0.0)
    run_bsp(slow, clocks, 0.5)
    assert quick.last().gain == pytest.approx(7 / 3)
    assert 1.0 < slow.last().gain < 1.03


def test_a_single_stall_does_not_decide_and_stalls_that_return_do() -> None:
    even = [0.01] * 3
    stalled = [0.01, 1.0, 0.01]
    once = _native.Evenness(3, 8, 8, 1.1)
    assert run_bsp(once, [even] * 3 + [stalled] + [even] * 29, 0.0) == []
    again = _native.Evenness(3, 8, 32, 1.1)
    # Windows of 8, 16 and 32 clocks follow the first clock: the last one has a stall in each half.
    clocks = [stalled if i % 16 == 12 else even for i in range(57)]
    assert run_bsp(again, clocks, 0.0) == [56]
    assert again.last().clocks == 32


def test_windows_double_up_to_the_longest() -> None:
    measure = _native.Evenness(2, 2, 8, 0.0)
    assert run_bsp(measure, [[0.01, 0.02]] * 31, 0.0) == [2, 6, 14, 22, 30]


def test_clocks_without_a_time_are_left_out_and_a_finished_worker_begins_a_window() -> None:
    even, unknown = [0.01, 0.02, 0.01], [0.01, 0.0, 0.01]
    measure = _native.Evenness(3, 4, 4, 0.0)
    clocks = [even, even, unknown, even, unknown, even, even]
    assert run_bsp(measure, clocks, 0.0) == [6]
    assert measure.last().slowest == 1
    finished = [None, 0.01, 0.03]
    measure = _native.Evenness(3, 4, 4, 0.0)
    assert run_bsp(measure, [even] * 4 + [finished] * 4, 0.0) == [7]
    assert (measure.last().slowest, measure.last().clocks) == (2, 4)
    assert measure.last().gain == pytest.approx(2.0)
    # All have finished.
    assert not measure.close([None, None, None], 100.0)


def test_workers_that_are_ahead_of_each_other_gain_nothing_by_differences_that_average_out() -> (
    None
):
    """Without a pull in each clock two workers alternate between 10 and 30 ms, and a clock takes 20 ms."""
    measure, now = _native.Evenness(2, 16, 16, 1.05), 1.0
    for clock in range(17):
        now += 0.02
        times = [10_000, 30_000]
        assert not measure.close(times if clock % 2 else times[::-1], now)
    assert measure.last().gain == pytest.approx(1.0)
    assert measure.last().clock_s == pytest.approx(0.02)


def test_clocks_that_overlap_have_no_negative_rest() -> None:
    """Own times that are longer than the clock of the server: a worker has begun before the last close."""
    measure = _native.Evenness(2, 2, 2, 0.0)
    for now in (1.0, 1.005, 1.010):
        measure.close([10_000, 20_000], now)
    last = measure.last()
    assert last.clock_s == pytest.approx(0.02)
    assert last.gain == pytest.approx(1.5)
    assert math.isfinite(last.gain)


@pytest.mark.parametrize(("first", "longest"), [(0, 4), (3, 4), (1, 2), (4, 2)])
def test_windows_that_cannot_be_halved_are_refused(first: int, longest: int) -> None:
    with pytest.raises(ValueError, match=f"windows of {first} to {longest} clocks: must be even"):
        _native.Evenness(2, first, longest, 1.1)


def test_as_many_times_as_workers() -> None:
    with pytest.raises(ValueError, match="a time, or None, for each worker"):
        _native.Evenness(2, 2, 2, 1.1).close([1, 1, 1], 1.0)


def rig_of(n_workers: int = 2) -> Rig:
    return Rig(dense(2, consistency=AUTO), n_workers=n_workers, n_slots=64)


def end_clock(rig: Rig, workers: Sequence[Any]) -> None:
    for worker in workers:
        worker.table("w").push(-np.ones(2, np.float32))
        worker.clock()
    rig.drain()


def test_the_job_switches_at_the_clock_that_server_0_decides_on(quick) -> None:
    """The first tick of a launch names no time, and the first clock with one has no begin at the server."""
    rig = rig_of()
    workers = [rig.worker(w) for w in range(2)]
    decided = 0
    for clock in range(1, 20):
        end_clock(rig, workers)
        if rig.core.switch_at() and not decided:
            decided = clock
            break
    assert decided == 1 + FIRST
    assert rig.core.switch_at() == decided + LEAD
    (line,) = rig.server.poll_decisions()
    assert line.startswith(
        f"clock of Switch(at='uneven') is {decided + LEAD}: from this step of the run on consistency is ASP, "
        "BSP before it: under ASP workers would push "
    )
    assert line.endswith("by 4 clocks at server 0")
    assert rig.server.statistics()["switch"][0][0] == decided + LEAD
    while not rig.core.has_switched():
        end_clock(rig, workers)
        assert connection_of(workers[0]).now <= decided + LEAD
    before = rig.values().tolist()
    end_clock(rig, workers[:1])  # alone
    assert workers[0].table("w").pull().tolist() == [before[0] + 1] * 2
    # Nothing is measured behind the decision.
    assert connection_of(workers[0]).agreed_switch.own_us == 0


def test_equal_workers_stay_under_bsp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own times are set by hand: whatever this machine does, both workers have the same."""
    monkeypatch.setattr(switch_control, "FIRST", FIRST)
    rig = rig_of()
    workers = [rig.worker(w) for w in range(2)]
    own_s = dict.fromkeys(range(2), 0.0)
    for w, worker in enumerate(workers):
        monkeypatch.setattr(connection_of(worker).spent, "own_s", lambda w=w: own_s[w])
    for _ in range(40):
        for w in own_s:
            own_s[w] += 0.01
        end_clock(rig, workers)
    assert rig.core.switch_at() == 0
    assert rig.core.evenness().gain == pytest.approx(1.0)
    assert rig.core.evenness().slowest_s == pytest.approx(0.01, rel=1e-3)
    # One of them becomes three times slower.
    while not rig.core.switch_at():
        own_s[0] += 0.03
        own_s[1] += 0.01
        end_clock(rig, workers)
    assert rig.core.evenness().slowest == 0
    assert rig.core.evenness().gain > 1.5


def test_the_own_time_has_no_waits_and_no_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_of(1)
    worker = rig.worker()
    connection = connection_of(worker)
    now = [100.0]
    monkeypatch.setattr("mpips.worker.spent.time", SimpleNamespace(monotonic=lambda: now[0]))
    spent = connection.spent
    end_clock(rig, [worker])
    assert connection.agreed_switch.own_us == 0  # no tick before it
    now[0] += 1.0
    spent.waited(0.25)
    spent.fetched(0.25)
    with spent.cut():
        now[0] += 5.0
        spent.waited(3.0)
    worker.table("w").push(-np.ones(2, np.float32))
    worker.clock()
    assert connection.agreed_switch.own_us == pytest.approx(500_000, abs=5_000)


def test_a_wait_within_a_wait_counts_once() -> None:
    worker = rig_of(1).worker()
    connection = connection_of(worker)
    turns = []

    def inner() -> bool:
        time.sleep(0.01)
        return True

    def outer() -> bool:
        turns.append(len(turns))
        connection.wait_until(inner, lambda: "inner")
        return len(turns) == 3

    began, before = time.monotonic(), connection.clock_state.wait_s
    connection.wait_until(outer, lambda: "outer")
    waited = connection.clock_state.wait_s - before
    assert 0.03 <= waited <= time.monotonic() - began


@pytest.mark.parametrize(
    "model",
    [
        AUTO,
        Switch(BSP(), ASP(Scale()), "plateau"),
        Switch(BSP("sum"), ASP(Reject(3)), 10, rate=0.5),
        *(MODELS[name]() for name in ("bsp", "ssp", "asp", "local_sgd", "diloco")),
    ],
)
def test_ranks_of_a_script_send_each_other_every_model(model: Any) -> None:
    """Scripts declare their tables on workers, and the others get them as configurations."""
    table = dense(2, consistency=model)
    assert from_config(to_config(table)) == table
    assert from_config(msgspec.json.decode(msgspec.json.encode(to_config(table)))) == table


def test_a_launch_in_memory_keeps_the_decision_and_measures_anew_without_one(quick) -> None:
    launches = Launches(dense(2, consistency=AUTO), n_servers=1, n_workers=2)
    try:

        def step() -> None:
            for worker in launches.workers:
                worker.table("w").push(-np.ones(2, np.float32))
                worker.clock()
            launches.drain()

        for _ in range(3):
            step()
        assert launches.servers[0].core.switch_at() == 0
        launches.again()
        assert launches.servers[0].core.evenness() is None
        for _ in range(FIRST):
            step()
        assert launches.servers[0].core.switch_at() == 0
        step()
        at = launches.servers[0].core.switch_at()
        assert at == 3 + 1 + FIRST + LEAD
        launches.again()
        assert launches.servers[0].core.switch_at() == at
        while not launches.servers[0].core.has_switched():
            step()
        assert connection_of(launches.workers[0]).now == at
    finally:
        launches.close()
