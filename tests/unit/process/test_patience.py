"""Time limits of a process that is suspended and continued."""

from __future__ import annotations

import pytest
from simulated_time import SimulatedTime

from mpips.process import patience
from mpips.process.patience import Patience

LIMIT_S = 20.0


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
    return SimulatedTime(monkeypatch)


def test_a_wait_is_over_after_its_limit_and_not_before(simulated: SimulatedTime) -> None:
    wait = Patience(LIMIT_S)
    simulated.pass_by(LIMIT_S - 0.125)
    assert not wait.is_over
    simulated.pass_by(0.125)
    assert wait.is_over
    assert wait.age_s == LIMIT_S


def test_after_a_suspension_the_others_have_the_full_limit_again(simulated: SimulatedTime) -> None:
    wait = Patience(LIMIT_S)
    simulated.pass_by(LIMIT_S - 1.0)
    simulated.suspend(3600.0)
    assert not wait.is_over
    simulated.pass_by(LIMIT_S - 0.125)
    assert not wait.is_over
    simulated.pass_by(0.125)
    assert wait.is_over


def test_a_wait_that_begins_after_a_suspension_has_its_limit(simulated: SimulatedTime) -> None:
    simulated.suspend(3600.0)
    wait = Patience(LIMIT_S)
    simulated.pass_by(LIMIT_S - 0.125)
    assert not wait.is_over
    simulated.pass_by(0.125)
    assert wait.is_over


def test_a_wait_ends_though_the_process_is_suspended_again_and_again(
    simulated: SimulatedTime,
) -> None:
    # A batch system that lets two jobs run by turns of ten seconds.
    wait = Patience(LIMIT_S)
    for _ in range(10):
        if wait.is_over:
            break
        simulated.pass_by(10.0)
        simulated.suspend(10.0)
    assert wait.is_over
    assert 2 * LIMIT_S <= simulated.ran_s <= 2 * LIMIT_S + 10.0


def test_a_loop_that_reads_the_clock_too_seldom_ends_all_the_same(simulated: SimulatedTime) -> None:
    wait, looks = Patience(LIMIT_S), 0
    while not wait.is_over:
        simulated.suspend(7.0)
        looks += 1
    assert looks <= 2 * (LIMIT_S + 1.0)


def test_a_short_pause_counts(simulated: SimulatedTime) -> None:
    wait = Patience(LIMIT_S)
    for _ in range(20):
        simulated.suspend(patience.JUMP_S)
        is_over = wait.is_over
    assert is_over


def test_signs_of_life_have_an_age_since_the_continuation(simulated: SimulatedTime) -> None:
    seen = patience.running_s()
    simulated.pass_by(5.0)
    assert patience.waited_s(seen) == 5.0
    simulated.suspend(100.0)
    assert patience.waited_s(seen) == 0.0
    assert patience.was_suspended(seen)
    assert not patience.was_suspended(patience.running_s())
    simulated.pass_by(2.0)
    assert patience.waited_s(seen) == 2.0


def test_a_clock_that_stands_still_during_the_suspension_makes_no_difference(
    simulated: SimulatedTime,
) -> None:
    # A laptop that sleeps.
    wait = Patience(LIMIT_S)
    simulated.pass_by(5.0)
    simulated.suspend(0.0)
    simulated.pass_by(LIMIT_S - 5.0)
    assert wait.is_over
