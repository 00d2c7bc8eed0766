"""The job of one library in a script: how it starts, continues a run, ends its clocks and ends.

    add            before the start: the library declares its tables and adds the parts that need the worker
    start          at the first use of values: all ranks start the job, parts take their handles, and the
                   library resumes at the cursor of a restart
    note_step      a step has pushed: its clock is open
    settle         the cursor is set and the clock ends, before the next step pulls or pushes
    end            at the end of the script without an error

Only `start` is collective, over all ranks, at its first call. A subclass is the job of one library: it
defines what its cursor contains (`position`) and what it does with the cursor of a restart (`resume`). A
cursor has the library's name with the number of its format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from mpips.errors import ConfigError
from mpips.mpi.messages import END_OF_SCRIPT
from mpips.session.init import current

if TYPE_CHECKING:
    from mpips.session.library_progress import LibraryProgress
    from mpips.session.script import Script
    from mpips.worker.worker import Worker

_FORMAT = 1  # of all cursors

Job = TypeVar("Job", bound="ScriptJob")


class Opened(Protocol):
    """A part that needs the worker."""

    def open(self, worker: Worker) -> None:
        """Take the table's handle at the start of the job."""


class ScriptJob:
    """The job of one library in a script. Make it by `of_script`.

    Attributes:
        library: Name of the library, such as "mpips.torch".
        first_use: The event that starts the job, for errors.
        script: The script.
        steps: Number of steps that this worker has made since the beginning of the run.
        is_open: True if a step has pushed, and its clock has not ended.
        makes_cursor: True while states are read for the cursor, which has nothing that the servers hold.
        progress: Automatic reports of the library; None: it makes none.
    """

    library: ClassVar[str]
    first_use: ClassVar[str] = "the first pull"
    progress: LibraryProgress | None = None

    def __init__(self, script: Script) -> None:
        """Declare nothing yet.

        Raises:
            ConfigError: Another library ends the clocks of this script.
        """
        script.own_cursor(self.library)
        self.script = script
        self.steps = 0
        self.is_open = False
        self.makes_cursor = False
        self._opened: list[Opened] = []
        self._worker: Worker | None = None
        self._failure: BaseException | None = None  # of `start`

    @classmethod
    def of_script(cls: type[Job], what: str) -> Job:
        """Return this library's job of the script; make it at the first call. `what` names the caller.

        Raises:
            ConfigError: `mpips.init` has not been called.
        """
        return current(what).part(cls)

    @property
    def has_started(self) -> bool:
        """True from `start` on."""
        return self._worker is not None

    def add(self, part: Opened) -> None:
        """Add a part that needs the worker."""
        self._opened.append(part)

    def check_time(self, what: str, advice: str) -> None:
        """Raise ConfigError if the job has started. `what` comes too late then; `advice` ends the message."""
        if self.has_started:
            raise ConfigError(
                f"{what} comes too late: the job has started with {self.first_use}{advice}"
            )

    def check_new(self, model: object, prepared: type) -> None:
        """Raise ConfigError if the job has started, or a model is an object of the class of prepared ones."""
        self.check_time("prepare", "; prepare all models before it")
        if isinstance(model, prepared):
            raise ConfigError(
                "the model has been prepared already: call prepare once for each model; where parts of "
                "it have optimizers of their own, prepare these parts and not the whole"
            )

    def start(self) -> Worker:
        """Return the worker; start the job at the first call. Collective over all ranks then; blocks.

        Raises:
            ConfigError: The checkpoint is of another script, or workers of another number were at different
                places.
        """
        if self._worker is None:
            if self._failure is not None:
                raise ConfigError(f"the job did not start: {self._failure}") from self._failure
            self.declare()
            self._worker = worker = self.script.start()
            try:
                self.open(worker)
                if self.progress is not None:
                    self.progress.begin(worker)
                self._continue()
                self._begin_step(worker)
            except BaseException as error:
                # A script that catches the error must not train from the beginning.
                self._worker, self._failure = None, error
                raise
            self.script.before_end.append(self._end)
        return self._worker

    def _continue(self) -> None:
        """Resume at the cursor of the checkpoint or of the launch before, if there is one."""
        cursor = self.start_cursor()
        if cursor and cursor.get(self._name) != _FORMAT:
            raise ConfigError(
                f"the checkpoint is of a script without {self.library}: use the same script, or "
                "resume='never'"
            )
        if cursor:
            self.resume(cursor)

    def note_step(self) -> None:
        """Note that a step has pushed."""
        self.steps += 1
        self.is_open = True

    def settle(self, places: Mapping[str, Any] | None = None) -> None:
        """Set the cursor and end the clock of the newest step, if it has not ended. Not collective.

        Args:
            places: Entries of the cursor that replace those of `position`.
        """
        if self.is_open:
            worker = self.start()
            self.makes_cursor = True
            try:
                position = self.position()
            finally:
                self.makes_cursor = False
            worker.set_cursor({self._name: _FORMAT, **position, **(places or {})})
            self.before_clock()
            worker.clock()
            self.is_open = False
            self._begin_step(worker)

    def _begin_step(self, worker: Worker) -> None:
        self.begin_step(worker)
        if self.progress is not None:
            self.progress.send_if_due()

    def _end(self) -> None:
        self.end()
        if self.progress is not None:
            self.progress.flush()

    def settled_steps(self) -> int:
        """Return `steps`; start the job, and end the clock of the newest step. Collective like `start`."""
        self.start()
        self.settle()
        return self.steps

    # Hooks of the libraries.

    def declare(self) -> None:
        """Declare tables directly before the job starts."""

    def open(self, worker: Worker) -> None:
        """Let all parts take their handles, directly after the job has started."""
        for part in self._opened:
            part.open(worker)

    def start_cursor(self) -> Mapping[str, Any]:
        """Return the cursor at which the job continues; empty: it begins."""
        return self.script.cursor

    def position(self) -> dict[str, Any]:
        """Return the entries of the cursor after the newest step; see Worker.set_cursor."""
        return {"steps": self.steps}

    def resume(self, cursor: Mapping[str, Any]) -> None:
        """Continue at a cursor of this library, which is not empty."""
        self.steps = int(cursor["steps"])

    def before_clock(self) -> None:
        """Push what a step leaves to the end of its clock."""

    def begin_step(self, worker: Worker) -> None:
        """Prepare the next step, at the start of the job and after the end of each clock."""

    @property
    def newest_rates(self) -> str:
        """Hyperparameters of the newest step as text, equal on all workers under BSP; "": unknown."""
        return ""

    def end(self) -> None:
        """End the newest step; let the scheduler compare the steps of all workers."""
        self.settle()
        self.script.compare_steps(END_OF_SCRIPT, self.steps, self.newest_rates)

    @property
    def _name(self) -> str:
        return self.library.removeprefix("mpips.")
