"""`mpips.init`: a script that runs on all ranks, with its worker's work in the script itself.

    init             servers and the scheduler serve in it and never return; workers return
    declare, ...     the script declares its tables: `mpips.torch.prepare` does
    start            at the first pull all ranks make the job together; later declarations are refused
    end              at the end of the script, by an exit handler or, with an exception, by sys.excepthook

The blocks of `mpips.session.driver` stay open from `init` to the end of the script. A script that ends by an
exception throws it into the blocks, so that the job ends as it does with an error of a worker function.
Python calls no hook for SystemExit. So sys.exit, exit and quit are replaced by a function that notes its code
(mpips.session.exits), and TerminatedError (SIGTERM) notes itself. The code of `raise SystemExit(code)` is not
known here: the job of such a script ends as at its last line, and the process ends with that code.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from mpips.errors import CheckpointError, ConfigError, MpipsError
from mpips.model.consistency import BSP
from mpips.model.local_sgd import Local
from mpips.mpi import failure_report, launch
from mpips.mpi.messages import SampleDigest, StepCount
from mpips.mpi.signals import TerminatedError, interruption_behind
from mpips.process import forked
from mpips.session.calling import ExitedError
from mpips.session.driver import Outcome, at_work, gathered
from mpips.session.exits import ExitFunctions, code_of, exit_now, exited
from mpips.session.reporting import ScriptReports
from mpips.session.script_program import EndedEarlyError, ScriptProgram
from mpips.session.session import after_run, one_report, scripts

if TYPE_CHECKING:
    from mpips.checkpoint import WorkerState
    from mpips.model.table import Table
    from mpips.mpi.cluster import Cluster
    from mpips.mpi.one_rank import Ranks
    from mpips.rundir import directory
    from mpips.rundir.files import StagesChoice
    from mpips.session.initial_values import Rows, State, Values
    from mpips.worker.worker import Worker

Part = TypeVar("Part")


class Script:
    """The job of the script in this process, from `init` to the end of the script.

    Attributes:
        worker: The worker; None before the first pull.
        rank: Index of this worker.
        n_workers: Number of workers.
        local_worker: Place of this worker among those of its node, from 0.
        n_cores: This rank's share of its node's cores.
        seed: Seed of the job.
        before_end: Called at the end of the script without an error, before the job ends.
        reports: Reports of its progress.
        is_observed: True if reports have a reader: the run has a directory, or the job a port for metrics.
    """

    def __init__(self, program: ScriptProgram, run: directory.Supervised | None, size: int) -> None:
        """Take a checked program. `size`: number of ranks of the launch."""
        self.worker: Worker | None = None
        self.seed = program.options.seed
        self.before_end: list[Callable[[], object]] = []
        self.reports = ScriptReports()
        self.is_observed = run is not None or program.monitor.port is not None
        self._program = program
        self._run = run
        self._size = size
        self._pid = os.getpid()
        self._blocks = ExitStack()
        self._waiting = ExitStack()  # open from `init` to the first pull, on workers
        self._ranks: Ranks | None = None
        self._outcome: Outcome | None = None
        self._is_over = False
        self._parts: dict[Callable[[Script], Any], Any] = {}  # of other libraries, by their makers
        self._cursor_owner = ""
        self._compares = False  # tables need equal numbers of steps of all workers
        self._shares_rates = False  # a rule is applied once for the updates of all workers
        self._exit_code: object = None  # of the sys.exit that ends the process
        self._exits = ExitFunctions(self.note_exit)
        self._old_hook = sys.excepthook
        self._old_error = getattr(sys, "last_value", None)

    def begin(self) -> None:
        """Give every rank a role. Collective. Does not return on servers and the scheduler."""
        with self._reporting():
            try:
                self._ranks = self._blocks.enter_context(
                    gathered(self._program.options, self._run, None, self._size)
                )
            except (KeyboardInterrupt, TerminatedError) as error:
                # Other ranks may not come, and MPI cannot be finalized without them.
                exit_now(code_of(error))
            ranks = self._ranks
            if ranks.worker is None:
                self._serve()
        self.rank, self.n_workers, self.n_cores = (
            ranks.worker,
            len(ranks.assignment.workers),
            ranks.n_cores,
        )
        self.local_worker = ranks.local_worker
        self._waiting.enter_context(ranks.lengthy())
        # The exit handler runs before the one that finalizes MPI, which was registered earlier.
        atexit.register(self._at_exit)
        sys.excepthook = self._on_exception
        self._exits.replace()

    def leave(self, error: BaseException | None = None) -> None:
        """End the job before the end of the process; `init` can be called again afterwards.

        For programs that run several scripts in one process without a launcher, such as tests. Blocks. The
        exit handler, sys.excepthook and sys.exit are those of before `init` again.

        Args:
            error: The error by which the script ends; None: it ends as at its last line.

        Raises:
            Exception: The job could not be ended; or any `error` that the job's blocks do not handle.
        """
        atexit.unregister(self._at_exit)
        sys.excepthook = self._old_hook
        self._exits.restore()
        scripts.remove(self)
        if not self._is_over:
            self._is_over = True
            self._waiting.close()
            if error is None:
                self._finish()
            elif not self._blocks.__exit__(type(error), error, error.__traceback__):
                raise error

    def _finish(self) -> None:
        """End the job at the end of a script without an error."""
        try:
            for call in self.before_end:
                call()
        except BaseException as error:
            self._blocks.__exit__(type(error), error, error.__traceback__)
            raise
        self._blocks.close()

    def part(self, kind: Callable[[Script], Part]) -> Part:
        """Return what `kind` made for this script at the first call with it."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        return cast(Part, self._parts[kind])

    def before_unmap(self, call: Callable[[bool], object]) -> None:
        """Call a function at the end of the script, before the job's memory is unmapped.

        It receives True if the script ended with an error. With several ranks it is not called then: their
        processes end. Only after the start of the job.
        """

        def handle(kind: type[BaseException] | None, *_: object) -> None:
            if kind is None or self._size == 1:
                call(kind is not None)

        self._blocks.push(handle)

    def own_cursor(self, library: str) -> None:
        """Note that a library sets the worker's cursor and ends its clocks. `library` names it in errors.

        Raises:
            ConfigError: Another one does so in this script.
        """
        if self._cursor_owner not in ("", library):
            raise ConfigError(
                f"the script uses {self._cursor_owner} and {library}, which both end the clocks of the "
                "worker: use one of them in a script"
            )
        self._cursor_owner = library

    @property
    def cursor(self) -> Mapping[str, Any]:
        """The cursor at which the script continues; empty: it begins. Only after the start."""
        assert self.worker is not None
        others = self.other_workers
        if not others:
            return self.worker.cursor
        places = [int(one.cursor.get("steps", one.clock)) for one in others]
        if min(places) != max(places):
            raise ConfigError(
                f"the checkpoint is of {len(places)} workers, which were at different places in their data "
                f"(steps {', '.join(map(str, places))}), as workers under ASP are: {self.n_workers} workers "
                f"would lose or repeat samples; continue with {len(places)} workers, or begin anew by "
                "resume='never'"
            )
        return others[0].cursor

    @property
    def other_workers(self) -> Sequence[WorkerState]:
        """The workers of the checkpoint that the job starts from, if their number is another one; else none.

        Only after the start. `cursor` is that of all of them, or raises ConfigError if they were at different
        places.
        """
        assert self.worker is not None
        cursor, start = self.worker.cursor, self.worker.start
        # An empty cursor is the beginning of the run, unless the checkpoint is of another number of workers.
        if cursor or start is None or start.cursor is not None:
            return ()
        return start.workers

    def declare(
        self,
        table: Table,
        values: Values | None = None,
        group: str = "",
        rows: Rows | None = None,
        state: State | None = None,
    ) -> None:
        """Declare a table; see Declared.add.

        Raises:
            ConfigError: The job has started, or the name is used already.
        """
        if self.worker is not None or self._is_over:
            raise ConfigError(
                f"{table.name!r} comes too late: the job has started with the first pull; prepare all models "
                "and embeddings before the first forward pass"
            )
        self._program.declared.add(table, values, group, rows, state)
        self._compares = self._compares or _has_common_steps(table.consistency)
        self._shares_rates = self._shares_rates or isinstance(table.consistency, BSP)

    def compare_steps(self, place: str, steps: int, rates: str = "") -> None:
        """Let the scheduler compare the numbers of steps of all workers. Not collective; returns at once.

        It does so if tables need equal numbers; where they differ the job ends with a ConfigError, and at the
        end of the script with a warning.

        Args:
            place: A place that each worker passes once, for the error.
            steps: Steps of this worker since the beginning of the run.
            rates: Hyperparameters of the newest step, as text, which must be equal under BSP; "": unknown.
        """
        if self._compares and self.n_workers > 1 and self.worker is not None:
            from mpips.worker.worker import connection_of

            rates = rates if self._shares_rates else ""
            connection_of(self.worker).control.tell(StepCount(place, steps, rates))

    def compare_samples(self, place: str, digest: int) -> None:
        """Let the scheduler compare samples that must be the same on all workers. Returns at once.

        Not collective. Where they differ the job ends with a ConfigError.

        Args:
            place: The samples, which each worker has once, for the error: text before "differ".
            digest: Digest of their contents, or their number, 0 to 2^64 - 1.
        """
        if self.n_workers > 1 and self.worker is not None:
            from mpips.worker.worker import connection_of

            connection_of(self.worker).control.tell(SampleDigest(place, digest))

    def start(self) -> Worker:
        """Return the worker; at the first call start the job. Collective over all ranks then; blocks.

        Raises:
            ForkError: This process is a forked child.
            SystemExit: With several ranks: the job could not start. The error has been printed once.
            MpipsError: With one rank: the job could not start.
        """
        if self.worker is None:
            forked.refuse_children()
            if self._is_over:
                raise ConfigError("the job is over: it ended with an error")
            assert self._ranks is not None
            self._waiting.close()
            with self._reporting():
                work, self._outcome = self._enter(self._ranks)
            assert work is not None
            self.worker = work
        return self.worker

    def ask_stages(self, digest: str, choose: Callable[[], StagesChoice]) -> StagesChoice:
        """Return the choice of the stages of a model, the same on all ranks. Collective; blocks.

        Only before the start. The choice of an earlier launch of the run holds, if its digest is this one.

        Args:
            digest: Digest of the model and of the rules of the choice; the same on all workers.
            choose: Measures and chooses; called on worker 0 alone.

        Raises:
            SystemExit: With several ranks: there is no choice. The error has been printed once.
            MpipsError: With one rank: there is no choice. The job can still start.
        """
        assert self._ranks is not None
        declared = self._program.declared
        if self._size == 1:
            return declared.ask_stages(self._ranks, digest, choose)
        self._waiting.close()
        with self._reporting():
            try:
                found = declared.ask_stages(self._ranks, digest, choose)
            except BaseException as error:
                self._is_over = True
                if not isinstance(error, MpipsError):
                    self._fail(error)
                self._blocks.__exit__(type(error), error, error.__traceback__)
                raise
        self._waiting.enter_context(self._ranks.lengthy())
        return found

    def _enter(self, ranks: Ranks) -> tuple[Worker | None, Outcome]:
        """Start the job; if it cannot start, leave all blocks."""
        try:
            work, outcome = self._blocks.enter_context(at_work(self._program, ranks, self._run))
        except BaseException as error:
            self._is_over = True
            if self._size > 1 and not isinstance(error, MpipsError | EndedEarlyError):
                self._fail(error)  # other ranks do not have this error
            self._blocks.__exit__(type(error), error, error.__traceback__)
            raise
        return work.worker, outcome

    def _serve(self) -> NoReturn:
        """Serve until the job is over, then exit."""
        assert self._ranks is not None
        try:
            _, outcome = self._enter(self._ranks)
        except EndedEarlyError:
            sys.exit(0)
        self._is_over = True
        self._blocks.close()
        for listener in after_run:
            listener(outcome)
        sys.exit(0)

    def _reporting(self) -> AbstractContextManager[None]:
        """Let one rank of several print an error that all ranks have."""
        return one_report() if self._size > 1 else nullcontext()

    def note_exit(self, code: object) -> None:
        """Store the code of the SystemExit that ends the process."""
        self._exit_code = code

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, tb: TracebackType | None
    ) -> None:
        """Handle the exception that ends the script. With several ranks it does not return."""
        if os.getpid() != self._pid or self._is_over:
            self._old_hook(kind, error, tb)
            return
        if (interruption := interruption_behind(error)) is not None:
            kind, error, tb = type(interruption), interruption, interruption.__traceback__
        # Under `python -i` a prompt follows, and the job goes on until its end.
        if isinstance(error, SystemExit) and not isinstance(error, TerminatedError):
            self._old_hook(kind, error, tb)
            return
        self._is_over = True
        sys.stdout.flush()
        if self._size > 1 and self.worker is None:
            self._fail(error)
        try:
            self._blocks.__exit__(kind, error, tb)
        except BaseException as other:
            kind, error, tb = type(other), other, other.__traceback__
        if isinstance(error, SystemExit):
            exit_now(code_of(error))
        self._old_hook(kind, error, tb)

    def _fail(self, error: BaseException) -> NoReturn:
        """End all ranks: this one fails before the job is at work, others are anywhere in the script."""
        assert self._ranks is not None
        ranks, code = cast("Cluster", self._ranks), code_of(error)
        if isinstance(error, KeyboardInterrupt | TerminatedError):
            failure_report.write(
                kind=type(error).__name__,
                message=f"ended with code {code}",
                exit_code=code,
                secondary=True,
            )
            ranks.clean_shared_memory()
            exit_now(code)
        if isinstance(error, SystemExit):
            error = exited(error.code) or ExitedError("the script ended while the job started")
            code = error.exit_code
        if ranks.worker:
            _let_first_worker_print()
        failure_report.write(**{**failure_report.fields_of(error), "exit_code": code})
        text = f"{ranks.name_of(ranks.rank)}: {error}"
        if not isinstance(error, MpipsError):
            trace = "".join(traceback.format_exception(error)).rstrip()
            text = f"{ranks.name_of(ranks.rank)} raised {type(error).__name__}: {error}\n{trace}"
        launch.print_error(text)
        sys.stdout.flush()
        self._waiting.close()  # its thread must not be inside MPI
        ranks.abort(code)
        os._exit(code)

    def end(self) -> None:
        """End the job as the end of the process would. Blocks."""
        atexit.unregister(self._at_exit)
        self._at_exit()

    def _at_exit(self) -> None:
        """End the job at the end of the script, unless an exception ended it."""
        self._exits.restore()
        if os.getpid() != self._pid or self._is_over:
            return
        self._is_over = True
        error = self._noted_error()
        try:
            if self.worker is None:
                self._end_early(error)
                return
            if error is not None:
                self._blocks.__exit__(type(error), error, error.__traceback__)
                return
            self._finish()
            self._check_saved()
        except (SystemExit, KeyboardInterrupt) as ending:
            exit_now(code_of(ending))
        except MpipsError as problem:
            if problem is not error:
                launch.print_error(str(problem))
            exit_now(problem.exit_code)
        except BaseException as other:
            if other is not error:
                traceback.print_exc()
            exit_now(1)
        assert self._outcome is not None
        for listener in after_run:
            listener(self._outcome)

    def _check_saved(self) -> None:
        """Raise CheckpointError on the first worker if the checkpoint at the end was not written."""
        outcome = self._outcome
        if outcome is not None and outcome.is_first_worker and outcome.unsaved:
            raise CheckpointError(outcome.unsaved)

    def _noted_error(self) -> BaseException | None:
        """Return the error by which the script ended, if no hook has received it."""
        if TerminatedError.newest is not None:
            return TerminatedError.newest
        # A program that has replaced sys.excepthook has printed the exception that ended it.
        last: BaseException | None = getattr(sys, "last_value", None)
        is_new = last is not None and last is not self._old_error
        if is_new and sys.excepthook != self._on_exception and not hasattr(sys, "ps1"):
            return last
        return exited(self._exit_code)

    def _end_early(self, error: BaseException | None) -> None:
        """End a script that has made no pull."""
        if self._size == 1:
            self._blocks.close()
            return
        if error is not None:
            self._fail(error)
        self._program.has_ended = True
        self._waiting.close()
        assert self._ranks is not None
        try:
            with self._reporting():
                self._enter(self._ranks)
        except EndedEarlyError:
            return


def _has_common_steps(consistency: object) -> bool:
    """Return True if updates of the same step of all workers are put together."""
    if isinstance(consistency, BSP):
        return consistency.backup == 0
    return isinstance(consistency, Local) and not getattr(consistency, "asynchronous", False)


def _let_first_worker_print() -> None:
    """Wait a moment: workers often fail alike, and the launcher ends all of them when the first one has."""
    try:
        time.sleep(launch.FIRST_RANK_S)
    except (SystemExit, KeyboardInterrupt) as ending:
        exit_now(code_of(ending))
