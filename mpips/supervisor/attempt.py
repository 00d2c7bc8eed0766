"""One attempt: mpirun as a child, its words sorted, its ranks watched, and nothing left of it at the end.

The child leads a session of its own, so a Ctrl-C at the terminal reaches the supervisor alone, which decides.
If the supervisor is killed, the kernel tells the child to end. Two threads: the main one waits and looks, the
other copies what mpirun and rank 0 say. What the launcher itself says of an end is kept for the
supervisor's one block and not shown twice.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mpips.errors import CapabilityError, ConfigError
from mpips.rundir import RunFolder, Status
from mpips.supervisor.hosts import is_here
from mpips.supervisor.reap import belongs, reap, state_of

LAUNCHER_LOG = "launcher.log"
_LOOK_S = 0.5
ENDING_S = 30.0  # from the first sign of an end to that of the launcher
_RULE = re.compile(r"^[-=]{40,}\s*$")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Ended:
    """How an attempt's launcher ended, and what was seen meanwhile.

    Attributes:
        code: As subprocess gives it: negative where a signal ended it.
        pid: Of the launcher, which in a job of one rank is the rank.
        seconds: From start to end.
        said: All that came from the launcher's stderr.
        stopped: Ranks of this host that were seen stopped by a signal, and since when (Unix time).
        gone: Ranks of this host in the order in which their processes ended.
        cut_off: Why the supervisor itself ended it, or "".
        interrupted: The signal that told the supervisor to end, or 0.
        out_of_memory: How often the kernel killed a process on this host for want of memory meanwhile.
        status: The last that the scheduler wrote.
    """

    code: int
    pid: int
    seconds: float
    said: str
    stopped: dict[int, float] = field(default_factory=dict)
    gone: tuple[int, ...] = ()
    cut_off: str = ""
    interrupted: int = 0
    out_of_memory: int = 0
    status: Status | None = None


class Attempt:
    """A launcher that runs. Main thread only."""

    def __init__(
        self,
        run: RunFolder,
        generation: int,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
    ) -> None:
        """Start it.

        Raises:
            CapabilityError: The program cannot be started.
        """
        self._run = run
        self._generation = generation
        self._said: list[str] = []
        self._stopped: dict[int, float] = {}
        self._gone: list[int] = []
        self._ends: dict[int, int] = {}  # rank (-1: the launcher) by pidfd
        self._epoll = select.epoll()
        self._killed_before = _memory_kills()
        self._started = time.monotonic()
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
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            self._log.close()
            raise CapabilityError(
                f"{command[0]} cannot be started in {cwd}: {error.strerror}"
            ) from None
        self._watch(-1, self._process.pid)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def signal(self, number: int) -> None:
        """Send a signal to the launcher, which passes on what it passes on."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

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
        """Whether a rank has ended, well or not, or the run is done: the launcher must end soon, too."""
        words = self._run.attempt(self._generation).glob("words-*.json")
        return bool(self._gone) or self._run.finished_file.exists() or any(words)

    def kill(self) -> None:
        """End it and all its processes on this host, at once."""
        self._process.kill()
        self._process.wait()
        reap(self._run.path, self._generation)

    def look(self) -> Status | None:
        """See where the ranks are; the status of this attempt, or None before it has any."""
        status = self._last_status()
        if status is not None:
            self._look_at(status)
        return status

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
                self._stopped.setdefault(place.rank, time.time())
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
            self._log.write(raw)
            line = raw.decode(errors="replace")
            self._said.append(line)
            held = held or line.startswith("mpips: error:")
            rule = bool(_RULE.match(line))
            if not (held or in_rules or rule):
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(line)
                    sys.stderr.flush()
            if rule:
                in_rules = not in_rules

    def close(self, cut_off: str = "", interrupted: int = 0) -> Ended:
        """End what is left of it on this host, and say how it went. The launcher has ended."""
        self.wait(0.0)
        seconds = time.monotonic() - self._started
        reap(self._run.path, self._generation)
        self._listener.join(5.0)
        if not self._listener.is_alive() and self._process.stderr is not None:
            self._process.stderr.close()
        self._log.close()
        self._epoll.close()
        for fd in self._ends:
            os.close(fd)
        self._ends.clear()
        return Ended(
            self._process.returncode,
            self._process.pid,
            seconds,
            "".join(self._said),
            self._stopped,
            tuple(self._gone),
            cut_off,
            interrupted,
            _memory_kills() - self._killed_before,
            self._last_status(),
        )


def drive(
    attempt: Attempt, signals: Signals, silence_s: float, tick: Callable[[Status | None], None]
) -> tuple[str, int]:
    """Wait for an attempt's end, passing on signals; why it was cut off, and what interrupted it.

    Args:
        attempt: Started.
        signals: What the supervisor has received.
        silence_s: A status that is older ends the attempt: then not even a watchdog runs.
        tick: Called with the status, about twice a second.
    """
    heard = time.time()
    forwarded = 0
    kill_at = float("inf")
    next_look = 0.0
    while not attempt.wait(0.02):
        for number in signals.take():
            if number in (signal.SIGUSR1, signal.SIGUSR2):
                attempt.signal(number)
                continue
            if forwarded:
                attempt.kill()
                return "", number
            forwarded = number
            attempt.signal(signal.SIGTERM)
            kill_at = time.monotonic() + signals.grace_s
        now = time.monotonic()
        if now >= kill_at:
            attempt.kill()
            return "", forwarded
        if now < next_look:
            continue
        next_look = now + _LOOK_S
        if attempt.is_ending:
            kill_at = min(kill_at, now + ENDING_S)
        status = attempt.look()
        heard = max(heard, status.time_s if status is not None else 0.0)
        if time.time() - heard > silence_s:
            attempt.kill()
            return f"no rank has given a sign of life for {silence_s:.0f} s", forwarded
        tick(status)
    return "", forwarded


class Signals:
    """Signals that the supervisor receives while a run lasts."""

    def __init__(self, grace_s: float = 15.0) -> None:
        """`grace_s`: what ranks get to end after the first request."""
        self.grace_s = grace_s
        self._seen: list[int] = []
        self._old: dict[int, object] = {}

    def __enter__(self) -> Signals:
        """Take them over."""
        for number in (
            signal.SIGINT,
            signal.SIGTERM,
            signal.SIGHUP,
            signal.SIGUSR1,
            signal.SIGUSR2,
        ):
            self._old[number] = signal.signal(number, lambda n, frame: self._seen.append(n))
        return self

    def __exit__(self, *error: object) -> None:
        """Give them back."""
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def take(self) -> list[int]:
        """Those that have come since the last call."""
        taken = self._seen[:]
        del self._seen[: len(taken)]
        return taken


def _memory_kills() -> int:
    """How often the kernel has killed for want of memory on this host."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0
