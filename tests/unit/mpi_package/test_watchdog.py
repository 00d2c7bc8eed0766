"""Guarded calls: which one is overdue, also among nested calls."""

from __future__ import annotations

import pytest
from harness import python
from simulated_time import SimulatedTime

from mpips.mpi.watchdog import Guard


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
    return SimulatedTime(monkeypatch)


def test_nothing_is_overdue_outside_a_guarded_call(simulated: SimulatedTime) -> None:
    guard = Guard()
    with guard("a flush"):
        pass
    simulated.pass_by(100.0)
    assert guard.overdue(1.0) is None


def test_a_call_is_overdue_after_its_time_and_not_before(simulated: SimulatedTime) -> None:
    guard = Guard()
    with guard("a flush"):
        simulated.pass_by(0.5)
        assert guard.overdue(1.0) is None
        simulated.pass_by(4.5)
        assert guard.overdue(1.0) == ("a flush", 5.0)


def test_an_outer_call_stays_watched_when_an_inner_one_has_returned(
    simulated: SimulatedTime,
) -> None:
    guard = Guard()
    with guard("outer"):
        with guard("inner"):
            simulated.pass_by(5.0)
            assert (guard.overdue(1.0) or ("",))[0] == "inner"
        assert (guard.overdue(1.0) or ("",))[0] == "outer"
    assert guard.overdue(1.0) is None


def test_time_runs_from_the_beginning_of_each_call(simulated: SimulatedTime) -> None:
    guard = Guard()
    with guard("outer"):
        simulated.pass_by(5.0)
        with guard("inner"):
            assert (guard.overdue(1.0) or ("",))[0] == "outer"


def test_an_error_ends_the_watch(simulated: SimulatedTime) -> None:
    guard = Guard()
    with pytest.raises(RuntimeError), guard("outer"), guard("inner"):
        raise RuntimeError
    simulated.pass_by(100.0)
    assert guard.overdue(1.0) is None


def test_a_step_of_another_thread_that_never_returns_ends_the_process() -> None:
    ended = python(
        """
        import threading, time
        from mpips.mpi.watchdog import Watchdog

        watchdog = Watchdog("rank 3", 0.2, lambda: print("memory is removed", flush=True))
        watchdog.start()

        def step():
            with watchdog.thread_guard("a step of the progress thread"):
                time.sleep(1000)

        threading.Thread(target=step, daemon=True).start()
        while True:
            with watchdog.guard("a short call"):
                pass
        """
    )
    assert ended.returncode == 124
    assert "rank 3: a step of the progress thread has not returned for" in ended.stderr
    assert "memory is removed" in ended.stdout
