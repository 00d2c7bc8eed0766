"""One attempt: mpirun as a child, its words sorted, its ranks watched, and nothing left of it at the end.

The child leads a session of its own, so a Ctrl-C at the terminal reaches the supervisor alone, which decides.
If the supervisor is killed, the kernel tells the child to end. Two threads: the main one waits and looks, the
other copies what mpirun and rank 0 say. What the launcher itself says of an end is kept for the
supervisor's one block and not shown twice. Where the supervisor draws on the terminal, a third copies stdout.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mpips.errors import CapabilityError, ConfigError
from mpips.rundir.directory import RunFolder, Status, replace_json, version_of
from mpips.supervisor.hosts import is_here
from mpips.supervisor.reap import belongs, reap, state_of

LAUNCHER_LOG = "launcher.log"
_RULE = re.compile(r"^[-=]{40,}\s*$")
# What Open MPI and MPICH say once a rank has failed. The launcher should end soon after, but the prterun of
# Open MPI 5.0.11 can lose track of ranks that abort on several hosts and wait for ever, all of them gone.
_END = re.compile(
    r"\*\*\* MPI_ERRORS_ARE_FATAL \(|MPI_ABORT was invoked on rank|lost communication with a remote daemon"
    r"|(?:mpirun|mpiexec|prterun) (?:has exited due to|noticed that process|detected that one or more)"
    r"|BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Ended:
    """How an attempt's launcher ended, and what was seen meanwhile.

    Attributes:
        code: As subprocess gives it: negative where a signal ended it.
        pid: Of the launcher, which in a job of one rank is the rank.
        seconds: From start to end.
        stderr: All that came from the launcher's stderr.
        stopped: Ranks of this host that were seen stopped by a signal, and since when (monotonic time).
        gone: Ranks of this host in the order in which their processes ended.
        cut_off: Why the supervisor itself ended it, or "".
        interrupted: The signal that told the supervisor to end, or 0.
        hurried: Why it then did not wait for a last checkpoint, or "".
        out_of_memory: How often the kernel killed a process on this host for want of memory meanwhile.
        status: The last that the scheduler wrote.
        worked_s: For how long ranks were seen at work; 0 where they were not, or only at the end.
        overdue: The launcher was killed because it did not end after a rank had.
    """

    code: int
    pid: int
    seconds: float
    stderr: str
    stopped: dict[int, float] = field(default_factory=dict)
    gone: tuple[int, ...] = ()
    cut_off: str = ""
    interrupted: int = 0
    hurried: str = ""
    out_of_memory: int = 0
    status: Status | None = None
    worked_s: float = 0.0
    overdue: bool = False


class Attempt:
    """A launcher that runs. Main thread only."""

    def __init__(
        self,
        run: RunFolder,
        generation: int,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        copy_stdout: bool = False,
    ) -> None:
        """Start it. `copy_stdout`: through this process, which draws on the same terminal.

        Raises:
            CapabilityError: The program cannot be started.
        """
        self._run = run
        self._generation = generation
        self._stderr: list[str] = []
        self._stopped: dict[int, float] = {}
        self._gone: list[int] = []
        self._failure_seen = False  # set by the listener, once
        self._overdue = False
        self._ends: dict[int, int] = {}  # rank (-1: the launcher) by pidfd
        self._epoll = select.epoll()
        self._killed_before = _memory_kills()
        self._started = time.monotonic()
        self._at_work_since: float | None = None
        self._log = (run.attempt(generation) / LAUNCHER_LOG).open("ab", buffering=0)
        parent = os.getpid()

        def die_with_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        try:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if copy_stdout else None,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            self._log.close()
            self._epoll.close()
            raise CapabilityError(
                f"{command[0]} cannot be started in {cwd}: {error.strerror}"
            ) from None
        self._watch(-1, self._process.pid)
        self._listeners = [threading.Thread(target=self._listen, daemon=True)]
        if copy_stdout:
            self._listeners.append(threading.Thread(target=self._copy_stdout, daemon=True))
        for listener in self._listeners:
            listener.start()

    def signal(self, number: int) -> None:
        """Send a signal to the launcher, which passes on what it passes on."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def ask_to_leave(self, why: str) -> None:
        """Ask the ranks, which are at work, for a checkpoint after which they end with 75.

        Args:
            why: Name of the signal for which the run is to end.
        """
        # On a full disk nothing can be saved either: they will be ended when the time is over.
        with contextlib.suppress(OSError):
            replace_json(self._run.leave_file(self._generation), why)
        self.signal(signal.SIGUSR1)

    @property
    def is_first(self) -> bool:
        """Whether no attempt of the run came before this one."""
        return self._generation == 0

    def poll(self) -> bool:
        """Whether the launcher has ended."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait a while for the launcher's end; whether it has come. Notes who ends in which order."""
        # The kernel queues what has become ready in the order in which it did.
        for fd, _ in self._epoll.poll(timeout_s):
            rank = self._ends.pop(fd)
            os.close(fd)
            if rank >= 0:
                self._gone.append(rank)
        return self.poll()

    def _watch(self, rank: int, pid: int) -> None:
        """Have `wait` note the end of a process of this host."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            # It has ended already, or the kernel is too old: then the launcher's word is all there is.
            return
        self._ends[fd] = rank
        self._epoll.register(fd, select.EPOLLIN)

    @property
    def is_ending(self) -> bool:
        """Whether a rank has ended, well or not, or the run is done: the launcher must end soon, too.

        Ranks of other hosts are known by their last words and by what the launcher says of them.
        """
        words = self._run.attempt(self._generation).glob("words-*.json")
        known = bool(self._gone) or self._failure_seen
        return known or self._run.finished_file.exists() or any(words)

    def kill(self, overdue: bool = False) -> None:
        """End it and all its processes on this host, at once. `overdue`: it should have ended by itself."""
        self._overdue = overdue
        self._process.kill()
        self._process.wait()
        reap(self._run.path, self._generation)

    def look(self) -> Status | None:
        """See where the ranks are; the status of this attempt, or None before it has any."""
        status = self._last_status()
        if status is not None:
            self._at_work_since = self._at_work_since or time.monotonic()
            self._look_at(status)
        return status

    def heartbeat(self) -> object:
        """A value that changes while a scheduler of this attempt is at work.

        The scheduler renews the modification time of a file, which needs no space on a full disk.
        """
        return version_of(self._run.alive_file(self._generation)), version_of(self._run.status_file)

    def _last_status(self) -> Status | None:
        try:
            status = self._run.status()
        except ConfigError:
            return None
        mine = status is not None and status.generation == self._generation and status.ranks
        return status if mine else None

    def _look_at(self, status: Status) -> None:
        """Watch the ranks of this host and note which are stopped; ranks elsewhere have pids of elsewhere."""
        watched = set(self._ends.values()) | set(self._gone)
        for place in status.ranks:
            if not is_here(place.host):
                continue
            if place.rank not in watched and self._is_mine(place.pid):
                self._watch(place.rank, place.pid)
            if state_of(place.pid) in "tT" and self._is_mine(place.pid):
                self._stopped.setdefault(place.rank, time.monotonic())
            elif place.rank not in self._gone and not self.poll():
                self._stopped.pop(place.rank, None)

    def _is_mine(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return belongs(pid, self._run.path, self._generation)
        return False

    def _listen(self) -> None:
        """Copy stderr: all of it to the log, and to the terminal but for what tells of the end."""
        assert self._process.stderr is not None
        in_rules = held = False
        for raw in self._process.stderr:
            with contextlib.suppress(OSError):  # a full disk must not stop the one who reads
                self._log.write(raw)
            line = raw.decode(errors="replace")
            self._stderr.append(line)
            self._failure_seen = self._failure_seen or bool(_END.search(line))
            held = held or line.startswith("mpips: error:")
            rule = bool(_RULE.match(line))
            if not (held or in_rules or rule):
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(line)
                    sys.stderr.flush()
            if rule:
                in_rules = not in_rules

    def _copy_stdout(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.write(raw.decode(errors="replace"))
                sys.stdout.flush()

    def close(self, cut_off: str = "", interrupted: int = 0, hurried: str = "") -> Ended:
        """End what is left of it on this host, and say how it went. The launcher has ended."""
        self.wait(0.0)
        now = time.monotonic()
        seconds = now - self._started
        worked_s = now - self._at_work_since if self._at_work_since is not None else 0.0
        reap(self._run.path, self._generation)
        for listener, pipe in zip(
            self._listeners, (self._process.stderr, self._process.stdout), strict=False
        ):
            listener.join(5.0)
            if not listener.is_alive() and pipe is not None:
                pipe.close()
        self._log.close()
        self._epoll.close()
        for fd in self._ends:
            os.close(fd)
        self._ends.clear()
        return Ended(
            self._process.returncode,
            self._process.pid,
            seconds,
            "".join(self._stderr),
            self._stopped,
            tuple(self._gone),
            cut_off,
            interrupted,
            hurried,
            _memory_kills() - self._killed_before,
            self._last_status(),
            worked_s,
            self._overdue,
        )


def _memory_kills() -> int:
    """How often the kernel has killed for want of memory on this host."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0
