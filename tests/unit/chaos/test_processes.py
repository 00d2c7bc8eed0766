"""Only processes of the run are signalled, whatever becomes of their numbers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from chaos_rig import place, rank_of
from marked_process import begun

from mpips.chaos import processes
from mpips.chaos.processes import (
    RunProcess,
    has_role,
    kill_role,
    open_process,
    pids_of_ranks,
    rank_process,
    signal_all,
)


def test_a_process_of_the_run_is_opened_and_no_other_one(tmp_path: Path) -> None:
    run = tmp_path / "run"
    own, later, other = begun(run, 1), begun(run, 3), begun(tmp_path / "run2", 1)
    try:
        with_own = open_process(own.pid, run, 2)
        assert with_own is not None
        with with_own:
            assert with_own.state in "SR"
        for process in (later.pid, other.pid, os.getpid()):
            assert open_process(process, run, 2) is None
        assert signal_all([own.pid, later.pid, other.pid], run, 2, signal.SIGKILL) == [own.pid]
        assert own.wait(5) == -signal.SIGKILL
        assert later.poll() is None
        assert other.poll() is None
    finally:
        for each in (own, later, other):
            each.kill()
            each.wait()


def test_a_number_that_was_given_to_another_process_after_the_comparison_is_not_hit(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    own, other = begun(run, 1), begun(tmp_path / "run2", 1)
    process = open_process(own.pid, run, 1)
    assert process is not None
    try:
        own.kill()
        own.wait()
        # The kernel has given the number to another process.
        process.pid = other.pid
        with process:
            assert not process.send(signal.SIGKILL)
        assert other.poll() is None
        assert open_process(own.pid, run, 1) is None
    finally:
        other.kill()
        assert other.wait() == -signal.SIGKILL


def test_a_number_that_was_given_to_another_process_before_the_comparison_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    old, new = begun(run, 1), begun(tmp_path / "run2", 1)
    try:
        # The descriptor is of the old process; all that is read by its number is of the new one.
        descriptor = RunProcess(old.pid)
        descriptor.pid = new.pid
        monkeypatch.setattr(processes, "RunProcess", lambda pid: descriptor)
        assert open_process(new.pid, run, 1) is None
        assert descriptor.fd == -1
        assert old.poll() is None
    finally:
        for each in (old, new):
            each.kill()
            each.wait()


def test_processes_of_other_users_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    own = begun(run, 1)
    try:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert open_process(own.pid, run, 1) is None
    finally:
        own.kill()
        own.wait()


def test_a_rank_is_found_by_record_and_environment_but_not_its_children(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with rank_of(run, 2, 1) as (pid, child):
        places = [place(0, "scheduler", pid + 100_000), place(1, "server 0", pid)]
        assert pids_of_ranks(places, run, 2) == {1: pid}
        # Another attempt, another rank, another recorded number.
        assert pids_of_ranks(places, run, 3) == {}
        assert pids_of_ranks([place(2, "server 0", pid)], run, 2) == {}
        assert pids_of_ranks([place(1, "server 0", child + 100_000)], run, 2) == {}
        with rank_process(places, run, 2, 0) as none:
            assert none is None
        assert kill_role(places, run, 2, "worker") is None
        assert kill_role(places, run, 2, "server") == places[1]
        os.kill(child, signal.SIGKILL)


def test_a_role_is_named_with_or_without_its_number() -> None:
    both = place(0, "scheduler + server 10", 1)
    for role in ("any", "scheduler", "server", "server 10"):
        assert has_role(both, role)
    for role in ("worker", "server 1", "serve"):
        assert not has_role(both, role)
