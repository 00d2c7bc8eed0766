"""Conclude an attempt: record and print its end, settle the memory, decide whether another one follows."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from mpips.monitor.progress import plural
from mpips.mpi.signals import name_of
from mpips.recovery.memory import FILE as MEMORY
from mpips.rundir.files import Status
from mpips.supervisor.attempt import Ended
from mpips.supervisor.block import (
    WIDTH,
    Newest,
    failure_block,
    is_in_memory,
    newest_checkpoint,
    origin,
    trained,
    who,
)
from mpips.supervisor.cancelled import is_removed_elsewhere
from mpips.supervisor.left_memory import Settled, settle
from mpips.supervisor.plan import SupervisionPlan
from mpips.supervisor.reap import exchanges, is_complete
from mpips.supervisor.record import RunRecord
from mpips.supervisor.restarts import MOST_KILLED_STARTS, Restarts
from mpips.supervisor.verdict import DONE, INTERRUPTED, PREEMPTED, Verdict, read_reports
from mpips.terminal.screen import columns


class Conclusion:
    """Concludes the attempts of a run. Main thread only.

    Attributes:
        settled: `settle` was called, so this supervisor starts no other attempt.
        pause_s: Seconds to wait before the attempt that follows.
        producers_failed: Why the programs of [producers] end the run, or "".
    """

    def __init__(
        self,
        plan: SupervisionPlan,
        record: RunRecord,
        hurry: Callable[[], bool],
        end_standby: Callable[[], None] = lambda: None,
    ) -> None:
        """Conclude attempts of `plan`, writing to `record`.

        Args:
            plan: The plan.
            record: The record of the run.
            hurry: Returns True if a signal asks for the end, which then waits for no host. Called several
                times a second during a wait.
            end_standby: Ends a launch that waits for the end of the attempt.
        """
        self._hurry = hurry
        self._end_standby = end_standby
        self.settled = False
        self.producers_failed = ""
        self._restarts = Restarts(plan)
        self._killed_starts = 0  # restarts that --max-restarts does not count
        # Monotonic time of the last failure, until a later attempt is at work.
        self._failed_at: float | None = None
        self._what = "failure"  # what came then
        self._trained = ""  # loss and learning rate before it, for people
        self._plan = plan
        self._run = plan.run
        self._record = record

    @property
    def pause_s(self) -> float:  # noqa: D102  # see the class
        return self._restarts.pause_s

    @property
    def may_restart(self) -> bool:
        """True if a failure now is followed by another attempt, unless its cause forbids that."""
        return self._record.restarts - self._killed_starts < self._plan.max_restarts

    @property
    def is_futile(self) -> bool:
        """True if the last attempt that has failed brought the run no further."""
        return self._restarts.is_futile

    @property
    def expects_restart(self) -> bool:
        """True if the death of a rank at work now is followed by another attempt, most probably."""
        return self.may_restart and not self.is_futile

    def begin(self) -> None:
        """Note what is saved before the first attempt; the lease of the run is held."""
        self._restarts.begin()

    def settle(self, generation: int, saved: bool, last: Status | None = None) -> str:
        """End every process of the run on every host, and remove its shared memory where it is not needed.

        Args:
            generation: Generation number of the last attempt.
            saved: A checkpoint contains what the memory contains, so all memory is removed.
            last: The last status of the last attempt.

        Returns:
            Description of the memory that stays and of the way to continue, or of why it is removed; "" if a
            checkpoint contains it.
        """
        self.settled = True
        self._end_standby()
        if not saved and is_removed_elsewhere():
            # No step can be started on other hosts any more.
            self._clear(generation, saved=True, only_here=True)
            return "removed from the nodes of the job, because Slurm has cancelled it"
        settled = self._clear(generation, saved)
        if saved:
            return ""
        step = last.progress.recoverable if last is not None else 0
        return settled.describe(self._run.path, step)

    def _clear(
        self, generation: int, saved: bool, but_exchange: bool = False, only_here: bool = False
    ) -> Settled:
        """Do what `settle` does with processes and memory.

        Args:
            generation: Generation number of the last attempt.
            saved: See `settle`.
            but_exchange: See `left_memory.settle`.
            only_here: Other hosts are not reached.
        """
        settled = settle(
            () if only_here else self._plan.pool.usable,
            self._run.path,
            generation,
            self._run.info().token,
            saved,
            self._plan.config.redundancy.warm,
            but_exchange=but_exchange,
            tell=self._record.tell,
            hurry=self._hurry,
            env=self._plan.outer_environment(),
        )
        for line in settled.foreign():
            self._record.tell_once(line)
        return settled

    def scaled(self, generation: int, ended: Ended, verdict: Verdict, size: str) -> None:
        """Record that an attempt has ended so that the next one has another size.

        Args:
            generation: Generation number of the attempt.
            ended: Its end.
            verdict: The exchange or a checkpoint has the job.
            size: The size of the next one, for people.
        """
        self.note_failure(ended.status, "change")
        newest, source = newest_checkpoint(self._plan.checkpoints), "a checkpoint"
        status = _with(newest, ended.status)
        if verdict.in_memory:
            folder = next(filter(is_complete, exchanges(self._run.info().token)), None)
            newest = newest_checkpoint(folder) if folder is not None else newest
            status, source = ended.status, "shared memory"
        elif verdict.by_file:
            source = f"a checkpoint, since {verdict.by_file}"
        # Memory of the old size has nothing more, in a form for that size alone.
        settled = self._clear(generation, saved=True, but_exchange=verdict.in_memory)
        if not settled.silent:
            # The file that describes the memory is removed with it.
            with contextlib.suppress(OSError):
                (self._run.path / MEMORY).unlink(missing_ok=True)
        text = f"{size} from step {newest.step} on, from {source}"
        self._record.note("scaled", generation, newest.step, text, source)
        self._record.write_status("restarting", generation, status, text)
        self._record.tell(f"mpips run: {text}")

    def tell_of_memory(self, memory: str) -> None:
        """Print what `settle` returned, in one line."""
        if memory:
            self._record.tell("mpips run: memory " + memory.replace("\n", "; "))

    def recovered(self, generation: int, status: Status) -> None:
        """Print that an attempt is at work, if it is the first one after a failure."""
        if self._failed_at is None:
            return
        took = time.monotonic() - self._failed_at
        self._failed_at = None
        self._record.tell(
            f"mpips run: attempt {generation} is at work {took:.1f} s after the {self._what}, "
            f"{origin(status.start)}" + (f"; before it: {self._trained}" if self._trained else "")
        )

    def note_failure(self, last: Status | None, what: str = "failure") -> None:
        """Note that an attempt has ended and another one can follow, for the line of `recovered`.

        Args:
            last: Its last status. If it reported nothing, the reports of an attempt before are shown.
            what: The event that ended it, for people.
        """
        self._failed_at, self._what = time.monotonic(), what
        self._trained = trained(last.progress if last is not None else None) or self._trained

    def conclude(self, generation: int, verdict: Verdict, ended: Ended) -> int | None:
        """Record and print the end of an attempt.

        Returns:
            The exit code of the run, or None if another attempt follows.
        """
        if verdict.kind == DONE:
            return self._done(generation, verdict, ended)
        if verdict.kind in (PREEMPTED, INTERRUPTED):
            return self._left(generation, verdict, ended)
        return self._failed(generation, verdict, ended)

    def _done(self, generation: int, verdict: Verdict, ended: Ended) -> int:
        """Conclude the run; return 0, or the exit code of a script that failed after its job."""
        # The attempt may have come to work and ended between two looks.
        if ended.status is not None:
            self.recovered(generation, ended.status)
        self._record.write_status("done", generation, ended.status)
        self.settle(generation, verdict.saved)
        n = self._record.restarts
        again = f" after {plural(n, 'restart')}" if n else ""
        self._record.tell(f"mpips run: {self._run.path.name} is done{again}: {self._run.path}")

        # A script can fail after its call of `mpips.run`.
        script = self._plan.config.run.script
        reports = [r for r in read_reports(self._run.attempt(generation)) if not r.secondary]
        if not script or not reports:
            return 0
        first = reports[0]
        self._record.tell(
            f"mpips run: {script} failed after its job, on rank {first.rank}: {first.message}"
            + (f"\n{first.traceback}" if first.traceback else "")
        )
        return first.exit_code

    def _left(self, generation: int, verdict: Verdict, ended: Ended) -> int:
        """Conclude a run that was asked to end; return its exit code."""
        if self.producers_failed:
            return self._without_producers(generation, verdict.saved, ended.status)
        newest = newest_checkpoint(self._plan.checkpoints)
        # A change of the size leaves the job in shared memory, which stays.
        wrote = verdict.kind == PREEMPTED and not verdict.in_memory
        if wrote:
            status = _with(newest, ended.status)
            self._record.write_status("preempted", generation, status, "checkpointed")
        else:
            self._record.write_status("interrupted", generation, ended.status)
        memory = self.settle(generation, verdict.saved, ended.status)
        if wrote and (self._run.path / "replay.json").exists():
            # A replay leaves where its order says; `mpips replay` tells what follows.
            return verdict.exit_code

        name = name_of(ended.interrupted or signal.SIGUSR1)
        saved = newest.path.name if newest.path is not None else "none"
        if wrote:
            text = f"{name}: wrote checkpoint {saved}, exit {verdict.exit_code}"
        else:
            text = ended.hurried or f"interrupted by {name}: the ranks ended before they had saved"
            text = f"{text}, exit {verdict.exit_code}; newest checkpoint: {saved}"
        self._record.tell(f"mpips run: {text}; continue with: {self._run.again}")
        self.tell_of_memory(memory)
        return verdict.exit_code

    def _failed(self, generation: int, verdict: Verdict, ended: Ended) -> int | None:
        """Conclude a failed attempt; return the exit code of the run, or None if another attempt follows."""
        self.note_failure(ended.status)
        now = time.time()
        # A host that was lost in this attempt is avoided in the next one, if there are enough others.
        death = verdict.death
        if death is not None and death.rank < 0 and death.host in self._plan.pool.names:
            self._plan.pool.suspects = {death.host: death.cause}

        newest = newest_checkpoint(self._plan.checkpoints)
        counted = self._record.restarts - self._killed_starts
        reason = self._restarts.why_stop(verdict, ended, counted)
        held = any(map(is_complete, exchanges(self._run.info().token)))
        origin_text = "from shared memory" if held else _from(newest, ended.status)
        if self._restarts.killed_starts:
            following = (
                f"another start in {self._restarts.pause_s:.0f} s, {origin_text}; it is no restart of "
                f"--max-restarts, since no rank was at work (start {self._restarts.killed_starts + 1} of "
                f"{MOST_KILLED_STARTS})"
            )
        else:
            following = f"restart {counted + 1} of {self._plan.max_restarts}, {origin_text}"
        following = reason or following
        memory = self.settle(generation, verdict.saved, ended.status) if reason else ""
        self._record.tell(
            failure_block(
                self._run,
                generation,
                verdict,
                ended,
                newest,
                following,
                now,
                memory,
                min(columns(sys.stderr) or WIDTH, WIDTH),
            )
        )

        cause = f"{who(death)}: {death.cause}" if death is not None else verdict.kind
        step = ended.status.progress.step if ended.status is not None else 0
        self._record.note("failed", generation, step, cause)
        if reason:
            state = "stalled" if verdict.exit_code == 124 else "failed"
            self._record.write_status(state, generation, ended.status, cause)
            return verdict.exit_code
        self._record.restarts += 1
        self._killed_starts += bool(self._restarts.killed_starts)
        self._record.write_status("restarting", generation, ended.status, cause)
        return None

    def end_between(self, generation: int, number: int, waited_for: str) -> int:
        """Conclude a run that a signal ends while no attempt is running; return its exit code.

        Args:
            generation: Generation number of the last attempt.
            number: The signal.
            waited_for: Event for which the supervisor waited.
        """
        if self.producers_failed:
            return self._without_producers(generation, saved=False)
        self._record.write_status("interrupted", generation)
        memory = self.settle(generation, saved=False)
        code = 128 + number
        self._record.tell(
            f"mpips run: stopped by {name_of(number)} while it waited for {waited_for}, exit {code}; "
            f"newest checkpoint: {self._newest_name()}; continue with: {self._run.again}"
        )
        self.tell_of_memory(memory)
        return code

    def _without_producers(self, generation: int, saved: bool, status: Status | None = None) -> int:
        """Conclude a run whose programs have failed; return 1. Arguments as of `settle`."""
        self._record.write_status("failed", generation, status, self.producers_failed)
        memory = self.settle(generation, saved, status)
        self._record.tell(
            f"mpips run: failed, since {self.producers_failed}; newest checkpoint: {self._newest_name()}; "
            f"continue with: {self._run.again}"
        )
        self.tell_of_memory(memory)
        return 1

    def _newest_name(self) -> str:
        newest = newest_checkpoint(self._plan.checkpoints).path
        return newest.name if newest is not None else "none"


def _with(newest: Newest, status: Status | None) -> Status | None:
    """Return the last status of an attempt with the checkpoint that it wrote after that status."""
    if status is None or newest.path is None:
        return status
    step = max(status.progress.step, newest.step)
    progress = msgspec.structs.replace(status.progress, step=step)
    return msgspec.structs.replace(status, checkpoint=str(newest.path), progress=progress)


def _from(newest: Newest, status: Status | None) -> str:
    """Return where the next attempt starts."""
    saved = "from the beginning" if newest.path is None else f"from step {newest.step}"
    return f"from memory if it survived, else {saved}" if is_in_memory(status, newest) else saved
