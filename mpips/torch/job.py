"""The parts of a torch script in its job: models, optimizers, loaders, and the clock that they share.

    start      at the first forward pass, or the first iteration of a prepared loader: the job starts
    push       a step of an optimizer: gradients are pushed
    settle     before the next batch, pull or step: the cursor is set and the worker's clock ends
    skip       a batch without a step: its clock ends without a push (see skips.py)
    refresh    before a forward pass that follows a step: all values of the model are pulled
    arrive     at each epoch of a loader: a restart that passed the complete epochs continues here

A step of any prepared optimizer is one clock of the worker. Its cursor has what a restart needs: the places
in the loaders, the hyperparameters of the optimizers and the states of the schedulers. A script steps a
scheduler behind the optimizer, and a restart begins with the next batch. So the clock does not end within
`optimizer.step()`, but as soon as the script requests the next batch or values. Random numbers need no
state: each clock seeds the generators by (seed, worker, step of the run).

A restart sets hyperparameters and schedulers twice. At the start of the job, and again when all loaders are
at their places: a script without `epochs` has passed the complete epochs by then, and has stepped schedulers
after them. States of the script (see epochs.py) are set when their loop is made, and again then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import torch

from mpips.errors import ConfigError
from mpips.rundir.files import StagesChoice
from mpips.session.chosen_stages import CURSOR_ENTRY, entry_of
from mpips.session.script import Script
from mpips.session.script_job import ScriptJob
from mpips.torch.cursor import SchedulerState
from mpips.torch.device_memory import Devices
from mpips.torch.epochs import EpochLoops, Epochs, LoopState
from mpips.torch.generators import reseed
from mpips.torch.progress import CountedLoader, ScriptProgress
from mpips.torch.schedules import Schedules
from mpips.torch.skips import Skips
from mpips.worker.worker import Worker

# Entries of the cursor that are no parts of the script.
_OWN_NAMES = ("torch", "workers", "stages", CURSOR_ENTRY, "epoch", "steps", "epochs")


class Pushed(Protocol):
    """A layer or table that has something to push at a step."""

    def push(self) -> None:
        """Push what the step has brought."""


class Restored(Protocol):
    """A part whose place is in the cursor."""

    def position(self) -> Any:
        """Return the place after the current step: numbers, text, lists and dicts."""

    def resume(self, position: Any) -> None:
        """Continue at a place that `position` returned."""


class PlacedLoader(Restored, CountedLoader, Protocol):
    """A prepared loader: a restart continues when all of them are at their places."""

    @property
    def has_arrived(self) -> bool:
        """True from the beginning of the epoch of the restart on."""

    def seek(self, n_begun: int) -> None:
        """Let the next iteration begin this epoch."""

    def resume_among(self, own: Any, everyone: Sequence[Any]) -> None:
        """Continue where the workers of a run stood; see StartingLoader."""


class Announced(Protocol):
    """A layer that finds the keys of its rows in the batches of a prepared loader."""

    def depth(self, worker: Worker) -> int:
        """Return the number of batches that a look-ahead knows in advance; 0: none."""

    def keys_of_batch(self, batch: Any) -> dict[str, Any]:
        """Return int64 keys by the name of the table; {}: the batch has none."""


class TorchJob(ScriptJob):
    """All prepared parts of the script. Make it by `TorchJob.of_script`.

    Attributes:
        devices: Devices of its models.
        skips: Batches in which it makes no step.
        loops: Loops over mpips.torch.epochs.
        schedules: Schedulers that the script gave to `prepare`.
        loaders: Prepared loaders.
        announced: Layers whose rows a prepared loader may fetch in advance.
        progress: Automatic reports of the script.
        n_stages: Number of workers of a pipeline: the stages of a model divided between them; 1: it is not.
        stages_choice: Where a measurement has cut the model into stages; None: nothing was measured.
    """

    library = "mpips.torch"
    progress: ScriptProgress
    first_use = "the first forward pass"

    def __init__(self, script: Script) -> None:
        """Prepare nothing yet."""
        super().__init__(script)
        self.devices = Devices(script)
        self.skips = Skips(self)
        self.loops = EpochLoops()
        self.schedules = Schedules(warns=script.rank == 0)
        self.loaders: list[PlacedLoader] = []
        self.announced: list[Announced] = []
        self.progress = ScriptProgress(script, self.loops, self.loaders, lambda: self.n_optimizers)
        self.n_stages = 1
        self.stages_choice: StagesChoice | None = None
        self._asked_stages: int | None = (
            None  # of the model in stages, whatever the number of workers
        )
        self._restored: dict[str, Restored] = {}
        self._prepared: dict[int, tuple[torch.Tensor, str]] = {}  # parameters by id
        self._waits = False  # until all loaders are at the places of the restart
        self._coming: dict[str, Any] = {}  # positions of parts that wait for it
        self._buffers: Sequence[Pushed] = ()  # those that are pushed when the clock ends

    def divide(self, n_stages: int) -> None:
        """Divide a model into stages, before its loaders are prepared. A job of one worker computes all.

        Raises:
            ConfigError: The number of workers is not a multiple, or something is prepared for another number.
        """
        n_workers = self.script.n_workers
        if self._asked_stages == n_stages:
            return
        if self._asked_stages is not None:
            raise ConfigError(
                f"stages = {n_stages}, and the loader was prepared for {self._asked_stages}: give "
                "prepare_loader and prepare the same stages"
            )
        if self.loaders and n_stages > 1 and n_workers > 1:
            raise ConfigError(
                f"prepare: stages = {n_stages}: the loader was divided between all workers, and the workers "
                "of a pipeline need the same batches: call prepare_loader(loader, stages=...) with the same "
                "stages"
            )
        if n_workers > 1 and n_workers % n_stages:
            raise ConfigError(
                f"{n_workers} workers with {n_stages} stages: the number of workers must be a multiple of "
                f"{n_stages}, or 1 for a worker that computes all stages"
            )
        self._asked_stages = n_stages
        self.n_stages = n_stages if n_workers > 1 else 1

    @property
    def asks_stages(self) -> bool:
        """True if a loader or model is prepared for stages."""
        return self._asked_stages is not None

    @property
    def pipeline(self) -> int:
        """Number of this worker's pipeline, whose workers compute all stages; its index without stages."""
        return self.script.rank // self.n_stages

    @property
    def n_pipelines(self) -> int:
        """Number of pipelines: parts of the data. The number of workers without stages."""
        return self.script.n_workers // self.n_stages

    def restore(self, kind: str, part: Restored) -> None:
        """Add a part whose place is in the cursor; `kind` and its number in the script name it there."""
        number = sum(name.startswith(f"{kind} ") for name in self._restored)
        self._restored[f"{kind} {number}"] = part

    def add_loader(self, loader: PlacedLoader) -> None:
        """Add a loader, whose place is in the cursor."""
        self.restore("loader", loader)
        self.loaders.append(loader)

    def loader_positions(self) -> dict[str, Any]:
        """Return the places of the loaders, as in the cursor."""
        parts = self._restored.items()
        return {name: part.position() for name, part in parts if part in self.loaders}

    def begin_epoch(self, loader: PlacedLoader) -> None:
        """Let the scheduler compare the steps that the workers have made before an epoch of a loader."""
        number = self.loaders.index(loader)
        name = f" of loader {number}" if len(self.loaders) > 1 else ""
        place, steps = f"the beginning of epoch {loader.epoch}{name}", self.steps
        rates = self.newest_rates if self.skips.is_decided else ""
        self.skips.when_decided(lambda n: self.script.compare_steps(place, steps + n, rates))

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
    def has_loaders(self) -> bool:
        """True if a loader was prepared."""
        return bool(self.loaders)

    @property
    def has_parts(self) -> bool:
        """True if a model was prepared."""
        return bool(self._opened)

    @property
    def newest_rates(self) -> str:
        """The newest hyperparameters as text, which the scheduler compares; "": unknown."""
        return self.skips.rates

    @property
    def n_optimizers(self) -> int:
        """Number of prepared optimizers."""
        return sum(name.startswith("optimizer ") for name in self._restored)

    def open(self, worker: Worker) -> None:
        """Let all parts take their handles."""
        self.script.before_unmap(self.devices.close)
        super().open(worker)

    def arrive(self, is_there: bool = False) -> None:
        """Continue at the cursor, if all loaders are at their places for the first time.

        Args:
            is_there: They are, though their iteration may not have begun.
        """
        if self._waits and (is_there or all(loader.has_arrived for loader in self.loaders)):
            for name, position in self._coming.items():
                self._restored[name].resume(position)
            self._coming.clear()
            self._waits = False
            self.loops.restore()
            self.begin_step(self.start())

    def push(self, pushed: Sequence[Pushed], buffers: Sequence[Pushed]) -> None:
        """Push what a step has brought. Not collective; blocks only while a ring is full.

        Args:
            pushed: Layers that may have something to push; the same order on all workers.
            buffers: Buffers, which are pushed when the clock ends: the script may change them until then.
        """
        for part in pushed:
            part.push()
        self._buffers = buffers
        self.note_step()

    def warn_of_late_changes(self) -> None:
        """Warn if a scheduler or a state of the script was changed after the clock of its step had ended.

        Called behind a batch with a step, before the next batch.
        """
        if not self.is_open:
            self.loops.warn_if_late()
            for part in self._restored.values():
                if isinstance(part, SchedulerState):
                    part.warn_if_late()

    def epochs(self, n: int, states: list[LoopState]) -> Epochs:
        """Return the script's next loop over epochs. The job has started."""
        loop = self.loops.make(n, states, self.loaders, self)
        self.schedules.n_epochs = n
        # Loaders whose place is in an epoch that is complete do not wait for their next iteration.
        self.arrive()
        return loop

    def start_cursor(self) -> Mapping[str, Any]:
        """Return this worker's cursor; with loaders, that of the one farthest behind of other workers.

        Loaders divide what other workers have left; the rest continues as that one was.
        """
        others = [one.cursor for one in self.script.other_workers] if self.loaders else []
        begun = [cursor for cursor in others if cursor]
        return min(begun, key=itemgetter("steps")) if begun else self.script.cursor

    def position(self) -> dict[str, Any]:
        """Return the steps, the number of workers and the places of all parts."""
        places = {name: part.position() for name, part in self._restored.items()}
        stages: dict[str, Any] = {"stages": self.n_stages} if self.n_stages > 1 else {}
        if self.stages_choice is not None:
            stages[CURSOR_ENTRY] = entry_of(self.stages_choice)
        return {
            "workers": self.script.n_workers,
            **stages,
            **super().position(),
            **places,
            **self.loops.position(),
        }

    def resume(self, cursor: Mapping[str, Any]) -> None:
        """Set the steps and the places of all parts."""
        names = [name for name in cursor if name not in _OWN_NAMES]
        if set(names) != set(self._restored):
            raise ConfigError(
                f"the checkpoint is of a script that prepared {', '.join(names) or 'nothing'}; this one "
                f"prepares {', '.join(self._restored) or 'nothing'}: use the same script, or resume='never'"
            )
        super().resume(cursor)
        start = self.start().start
        states = self.script.other_workers or (start.workers if start is not None else ())
        # The workers of a pipeline are at one place in its part of the data.
        everyone = [one.cursor for one in states][:: cursor.get("stages", 1)] or [dict(cursor)]
        for name, part in self._restored.items():
            position = cursor[name]
            if part in self.loaders:
                part.resume_among(position, [one.get(name, {}) for one in everyone])
                continue
            if self.loaders:
                self._coming[name] = position
            part.resume(position)
        self._waits = bool(self.loaders)
        # In another number of workers, one without a cursor is at the beginning of the run.
        if "epochs" in cursor and (not self.script.other_workers or all(everyone)):
            self.loops.resume(cursor["epochs"])

    def before_clock(self) -> None:
        """Push the buffers."""
        for buffer in self._buffers:
            buffer.push()

    def begin_step(self, worker: Worker) -> None:
        """Seed the generators of the next step."""
        reseed(worker.seed, self.pipeline, self.steps)

    def end(self) -> None:
        """End what the script has left open; let the scheduler compare the steps of all workers."""
        self.skips.end()
        self.loops.check_end()
        super().end()


