"""Requests by signals: the first signal, the second, and signals before the job is at work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpips.mpi import early_signals, signals
from mpips.mpi.cluster import Cluster
from mpips.mpi.messages import Ask
from mpips.mpi.signals import (
    SignalRequests,
    TerminatedError,
    interruption_behind,
    signals_unwind,
)
from mpips.mpi.watchdog import Watchdog, watching
from mpips.rundir import directory


def me(number: int) -> None:
    os.kill(os.getpid(), number)


def me_and_wait(number: int) -> None:
    me(number)
    start = time.monotonic()
    while time.monotonic() < start + 5:
        time.sleep(0.01)


def test_usr1_is_taken_once_and_its_handler_restored() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with SignalRequests(True, 1.0) as requests:
        assert requests.take() is None
        me(signal.SIGUSR1)
        ask = requests.take()
        assert ask is not None
        assert (ask.reason, ask.why) == ("signal", "SIGUSR1")
        assert time.monotonic() - 5 < ask.at <= time.monotonic()
        assert requests.take() is None
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.mark.parametrize("grace_s", [0.0, 1.0])
def test_the_warning_of_a_limit_asks_for_a_checkpoint_and_the_end(grace_s: float) -> None:
    """Every second the kernel sends SIGXCPU again, which must not end the process at once."""
    before = signal.getsignal(signal.SIGXCPU)
    with SignalRequests(True, grace_s) as requests:
        me(signal.SIGXCPU)
        ask = requests.take()
        assert ask is not None
        assert (ask.reason, ask.why) == ("end", "SIGXCPU")
        time.sleep(signals.ONE_SIGNAL_S + 0.05)
        me(signal.SIGXCPU)
        assert requests.take() is None
    assert signal.getsignal(signal.SIGXCPU) is before


class Signalling:
    """An attribute of a class that sends a signal to this process when its class is made."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __set_name__(self, owner: type, name: str) -> None:
        me_and_wait(self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_class_is_made_ends_as_one_at_any_other_place(number: int) -> None:
    expected = TerminatedError if number == signal.SIGTERM else KeyboardInterrupt
    # Shells let background commands ignore SIGINT, and Python then leaves it ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(expected), signals_unwind():
            type("Made", (), {"field": Signalling(number)})
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_while_a_class_is_made_ends_a_rank_in_a_step_of_the_start_up() -> None:
    cluster = Cluster.__new__(Cluster)  # work ends it before it needs the other ranks

    def work() -> None:
        type("Made", (), {"field": Signalling(signal.SIGTERM)})

    with pytest.raises(TerminatedError), signals_unwind():
        cluster.agree("importing", work)


def test_a_signal_while_a_class_is_made_within_a_job_is_no_error_of_the_job(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, signal
import mpips

class Signalling:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass

def main(worker):
    worker.table("w").pull()
    type("Made", (), {"field": Signalling()})

mpips.run(main, [mpips.DenseTable("w", (3,))])
"""
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 143, ended.stderr
    assert "RuntimeError" not in ended.stderr


def test_an_error_that_a_program_raises_from_an_interrupt_stays_that_error() -> None:
    error = RuntimeError("stopped by hand")
    error.__cause__ = KeyboardInterrupt()
    assert interruption_behind(error) is None


@pytest.mark.parametrize("ahead_s", [1e6, -1e6])
def test_a_wall_clock_that_is_set_hides_no_signal(
    monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """The scheduler distinguishes signals by their times."""
    real = time.time
    with SignalRequests(True, 1.0) as requests:
        me(signal.SIGUSR1)
        first = requests.take()
        monkeypatch.setattr(time, "time", lambda: real() + ahead_s)
        me(signal.SIGUSR1)
        second = requests.take()
    assert first is not None
    assert second is not None
    assert 0 <= second.at - first.at < 60


def test_the_time_of_a_signal_is_an_age_on_its_way_to_another_process() -> None:
    # The monotonic clock of the receiver started at another time.
    ask = Ask("signal", 1000.0, why="SIGUSR1")
    arrived = ask.across(1002.5).across(77.5)
    assert (arrived.at, arrived.reason, arrived.why) == (75.0, "signal", "SIGUSR1")


def test_usr1_before_the_job_is_at_work_is_taken_when_it_is() -> None:
    with signals_unwind():
        me(signal.SIGUSR1)
        with SignalRequests(True, 1.0) as requests:
            ask = requests.take()
    assert ask is not None
    assert ask.reason == "signal"


def test_a_handler_of_the_program_s_own_stays_until_there_is_something_to_save() -> None:
    old = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with signals_unwind():
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        with SignalRequests(False):
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, old)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, TerminatedError), (signal.SIGINT, KeyboardInterrupt)]
)
def test_the_first_asks_for_a_checkpoint_and_the_second_ends(
    number: int,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(signals, "ONE_SIGNAL_S", 0.05)
    with SignalRequests(True, 5.0) as requests:
        me(number)
        ask = requests.take()
        assert ask is not None
        assert (ask.reason, ask.why) == ("end", signals.name_of(number))
        me(number)  # the same signal, passed on by the launcher
        time.sleep(0.06)
        with pytest.raises(error):
            me(number)
        me(number)  # while the process ends
        requests.say_end(128 + number, "step-3")
    message = f"stopped at once by a second {signals.name_of(number)}, exit {128 + number}"
    assert f"mpips: {message}; newest checkpoint: step-3\n" == capsys.readouterr().err


def test_without_time_or_anything_to_save_the_first_ends() -> None:
    for requests in (SignalRequests(True, 0.0), SignalRequests(False, 5.0)):
        with signals_unwind(), requests, pytest.raises(TerminatedError) as caught:
            me(signal.SIGTERM)
        assert caught.value.code == 143


def test_the_watchdog_ends_the_time_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with signals_unwind(), SignalRequests(True, 0.3) as requests, watching(requests):
        start = time.monotonic()
        with pytest.raises(TerminatedError):
            me_and_wait(signal.SIGTERM)
        assert 0.25 < time.monotonic() - start < 2.0
        requests.say_end(143, "none")
    expected = "mpips: SIGTERM: no checkpoint within 0.3 s, exit 143; newest checkpoint: none\n"
    assert capsys.readouterr().err == expected


def test_the_watchdog_does_not_wait_for_a_checkpoint_that_is_impossible() -> None:
    watchdog = Watchdog("rank 0", 60.0, lambda: None)
    watchdog.start()
    with signals_unwind(), SignalRequests(True, 60.0) as requests:
        watchdog.allow_checkpoint(requests, lambda: True)
        start = time.monotonic()
        with pytest.raises(TerminatedError):
            me_and_wait(signal.SIGTERM)
        assert time.monotonic() - start < 2.0
    watchdog.stop()


def test_a_job_that_is_done_in_time_is_not_ended_by_the_signal() -> None:
    watchdog = Watchdog("rank 0", 60.0, lambda: None)
    watchdog.start()
    with SignalRequests(True, 0.2) as requests:
        watchdog.allow_checkpoint(requests)
        me(signal.SIGTERM)
    time.sleep(0.5)  # longer than the watchdog waits
    watchdog.stop()


def test_in_mpirun_s_sequence_of_signals_no_checkpoint_is_requested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with SignalRequests(True, 25.0) as requests:
        me(signal.SIGCONT)
        with pytest.raises(TerminatedError):
            me(signal.SIGTERM)
        me(signal.SIGTERM)
        requests.say_end(143, "step-3")
    assert "SIGTERM from mpirun, which leaves no time to save, exit 143" in capsys.readouterr().err
    # A SIGTERM without SIGCONT, sent by hand to one rank.
    with SignalRequests(True, 25.0) as requests:
        me(signal.SIGTERM)
        assert requests.take() is not None


def test_slurm_s_sigcont_before_sigterm_takes_no_time_away() -> None:
    with SignalRequests(True, 25.0) as requests:
        me(signal.SIGCONT)
        me(signal.SIGTERM)
        assert requests.take() is not None


def test_in_a_supervised_run_the_supervisor_decides_and_says_so(tmp_path: Path) -> None:
    run = directory.RunFolder.create(tmp_path, "job")
    run.attempt(3).mkdir()
    supervised = directory.Supervised(run, "job", run.info().token, 3)
    with SignalRequests(True, 25.0, supervised) as requests:
        assert requests.grace_s == 0
        me(signal.SIGUSR1)
        ask = requests.take()
        assert ask is not None
        assert ask.reason == "signal"
        directory.replace_json(run.leave_file(3), "SIGINT")
        me(signal.SIGUSR1)
        ask = requests.take()
    assert ask is not None
    assert (ask.reason, ask.why) == ("end", "SIGINT")


@pytest.mark.parametrize(
    ("argv", "original", "expected"),
    [
        (["-m"], ["python", "-X", "dev", "-m", "mpips", "train"], True),
        (["-m"], ["python", "-m", "mpi4py", "-m", "mpips"], False),
        (["-m"], ["python", "-m", "pytest", "mpips"], False),
        (["/venv/bin/mpips", "train"], ["python", "/venv/bin/mpips"], True),
        (["train.py"], ["python", "train.py"], False),
        ([""], ["python"], False),
    ],
)
def test_only_commands_of_mpips_change_signals_at_import(
    argv: list[str], original: list[str], expected: bool
) -> None:
    assert early_signals.is_command(argv, original) is expected


def test_a_command_survives_usr1_while_it_loads(tmp_path: Path) -> None:
    # Replace a package that is imported after the handlers are set, to make the imports slow.
    ready, go = tmp_path / "ready", tmp_path / "go"
    (tmp_path / "click.py").write_text(
        "import pathlib, time\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.005)\n"
        "raise SystemExit(7)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "mpips", "train"], env=env, stderr=subprocess.PIPE, text=True
    ) as child:
        deadline = time.monotonic() + 20
        while not ready.exists() and time.monotonic() < deadline and child.poll() is None:
            time.sleep(0.005)
        child.send_signal(signal.SIGUSR1)
        child.send_signal(signal.SIGUSR2)
        go.touch()
        _, stderr = child.communicate(timeout=20)
    assert child.returncode == 7, stderr
    # Any thread of the process may run the handler, also a native one.
    assert "hread 0x" in stderr
    assert "click.py" in stderr
