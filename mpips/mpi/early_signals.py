"""Handlers of SIGUSR1 and SIGUSR2 from the first line of a command on.

By default SIGUSR1 and SIGUSR2 end a process. Loading numpy and MPI takes seconds, in which a launcher may
pass one of them on. So as soon as `python -m mpips` or the command `mpips` starts, the handler stores the
time of a SIGUSR1 until the job is at work and takes it (see mpips.mpi.signals), and SIGUSR2 writes the stacks
of all threads. A program that only imports mpips has its signals unchanged.

There is one stored time for the whole process, because a signal goes to the whole process. The handler writes
it, and the main thread takes it. Python runs handlers in the main thread, between two of its instructions, so
the two never run at the same time.
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
_COMMANDS = ("mpips", "mpips.supervisor.script", "mpips.supervisor.standby_rank")


def note(number: int, frame: FrameType | None) -> None:
    """Store the time of a SIGUSR1; this is its handler."""
    _noted[0] = time.monotonic()


def take() -> float:
    """Return and clear the monotonic time of the last SIGUSR1; 0 if none came since the last call."""
    at, _noted[0] = _noted[0], 0.0
    return at


def is_command(argv: Sequence[str], original: Sequence[str]) -> bool:
    """Return True if this process is a command of mpips.

    Args:
        argv: `sys.argv`.
        original: `sys.orig_argv`, the interpreter's own arguments.
    """
    first = argv[0] if argv else ""
    if first == "-m":
        at = original.index("-m") if "-m" in original else len(original)
        return list(original[at + 1 : at + 2]) in ([name] for name in _COMMANDS)
    return os.path.basename(first) == "mpips"


def begin() -> None:
    """Install the handlers of SIGUSR1 and SIGUSR2 if this process is a command of mpips."""
    if not is_command(sys.argv, sys.orig_argv):
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, note)
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)


def again() -> None:
    """Install the handler of SIGUSR1 once more, because MPICH replaces it when it starts."""
    handler = signal.getsignal(signal.SIGUSR1)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, handler)
