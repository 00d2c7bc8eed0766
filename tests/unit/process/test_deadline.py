"""Calls that hold the interpreter's lock are bounded by a thread that does not need it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from subprocess import PIPE

import pytest
from harness import python

from mpips import _native


def test_the_process_becomes_the_command_when_the_time_is_over() -> None:
    done = python(
        """
        import ctypes, os, sys
        from mpips import _native
        code = "import os, sys; print(os.getpid()); sys.exit(5)"
        print(os.getpid(), flush=True)
        deadline = _native.Deadline(0.1, "test", [sys.executable, "-c", code])
        # The interpreter's lock is held here, so no Python thread can run.
        ctypes.PyDLL(None).sleep(30)
        """
    )
    assert done.returncode == 5, done.stderr
    first, second = done.stdout.split()
    assert first == second


def test_nothing_happens_when_it_is_cancelled_in_time() -> None:
    begun = time.monotonic()
    for _ in range(3):
        _native.Deadline(60.0, "test", [sys.executable, "-c", "1"]).cancel()
    assert time.monotonic() - begun < 30


def test_time_in_which_the_process_is_suspended_does_not_count() -> None:
    program = """if True:
        import sys
        from mpips import _native
        deadline = _native.Deadline(3.0, "test", [sys.executable, "-c", "raise SystemExit(5)"])
        print("begun", flush=True)
        sys.stdin.readline()
        deadline.cancel()
        """
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(3.5)  # the length of the suspension
        process.send_signal(signal.SIGCONT)
        time.sleep(0.2)  # the old deadline ends the process meanwhile
        process.communicate("now\n", timeout=30)
        assert process.returncode == 0


@pytest.mark.parametrize(("name", "command"), [("", ["a"]), ("a" * 16, ["a"]), ("a", [])])
def test_impossible_arguments_are_refused(name: str, command: list[str]) -> None:
    with pytest.raises(ValueError, match=r"must have 1 to 15 bytes|at least one word"):
        _native.Deadline(60.0, name, command)
