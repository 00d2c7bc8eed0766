"""Lasting faults are taken back: at the end, and when the process that made them is killed."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpips.chaos import undo
from mpips.chaos.errors import ChaosError
from mpips.chaos.processes import RunProcess
from mpips.chaos.undo import FaultGuard, Undo, take_back
from mpips.supervisor.reap import state_of

# Stops a process and changes a byte under a guard, then waits to be killed.
_OWNER = """
import os, signal, sys
from mpips.chaos.processes import RunProcess
from mpips.chaos.undo import FaultGuard, Undo
with FaultGuard() as guard:
    process = RunProcess(int(sys.argv[1]))
    guard.add(Undo(kind="continue"), process.fd)
    process.send(signal.SIGSTOP)
    fd = os.open(sys.argv[2], os.O_RDWR)
    guard.add(Undo(kind="restore", offset=2, before=ord("c"), after=ord("X")), fd)
    os.pwrite(fd, b"X", 2)
    print("changed", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process to stop."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def until(is_met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not is_met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_faults_of_a_process_that_is_ended_are_taken_back(
    number: signal.Signals, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abcde")
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(sleeper.pid), str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # Tests that a shell runs in the background ignore SIGINT, and their children inherit that.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"changed\n"
        until(lambda: state_of(sleeper.pid) == "T")
        assert file.read_bytes() == b"abXde"
        owner.send_signal(number)
        owner.wait(10)
    until(lambda: state_of(sleeper.pid) == "S" and file.read_bytes() == b"abcde")


def test_faults_are_taken_back_once_and_at_the_end(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abcde")
    with FaultGuard() as guard, RunProcess(sleeper.pid) as process, file.open("r+b") as opened:
        number = guard.add(Undo(kind="continue"), process.fd)
        process.send(signal.SIGSTOP)
        until(lambda: state_of(sleeper.pid) == "T")
        guard.undo(number)
        until(lambda: state_of(sleeper.pid) == "S")
        process.send(signal.SIGSTOP)
        guard.undo(number)
        until(lambda: state_of(sleeper.pid) == "T")
        process.send(signal.SIGCONT)
        guard.add(Undo(kind="restore", offset=0, before=ord("a"), after=ord("Z")), opened.fileno())
        os.pwrite(opened.fileno(), b"Z", 0)
        pid = guard.pid
        # No signal of a terminal reaches it.
        assert os.getsid(pid) == pid
    assert file.read_bytes() == b"abcde"
    assert state_of(pid) == "X"


def test_a_forgotten_fault_stays(sleeper: subprocess.Popen[bytes]) -> None:
    with FaultGuard() as guard, RunProcess(sleeper.pid) as process:
        guard.forget(guard.add(Undo(kind="terminate"), process.fd))
        kept = guard.add(Undo(kind="terminate"), process.fd)
        guard.forget(kept)
    assert sleeper.poll() is None


def test_a_byte_that_somebody_else_has_written_since_stays(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abcde")
    with file.open("r+b") as opened:
        take_back(Undo(kind="restore", offset=1, before=ord("x"), after=ord("y")), opened.fileno())
    assert file.read_bytes() == b"abcde"


def test_faults_are_taken_back_at_the_end_also_if_the_guard_was_killed(
    sleeper: subprocess.Popen[bytes],
) -> None:
    with FaultGuard() as guard, RunProcess(sleeper.pid) as process:
        guard.add(Undo(kind="continue"), process.fd)
        process.send(signal.SIGSTOP)
        until(lambda: state_of(sleeper.pid) == "T")
        os.kill(guard.pid, signal.SIGKILL)
    until(lambda: state_of(sleeper.pid) == "S")


def test_a_fault_whose_end_is_interrupted_is_taken_back_later(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(undo: Undo, fd: int) -> None:
        raise KeyboardInterrupt

    with FaultGuard() as guard, RunProcess(sleeper.pid) as process:
        number = guard.add(Undo(kind="continue"), process.fd)
        process.send(signal.SIGSTOP)
        until(lambda: state_of(sleeper.pid) == "T")
        with monkeypatch.context() as patch:
            patch.setattr(undo, "take_back", interrupted)
            with pytest.raises(KeyboardInterrupt):
                guard.undo(number)
        guard.undo_faults()
        until(lambda: state_of(sleeper.pid) == "S")


def test_a_run_that_ends_with_the_command_goes_on_while_faults_are_taken_back(
    sleeper: subprocess.Popen[bytes],
) -> None:
    with FaultGuard() as guard, RunProcess(sleeper.pid) as process:
        guard.add(Undo(kind="terminate"), process.fd)
        guard.add(Undo(kind="continue"), process.fd)
        process.send(signal.SIGSTOP)
        until(lambda: state_of(sleeper.pid) == "T")
        guard.undo_faults()
        until(lambda: state_of(sleeper.pid) == "S")
        guard.undo_faults()
        assert sleeper.poll() is None
    assert sleeper.wait(10) == -signal.SIGTERM


def test_nothing_is_changed_without_a_guard(sleeper: subprocess.Popen[bytes]) -> None:
    with FaultGuard() as guard, RunProcess(sleeper.pid) as process:
        os.kill(guard.pid, signal.SIGKILL)
        until(lambda: state_of(guard.pid) in "XZ")
        with pytest.raises(ChaosError, match="takes faults back has ended"):
            guard.add(Undo(kind="continue"), process.fd)
