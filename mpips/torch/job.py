"""The parts of a torch script in its job: models, optimizers, loaders, and the clock that they share.

    start      at the first forward pass, or the first iteration of a prepared loader: the job starts
    push       a step of an optimizer: gradients are pushed
    settle     before the next batch, pull or step: the cursor is set and the worker's clock ends
    refresh    before a forward pass that follows a step: all values of the model are pulled
    arrive     at each epoch of a loader: a restart that passed the complete epochs continues here

A step of any prepared optimizer is one clock of the worker. Its cursor has what a restart needs: the places
in the loaders, the hyperparameters of the optimizers and the states of the schedulers. A script steps a
scheduler behind the optimizer, and a restart begins with the next batch. So the clock does not end within
`optimizer.step()`, but as soon as the script asks for the next batch or for values. Random numbers need no
state: each clock seeds the generators by (seed, worker, step of the run).

A restart sets hyperparameters and schedulers twice. At the start of the job, and again when all loaders are
at their places: the script has passed the complete epochs by then, and has stepped schedulers after them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from mpips.errors import ConfigError, MpipsError
from mpips.session.init import current
from mpips.session.script import Script
from mpips.torch.by_use import UseWaits, in_order_of_use, is_seen
from mpips.torch.device_memory import Devices
from mpips.torch.generators import reseed
from mpips.torch.parameters import ParameterTable
from mpips.torch.plain import NOT_PLAIN, from_plain, to_plain
from mpips.worker.by_use import PullsByUse
from mpips.worker.worker import Worker, connection_of


class Pulled(Protocol):
    """A table whose values a forward pass needs."""

    def open(self, worker: Worker) -> None:
        """Take the table's handle at the start of the job."""

    def pull(self) -> None:
        """Fetch the values. Blocks."""


class Pushed(Protocol):
    """A layer or table that has something to push at a step."""

    def push(self) -> None:
        """Push what the step has brought."""


class Opened(Protocol):
    """A part that needs the worker."""

    def open(self, worker: Worker) -> None:
        """Take the table's handle at the start of the job."""


class Restored(Protocol):
    """A part whose place is in the cursor."""

    def position(self) -> Any:
        """Return the place after the current step: numbers, text, lists and dicts."""

    def resume(self, position: Any) -> None:
        """Continue at a place that `position` returned."""


class PlacedLoader(Restored, Protocol):
    """A prepared loader: a restart continues when all of them are at their places."""

    @property
    def epoch(self) -> int:
        """Number of the current epoch."""

    @property
    def has_arrived(self) -> bool:
        """True from the beginning of the epoch of the restart on."""


