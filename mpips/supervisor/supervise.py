"""The loop of a supervisor: clear the hosts, start an attempt, wait, judge, and start the next one or stop.

Open this file first. `attempt.py` is mpirun as a child, `stopping.py` passes signals on while it runs,
`verdict.py` finds what became of it, `conclusion.py` records that and decides whether another attempt
follows.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from mpips.errors import MpipsError
from mpips.monitor.progress import Snapshot, plural
from mpips.process.patience import Patience
from mpips.rundir.directory import FULL, replace_json
from mpips.rundir.files import Status
from mpips.rundir.requests import SCALE, JobSize
from mpips.supervisor import launcher as launching
from mpips.supervisor.attempt import LAUNCHER_LOG, STARTING, Attempt, Ended
from mpips.supervisor.clearing import clear
from mpips.supervisor.conclusion import Conclusion
from mpips.supervisor.crowding import Crowding
from mpips.supervisor.early_start import EarlyStart
from mpips.supervisor.elastic import Elastic
from mpips.supervisor.hosts import HostsError, Layout, is_here
from mpips.supervisor.lease import LeaseHolder, LeaseLostError
from mpips.supervisor.left_memory import foreign_here
from mpips.supervisor.plan import SupervisionPlan
from mpips.supervisor.producers import Producers
from mpips.supervisor.reap import forget, reap
from mpips.supervisor.record import RunRecord
from mpips.supervisor.scaling import Change, Scaling
from mpips.supervisor.standby import Standbys
from mpips.supervisor.stopping import Requests, Signals, drive
from mpips.supervisor.verdict import PREEMPTED, Verdict, judge
from mpips.terminal.elapsed import Elapsed
from mpips.terminal.screen import say

_HOSTS_S = 0.2  # seconds between two looks for hosts
_SIGNAL_S = 3.0  # s in which a join tells that its hosts leave, after their ranks were signalled
_ROOM_S = 0.5  # seconds between two attempts to write to a full disk

Value = TypeVar("Value")


class _Interrupted(Exception):
    """A signal that ends the run came while no attempt was running."""

    def __init__(self, number: int, waited_for: str) -> None:
        super().__init__(number)
        self.number = number
        self.waited_for = waited_for


def silence_limit_s(timeout_s: float) -> float:
    """Return for how long all ranks together may send no heartbeat: starting up takes several timeouts."""
    return 6 * timeout_s + 60


class Supervisor:
    """Runs a plan to its end. Main thread only; not collective, and MPI is never loaded."""

    def __init__(
        self, plan: SupervisionPlan, signals: Signals, tell: Callable[[str], None] = say
    ) -> None:
        """`signals`: those that this process receives; `tell` prints text for people."""
        self._plan = plan
        self._run = plan.run
        self._signals = signals
        self._record = RunRecord(plan.run, tell)
        self._lease: LeaseHolder | None = None
        # Where mpips draws on the terminal, or the launcher prints about ends on stdout, stdout is copied.
        draws = plan.show is not None and sys.stdout.isatty()
        self._copies_stdout = draws or plan.launcher.is_hydra
        self._standbys = Standbys(plan, self._may_restart, self._record.tell, self._copies_stdout)
        self._scaling = Scaling(plan, self._standbys, self._refuse_size)
        self._crowding = Crowding(plan, self._scaling, os.environ)
        # An elastic run has it while this process has the lease.
        self._elastic: Elastic | None = None
        self._conclusion = Conclusion(plan, self._record, self._must_end, self._standbys.end)
        self._producers = Producers(plan, self._record.tell)

    def run(self) -> int:
        """Run attempts until the run is done or given up; return the exit code. Blocks.

        Raises:
            MpipsError: No attempt can be started, or another supervisor has the run.
        """
        try:
            with LeaseHolder(self._run, self._record.tell) as lease:
                self._lease = lease
                return self._run_with(lease)
        except TimeoutError as error:
            raise HostsError(f"{socket.gethostname()}: {error}") from None

    def _run_with(self, lease: LeaseHolder) -> int:
        """Run attempts while this process has the lease.

        Raises:
            TimeoutError: A process of this host does not end.
        """
        if finished := self._run.finished():
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(finished.time_s))
            self._conclusion.settle(lease.generation, saved=True)
            self._record.tell(
                f"mpips run: {self._run.path} is finished since {when}; nothing to do"
            )
            return 0
        token = self._run.info().token
        for line in foreign_here(token):
            self._record.tell_once(line)
        self._conclusion.begin()
        self._standbys.forget_earlier()
        if self._plan.config.run.is_elastic:
            self._elastic = Elastic(self._plan, self._record.tell, self._refuse_size)
        try:
            self._producers.begin()
            return self._attempts(lease)
        except LeaseLostError:
            # Later generations and the shared memory belong to the other supervisor now.
            self._standbys.end(lost=True)
            reap(self._run.path, lease.generation)
            if lease.is_removed:
                forget(token)
            raise
        finally:
            if self._elastic is not None:
                self._elastic.end()
            self._producers.end(self._run.finished() is not None, self._hurries(lease))
            if not self._conclusion.settled and lease.is_held:
                self._signals.take()
                memory = self._conclusion.settle(lease.generation, saved=False)
                self._conclusion.tell_of_memory(memory)

    def _hurries(self, lease: LeaseHolder) -> Callable[[], bool]:
        """Return a function that renews the lease, and returns True once for each further ending signal."""

        def hurries() -> bool:
            with contextlib.suppress(LeaseLostError):
                self._record.warn(lease.renew())
            number = self._signals.ending()
            self._signals.take()
            return bool(number)

        return hurries

    def _look_at_producers(self, is_ending: bool = False) -> None:
        """Print what happened to the programs of [producers]; end the run if they have failed.

        Args:
            is_ending: The ranks were asked to end. The programs are asked now.
        """
        if is_ending:
            self._producers.stop()
        self._producers.look()
        failed = self._producers.failure and not self._conclusion.producers_failed
        if failed and not is_ending and not self._signals.ending():
            self._conclusion.producers_failed = self._producers.failure
            self._signals.request(signal.SIGTERM)

    def _may_restart(self) -> bool:
        return self._conclusion.may_restart

    def _refuse_size(self, generation: int, why: str) -> None:
        self._record.tell(f"mpips run: another size is refused: {why}")
        self._record.note("not scaled", generation, cause=why)

    def _attempts(self, lease: LeaseHolder) -> int:
        """Start one attempt after the other; return the exit code of the run."""
        while True:
            try:
                self._pause(self._conclusion.pause_s)
                generation, layout = self._prepare(lease)
                while not self._standbys.keep(generation, layout, self._must_end):
                    generation, layout = self._prepare(lease)
                write = functools.partial(self._write_attempt, generation, layout)
                command = self._when_there_is_room(lease, write)
            except _Interrupted as interrupted:
                # Another signal makes the end wait for no host.
                self._signals.take()
                return self._conclusion.end_between(
                    lease.generation, interrupted.number, interrupted.waited_for
                )
            ended = self._attempt(lease, generation, layout, command)
            lease.check()
            verdict = judge(
                ended,
                self._run.finished() is not None,
                self._run.attempt(generation),
                layout.n_ranks,
            )
            held = verdict.saved or verdict.in_memory
            left = verdict.kind == PREEMPTED and held and not ended.interrupted
            if self._scaling.is_asked and left:
                self._scale(generation, ended, verdict)
                continue
            if left and self._elastic is not None and self._must_vacate(self._elastic):
                self._vacate(generation, ended, verdict, self._elastic)
                continue
            code = self._conclusion.conclude(generation, verdict, ended)
            if code is not None:
                return code
            # All ranks of an attempt that has failed at work must come back, to continue in memory.
            places = ended.status.ranks if ended.status is not None else ()
            self._crowding.ended(places, self._conclusion.is_futile or ended.out_of_memory > 0)
            if self._elastic is not None and (death := verdict.death) is not None and death.host:
                self._elastic.failed(death.host, death.cause, is_lost=death.rank < 0)

    def _must_vacate(self, elastic: Elastic) -> bool:
        """Return True if an attempt has ended with a checkpoint since hosts of it must leave. Blocks briefly.

        Slurm may signal the ranks on such a host at the same time as the join that has lent it.
        """
        until = time.monotonic() + _SIGNAL_S
        while not (elastic.is_vacating or elastic.is_leaving):
            if self._must_end() or time.monotonic() > until:
                return False
            time.sleep(0.1)
            elastic.look(at_once=True)
        return True

    def _vacate(self, generation: int, ended: Ended, verdict: Verdict, elastic: Elastic) -> None:
        """Free the hosts after an attempt that has ended with a checkpoint since hosts of it leave."""
        self._scaling.withdraw()
        elastic.forget()
        elastic.applied()
        self._conclusion.scaled(generation, ended, verdict, "on other hosts")
        elastic.vacated()

    def _scale(self, generation: int, ended: Ended, verdict: Verdict) -> None:
        """Give the run its new size, after an attempt that has left the job for it."""
        self._crowding.ended()
        change = self._scaling.apply()
        verdict = replace(verdict, by_file=verdict.by_file or change.by_file)
        size = plural(change.layout.n_ranks, "rank")
        self._conclusion.scaled(generation, ended, verdict, size)
        if self._elastic is not None:
            self._elastic.applied()
            self._elastic.vacated()
        try:
            replace_json(self._run.config_file, change.config, durable=True)
        except OSError as error:
            # The attempt reads the old number of servers there, and has as many workers more or fewer.
            self._record.warn(str(error))

    def _prepare(self, lease: LeaseHolder) -> tuple[int, Layout]:
        """Take a new generation number, end what is left of earlier attempts, and choose the hosts.

        Raises:
            HostsError: Too few hosts are left.
            _Interrupted: A signal asks for the end of the run meanwhile.
        """
        generation = self._when_there_is_room(lease, lease.advance)
        # A standby launch that has ended, one of a killed supervisor too, had this number at most.
        last = generation - 1 if self._standbys.waits else generation
        reap(self._run.path, last)
        try:
            layout = self._layout(generation, last)
        except HostsError as error:
            self._record.write_status("failed", generation, message=str(error))
            raise
        layout = self._crowding.choose(layout)
        for note in layout.notes:
            self._record.tell(f"mpips run: {note}")
        return generation, layout

    def _layout(self, generation: int, last: int) -> Layout:
        """End what is left on other hosts, and choose those of the next attempt. An elastic run may wait.

        Args:
            generation: Generation number of the next attempt.
            last: Greatest generation number of the processes to end.

        Raises:
            HostsError: Too few hosts are left.
            _Interrupted: A signal asks for the end of the run meanwhile.
        """
        while True:
            if self._elastic is not None:
                self._wait_for_hosts(self._elastic, generation)
            pool = self._plan.pool
            pool.bad = clear(
                [name for name in (*pool.names, *pool.former) if not is_here(name)],
                self._run.path,
                last,
                env=self._plan.outer_environment(),
                tell=self._record.tell,
                hurry=self._must_end,
            ).failed
            if number := self._signals.ending():
                raise _Interrupted(number, "answers of the hosts")
            if self._elastic is None or not self._elastic.unreachable(pool.bad):
                return pool.layout()

    def _wait_for_hosts(self, elastic: Elastic, generation: int) -> None:
        """Give the plan the hosts of the next attempt; wait for them if there are too few. Blocks.

        Raises:
            HostsError: Too few hosts came within `run.hosts_timeout_s`.
            _Interrupted: A signal asks for the end of the run meanwhile.
        """
        limit_s = self._plan.config.run.hosts_timeout_s
        wait = Patience(limit_s)
        waits = False
        while True:
            elastic.look()
            try:
                self._plan.pool = elastic.pool()
                return
            except HostsError as error:
                if wait.is_over:
                    raise HostsError(f"{error}; no other hosts came within {limit_s:g} s") from None
                if not waits:
                    waits = True
                    elastic.vacated()
                    self._record.tell(f"mpips run: waiting {limit_s:g} s for hosts: {error}")
                    self._record.write_status(
                        "restarting", generation, message=f"waiting for hosts: {error}"
                    )
            if self._must_end():
                raise _Interrupted(self._signals.ending(), "hosts")
            time.sleep(_HOSTS_S)

    def _pause(self, seconds: float) -> None:
        """Wait before an attempt. Blocks.

        Raises:
            _Interrupted: A signal asks for the end of the run meanwhile.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._must_end():
                raise _Interrupted(self._signals.ending(), "the next attempt")
            time.sleep(min(left, _ROOM_S))

    def _must_end(self) -> bool:
        """Renew the lease during a long wait; return True if a signal asks for the end of the run."""
        if self._lease is not None:
            self._record.warn(self._lease.renew())
        self._look_at_producers()
        return bool(self._signals.ending())

    def _write_attempt(self, generation: int, layout: Layout) -> list[str]:
        """Make the folder of an attempt with the files that its start needs; return its command.

        From the last of them on, ranks that have begun early are at work.

        Raises:
            OSError: A file cannot be written; the call may be repeated.
        """
        logs = self._run.attempt(generation)
        logs.mkdir(parents=True, exist_ok=True)
        hostfile = logs / "hostfile"
        launching.write_hostfile(self._plan.launcher, layout.hosts, hostfile)
        command = self._plan.command(generation, layout, hostfile)
        replace_json(logs / "command.json", command)
        (logs / LAUNCHER_LOG).touch()
        # Ranks that have begun early go to work at this file, and their scheduler then writes the status.
        self._record.write_status(STARTING, generation)
        self._run.alive_file(generation).touch()
        return command

    def _when_there_is_room(self, lease: LeaseHolder, work: Callable[[], Value]) -> Value:
        """Call `work`, which writes to the run directory, as soon as its disk has room. Blocks.

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
                        f"{error.filename or self._run.path}: cannot be written: {error.strerror}; make it "
                        f"writable, then continue with: {self._run.again}"
                    ) from None
                reason = os.strerror(error.errno)
            if not printed:
                printed = True
                self._record.tell(
                    f"mpips run: warning: {self._run.path}: {reason}; the next attempt starts when there "
                    "is room: free space, or end the run with Ctrl-C"
                )
            if number := self._signals.ending():
                raise _Interrupted(number, "room on the disk")
            lease.renew()
            time.sleep(_ROOM_S)

    def _attempt(
        self, lease: LeaseHolder, generation: int, layout: Layout, command: list[str]
    ) -> Ended:
        """Run one attempt to its end. Blocks."""
        attempt = Attempt(
            self._run,
            generation,
            command,
            self._plan.environment(generation),
            self._run.info().cwd,
            copy_stdout=self._copies_stdout,
            process=self._standbys.release(),
            is_hydra=self._plan.launcher.is_hydra,
        )
        self._standbys.begin(generation, layout)
        self._scaling.begin()
        self._crowding.begin(generation)
        if self._elastic is not None:
            self._elastic.began()
            self._scaling.withdraw()

        printed = False
        elapsed = Elapsed(
            "mpips run: starting the ranks", self._record.tell if self._plan.shows_elapsed else None
        )

        def is_ready() -> bool:
            # An elastic run chooses its hosts anew.
            stays = self._elastic is None and not self._scaling.is_asked
            next_one = self._standbys.is_ready(generation + 1, layout)
            return stays and next_one and self._conclusion.expects_restart

        def tick(status: Status | None) -> None:
            nonlocal printed
            self._record.warn(lease.renew())
            self._look_at_producers(bool(requests.number))
            # Only the launcher of this attempt is left: nothing can change its size or its next launch.
            if self._standbys.has_begun:
                return
            if attempt.is_suspended and not printed:
                self._record.tell(
                    "mpips run: all ranks on this host are suspended (SIGSTOP, or a frozen control group): "
                    "waiting until they are continued"
                )
            printed = attempt.is_suspended
            if status is None and not printed:
                elapsed.look()
            if self._elastic is not None:
                self._elastic.look()
            if status is not None:
                self._conclusion.recovered(generation, status)
                self._standbys.tick(status)
                shapes = self._signals.take_shapes()
                if self._elastic is not None:
                    shapes = self._follow_hosts(self._elastic, generation, attempt, shapes)
                self._scaling.tick(generation, attempt, shapes)
                if self._plan.show is not None:
                    self._plan.show(Snapshot.of(status.progress))

        try:
            requests = Requests(attempt, self._signals)
            limit_s = silence_limit_s(self._plan.config.cluster.timeout_s)
            early = EarlyStart(attempt, is_ready, self._standbys.begin_early)
            cut_off = drive(attempt, requests, limit_s, tick, early.look)
        except BaseException:
            attempt.kill()
            attempt.close()
            raise
        return attempt.close(cut_off, requests.number, requests.why)

    def _follow_hosts(
        self, elastic: Elastic, generation: int, attempt: Attempt, shapes: list[JobSize]
    ) -> list[JobSize]:
        """Let the attempt, which is at work, end for other hosts or numbers of ranks; return no request."""
        for shape in shapes:
            elastic.request(generation, shape)
        if self._scaling.is_asked or elastic.is_vacating:
            elastic.asked()
            return []
        decided = elastic.decide()
        if isinstance(decided, Change):
            self._scaling.propose(decided)
        elif decided is not None:
            self._scaling.withdraw()
            attempt.ask_to_leave(SCALE)
        elif elastic.is_stale:
            elastic.forget()
            self._scaling.withdraw()
        return []
