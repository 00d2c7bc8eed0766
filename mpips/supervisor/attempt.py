"""One attempt: mpirun as a child process, its output copied, its ranks watched, no process left at the end.

The child leads a session of its own, so that Ctrl-C at the terminal reaches only the supervisor. If the
supervisor is killed, the kernel sends SIGTERM to the child. The main thread waits for the child and reads
the files of the run. A second thread copies stderr of mpirun and its ranks to the log and to the terminal;
the launcher's own text about an end goes to the log only, because the supervisor prints a block about it.
Text that worker 0 passes on goes to the terminal only, since the log of its rank has it. Where the supervisor
draws on the terminal, and where the launcher prints about ends on stdout (mpips.supervisor.hydra), a
third thread copies stdout.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mpips.errors import CapabilityError, ConfigError
from mpips.mpi.mpirun import as_one_process
from mpips.process.memory import group_limit, memory_kills
from mpips.process.patience import is_over, running_s, was_suspended
from mpips.rundir.directory import RunFolder, replace_json, version_of
from mpips.rundir.files import Status
from mpips.supervisor.hosts import is_here
from mpips.supervisor.hydra import BlockFilter, started_ranks
from mpips.supervisor.reap import belongs, is_dead, orphans_of, reap
from mpips.supervisor.suspended import is_suspended
from mpips.terminal.passing import PassedRow, passed_text

LAUNCHER_LOG = "launcher.log"
STARTING = "starting"  # state of a run until the scheduler of an attempt writes its first status
# The last bytes of stderr that stay in memory, where the launcher's text about an end is: ranks may print for
# months. launcher.log has all of it.
_STDERR_BYTES = 1 << 20
_LINE_BYTES = 1 << 16  # bytes after which a line without an end is handled as a line
_RULE = re.compile(r"^[-=]{40,}\s*$")
# Text that Open MPI and MPICH print once a rank has failed. The launcher should end soon after, but the
# prterun of Open MPI 5.0.11 can lose track of ranks that abort on several hosts; it then waits for ever for
# ended ranks.
_END = re.compile(
    r"\*\*\* MPI_ERRORS_ARE_FATAL \(|MPI_ABORT was invoked on rank|lost communication with a remote daemon"
    r"|(?:mpirun|mpiexec|prterun) (?:has exited due to|noticed that process|detected that one or more)"
    r"|BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
)
# Seconds from the end of the last rank of this host to that of the processes that ranks have left. The
# launcher usually ends within a tenth of that.
_ORPHANS_S = 1.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def start_launcher(
    command: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    copy_stdout: bool,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a launcher in a session of its own, which gets SIGTERM when this process ends.

    Args:
        command: The launcher and its arguments.
        env: Environment of the launcher.
        cwd: Working folder of the launcher.
        copy_stdout: stdout is a pipe, as stderr always is; else it is that of this process.
        stdin: As of `subprocess.Popen`.

    Raises:
        CapabilityError: The program cannot be started.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    try:
        return subprocess.Popen(
            as_one_process(command),
            env=dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE if copy_stdout else None,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    except OSError as error:
        raise CapabilityError(
            f"{command[0]} cannot be started in {cwd}: {error.strerror}"
        ) from None


@dataclass
class Ended:
    """The end of an attempt's launcher, and what was observed before it.

    Attributes:
        code: Exit code as of subprocess: negative if a signal ended the launcher.
        pid: Process of the launcher; in a job of one rank it is the rank.
        seconds: Seconds from start to end.
        stderr: The last text of the launcher's stderr, about 1 MiB at most, and its own text on stdout.
        stopped: Ranks of this host that a signal had stopped, in the order in which that was seen, with a
            running time at which they were.
        gone: Ranks of this host in the order in which their processes ended.
        cut_off: Why the supervisor ended the attempt by itself, or "".
        interrupted: The signal that asked the supervisor to end; 0: none.
        hurried: Why the supervisor then did not wait for a last checkpoint, or "".
        out_of_memory: Processes that the kernel killed for lack of memory during the attempt: of the job, or
            of this host where no control group counts those of the job.
        status: The last status that the scheduler wrote.
        worked_s: Seconds for which ranks were seen at work; 0 if never, or only at the end.
        overdue: The launcher was killed because it did not end after a rank had ended.
        memory_limit: Bytes that the job's control group on this host may use; 0: it has no limit.
        is_hydra: The launcher is that of MPICH or Intel MPI.
        lost: Rank whose death was certain, so that the supervisor has killed the others; -1: none was.
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
    memory_limit: int = 0
    is_hydra: bool = False
    lost: int = -1


