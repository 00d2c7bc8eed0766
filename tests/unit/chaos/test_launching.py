"""A run that is started to be disturbed: found by its lease, and ended and awaited whatever comes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

from mpips.chaos import disturbing, launching
from mpips.chaos.errors import ChaosError
from mpips.chaos.launching import LaunchedRun, signals_deferred
from mpips.chaos.processes import RunProcess
from mpips.chaos.undo import FaultGuard, Undo
from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import Lease

# Stands for `mpips run`: the first SIGTERM begins the last checkpoint, a second one ends it at once.
_CHILD = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
asked = []
def ask(number, frame):
    asked.append(number)
    if len(asked) == 2:
        os._exit(1)
signal.signal(signal.SIGTERM, ask)
(folder / "ready").touch()
while not asked:
    time.sleep(0.01)
(folder / "asked").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
(folder / "checkpoint").touch()
sys.exit(75)
"""


class StoppedError(Exception):
    """A signal came."""


@pytest.fixture(autouse=True)
def handlers() -> Any:
    """Let SIGINT and SIGTERM raise, and restore what was there."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise StoppedError(signal.Signals(number).name)

    before = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def until(is_met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not is_met():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def launched(folder: Path, guard: FaultGuard) -> LaunchedRun:
    """Return a run that starts the child."""
    run = LaunchedRun("job", [], folder, 0, guard)
    run._command = [sys.executable, "-c", _CHILD, str(folder)]
    return run


def test_a_signal_acts_at_the_end_of_the_block() -> None:
    done = []

    def work() -> None:
        with signals_deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            done.append("work")
        done.append("more")

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(StoppedError, match="SIG"):
        work()
    assert done == ["work"]
    assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is handler


def test_a_signal_that_is_ignored_stays_so_and_children_have_the_defaults() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shown = "import signal; print(*map(signal.getsignal, (signal.SIGINT, signal.SIGTERM)))"
    with signals_deferred():
        os.kill(os.getpid(), signal.SIGINT)
        found = subprocess.run(
            [sys.executable, "-c", shown], capture_output=True, text=True, check=True
        )
    assert found.stdout.split() == [str(int(signal.SIG_IGN)), str(int(signal.SIG_DFL))]


def test_a_signal_while_the_run_ends_does_not_cost_the_last_checkpoint(tmp_path: Path) -> None:
    ended = threading.Event()

    def interrupt() -> None:
        until(lambda: (tmp_path / "asked").exists())
        os.kill(os.getpid(), signal.SIGINT)
        # An interrupted wait would be over now, and the guard would send a second SIGTERM.
        ended.wait(0.3)
        (tmp_path / "go").touch()

    thread = threading.Thread(target=interrupt)
    thread.start()
    run: LaunchedRun | None = None

    def disturb() -> None:
        nonlocal run
        with FaultGuard() as guard, launched(tmp_path, guard) as run:
            until(lambda: (tmp_path / "ready").exists())

    try:
        with pytest.raises(StoppedError, match="SIGINT"):
            disturb()
    finally:
        ended.set()
        thread.join()
    assert run is not None
    assert run.code == 75
    assert (tmp_path / "checkpoint").exists()


def test_a_paused_rank_continues_before_the_run_is_asked_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_STOP_S", 20.0)
    (tmp_path / "go").touch()
    with FaultGuard() as guard, launched(tmp_path, guard) as run:
        until(lambda: (tmp_path / "ready").exists())
        assert run._process is not None
        with RunProcess(run._process.pid) as process:
            guard.add(Undo(kind="continue"), process.fd)
            process.send(signal.SIGSTOP)
            until(lambda: process.state == "T")
    assert run.code == 75


class FailingGuard:
    """A guard to which no fault can be added."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act
        self.calls: list[str] = []

    def add(self, undo: Undo, fd: int) -> int:
        self.act()
        self.calls.append("add")
        return 7

    def undo_faults(self) -> None:
        pass

    def forget(self, number: int) -> None:
        self.calls.append(f"forget {number}")