def steps() -> int:
    """Return the number of steps that this worker has made since the beginning of the run.

    After a restart a script without a prepared loader skips the data of that many steps. The call starts the
    job, so the first one is collective over all ranks and blocks. It ends the clock of the newest step: call
    it after a step if the script then waits for other workers in a way of its own.

    Raises:
        ConfigError: `mpips.init` has not been called.
    """
    return TorchJob.of_script("mpips.torch.steps").settled_steps()


def epochs(n: int, *, state: Any = None) -> Epochs:
    """Return an iterator over the epochs 0 to n - 1, after a restart over those that are left.

    Use it in place of `range(n)` around the loop over a prepared loader. A restart yields the epoch in which
    the run was, whose loader yields the rest of its batches, and the epochs behind it; it does not run the
    code of complete epochs again. The call starts the job, so the first one is collective over all ranks and
    blocks; call it after `prepare`. A script may have several such loops one after the other. `len` of the
    iterator is the number of epochs that it has not yielded.

    A job that ends behind the last step of an epoch and before the first one of the next runs the code
    between them again: this epoch is yielded, without batches. `state` is then that of before this code.

    Args:
        n: Number of epochs, 0 or more; all of them, also after a restart.
        state: Values of the script that a restart needs, such as the best loss, an EarlyStopping or a
            GradScaler: a dict with text as keys, an object with the methods state_dict and load_state_dict,
            or a list of such. The values are numbers, text, None, and lists and dicts of them. Restarts set
            it in place to that of the newest step: in this call, and when the loader begins. Each worker has
            its own; in a job with another number of workers all get that of the worker farthest behind.

    Raises:
        ConfigError: An argument is not accepted; `prepare` has not been called; a scheduler of the optimizer
            was not given to it; another such loop has not ended; or the checkpoint is of another script.
    """
    job = TorchJob.of_script("mpips.torch.epochs")
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
        raise ConfigError(f"mpips.torch.epochs: n = {n!r}: must be an integer, 0 or more")
    given = state if isinstance(state, list | tuple) else [state] * (state is not None)
    states = [LoopState(one) for one in given]
    if not job.has_parts:
        raise ConfigError(
            "mpips.torch.epochs comes before mpips.torch.prepare, and starts the job: prepare the model first"
        )
    job.schedules.check_given()
    job.start()
    return job.epochs(int(n), states)
