"""The watcher of the programs of [producers], for the case that all other processes of mpips are killed.

The process that runs the programs ends them when the supervisor is gone, and the supervisor when that process
is. If both are killed, the watcher is left: a forked child of the process that runs the programs, which waits
for the end of a pipe from it. Then it ends the processes that come from its programs: SIGTERM, and SIGKILL
after `end_s`. It finds them by a mark in their environment, which programs of a later supervisor do not have,
and by their session, since a program may have cleared its environment, as some containers do. The sessions
of running programs come through the pipe.

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
from mpips.supervisor.member_processes import below, kill_found, marked_with, processes, send

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
        self._end_s, self._sessions = end_s, set[int]()
        self._begin()

    def _begin(self) -> None:
        reading, self._writing = os.pipe()  # programs do not inherit it
        self.pid = os.fork()
        if self.pid == 0:
            _watch(reading, f"{MEMBER_RUNNER}={self.mark}", self._end_s, self._sessions)
        os.close(reading)
        os.set_blocking(self._writing, False)

    def note(self, session: int) -> None:
        """Note the session of a program that has started."""
        self._sessions.add(session)
        self._write(b"+%d\n" % session)

    def forget(self, session: int) -> None:
        """Note that no process of a program is left: another session may get the number."""
        self._sessions.discard(session)
        self._write(b"-%d\n" % session)

    def _write(self, line: bytes) -> None:
        # A watcher that was killed or stopped does not read.
        with contextlib.suppress(OSError):
            os.write(self._writing, line)

    def was_reaped(self, pid: int) -> None:
        """Fork another watcher if this child of the process, which has ended, was the watcher."""
        if pid == self.pid:
            os.close(self._writing)
            self._begin()

    def end(self) -> None:
        """End the watcher; no program is left."""
        with contextlib.suppress(ChildProcessError):
            # The pid of a child for which nobody has waited is not that of another process.
            if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        os.close(self._writing)


def _watch(reading: int, mark: str, end_s: float, sessions: set[int]) -> NoReturn:
    """Wait for the end of the parent, and end what it has left. Does not return.

    Args:
        reading: The pipe, from which the sessions of programs come.
        mark: The mark of programs, NAME=value.
        end_s: Seconds from SIGTERM to SIGKILL.
        sessions: The sessions of programs that run already.
    """
    try:
        _become_watcher(reading)
        text = b""
        while more := os.read(reading, 1 << 12):
            *lines, text = (text + more).split(b"\n")
            for line in lines:
                change = sessions.add if line.startswith(b"+") else sessions.discard
                change(int(line[1:]))
        send(left_over(mark, sessions), signal.SIGTERM)
        until = time.monotonic() + end_s
        while time.monotonic() < until and left_over(mark, sessions):
            time.sleep(_PAUSE_S)
        kill_found(lambda: left_over(mark, sessions))
    finally:
        os._exit(0)


def left_over(mark: str, sessions: set[int]) -> set[int]:
    """Return the pids of the processes of programs; remove the sessions that have ended."""
    rows = processes()
    sessions &= {row.session for row in rows}
    marked = {*marked_with(mark)}
    own = marked | {row.pid for row in rows if row.session in sessions}
    return (marked | below(own, rows)) - {os.getpid()}


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