class Attempt:
    """A running launcher. Main thread only."""

    _JOIN_S = 5.0  # s in which a reader of the output must take a part of it, at the end

    def __init__(
        self,
        run: RunFolder,
        generation: int,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        copy_stdout: bool = False,
        process: subprocess.Popen[bytes] | None = None,
        is_hydra: bool = False,
    ) -> None:
        """Start the launcher, or take one that was started by `start_launcher`.

        Args:
            run: The run directory.
            generation: Generation number of the attempt.
            command: The launcher and its arguments.
            env: Environment of the launcher.
            cwd: Working folder of the launcher.
            copy_stdout: Copy stdout through this process, because it draws on the same terminal, or because
                the launcher prints about ends there.
            process: The launcher, with the same command, environment, folder and `copy_stdout`.
            is_hydra: The launcher is that of MPICH or Intel MPI.

        Raises:
            CapabilityError: The program cannot be started.
        """
        self._run = run
        self._generation = generation
        self._is_hydra = is_hydra
        self._stderr: deque[str] = deque()
        self._stderr_bytes = 0
        self._own_stdout: list[
            str
        ] = []  # the launcher's text there; written by the thread that copies it
        self._stdout_bytes = 0  # bytes of stdout that were copied; written by that thread only
        # Ranks that are suspended, in the order in which that was seen, with the running time of the first
        # time; of a later one, if this process was suspended in between and others went on.
        self._stopped: dict[int, float] = {}
        self._is_ended = False  # `_stopped` is final
        self._gone: list[int] = []
        self._pids: dict[int, int] = {}  # processes of watched ranks, by rank
        self._was_asked = False  # the ranks were asked to leave
        self._lost = -1  # see Ended
        self._missed: set[int] = (
            set()
        )  # ranks of this host that had ended when they were first looked at
        self._failure_seen = False  # set by the threads that copy output, once
        self._overdue = False
        self._n_here = 0  # ranks of this host; 0 before the first status
        self._all_gone_at = 0.0  # running time since which all of them have ended
        self._ends: dict[int, int] = {}  # rank (-1: the launcher) by pidfd
        self._epoll = select.epoll()
        self._killed_before = memory_kills()
        self._started = time.monotonic()
        self._at_work_since: float | None = None
        self._log = (run.attempt(generation) / LAUNCHER_LOG).open("ab", buffering=0)
        try:
            self._process = process or start_launcher(command, env, cwd, copy_stdout)
        except CapabilityError:
            self._log.close()
            self._epoll.close()
            raise
        self._watch(-1, self._process.pid)
        self._row = PassedRow.at_terminal()
        self._listeners = [threading.Thread(target=self._listen, daemon=True)]
        if copy_stdout:
            self._listeners.append(threading.Thread(target=self._copy_stdout, daemon=True))
        for listener in self._listeners:
            listener.start()

    def signal(self, number: int) -> None:
        """Send a signal to the launcher, which passes some on to the ranks.

        SIGUSR2 would end Hydra, so the ranks of this host get it then.
        """
        if self._is_hydra and number == signal.SIGUSR2:
            status = self._last_status()
            for place in status.ranks if status is not None else ():
                if is_here(place.host) and self._is_mine(place.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(place.pid, number)
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def ask_to_leave(self, why: str) -> None:
        """Ask the ranks, which are at work, to write a checkpoint and then to end with exit code 75.

        Args:
            why: Name of the signal that requests the end of the run.
        """
        self._was_asked = True
        # On a full disk the request cannot be written, and no checkpoint either: the ranks are ended later.
        with contextlib.suppress(OSError):
            replace_json(self._run.leave_file(self._generation), why)
        self.signal(signal.SIGUSR1)

    @property
    def is_first(self) -> bool:
        """True if no attempt of the run came before this one."""
        return self._generation == 0

    def poll(self) -> bool:
        """Return True if the launcher has ended."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the launcher's end; return True if it has ended.

        Also notes the order in which processes of ranks end.
        """
        # The kernel reports processes in the order in which they ended.
        for fd, _ in self._epoll.poll(timeout_s):
            rank = self._ends.pop(fd)
            os.close(fd)
            if rank >= 0:
                self._gone.append(rank)
        return self.poll()

    def _watch(self, rank: int, pid: int) -> None:
        """Let `wait` note the end of a process of this host. `rank`: -1 is the launcher."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            # The process has ended, or the kernel is too old: only the launcher's text tells of its end.
            return
        self._missed.discard(rank)
        self._ends[fd], self._pids[rank] = rank, pid
        self._epoll.register(fd, select.EPOLLIN)

    @property
    def is_ending(self) -> bool:
        """True if a rank has ended, well or not, or the run is done: the launcher must also end soon.

        The end of a rank on another host shows in its failure report or in the launcher's text.
        """
        reports = self._run.attempt(self._generation).glob("words-*.json")
        known = bool(self._gone) or self._failure_seen
        return known or self._run.finished_file.exists() or any(reports)

    @property
    def gone(self) -> list[int]:
        """Ranks of this host in the order in which their processes ended."""
        return self._gone

    @property
    def has_lost_rank(self) -> bool:
        """True if the first rank that has ended was certainly killed, and all ranks are on this host.

        See `mpips.supervisor.early_start`.
        """
        status = self._last_status()
        n_ranks = len(status.ranks) if status is not None else 0
        if not self._gone or self._was_asked or self.poll() or self._missed:
            return False
        if not 1 < n_ranks == self._n_here == len(self._pids) - 1:
            return False
        folder = self._run.attempt(self._generation)
        if not self._run.at_work_file(self._generation).exists():
            return False
        return not (any(folder.glob("words-*.json")) or self._run.finished_file.exists())

    @property
    def is_noticed(self) -> bool:
        """True if the launcher has taken note of the first rank that ended: the kernel has forgotten it."""
        return not os.path.exists(f"/proc/{self._pids[self._gone[0]]}")

    def kill_ranks(self) -> None:
        """Kill the ranks that are left after the death of the first one; they are all on this host."""
        self._lost = self._gone[0]
        for fd, rank in self._ends.items():
            if rank >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)

    @property
    def has_only_launcher(self) -> bool:
        """True if all watched ranks have ended."""
        return not any(rank >= 0 for rank in self._ends.values())

    def kill_orphans(self) -> None:
        """Kill what ended ranks have left on this host."""
        for pid in orphans_of(self._run.path, self._generation, self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end_orphans(self) -> None:
        """Kill what ranks have left on this host, once all of them have ended for `_ORPHANS_S`. Cheap before.

        A child that outlives its rank holds the pipes of the launcher, which waits for their end.
        """
        now = running_s()
        if not self._n_here or len(self._missed.union(self._gone)) < self._n_here:
            self._all_gone_at = now
        elif is_over(self._all_gone_at, _ORPHANS_S):
            self._all_gone_at = now
            self.kill_orphans()

    def kill(self, overdue: bool = False) -> None:
        """Kill the launcher and all processes of the attempt on this host.

        Args:
            overdue: The launcher is killed because it did not end by itself.
        """
        self._overdue = overdue
        self._settle()
        self._process.kill()
        self._process.wait()
        reap(self._run.path, self._generation)

    def _settle(self) -> None:
        """Forget ranks that were suspended together with this process, with the whole job: they go on.

        The attempt ends. The next steps may block for seconds, as if this process were suspended itself.
        """
        if not self._is_ended:
            self._is_ended = True
            self._stopped = {
                rank: at for rank, at in self._stopped.items() if not was_suspended(at)
            }

    def look(self) -> Status | None:
        """Read the status of this attempt and watch its ranks; return None before there is a status."""
        status = self._last_status()
        if status is None:
            self._watch_started()
        if status is not None:
            self._at_work_since = self._at_work_since or time.monotonic()
            self._look_at(status)
        return status

    def _watch_started(self) -> None:
        """Watch the ranks that Hydra has started on this host, before a status names them.

        Until MPI has started in all ranks, Hydra may wait for ever after the end of one.
        """
        if self._is_hydra:
            for rank, pid in started_ranks(self._process.pid):
                if rank not in self._gone and rank not in self._ends.values():
                    self._watch(rank, pid)

    @property
    def is_suspended(self) -> bool:
        """True if all ranks of this host were suspended at the last poll, none by itself: a whole job is.

        A batch system may stop the ranks and not the supervisor. If only some ranks are stopped, the others
        find them late. Ranks of other hosts are not seen.
        """
        running = self._n_here - len(self._missed.union(self._gone))
        return 0 < running == len(self._stopped.keys() - self._gone)

    def heartbeat(self) -> object:
        """Return a value that changes while the scheduler of this attempt is at work.

        The scheduler sets the modification time of a file, which needs no space on a full disk.
        """
        return version_of(self._run.alive_file(self._generation)), version_of(self._run.status_file)

    def _last_status(self) -> Status | None:
        """Return the last status of this attempt; None if none of its own can be read."""
        try:
            status = self._run.status()
        except ConfigError:
            return None
        if status is None or status.generation != self._generation or not status.ranks:
            return None
        # places.json comes before status.json: until both are there, the places of this attempt may come with
        # the status that the supervisor wrote, which has no start.
        return None if status.state == STARTING else status

    def _look_at(self, status: Status) -> None:
        """Watch the ranks of this host and note which are stopped; pids of other hosts mean nothing here."""
        watched = set(self._ends.values()) | set(self._gone)
        self._n_here = sum(is_here(place.host) for place in status.ranks)
        for place in status.ranks:
            if not is_here(place.host):
                continue
            if place.rank not in watched:
                if self._is_mine(place.pid) and not is_dead(place.pid):
                    self._watch(place.rank, place.pid)
                else:
                    self._missed.add(place.rank)
            if is_suspended(place.pid) and self._is_mine(place.pid):
                self._stopped.setdefault(place.rank, running_s())
            elif place.rank not in self._gone and not self.poll():
                self._stopped.pop(place.rank, None)
        if not self.is_suspended:
            # Others go on: these are stopped by themselves, also where this process has paused meanwhile.
            for rank, at in self._stopped.items():
                if rank not in self._gone and was_suspended(at):
                    self._stopped[rank] = running_s()

    def _is_mine(self, pid: int) -> bool:
        """Return True if a process of this host belongs to the run: a pid may be in use again."""
        with contextlib.suppress(OSError):
            return belongs(pid, self._run.path, self._generation)
        return False

    def _listen(self) -> None:
        """Copy stderr to the log, and to the terminal without the texts about the end of the attempt.

        These are what the launcher prints between two rules, and all that follows an error of mpips.
        """
        assert self._process.stderr is not None
        in_rules = held = False
        for raw in iter(functools.partial(self._process.stderr.readline, _LINE_BYTES), b""):
            text = passed_text(raw.decode(errors="replace"))
            if text is not None:
                held = held or text.startswith("mpips: error:")
                if self._row is not None and not held:
                    with contextlib.suppress(OSError, ValueError):
                        self._row.pass_on(text)
                continue
            # A full disk must not stop the reading: the launcher would block on a full pipe.
            with contextlib.suppress(OSError):
                self._log.write(raw)
            line = raw.decode(errors="replace")
            self._stderr.append(line)
            self._stderr_bytes += len(line)
            while self._stderr_bytes > _STDERR_BYTES:
                self._stderr_bytes -= len(self._stderr.popleft())
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
        """Copy stdout to this process's stdout, and the launcher's texts about ends to the log instead."""
        assert self._process.stdout is not None
        parts = BlockFilter()
        # Where this process draws on the terminal, the output of ranks comes above its rows, by lines.
        source = self._process.stdout
        read = source.readline if self._row is not None else source.read1  # type: ignore[attr-defined]
        for raw in iter(functools.partial(read, _LINE_BYTES), b""):
            output, texts = parts.feed(raw)
            self._print(output)
            self._stdout_bytes += len(raw)
            if texts:
                self._failure_seen = True
                self._own_stdout.append(texts.decode(errors="replace"))
                with contextlib.suppress(OSError):
                    self._log.write(texts)
        self._print(parts.end())

    def _print(self, output: bytes) -> None:
        """Write output of ranks to this process's stdout."""
        if not output:
            return
        with contextlib.suppress(OSError, ValueError):
            if self._row is not None:
                self._row.print_above(sys.stdout, output.decode(errors="replace"))
                return
            if hasattr(sys.stdout, "buffer"):
                sys.stdout.buffer.write(output)
            else:
                sys.stdout.write(output.decode(errors="replace"))
            sys.stdout.flush()

    def _join(self, listener: threading.Thread) -> None:
        """Wait until a thread has copied all output, or has copied nothing for `_JOIN_S`."""
        copied = -1
        while listener.is_alive() and copied != self._stdout_bytes:
            copied = self._stdout_bytes
            listener.join(self._JOIN_S)

    def close(self, cut_off: str = "", interrupted: int = 0, hurried: str = "") -> Ended:
        """Kill the remaining processes of the attempt on this host. The launcher has ended.

        Args:
            cut_off: See Ended.
            interrupted: See Ended.
            hurried: See Ended.
        """
        self._settle()
        # Note processes that ended since the last wait, before all others are killed.
        self.wait(0.0)
        now = time.monotonic()
        seconds = now - self._started
        worked_s = now - self._at_work_since if self._at_work_since is not None else 0.0
        reap(self._run.path, self._generation)
        for listener, pipe in zip(
            self._listeners, (self._process.stderr, self._process.stdout), strict=False
        ):
            self._join(listener)
            if not listener.is_alive() and pipe is not None:
                pipe.close()
        if self._row is not None:
            with contextlib.suppress(OSError, ValueError):
                self._row.close()
        self._log.close()
        self._epoll.close()
        for fd in self._ends:
            os.close(fd)
        self._ends.clear()
        return Ended(
            self._process.returncode,
            self._process.pid,
            seconds,
            "".join([*self._stderr, *self._own_stdout]),
            self._stopped,
            tuple(self._gone),
            cut_off,
            interrupted,
            hurried,
            memory_kills() - self._killed_before,
            self._last_status(),
            worked_s,
            self._overdue,
            group_limit(),
            is_hydra=self._is_hydra,
            lost=self._lost,
        )