def test_a_run_without_a_guard_is_ended(tmp_path: Path) -> None:
    def fail() -> None:
        until(lambda: (tmp_path / "ready").exists())
        raise ChaosError("the guard has ended")

    (tmp_path / "go").touch()
    run = launched(tmp_path, cast(FaultGuard, FailingGuard(fail)))
    with pytest.raises(ChaosError, match="the guard has ended"), run:
        pytest.fail("it was started without a guard")
    assert run.code == 75


def test_a_signal_between_the_start_and_the_guard_ends_the_run(tmp_path: Path) -> None:
    def interrupt() -> None:
        until(lambda: (tmp_path / "ready").exists())
        os.kill(os.getpid(), signal.SIGTERM)

    (tmp_path / "go").touch()
    guard = FailingGuard(interrupt)
    run = launched(tmp_path, cast(FaultGuard, guard))
    with pytest.raises(StoppedError, match="SIGTERM"), run:
        pytest.fail("the signal is lost")
    assert run.code == 75
    assert guard.calls == ["add", "forget 7"]


class ChildOfNumber:
    """A child with a number that an earlier process had; it writes its lease after some looks."""

    pid = 4242

    def __init__(self, write: Callable[[], None]) -> None:
        self._looks = 0
        self._write = write

    def poll(self) -> None:
        self._looks += 1
        if self._looks == 3:
            self._write()


def lease(folder: Path, name: str, host: str, renewals: int = 1) -> Path:
    """Write the lease of a run."""
    path = folder / name / "lease.json"
    path.parent.mkdir(exist_ok=True)
    values = Lease(generation=0, host=host, pid=ChildOfNumber.pid, time_s=0.0, renewals=renewals)
    replace_json(path, values)
    return path.parent


def test_the_run_is_that_whose_lease_the_child_has_written(tmp_path: Path) -> None:
    here = socket.gethostname()
    # Its process was killed, and its number is used again.
    lease(tmp_path, "old", here)
    lease(tmp_path, "elsewhere", "another-host")
    run = LaunchedRun("job", [], tmp_path, 0, cast(FaultGuard, None))
    lease(tmp_path, "elsewhere", "another-host", renewals=2)
    child = ChildOfNumber(lambda: str(lease(tmp_path, "own", here)) and None)
    run._process = cast("subprocess.Popen[bytes]", child)
    assert run.run.path == tmp_path / "own"


def test_a_run_that_continues_is_found_by_its_new_lease(tmp_path: Path) -> None:
    here = socket.gethostname()
    lease(tmp_path, "own", here)
    run = LaunchedRun("job", [], tmp_path, 0, cast(FaultGuard, None))
    child = ChildOfNumber(lambda: str(lease(tmp_path, "own", here, renewals=9)) and None)
    run._process = cast("subprocess.Popen[bytes]", child)
    assert run.run.path == tmp_path / "own"
    assert child._looks == 3


def test_another_command_does_not_disturb_a_launched_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder.create(tmp_path, "job")

    class Launched:
        """A run that was started."""

        def __init__(self, *arguments: object) -> None:
            self.run, self.log = run, tmp_path / "log"

        def __enter__(self) -> Launched:
            return self

        def __exit__(self, *error: object) -> None:
            pass

    options = disturbing.ChaosOptions(
        kill=("any",),
        others=(),
        fill_disk=None,
        leave_mib=0,
        every_s=1.0,
        for_s=60.0,
        longest_s=1.0,
        back_s=1.0,
        intervals="fixed",
        seed=1,
    )
    monkeypatch.setattr(disturbing, "LaunchedRun", Launched)
    disturbance = disturbing.Disturbance(options, lambda text: None)
    seen = []

    def disturb(found: RunFolder, guard: FaultGuard) -> None:
        seen.append(found)
        with (
            pytest.raises(ConfigError, match="another mpips chaos disturbs this run"),
            disturbing.only_one(run),
        ):
            pass

    monkeypatch.setattr(disturbance, "_disturb", disturb)
    disturbance.launch("job", [], tmp_path)
    assert seen == [run]
