"""The plan of a job's saving: the folder, the start, and where each worker continues."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mpips.checkpoint import Manifest, Retention, WorkerState
from mpips.checkpoint.position import Position
from mpips.config.triggers import Triggers
from mpips.recovery.memory import Memory, Place


@dataclass(frozen=True)
class Saving:
    """Where a job saves to and what it starts from; the same on every rank.

    Attributes:
        folder: The run's `checkpoints` folder, or None: nothing is saved.
        run_id: Names the run in its checkpoints.
        start: The checkpoint to start from, or None.
        origin: Its manifest; or what the clocks in shared memory count from.
        retention: Which older checkpoints stay.
        config: The resolved configuration, as JSON holds it.
        sampling: How the workers' cursors are to be read; see `mpips.checkpoint.Manifest`.
        data: The description of the training data; see `mpips.checkpoint.Manifest`.
        triggers: When there are checkpoints before the end.
        beginning: The state at its start of each worker of this job, where cursors of `origin` are to be
            read in another way than this job's; empty: the states in `origin`.
        places: Where each worker goes on in what the launch before has left in shared memory; empty: the
            job begins anew, or from `start`.
        notes: What a user should know of the choice of `start`.
        generation: Of its checkpoints, at least: newer than what lies in the folder.
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

    @property
    def first_clock(self) -> int:
        """The least clock that a worker begins at."""
        return min((place.clock for place in self.places), default=0)

    @property
    def steps_before(self) -> int:
        """Steps of the run before this launch."""
        return self.origin.step if self.origin is not None else 0

    def position(self, seed: int, worker: int, n_workers: int) -> Position:
        """Where a worker starts."""
        workers = self.origin.workers if self.origin is not None else ()
        # A worker that has ended no clock since the launch that began anew starts as it did there.
        if self.places and not (workers and self.places[worker].at_start):
            states = tuple(place.state for place in self.places)
            clock = self.places[worker].clock
            return Position(seed, worker, n_workers, self.steps_before, states, clock)
        begin = self.beginning[worker] if self.beginning else None
        return Position(seed, worker, n_workers, self.steps_before, workers, 0, begin)

    def checkpoint_generation(self, launch: int) -> int:
        """Return the generation number of a launch's checkpoints.

        It is greater than that of every checkpoint that was in the folder when the job began anew, of the
        one that it started from, and of those of its earlier launches: the newest checkpoint of a folder is
        the one with the greatest (`mpips.checkpoint.find`).

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
        """The same for a launch that goes on in shared memory, whose clocks count as `memory` says."""
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
        )


class SavingPlan(Protocol):
    """A job's saving in two steps: verifying a checkpoint takes time, and memory may make it needless."""

    def draft(self) -> Saving:
        """Return what is saved, without a checkpoint to start from. Local and quick."""

    def choose(self) -> Saving:
        """Return the same with the checkpoint to start from. Collective over the job's ranks; blocks.

        Raises:
            ConfigError, CheckpointError: The checkpoint that was asked for cannot be used.
        """


@dataclass(frozen=True)
class FixedPlan:
    """A plan that is decided already.

    Attributes:
        saving: What both steps return.
    """

    saving: Saving

    def draft(self) -> Saving:
        """Return `saving`."""
        return self.saving

    def choose(self) -> Saving:
        """Return `saving`."""
        return self.saving
