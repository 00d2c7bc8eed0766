"""A standby launch: the next attempt, started while this one is at work, so that a restart starts nothing.

A restart of a job starts a launcher and its ranks, loads Python, NumPy and the libraries of the program in
each of them, and starts MPI. None of it depends on the failed attempt, so a second launch of the same ranks
does it beforehand and waits (`mpips.supervisor.standby_rank`). When the attempt has failed, the supervisor
lets the waiting ranks begin, if the next attempt has the same hosts; else it ends them and starts others.

The standby launch has the generation number of the next attempt from its start. Nothing that ends processes
of the running attempt therefore ends it, and nothing of it may publish before the lease has its number.
It costs the memory of the loaded libraries, once more for each rank. It is started only where this host has
that much memory left, and the kernel, if memory runs out, kills its ranks first.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from mpips.errors import MpipsError
from mpips.mpi.started import Started, joined
from mpips.process.memory import free_bytes, own_bytes
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import Status
from mpips.supervisor import launcher as launching
from mpips.supervisor.attempt import LAUNCHER_LOG, start_launcher
from mpips.supervisor.hosts import Layout, is_here
from mpips.supervisor.plan import SupervisionPlan
from mpips.supervisor.reap import belongs, is_dead, processes_of

GO = b"go\n"
REASON = "mpips: standby: "  # begin of the line in which a rank says why it cannot stand by
_END_S = 5.0  # s that the launcher has to end its ranks on all hosts
_TEXT_BYTES = 1 << 16  # of what the ranks print while they wait
_READY_S = 60.0  # s that a restart waits for a standby launch that is not ready
_PAUSE_S = 0.02
_RESERVE = 0.1  # part of this host's memory that stays free


def record_file(run: RunFolder) -> Path:
    """Return the path of the record that the ranks of the standby launch read."""
    return run.path / "standby.json"


def _hostfile(run: RunFolder) -> Path:
    return run.path / "standby-hosts"


def marker(run: RunFolder, generation: int) -> Path:
    """Return the path of the empty file that appears when all ranks of the standby launch wait."""
    return run.path / f"standby-{generation}"


def is_used(run: RunFolder, generation: int) -> bool:
    """Return True if ranks have begun with a generation number that no attempt had.

    A launch that begins early makes the folder of its attempt. If it ends before its attempt, or with its
    supervisor, its failure reports and logs stay there. Those of other ranks would be mixed with them.
    """
    return run.attempt(generation).exists()


class Standby:
    """A launch that waits. Main thread only.

    Attributes:
        has_begun: Its ranks were let begin with the program.
    """

    def __init__(
        self,
        plan: SupervisionPlan,
        generation: int,
        layout: Layout,
        record: Started,
        copy_stdout: bool,
    ) -> None:
        """Start it. Returns at once.

        Args:
            plan: The plan of the run.
            generation: Generation number of the next attempt.
            layout: Hosts of the running attempt.
            record: Modules and environment of its ranks.
            copy_stdout: As for `Attempt`.

        Raises:
            MpipsError: The launcher cannot be started, or the run directory cannot be read.
            OSError: The run directory cannot be written to.
        """
        self.generation = generation
        self._run = plan.run
        self._layout = layout
        self._text = b""
        self.has_begun = False
        self._hostfile = _hostfile(plan.run)
        launching.write_hostfile(plan.launcher, layout.hosts, self._hostfile)
        replace_json(record_file(plan.run), record)
        marker(plan.run, generation).unlink(missing_ok=True)
        self.command = plan.command(generation, layout, self._hostfile, waits=True)
        self._process = start_launcher(
            self.command,
            plan.environment(generation),
            plan.run.info().cwd,
            copy_stdout,
            stdin=subprocess.PIPE,
        )

    def is_ready(self) -> bool:
        """Return True if all ranks wait."""
        return self._process.poll() is None and marker(self._run, self.generation).exists()

    def has_ended(self) -> bool:
        """Return True if the launch has ended by itself."""
        return self._process.poll() is not None

    def drain(self) -> None:
        """Read what the ranks have printed, which would fill the pipes. Not blocking.

        stderr is kept, up to `_TEXT_BYTES`; what libraries print on stdout while they are loaded is not. The
        output of ranks that have begun is left for the reader of the attempt.
        """
        if self.has_begun:
            return
        for pipe in (self._process.stderr, self._process.stdout):
            # A process that a rank left may hold a pipe open.
            while pipe is not None and select.select([pipe], [], [], 0.0)[0]:
                more = os.read(pipe.fileno(), 1 << 16)
                if not more:
                    break
                if pipe is self._process.stderr:
                    self._text = (self._text + more)[-_TEXT_BYTES:]

    def why(self) -> str:
        """Return the reason that a rank has printed before the launch ended; "": none."""
        self.drain()
        lines = self._text.decode(errors="replace").splitlines()
        return next((line[len(REASON) :] for line in lines if line.startswith(REASON)), "")

    def fits(self, generation: int, layout: Layout) -> bool:
        """Return True if the launch can be, once it is ready, the attempt with this number on these hosts."""
        same = (layout.n_ranks, layout.hosts) == (self._layout.n_ranks, self._layout.hosts)
        is_first = self.has_begun or not is_used(self._run, generation)
        return not self.has_ended() and generation == self.generation and same and is_first

    def begin(self) -> None:
        """Let the ranks begin with the program; they wait at the start of the job until `release`.

        See `mpips.supervisor.early_start`.

        Raises:
            OSError: Rank 0 has ended, or the folder of the attempt cannot be made.
        """
        self._run.attempt(self.generation).mkdir(parents=True, exist_ok=True)
        self.drain()
        assert self._process.stdin is not None
        self.has_begun = True
        with self._process.stdin as stdin:
            stdin.write(GO)

    def release(self) -> subprocess.Popen[bytes]:
        """Let the ranks begin, if they have not; return the launcher's process.

        The process belongs to the caller from now on. The text that the ranks have printed before they began
        goes into the log of the attempt.

        Raises:
            OSError: Rank 0 has ended.
        """
        if not self.has_begun:
            self.begin()
        log = self._run.attempt(self.generation) / LAUNCHER_LOG
        with contextlib.suppress(OSError), log.open("ab", buffering=0) as file:
            file.write(self._text)
        self._forget()
        return self._process

    def end(self, lost: bool = False) -> None:
        """End the launch and all its processes on this host. Blocks up to `_END_S`.

        Args:
            lost: Another supervisor has the run now. The files, and processes that this launcher has not
                started, are those of its attempt with the same number, and stay.
        """
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()
        until = time.monotonic() + _END_S
        while (pids := self._own(lost)) and time.monotonic() < until:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if not lost:
            self._forget()

    def _forget(self) -> None:
        """Remove the files of the launch."""
        for path in (marker(self._run, self.generation), record_file(self._run), self._hostfile):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _own(self, lost: bool) -> list[int]:
        """Return the processes of this launch on this host; those of the running attempt are older."""
        found = []
        for pid in processes_of(self._run.path, self.generation):
            with contextlib.suppress(OSError):
                if lost and os.getsid(pid) != self._process.pid:
                    continue
                if not belongs(pid, self._run.path, self.generation - 1) and not is_dead(pid):
                    found.append(pid)
        return found


def has_memory(pids: Iterable[int]) -> bool:
    """Return True if this host has memory for the same processes once more, and some beside.

    Args:
        pids: Ranks of the running attempt on this host. They have their data beside the libraries, so the
            true need is smaller.
    """
    free, total = free_bytes()
    return free - sum(own_bytes(pid) for pid in pids) > _RESERVE * total


class Standbys:
    """Keeps a standby launch for each attempt of a run. Main thread only."""

    def __init__(
        self,
        plan: SupervisionPlan,
        may_restart: Callable[[], bool],
        tell: Callable[[str], None],
        copy_stdout: bool,
    ) -> None:
        """Keep none yet.

        Args:
            plan: The plan of the run.
            may_restart: Returns True if a failure of the running attempt is followed by another one.
            tell: Prints a line for people.
            copy_stdout: As for `Attempt`.
        """
        self._plan = plan
        self._may_restart = may_restart
        self._tell = tell
        self._copy_stdout = copy_stdout
        self._standby: Standby | None = None
        self._attempt: tuple[int, Layout] | None = (
            None  # the running one that has no standby launch yet
        )
        self._at_work_since: float | None = None
        self._here: list[int] = []  # ranks of the running attempt on this host

    def begin(self, generation: int, layout: Layout) -> None:
        """Note that an attempt has begun."""
        self._attempt = (generation, layout) if self._plan.config.run.standby else None
        self._at_work_since = None

    def tick(self, status: Status) -> None:
        """Start the standby launch of the running attempt when it is due. Called about twice a second.

        Args:
            status: The status of the attempt, which is at work.
        """
        now = time.monotonic()
        self._here = [place.pid for place in status.ranks if is_here(place.host)]
        if self._at_work_since is None:
            self._at_work_since = now
        if self._standby is not None:
            self._standby.drain()
        if self._standby is not None and self._standby.has_ended():
            if why := self._standby.why():
                self._tell(f"mpips run: a restart will start from nothing, since {why}")
            self.end()
        due = now - self._at_work_since >= self._plan.config.run.standby_after_s
        if self._attempt is None or not due:
            return
        (generation, layout), self._attempt = self._attempt, None
        record = joined(self._plan.run, generation)
        if record is None or not self._may_restart():
            return
        self.start(self._plan, generation, layout, record)

    def start(
        self, plan: SupervisionPlan, generation: int, layout: Layout, record: Started
    ) -> None:
        """Start a standby launch behind an attempt now, if this host has the memory; end one that is there.

        Args:
            plan: The plan of the attempt that follows.
            generation: Generation number of the running attempt.
            layout: Ranks and hosts of the attempt that follows.
            record: Modules and environment of the ranks of the running attempt.
        """
        self._attempt = None
        self.end()
        if not has_memory(self._here):
            return
        with contextlib.suppress(MpipsError, OSError):
            self._standby = Standby(plan, generation + 1, layout, record, self._copy_stdout)

    @property
    def is_starting(self) -> bool:
        """True while a standby launch is there whose ranks do not wait yet."""
        standby = self._standby
        return standby is not None and not standby.has_ended() and not standby.is_ready()

    def keep(self, generation: int, layout: Layout, hurry: Callable[[], bool]) -> bool:
        """Return True if the attempt can have this number; end the standby launch if not. Blocks.

        A standby launch must be the attempt then; without one, no ranks may have had the number before.
        A launch that is not ready yet has a start: another one would not be ready before it.
        Processes that it leaves on other hosts have the number of the attempt, which then needs another one.

        Args:
            generation: Generation number of the attempt.
            layout: Its ranks and hosts.
            hurry: Returns True if a signal asks for the end of the run. Called several times a second.
        """
        if self._standby is None:
            return not is_used(self._plan.run, generation)
        until = time.monotonic() + _READY_S
        while self._standby.fits(generation, layout):
            self._standby.drain()
            if self._standby.is_ready():
                return True
            if hurry() or time.monotonic() > until:
                break
            time.sleep(_PAUSE_S)
        self.end()
        return False

    def release(self) -> subprocess.Popen[bytes] | None:
        """Let the standby launch begin; return the process of its launcher, or None without one."""
        standby, self._standby = self._standby, None
        if standby is None:
            return None
        try:
            return standby.release()
        except OSError:
            standby.end()
            return None

    def is_ready(self, generation: int, layout: Layout) -> bool:
        """Return True if a standby launch waits that can be this attempt. `layout`: its ranks and hosts."""
        standby = self._standby
        return standby is not None and standby.fits(generation, layout) and standby.is_ready()

    def begin_early(self) -> None:
        """Let the ranks of the standby launch, which is ready, begin before `release`."""
        assert self._standby is not None
        try:
            self._standby.begin()
        except OSError:
            self.end()

    @property
    def has_begun(self) -> bool:
        """True if the ranks of the standby launch have begun before `release`."""
        return self._standby is not None and self._standby.has_begun

    @property
    def waits(self) -> bool:
        """True if there is a standby launch, ready or not."""
        return self._standby is not None

    def forget_earlier(self) -> None:
        """Remove the files that a killed supervisor has left; there is no standby launch."""
        run = self._plan.run
        paths = [record_file(run), _hostfile(run), *run.path.glob("standby-*[0-9]")]
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def end(self, lost: bool = False) -> None:
        """End the standby launch, if one is there. `lost`: see `Standby.end`."""
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.end(lost)
