"""The loop: clear the hosts, start an attempt, wait, judge, and start the next one or stop."""

from __future__ import annotations

import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from mpips.config.schema import JobConfig
from mpips.config.triggers import SUPERVISED_EVERY_S
from mpips.errors import ConfigError, MpipsError
from mpips.monitor.progress import Snapshot
from mpips.mpi.signals import name_of
from mpips.rundir.directory import (
    FULL,
    GENERATION,
    RUN_DIR,
    RunFolder,
    StartPoint,
    Status,
    replace_json,
)
from mpips.rundir.files import Event
from mpips.supervisor import hosts as hosts_module
from mpips.supervisor import launcher as launching
from mpips.supervisor.attempt import LAUNCHER_LOG, Attempt, Ended
from mpips.supervisor.block import Newest, failure_block, newest_checkpoint, origin, who
from mpips.supervisor.hosts import HostPool, HostsError, Layout
from mpips.supervisor.lease import LeaseHolder, LeaseLostError
from mpips.supervisor.left_memory import foreign_here, settle
from mpips.supervisor.reap import reap
from mpips.supervisor.stopping import Requests, Signals, drive
from mpips.supervisor.verdict import (
    CONFIG,
    DONE,
    INTERRUPTED,
    MISSING,
    PREEMPTED,
    Verdict,
    judge,
    read_reports,
)

_FUTILE = 2  # attempts in a row that saved nothing new
_BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 5.0)
_ROOM_S = 0.5  # between two looks whether the disk has room again
SCRIPT_MODULE = "mpips.supervisor.script"
# An attempt that worked for less may have made steps that no status tells of.
_UNKNOWN_S = 2.5

Value = TypeVar("Value")


