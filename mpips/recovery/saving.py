"""The saving and the start of a job: the folder, the checkpoint, and the place of each worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from mpips.checkpoint import Manifest, Retention, WorkerState
from mpips.checkpoint.position import Position
from mpips.checkpoint.reader import Example
from mpips.config.triggers import Triggers
from mpips.recovery.memory import Memory, Place


@dataclass(frozen=True)
class Saving:
    """The saving and the start of a job; equal on all ranks.

    Attributes:
        folder: The run's `checkpoints` folder, or None: nothing is saved.
        run_id: Id of the run in its checkpoints.
        start: Folder of the checkpoint to start from, or None.
        origin: Manifest of `start`; or the state from which the clocks in shared memory count; or None.
        retention: Which older checkpoints stay.
        config: Resolved configuration, as values of JSON.
        sampling: Meaning of the workers' cursors; see `mpips.checkpoint.Manifest`.
        triggers: When checkpoints are taken before the end.
        beginning: State of each worker of this job at its start, where cursors in `origin` have another
            meaning than this job's; empty: the states in `origin` hold.
        places: Place where each worker continues in the shared memory of the launch before; empty: the job
            starts from `start`, or from initial values.
        notes: Messages for the user about the choice of `start`.
        generation: Least generation number of its checkpoints: greater than all numbers in the folder.
        data: Description of the training data; see `mpips.checkpoint.Manifest`.
        attached: Names of the arrays beside the tables that worker 0 sends before its first clock; see
            `mpips.checkpoint.structure.meaning_of`.
        example: Predicts the example of a checkpoint, on server 0; None: checkpoints have none.
        is_exchange: `start` is the run's exchange, in shared memory (mpips.recovery.exchange).
    """

    folder: Path | None
    run_id: str
    start: Path | None = None
    origin: Manifest | Memory | None = None
    retention: Retention = field(default_factory=Retention)
    config: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    triggers: Triggers = field(default_factory=Triggers)
    beginning: tuple[WorkerState, ...] = ()
    places: tuple[Place, ...] = ()
    notes: tuple[str, ...] = ()
    generation: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    attached: tuple[str, ...] = ()
    example: Example | None = None
    is_exchange: bool = False

    @property
    def first_clock(self) -> int:
        """Least number of clocks that a worker's program has ended at its start, in this memory."""
        return min((place.steps for place in self.places), default=0)

    @property
    def steps_before(self) -> int:
        """Steps of the run before this launch."""
        return self.origin.step if self.origin is not None else 0

    @property
    def version_note(self) -> str:
        """A sentence if another version of mpips has written the checkpoint of the start; else ""."""
        if not isinstance(self.origin, Manifest) or self.is_exchange:
            return ""
        from mpips.checkpoint.record import mpips_version

        there, here = self.origin.versions.get("mpips", ""), mpips_version()
        return f"the checkpoint is from mpips {there}, and this is {here}" if there != here else ""

    @property
    def unused_triggers(self) -> str:
        """A sentence on options about checkpoints in a job that writes none; "" without such options."""
        own = self.triggers
        options = {
            "every_steps": own.every_steps,
            "every_s": own.every_s,
            "incremental": own.incremental,
        }
        given = [f"{name} = {value:g}" for name, value in options.items() if value]
        if self.folder is not None or not given:
            return ""
        return (
            f"{' and '.join(given)} without a folder: this job writes no checkpoints; give it one "
            "(save=FOLDER), or start it by `mpips run`"
        )

    def position(self, seed: int, worker: int, n_workers: int) -> Position:
        """Return the position at which a worker starts.

        Args:
            seed: Seed of the job.
            worker: Index of the worker.
            n_workers: Number of workers.
        """
        workers = self.origin.workers if self.origin is not None else ()
        # A worker that has not ended a clock since the memory was created starts as it started then.
        if self.places and not (workers and self.places[worker].at_start):
            states = tuple(place.state for place in self.places)
            place = self.places[worker]
            clock, steps = place.clock, place.steps
            return Position(seed, worker, n_workers, self.steps_before, states, clock, steps=steps)
        begin = self.beginning[worker] if self.beginning else None
        return Position(seed, worker, n_workers, self.steps_before, workers, 0, begin)

    def checkpoint_generation(self, launch: int) -> int:
        """Return the generation number of a launch's checkpoints.

        It is greater than the numbers of all checkpoints that were in the folder when the job started without
        memory, of the checkpoint that it started from, and of the checkpoints of its earlier launches. The
        checkpoint with the greatest number is the newest one of a folder (`mpips.checkpoint.find`).

        Args:
            launch: Generation number of the launch in its run; 0 without a supervisor.
        """
        if isinstance(self.origin, Memory):
            since = launch - self.origin.generation
            return max(self.generation, launch, self.origin.first_checkpoint + since)
        started_from = self.origin.generation if self.origin is not None else -1
        return max(self.generation, launch, started_from + 1)

    def in_memory(
        self, memory: Memory, places: tuple[Place, ...], notes: tuple[str, ...]
    ) -> Saving:
        """Return a copy for a launch that continues in shared memory.

        Args:
            memory: State from which the clocks in shared memory count.
            places: Place of each worker.
            notes: Messages for the user.
        """
        return dataclasses.replace(
            self,
            start=None,
            origin=memory,
            data=memory.data or self.data,
            run_id=memory.run_id,
            sampling=memory.sampling,
            beginning=memory.beginning,
            places=places,
            notes=notes,
            is_exchange=False,
        )


class SavingPlan(Protocol):
    """Decides in two steps what a job saves and from what it starts.

    To verify a checkpoint takes time, which is wasted if the job continues in shared memory.
    """

    def draft(self) -> Saving:
        """Return what is saved, without a checkpoint to start from. Not collective; fast."""

    def choose(self, exchange: Path | None = None) -> Saving:
        """Return what is saved, with the checkpoint to start from. Collective over the job's ranks, blocking.

        Args:
            exchange: The run's exchange, which all ranks see; None: it has none.

        Raises:
            ConfigError: The requested checkpoint does not fit the job.
            CheckpointError: The requested checkpoint cannot be used.
        """


class FixedPlan(msgspec.Struct, frozen=True):
    """A plan that is decided already.

    Attributes:
        saving: Result of both steps.
    """

    saving: Saving

    def draft(self) -> Saving:
        """Return `saving`."""
        return self.saving

    def choose(self, exchange: Path | None = None) -> Saving:
        """Return `saving`."""
        return self.saving
