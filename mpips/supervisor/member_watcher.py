"""The watcher of the programs of [producers], for the case that all other processes of mpips are killed.

The process that runs the programs ends them when the supervisor is gone, and the supervisor when that process
is. If both are killed, the watcher is left: a forked child of the process that runs the programs, which waits
for the end of a pipe from it. Then it ends the processes that come from its programs: SIGTERM, and SIGKILL
after `end_s`. It finds them by a mark in their environment, which programs of a later supervisor do not have.

The signal that the kernel sends at the death of a parent (prctl(2), PR_SET_PDEATHSIG) reaches a command at
once, but not the processes that the command has started, and there is only one of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import NoReturn

from mpips.rundir.producers import MEMBER_RUNNER
from mpips.supervisor.member_processes import kill_with, marked_with, send

_PAUSE_S = 0.05


class MemberWatcher:
    """The watcher of this process, which runs programs.

    Attributes:
        mark: Value of MEMBER_RUNNER for the environment of all programs.
        pid: Process of the watcher.
    """

    def __init__(self, end_s: float) -> None:
        """Fork the watcher. Call it before this process has other threads or starts programs.

        Args:
            end_s: Seconds from SIGTERM to SIGKILL.
        """
        self.mark = f"{os.getpid()}-{time.time_ns()}"
        reading, self._writing = os.pipe()  # programs do not inherit it
        self.pid = os.fork()
        if self.pid == 0:
            _watch(reading, self.mark, end_s)
        os.close(reading)

    def end(self) -> None:
        """End the watcher; no program is left."""
        send([self.pid], signal.SIGKILL)
        os.close(self._writing)
        with contextlib.suppress(ChildProcessError):  # if it was killed, it was waited for
            os.waitpid(self.pid, 0)


def _watch(reading: int, mark: str, end_s: float) -> NoReturn:
    """Wait for the end of the parent, and end what it has left. Does not return."""
    try:
        _become_watcher(reading)
        while os.read(reading, 1):
            pass
        mark = f"{MEMBER_RUNNER}={mark}"
        send(marked_with(mark), signal.SIGTERM)
        until = time.monotonic() + end_s
        while time.monotonic() < until and any(marked_with(mark)):
            time.sleep(_PAUSE_S)
        kill_with(mark)
    finally:
        os._exit(0)


def _become_watcher(reading: int) -> None:
    """Give up what belongs to the parent: session, signals and files."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != reading:
            with contextlib.suppress(OSError):  # that of the folder is closed already
                os.close(fd)
