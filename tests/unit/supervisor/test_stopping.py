"""Signals to the supervisor, silence of the ranks, and launchers that do not end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any

import pytest
from supervisor_rig import Background, Case, running, wait_for

from mpips.supervisor import stopping, supervise
from mpips.supervisor.reap import orphans_of


@pytest.mark.parametrize(
    ("number", "more", "text"),
    [
        (signal.SIGTERM, {"ranks": []}, "stopped by SIGTERM before there was anything to save"),
        (signal.SIGINT, {}, "interrupted by SIGINT: the ranks ended before they had saved"),
        (signal.SIGTERM, {"ignore": [signal.SIGUSR1]}, "SIGTERM: no checkpoint within 1 s"),
    ],
)
def test_a_signal_ends_the_run_and_all_its_processes(
    case: Case, number: signal.Signals, more: dict[str, Any], text: str
) -> None:
    with Background(case, **more) as other:
        other.process.send_signal(number)
        assert other.process.wait(20) == 128 + number, other.text()
        expected = f"mpips run: {text}, exit {128 + number}; newest checkpoint: none; continue with"
        assert expected in other.text()
        assert not running(case.run_folder)
        assert case.state == "interrupted"


def test_a_second_signal_ends_the_run_without_waiting_for_a_checkpoint(case: Case) -> None:
    with Background(case, ignore=[signal.SIGUSR1], grace_s=60.0) as other:
        other.process.send_signal(signal.SIGTERM)
        wait_for(case.run_folder.leave_file(0))
        time.sleep(0.35)  # signals within 0.3 s count as one
        other.process.send_signal(signal.SIGINT)
        assert other.process.wait(20) == 130, other.text()
        assert "stopped at once by a second SIGINT, exit 130; newest" in other.text()
        assert not running(case.run_folder)


def test_usr1_waits_for_the_ranks(case: Case) -> None:
    with Background(case, ranks=[]) as other:
        other.process.send_signal(signal.SIGUSR1)
        assert other.process.poll() is None
        # The signal would have ended the launcher, which handles none.
        time.sleep(0.1)
        assert len(running(case.run_folder)) >= 3


def test_a_killed_supervisor_takes_its_launcher_along_and_leaves_the_run_usable(
    case: Case,
) -> None:
    with Background(case) as other:
        other.process.kill()
        other.process.wait(10)
        # The children of the launcher still run: the next supervisor ends them.
        assert case.run({}, {"finish": True}) == 0
        assert not running(case.run_folder)


def test_a_forward_jump_of_the_wall_clock_ends_no_attempt(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    asleep = case.run_folder.attempt(0) / "asleep"
    monkeypatch.setattr(time, "time", lambda: real() + (1e6 if asleep.exists() else 0.0))
    assert case.run({"sleep": 1.5, "finish": True}) == 0
    assert case.attempts == 1, case.text


@pytest.mark.parametrize("script", [{"sleep": 6, "ahead": 1e6}, {"sleep": 60, "spawn": 1}])
def test_silence_of_all_ranks_ends_an_attempt_whatever_their_clocks(
    case: Case, monkeypatch: pytest.MonkeyPatch, script: dict[str, Any]
) -> None:
    monkeypatch.setattr(supervise, "silence_limit_s", lambda timeout_s: 1.0)
    case.max_restarts = 0
    assert case.run(script) == 124
    assert "no rank has sent a heartbeat for 1 s" in case.text


def test_a_status_that_cannot_be_written_is_no_silence(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "silence_limit_s", lambda timeout_s: 1.0)
    assert case.run({"sleep": 2.5, "beats": True, "finish": True}) == 0
    assert case.attempts == 1, case.text


def test_an_attempt_whose_ranks_are_all_suspended_is_waited_for(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "silence_limit_s", lambda timeout_s: 0.5)
    assert case.run({"spawn": 2, "stop": True, "sleep": 2.5, "finish": True}) == 0
    assert case.attempts == 1, case.text
    assert case.text.count("all ranks on this host are suspended") == 1


def test_a_launcher_that_does_not_end_after_its_ranks_is_ended(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "ENDING_S", 0.5)
    began = time.monotonic()
    # The launcher hangs after a failure, and after the end of the run.
    hangs = {"words": [{}], "spawn": 1, "sleep": 600}
    assert case.run(hangs, {"finish": True, "hang": 600, "spawn": 1}) == 0
    assert time.monotonic() - began < 60
    assert "ValueError" in case.text or "it broke" in case.text
    assert not running(case.run_folder)


@pytest.mark.parametrize(
    "line",
    [
        "[node1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,",
        "mpirun has exited due to process rank 3 with PID 0 on node node1 calling",
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    ],
)
def test_a_launcher_that_reports_an_end_on_another_host_and_stays_is_ended(
    case: Case, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    # The ranks were on other hosts: no process ends here, and there is no failure report.
    ranks = [{"rank": 0, "role": "worker 0", "host": "node1", "pid": 7}]
    monkeypatch.setattr(stopping, "ENDING_S", 0.5)
    began = time.monotonic()
    hangs = {"say": f"{line}\n", "ranks": ranks, "hang": 600}
    assert case.run(hangs, {"finish": True}) == 0
    assert time.monotonic() - began < 60
    assert "an unknown rank ended, and the launcher did not end after it" in case.text
    assert not running(case.run_folder)


def test_a_launcher_does_not_wait_for_what_a_rank_left_that_ended_before_it_was_seen(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The time limit of the test is what ends it if the supervisor waits for its own limit.
    monkeypatch.setattr(stopping, "ENDING_S", 1e6)
    assert case.run({"orphan": True, "words": [{}], "code": 1}, {"finish": True}) == 0
    assert case.attempts == 2
    assert not running(case.run_folder)


def test_orphans_are_what_ended_ranks_have_left_and_not_the_launcher_or_its_children(
    case: Case,
) -> None:
    env = {**os.environ, "MPIPS_RUN_DIR": str(case.run_folder.path), "MPIPS_GENERATION": "0"}
    orphan = ["sh", "-c", "sleep 600 >/dev/null & echo $!"]
    launcher = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo; wait"], env=env, stdout=subprocess.PIPE
    )
    try:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        left = int(subprocess.run(orphan, env=env, stdout=subprocess.PIPE, check=True).stdout)
        later = int(
            subprocess.run(
                orphan, env={**env, "MPIPS_GENERATION": "1"}, stdout=subprocess.PIPE, check=True
            ).stdout
        )
        assert orphans_of(case.run_folder.path, 0, launcher.pid) == [left]
        assert set(orphans_of(case.run_folder.path, 1, launcher.pid)) == {left, later}
    finally:
        for pid in running(case.run_folder):
            os.kill(pid, signal.SIGKILL)
        launcher.wait(10)
        launcher.stdout.close()