class _Interrupted(Exception):
    """A signal has asked for the end while no attempt was running."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True)
class SupervisionPlan:
    """What a supervisor was asked to do.

    Attributes:
        run: The run directory.
        config: The resolved configuration.
        pool: Hosts.
        launcher: mpirun.
        max_restarts: After failures.
        launcher_args: The user's own, for mpirun.
        program_args: For `mpips train` in every rank.
        show: Shows how far the run is, about twice a second; None: the ranks do.
    """

    run: RunFolder
    config: JobConfig
    pool: HostPool
    launcher: launching.Launcher
    max_restarts: int
    launcher_args: Sequence[str] = ()
    program_args: Sequence[str] = ()
    show: Callable[[Snapshot], None] | None = None

    def program(self) -> list[str]:
        """What every rank executes."""
        options = self.config.run
        if options.script:
            return [sys.executable, "-m", SCRIPT_MODULE, options.script, *options.script_args]
        train = [sys.executable, "-m", "mpips", "train", str(self.run.config_file)]
        return [*train, *self.program_args]

    def environment(self, generation: int) -> dict[str, str]:
        """The environment of an attempt."""
        ties = {RUN_DIR: str(self.run.path), GENERATION: str(generation)}
        return launching.environment(self.launcher, ties)

    def command(self, generation: int, layout: Layout, hostfile: Path) -> list[str]:
        """The command of an attempt."""
        return launching.build(
            self.launcher,
            layout,
            self.environment(generation),
            hostfile,
            self.launcher_args,
            self.program(),
        )


def silence_limit_s(timeout_s: float) -> float:
    """How long all watchdogs of a job together may be silent: starting up takes several timeouts."""
    return 6 * timeout_s + 60


def say(text: str) -> None:
    """Tell people; one write, so that lines of the ranks do not come in between."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Supervisor:
    """Runs a plan to its end. Main thread only; not collective, knows no MPI."""

    def __init__(
        self, plan: SupervisionPlan, signals: Signals, tell: Callable[[str], None] = say
    ) -> None:
        """`tell` gets what is for people."""
        self._plan = plan
        self._run = plan.run
        self._signals = signals
        self._tell = tell
        self._restarts = 0
        self._futile = 0
        self._failed_at: float | None = None  # monotonic time
        self._best = -1
        self._starts: set[int] = set()  # steps at which attempts that worked have begun
        self._warned = False
        self._settled = False
        self._printed: set[str] = set()

    def run(self) -> int:
        """Until the run is done or must be given up; the exit code. Blocks.

        Raises:
            MpipsError: It cannot be started at all, or somebody else runs it.
        """
        with LeaseHolder(self._run, self._tell) as lease:
            if finished := self._run.finished():
                when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(finished.time_s))
                self._settle(lease.generation, saved=True)
                self._tell(f"mpips run: {self._run.path} is finished since {when}; nothing to do")
                return 0
            for line in foreign_here(self._run.info().token):
                self._tell_once(line)
            self._best = self._progress(None)
            try:
                return self._attempts(lease)
            except TimeoutError as error:
                raise HostsError(f"{socket.gethostname()}: {error}") from None
            except LeaseLostError:
                # What is there of later generations, and the shared memory, is somebody else's now.
                reap(self._run.path, lease.generation)
                raise
            finally:
                if not self._settled and lease.is_held:
                    self._tell_of_memory(self._settle(lease.generation, saved=False))

    def _settle(self, generation: int, saved: bool, last: Status | None = None) -> str:
        """End all that is left of a run which ends here, on every host; what stays, for people.

        Shared memory stays unless a checkpoint holds what it holds. `last`: of the attempt.
        """
        self._settled = True
        settled = settle(
            self._plan.pool.usable,
            self._run.path,
            generation,
            self._run.info().token,
            saved,
            self._plan.config.redundancy.warm,
        )
        for line in settled.foreign():
            self._tell_once(line)
        if saved:
            return ""
        return settled.describe(
            self._run.path, last.progress.recoverable if last is not None else 0
        )

    def _tell_of_memory(self, memory: str) -> None:
        if memory:
            self._tell("mpips run: memory " + memory.replace("\n", "; "))

    def _tell_once(self, line: str) -> None:
        if line not in self._printed:
            self._printed.add(line)
            self._tell(line)

    def _attempts(self, lease: LeaseHolder) -> int:
        while True:
            try:
                generation, layout = self._prepare(lease)
                write = functools.partial(self._write_attempt, generation, layout)
                command = self._when_there_is_room(lease, write)
            except _Interrupted as interrupted:
                return self._end_between(lease.generation, interrupted.number)
            ended = self._attempt(lease, generation, command)
            lease.check()
            verdict = judge(ended, self._run.finished() is not None, self._run.attempt(generation))
            code = self._conclude(generation, verdict, ended)
            if code is not None:
                return code
            self._pause()

    def _prepare(self, lease: LeaseHolder) -> tuple[int, Layout]:
        """Fence off what was before, clear the hosts, and choose where to run."""
        generation = self._when_there_is_room(lease, lease.advance)
        pool = self._plan.pool
        reap(self._run.path, generation - 1)
        pool.bad = hosts_module.clear(
            [name for name in pool.names if not hosts_module.is_here(name)],
            self._run.path,
            generation - 1,
        ).failed
        try:
            layout = pool.layout()
        except HostsError as error:
            self._write_status("failed", generation, None, str(error))
            raise
        for note in layout.notes:
            self._tell(f"mpips run: {note}")
        return generation, layout

    def _write_attempt(self, generation: int, layout: Layout) -> list[str]:
        """Make the folder of an attempt with the files that its start needs; its command.

        Raises:
            OSError: A file cannot be written. It may be tried again.
        """
        logs = self._run.attempt(generation)
        logs.mkdir(parents=True, exist_ok=True)
        hostfile = logs / "hostfile"
        launching.write_hostfile(self._plan.launcher, layout.hosts, hostfile)
        command = self._plan.command(generation, layout, hostfile)
        replace_json(logs / "command.json", command)
        (logs / LAUNCHER_LOG).touch()
        self._run.alive_file(generation).touch()
        return command

    def _when_there_is_room(self, lease: LeaseHolder, work: Callable[[], Value]) -> Value:
        """Do `work`, which writes to the run directory, as soon as its disk has room. Blocks.

        Raises:
            _Interrupted: A signal asks for the end of the run meanwhile.
            MpipsError: The run directory cannot be written to for another reason.
        """
        printed = False
        while True:
            try:
                return work()
            except OSError as error:
                if error.errno not in FULL:
                    raise MpipsError(
                        f"{error.filename or self._run.path}: cannot be written: {error.strerror}; when "
                        f"that is mended, go on with: mpips run {self._run.path}"
                    ) from None
                reason = os.strerror(error.errno)
            if not printed:
                printed = True
                self._tell(
                    f"mpips run: warning: {self._run.path}: {reason}; the next attempt starts when there "
                    "is room"
                )
            if number := self._signals.ending():
                raise _Interrupted(number)
            lease.renew()
            time.sleep(_ROOM_S)

    def _end_between(self, generation: int, number: int) -> int:
        """End the run for a signal that came while no attempt was running; the exit code."""
        self._write_status("interrupted", generation, None, "")
        memory = self._settle(generation, saved=False)
        newest = newest_checkpoint(self._checkpoints).path
        code = 128 + number
        self._tell(
            f"mpips run: stopped by {name_of(number)} while it waited for room on the disk, exit {code}; "
            f"newest checkpoint: {newest.name if newest is not None else 'none'}; go on with: mpips run "
            f"{self._run.path}"
        )
        self._tell_of_memory(memory)
        return code

    def _attempt(self, lease: LeaseHolder, generation: int, command: list[str]) -> Ended:
        self._write_status("starting", generation, None, "")
        attempt = Attempt(
            self._run,
            generation,
            command,
            self._plan.environment(generation),
            self._run.info().cwd,
            copy_stdout=self._plan.show is not None and sys.stdout.isatty(),
        )
        timeout_s = self._plan.config.cluster.timeout_s

        def tick(status: Status | None) -> None:
            self._warn_of(lease.renew())
            if status is not None and self._failed_at is not None:
                self._tell_recovered(generation, status)
            if status is not None and self._plan.show is not None:
                self._plan.show(Snapshot.of(status.progress))

        try:
            requests = Requests(attempt, self._signals)
            cut_off = drive(attempt, requests, silence_limit_s(timeout_s), tick)
        except BaseException:
            attempt.kill()
            attempt.close()
            raise
        return attempt.close(cut_off, requests.number, requests.why)

    def _warn_of(self, failure: str) -> None:
        """Say once that the run directory cannot be written to."""
        if failure and not self._warned:
            self._warned = True
            self._tell(f"mpips run: warning: {failure}; the run goes on without its record")

    def _tell_recovered(self, generation: int, status: Status) -> None:
        assert self._failed_at is not None
        took = time.monotonic() - self._failed_at
        self._failed_at = None
        self._tell(
            f"mpips run: attempt {generation} is at work {took:.1f} s after the failure, "
            f"{origin(status.start)}"
        )

    def _conclude(self, generation: int, verdict: Verdict, ended: Ended) -> int | None:
        """Tell and record what became of an attempt; the exit code if it was the last one."""
        if verdict.kind == DONE:
            if self._failed_at is not None and ended.status is not None:
                # It was done between two looks.
                self._tell_recovered(generation, ended.status)
            self._write_status("done", generation, ended.status, "")
            self._settle(generation, verdict.saved)
            n = self._restarts
            again = f" after {n} restart{'s' if n > 1 else ''}" if n else ""
            self._tell(f"mpips run: {self._run.path.name} is done{again}: {self._run.path}")
            return self._after_the_job(generation)
        if verdict.kind == PREEMPTED:
            self._write_status("preempted", generation, ended.status, "checkpointed")
            memory = self._settle(generation, verdict.saved, ended.status)
            self._tell(self._leaving(ended, verdict))
            self._tell_of_memory(memory)
            return verdict.exit_code
        if verdict.kind == INTERRUPTED:
            self._write_status("interrupted", generation, ended.status, "")
            memory = self._settle(generation, verdict.saved, ended.status)
            self._tell(self._leaving(ended, verdict))
            self._tell_of_memory(memory)
            return verdict.exit_code
        self._failed_at = time.monotonic()
        now = time.time()
        death = verdict.death
        if death is not None and death.rank < 0 and death.host in self._plan.pool.names:
            self._plan.pool.suspects = {death.host: death.cause}
        newest = newest_checkpoint(self._checkpoints)
        reason = self._why_stop(verdict, ended)
        following = reason or (
            f"restart {self._restarts + 1} of {self._plan.max_restarts}, {_from(newest)}"
        )
        memory = self._settle(generation, verdict.saved, ended.status) if reason else ""
        self._tell(
            failure_block(self._run, generation, verdict, ended, newest, following, now, memory)
        )
        cause = f"{who(death)}: {death.cause}" if death is not None else verdict.kind
        self._note_failure(generation, ended, cause)
        if reason:
            state = "stalled" if verdict.exit_code == 124 else "failed"
            self._write_status(state, generation, ended.status, cause)
            return verdict.exit_code
        self._restarts += 1
        self._write_status("restarting", generation, ended.status, cause)
        return None

    def _after_the_job(self, generation: int) -> int:
        """The exit code of a run whose job is done: that of a script which failed after its job, or 0."""
        script = self._plan.config.run.script
        words = [w for w in read_reports(self._run.attempt(generation)) if not w.secondary]
        if not script or not words:
            return 0
        first = words[0]
        self._tell(
            f"mpips run: {script} failed after its job, on rank {first.rank}: {first.message}"
            + (f"\n{first.traceback}" if first.traceback else "")
        )
        return first.exit_code

    def _note_failure(self, generation: int, ended: Ended, cause: str) -> None:
        step = ended.status.progress.step if ended.status is not None else 0
        event = Event(
            time_s=time.time(),
            generation=generation,
            event="failed",
            step=step,
            cause=cause,
        )
        try:
            self._run.note(event)
        except OSError as error:
            self._tell(f"mpips run: {self._run.events_file}: cannot be written: {error.strerror}")

    def _leaving(self, ended: Ended, verdict: Verdict) -> str:
        """One line about an end by request."""
        name = name_of(ended.interrupted or signal.SIGUSR1)
        newest = newest_checkpoint(self._checkpoints).path
        saved = newest.name if newest is not None else "none"
        what = ended.hurried or f"interrupted by {name}: the ranks ended before they had saved"
        what = f"{what}, exit {verdict.exit_code}; newest checkpoint: {saved}"
        if verdict.kind == PREEMPTED:
            what = f"{name}: wrote checkpoint {saved}, exit {verdict.exit_code}"
        return f"mpips run: {what}; go on with: mpips run {self._run.path}"

    @property
    def _checkpoints(self) -> Path:
        folder = self._plan.config.checkpoint.folder
        return Path(self._run.info().cwd, folder) if folder else self._run.checkpoints

    def _progress(self, status: Status | None) -> int:
        """Steps that a failure now would not lose."""
        memory = newest_checkpoint(self._checkpoints).step
        return max(memory, status.progress.recoverable if status is not None else 0)

    def _why_stop(self, verdict: Verdict, ended: Ended) -> str:
        """Why there is no further attempt, or ""."""
        if verdict.kind in (CONFIG, MISSING):
            return f"none: a {verdict.kind} would be the same again"
        now = self._progress(ended.status)
        new_start = False
        if ended.status is not None:
            # Memory that was lost all the same brings nobody further.
            start = ended.status.start.step
            self._best = min(self._best, start)
            new_start = start not in self._starts
            self._starts.add(start)
        # What a short attempt has brought is known only when the next one begins further on.
        in_memory = self._plan.config.redundancy.warm and self._plan.pool.n_ranks > 1
        unknown = in_memory and new_start and ended.worked_s < _UNKNOWN_S
        self._futile = 0 if now > self._best or unknown else self._futile + 1
        self._best = max(self._best, now)
        if self._futile >= _FUTILE:
            return (
                f"none: {_FUTILE} attempts in a row have brought the run no further; go on with "
                + (f"mpips run {self._run.path} when the cause is gone")
            )
        if self._restarts >= self._plan.max_restarts:
            return (
                f"none: all {self._plan.max_restarts} restarts are spent; go on with "
                f"mpips run {self._run.path}"
            )
        return ""

    def _pause(self) -> None:
        """A little more time before each further restart in a row without progress."""
        time.sleep(_BACKOFF_S[min(self._futile, len(_BACKOFF_S) - 1)] if self._futile > 1 else 0.0)

    def _write_status(self, state: str, generation: int, last: Status | None, message: str) -> None:
        """Record the state while no process of an attempt is left that would."""
        before = last or Status(state=state, generation=generation, time_s=0.0, start=StartPoint())
        status = msgspec.structs.replace(
            before,
            state=state,
            generation=generation,
            time_s=time.time(),
            restarts=self._restarts,
            message=message,
            ranks=before.ranks if last is not None else (),
        )
        try:
            replace_json(self._run.status_file, status)
        except OSError as error:
            self._warn_of(str(error))


def _from(newest: Newest) -> str:
    if newest.path is None:
        return "from the beginning"
    return f"from step {newest.step}"


def make_run(config: JobConfig, parent: Path, name: str) -> RunFolder:
    """A new run directory with its resolved configuration.

    A run that says nothing of when it makes checkpoints makes one every ten minutes.

    Raises:
        ConfigError: It cannot be made.
    """
    run = RunFolder.create(parent, name)
    if not config.checkpoint.every_steps and not config.checkpoint.every_s:
        checkpoint = msgspec.structs.replace(config.checkpoint, every_s=SUPERVISED_EVERY_S)
        config = msgspec.structs.replace(config, checkpoint=checkpoint)
    try:
        replace_json(run.config_file, config, durable=True)
    except OSError as error:
        raise ConfigError(
            f"run directory {run.path}: cannot be written: {error.strerror}"
        ) from None
    return run
