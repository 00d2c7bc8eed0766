"""SIGUSR1 before anybody can act on it: remembered from the first line of a command on.

Untouched, SIGUSR1 and SIGUSR2 end a process, and loading numpy and MPI takes seconds in which a launcher may
pass one on. As soon as `python -m mpips` or the command `mpips` begins, SIGUSR1 is noted here, until the
job is at work and asks for what has come (see mpips.mpi.signals), and SIGUSR2 shows the stacks of all
threads. Whoever merely imports mpips keeps the signals as they are.

One note for the whole process, as the signal is: written by the handler, taken by the main thread, which is
the one that runs handlers, between two of its instructions.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType

_noted = [0.0]


def note(number: int, frame: FrameType | None) -> None:
    """The handler: remember when SIGUSR1 came."""
    _noted[0] = time.monotonic()


def take() -> float:
    """When SIGUSR1 came, by the monotonic clock, if it came since the last call; else 0."""
    at, _noted[0] = _noted[0], 0.0
    return at


def is_command(argv: Sequence[str], original: Sequence[str]) -> bool:
    """Whether this process is a command of mpips; `original` is what the interpreter was given."""
    first = argv[0] if argv else ""
    if first == "-m":
        at = original.index("-m") if "-m" in original else len(original)
        return list(original[at + 1 : at + 2]) in (["mpips"], ["mpips.supervisor.script"])
    return os.path.basename(first) == "mpips"


def begin() -> None:
    """Take note of SIGUSR1 and show stacks on SIGUSR2 from here on, where this process is a command."""
    if not is_command(sys.argv, sys.orig_argv):
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, note)
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)


def again() -> None:
    """Set the handler of SIGUSR1 once more: MPICH puts its own in its place when it starts."""
    handler = signal.getsignal(signal.SIGUSR1)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, handler)