class ModelPart:
    """The tables of one model.

    Attributes:
        is_stale: True if a step has changed values since the newest pull.
        is_accumulating: True within `no_sync`.
        waits: The waits of the forward pass that is running, if it waits by use; None: it does not.
    """

    def __init__(
        self, job: TorchJob, pulled: Sequence[Pulled], by_use: Sequence[ParameterTable] = ()
    ) -> None:
        """Take the tables.

        Args:
            job: The script's job.
            pulled: All of them, in the order in which they are pulled.
            by_use: Those that a forward pass may wait for by use, in the order of the model.
        """
        self.is_stale = True
        self.is_accumulating = False
        self.waits: UseWaits | None = None
        self._job = job
        self._pulled = pulled
        self._by_use: list[ParameterTable] = list(by_use)

    @property
    def is_started(self) -> bool:
        """True from the first pull of the job on."""
        return self._job.has_started

    def may_wait_by_use(self, model: torch.nn.Module) -> bool:
        """Return True if a forward pass of the model that begins now may wait by use."""
        is_due = bool(self._by_use) and self.is_stale and self.waits is None
        return is_due and is_seen(model)

    @property
    def by_use(self) -> Sequence[ParameterTable]:
        """Tables in the order of use of the newest forward pass that has waited by use."""
        return self._by_use

    def refresh(self) -> None:
        """Pull all values, if a step has been made since the newest pull. Blocks then.

        The last layers come first: servers have their updates first.
        """
        if self.waits is not None:
            self.waits.finish()
        if self.is_stale:
            self._job.start()
            self._job.settle()
            for table in reversed(self._pulled):
                table.pull()
            self.is_stale = False

    @contextmanager
    def waiting_by_use(self) -> Iterator[None]:
        """Ask for values, and within the block wait for each where it is used; see mpips.torch.by_use.

        All values are there at the end of the block. Values on this node are pulled before it.
        """
        worker = self._job.start()
        self._job.settle()
        asked = {table.name: (table, what) for table in self._by_use if (what := table.ask())}
        wanted = {name: what for name, (_, what) in asked.items()}
        if not asked:
            self.refresh()
            yield
            return
        pulls = PullsByUse.asked(connection_of(worker), wanted)
        for table in reversed(self._pulled):
            if not isinstance(table, ParameterTable) or table.name not in asked:
                table.pull()
        self.is_stale = False
        self.waits = waits = UseWaits([table for table, _ in asked.values()], pulls)
        connection_of(worker).leave()
        try:
            with waits:
                yield
            waits.finish()
            self._by_use = in_order_of_use(self._by_use, waits.used)
        except BaseException as error:
            self.is_stale = True  # some values may not be there
            # Nothing must arrive in the parameters after this block. What arrives now counts as a change, so
            # that no graph that was recorded before is used with it.
            if isinstance(error, Exception) and not isinstance(error, MpipsError):
                waits.finish()
                pulls.finish()
            raise
        finally:
            self.waits = None

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within the block the values are those of the last outer step; see mpips.torch.averaged."""
        worker = self._job.start()
        self._job.settle()
        with worker.averaged():
            self.is_stale = True
            try:
                yield
            finally:
                self.is_stale = True


class TorchJob:
    """All prepared parts of the script. Make it by `job_of`.

    Attributes:
        script: The script.
        devices: Devices of its models.
    """

    def __init__(self, script: Script) -> None:
        """Prepare nothing yet."""
        script.own_cursor("mpips.torch")
        self.script = script
        self.devices = Devices(script)
        self._opened: list[Opened] = []
        self._restored: dict[str, Restored] = {}
        self._loaders: list[PlacedLoader] = []
        self._prepared: dict[int, tuple[torch.Tensor, str]] = {}  # parameters by id
        self._coming: dict[str, Any] = {}  # positions of parts that wait for the loaders
        self._steps = 0  # of this worker since the beginning of the run
        self._is_open = False  # a step has pushed, and its clock has not ended
        self._worker: Worker | None = None

    @property
    def has_started(self) -> bool:
        """True from the first pull on."""
        return self._worker is not None

    def add(self, part: Opened) -> None:
        """Add a part that needs the worker."""
        self._opened.append(part)

    def restore(self, kind: str, part: Restored) -> None:
        """Add a part whose place is in the cursor; `kind` and its number in the script name it there."""
        number = sum(name.startswith(f"{kind} ") for name in self._restored)
        self._restored[f"{kind} {number}"] = part

    def add_loader(self, loader: PlacedLoader) -> None:
        """Add a loader, whose place is in the cursor."""
        self.restore("loader", loader)
        self._loaders.append(loader)

    def claim(self, parameter: torch.Tensor, name: str) -> None:
        """Note the table of a parameter.

        Raises:
            ConfigError: The parameter has a table already, that of another model.
        """
        if id(parameter) in self._prepared:
            raise ConfigError(
                f"the parameter {name!r} has been prepared already, as {self._prepared[id(parameter)][1]!r}: "
                "prepare one module that contains both models"
            )
        self._prepared[id(parameter)] = parameter, name

    @property
    def n_optimizers(self) -> int:
        """Number of prepared optimizers."""
        return sum(name.startswith("optimizer ") for name in self._restored)

    @property
    def steps(self) -> int:
        """Number of steps that this worker has made since the beginning of the run."""
        return self._steps

    def start(self) -> Worker:
        """Return the worker; start the job at the first call. Collective over all ranks then; blocks."""
        if self._worker is None:
            worker = self.script.start()
            self._worker = worker
            for part in self._opened:
                part.open(worker)
            self._resume()
            self.script.before_end += [self.settle, self.devices.close]
            self._reseed(worker)
        return self._worker

    def arrive(self) -> None:
        """Continue at the cursor, if all loaders are at their places for the first time."""
        if self._coming and all(loader.has_arrived for loader in self._loaders):
            for name, position in self._coming.items():
                self._restored[name].resume(position)
            self._coming.clear()
            self._reseed(self.start())

    def push(self, pushed: Sequence[Pushed], models: Sequence[ModelPart]) -> None:
        """Push what a step has brought. Not collective; blocks only while a ring is full.

        Args:
            pushed: Tables and layers that may have something to push; the same order on all workers.
            models: Models whose values the step changes.
        """
        for part in pushed:
            part.push()
        self._is_open = True
        self._steps += 1
        for model in models:
            model.is_stale = True

    def settle(self) -> None:
        """Set the cursor and end the clock of the newest step, if it has not ended. Not collective."""
        if not self._is_open:
            return
        worker = self.start()
        cursor = {name: part.position() for name, part in self._restored.items()}
        worker.set_cursor({**self._own_cursor(), **cursor})
        worker.clock()
        self._is_open = False
        self._reseed(worker)

    def warn_of_late_schedulers(self) -> None:
        """Warn if a scheduler was stepped after the clock of its step had ended. Called within an epoch."""
        if not self._is_open:
            for part in self._restored.values():
                if isinstance(part, SchedulerState):
                    part.warn_if_late()

    def _own_cursor(self) -> dict[str, int]:
        return {"torch": 1, "workers": self.script.n_workers, "steps": self._steps}

    def _reseed(self, worker: Worker) -> None:
        reseed(worker.seed, worker.index, self._steps)

    def _resume(self) -> None:
        """Continue at the cursor of the checkpoint or of the launch before, if there is one."""
        cursor = self.script.cursor
        if not cursor:
            return
        names = [name for name in cursor if name not in self._own_cursor()]
        if cursor.get("torch") != 1 or set(names) != set(self._restored):
            raise ConfigError(
                f"the checkpoint is of a script that prepared {', '.join(names) or 'nothing'}; this one "
                f"prepares {', '.join(self._restored) or 'nothing'}: use the same script, or resume='never'"
            )
        self._steps = cursor["steps"]
        for name, part in self._restored.items():
            position = cursor[name]
            if self._loaders and part not in self._loaders:
                self._coming[name] = position
            part.resume(position)


class SchedulerState:
    """The place of an LRScheduler: the numbers of its state_dict. Everything else its constructor sets."""

    def __init__(self, scheduler: Any) -> None:
        """Take the scheduler."""
        self._scheduler = scheduler
        self._saved: dict[str, Any] | None = None  # in the newest cursor

    def position(self) -> dict[str, Any]:
        """Return the numbers, flags and lists of numbers of the state."""
        self._saved = _plain(self._scheduler.state_dict())
        return self._saved

    def resume(self, position: Mapping[str, Any]) -> None:
        """Load a state."""
        self._scheduler.load_state_dict(_merged(self._scheduler.state_dict(), position))

    def warn_if_late(self) -> None:
        """Warn if the scheduler was stepped after the clock of its optimizer's step had ended."""
        if self._saved is not None and _plain(self._scheduler.state_dict()) != self._saved:
            warnings.warn(
                "the values of the model were read between optimizer.step() and scheduler.step(): step the "
                "scheduler directly after the optimizer, or a restart is one scheduler step behind",
                stacklevel=4,
            )


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a state that a cursor can hold; those of schedulers within it, too."""
    found: dict[str, Any] = {}
    for name, value in state.items():
        plain = to_plain(value)
        if plain is not NOT_PLAIN:
            found[name] = plain
        elif isinstance(value, list | tuple) and all(isinstance(v, dict) for v in value):
            found[name] = [_plain(v) for v in value]
    return found


def _merged(state: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state` with the entries that `_plain` has saved."""
    merged = dict(state)
    for name, value in saved.items():
        old = state.get(name)
        if isinstance(value, list) and isinstance(old, list | tuple):
            inner = all(isinstance(v, dict) for v in old) and len(old) == len(value)
            merged[name] = (
                [_merged(a, b) for a, b in zip(old, value, strict=True)]
                if inner
                else from_plain(value)
            )
        else:
            merged[name] = from_plain(value)
    return merged


def job_of(what: str) -> TorchJob:
    """Return the torch job of this script. `what` names the caller in errors.

    Raises:
        ConfigError: `mpips.init` has not been called.
    """
    return current(what).part(TorchJob)


def steps() -> int:
    """Return the number of steps that this worker has made since the beginning of the run.

    After a restart a script without a prepared loader skips the data of that many steps. The call starts the
    job, so the first one is collective over all ranks and blocks. It ends the clock of the newest step: call
    it after a step if the script then waits for other workers in a way of its own.

    Raises:
        ConfigError: `mpips.init` has not been called.
    """
    job = job_of("mpips.torch.steps")
    job.start()
    job.settle()
    return job.steps
