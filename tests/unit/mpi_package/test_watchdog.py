"""Guarded calls: which one is overdue, also among nested calls."""

from __future__ import annotations

import time

import pytest
from harness import python

from mpips.mpi.watchdog import Guard


def test_nothing_is_overdue_outside_a_guarded_call() -> None:
    guard = Guard()
    with guard("a flush"):
        pass
    assert guard.overdue(time.monotonic() + 100, 1.0) is None


def test_a_call_is_overdue_after_its_time_and_not_before() -> None:
    guard = Guard()
    with guard("a flush"):
        now = time.monotonic()
        assert guard.overdue(now, 1.0) is None
        what, since = guard.overdue(now + 5, 1.0) or ("", 0.0)
    assert what == "a flush"
    assert 5 <= since < 6


def test_an_outer_call_stays_watched_when_an_inner_one_has_returned() -> None:
    guard = Guard()
    with guard("outer"):
        with guard("inner"):
            assert (guard.overdue(time.monotonic() + 5, 1.0) or ("",))[0] == "inner"
        assert (guard.overdue(time.monotonic() + 5, 1.0) or ("",))[0] == "outer"
    assert guard.overdue(time.monotonic() + 5, 1.0) is None


def test_time_runs_from_the_beginning_of_each_call() -> None:
    guard = Guard()
    with guard("outer"):
        time.sleep(0.02)
        with guard("inner"):
            assert (guard.overdue(time.monotonic(), 0.015) or ("",))[0] == "outer"


def test_an_error_ends_the_watch() -> None:
    guard = Guard()
    with pytest.raises(RuntimeError), guard("outer"), guard("inner"):
        raise RuntimeError
    assert guard.overdue(time.monotonic() + 100, 1.0) is None


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
