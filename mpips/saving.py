"""What a job keeps, and where it starts from."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpips.checkpoint import (
    Checkpoint,
    Manifest,
    Retention,
    WorkerState,
    find_newest,
    open_checkpoint,
)
from mpips.checkpoint.find import order
from mpips.checkpoint.steps import Peers, finish
from mpips.cuts.position import Position
from mpips.cuts.triggers import Triggers
from mpips.errors import CheckpointError, ConfigError
from mpips.memory import Memory, Place
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.placement import Placement
from mpips.server import Server

if TYPE_CHECKING:
    from mpi4py import MPI

RESUME_WORDS = ("auto", "never")
_TIMEOUT_S = 300.0  # as for looking through the checkpoints themselves


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


@dataclass(frozen=True)
class Start:
    """What a job starts from: a verified checkpoint or None, and what a user should know of the choice."""

    path: Path | None = None
    notes: tuple[str, ...] = ()
    manifest: Manifest | None = None
    generation: int = 0


def find_start(folder: Path | None, resume: str, comm: MPI.Intracomm | None) -> Start:
    """The checkpoint that a job starts from. Collective over `comm` if given; blocking.

    Args:
        folder: Where "auto" looks for the newest good one.
        resume: "auto", "never", or the path of a checkpoint.
        comm: Ranks that share the reading.

    Raises:
        CheckpointError: The checkpoint that was asked for is damaged or none.
        ConfigError: The folder cannot be read.
    """
    generation = next_generation(folder, comm)
    if resume == "never" or (resume == "auto" and folder is None):
        return Start(generation=generation)
    if resume == "auto":
        assert folder is not None
        found = find_newest(folder, comm)
        if found.checkpoint is None:
            if found.refused:
                raise CheckpointError(
                    f"no checkpoint in {folder} can be used: {found.refused[0].reason}; "
                    "start anew with resume = 'never'"
                )
            return Start(generation=generation)
        found.checkpoint.close()
        skipped = tuple(f"not used: {refusal.reason}" for refusal in found.refused)
        return Start(found.checkpoint.path, skipped, found.checkpoint.manifest, generation)
    path = Path(resume)
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        return Start(path, (), checkpoint.manifest, generation)


def next_generation(folder: Path | None, comm: MPI.Intracomm | None) -> int:
    """One more than that of the newest checkpoint in a folder; 0: there is none.

    Without it a job that begins anew in a folder of an earlier one would write what counts as older, and
    is removed at once. Collective over `comm` if given.

    Raises:
        StallError: Another rank did not come.
    """
    found = 0
    if folder is not None and (comm is None or comm.rank == 0):
        # What is wrong with the folder is said by whoever cannot do without it.
        with suppress(ConfigError, CheckpointError):
            for name in order(folder).readable[:1]:
                with open_checkpoint(name.path) as checkpoint:
                    found = checkpoint.manifest.generation + 1
    peers = Peers(comm, _TIMEOUT_S, f"looking for checkpoints in {folder}")
    return int(finish(peers.exchange(found))[0])


def newest_name(folder: Path | None) -> str:
    """The newest checkpoint of a folder, in a word for people; local, cheap, no file is opened."""
    try:
        return os.readlink(folder / "latest") if folder is not None else "none"
    except OSError:
        return "none"


def check_start(checkpoint: Checkpoint, tables: Sequence[Table]) -> None:
    """Refuse a checkpoint that does not hold these tables. Local.

    Raises:
        ConfigError: Names the table, what the checkpoint has and what the job has.
    """
    for table in tables:
        entry = checkpoint.manifest.table(table.name)
        kind = "dense" if isinstance(table, DenseTable) else "embedding"
        shape = table.shape if isinstance(table, DenseTable) else (table.dim,)
        theirs = entry.shape if entry.kind == "dense" else entry.shape[1:]
        if entry.kind != kind or tuple(theirs) != tuple(shape):
            raise ConfigError(
                f"{checkpoint.path}: table {table.name!r} is {entry.kind} of shape {tuple(theirs)} "
                f"there, here it is {kind} of shape {tuple(shape)}"
            )
        names = tuple(table.optimizer.state_names)
        if tuple(entry.state) != names:
            raise ConfigError(
                f"{checkpoint.path}: table {table.name!r} has the state of {entry.optimizer['name']} "
                f"there; this job's optimizer is {table.optimizer.name}"
            )


def restore(server: Server, placement: Placement, tables: Sequence[Table], start: Path) -> None:
    """Fill a server's shards from a checkpoint, whatever shape of job wrote it. Local, blocking.

    Raises:
        CheckpointError: It cannot be read.
        ConfigError: It does not hold these tables.
        RegionError: /dev/shm is too small for its rows.
    """
    with open_checkpoint(start) as checkpoint:
        check_start(checkpoint, tables)
        for i, table in enumerate(tables):
            entry = checkpoint.manifest.table(table.name)
            server.core.set_steps_before(i, entry.version)
            if isinstance(table, EmbeddingTable):
                _restore_rows(server, checkpoint, i, table, placement)
                continue
            part = next((p for p in placement.dense[table.name] if p.server == server.index), None)
            if part is None:
                continue
            values, state = checkpoint.read_dense(table.name, part.start, part.stop)
            server.core.set_dense(i, values)
            for slot, name in enumerate(table.optimizer.state_names):
                server.core.set_dense_state(i, slot, state[name])


def _restore_rows(
    server: Server, checkpoint: Checkpoint, i: int, table: EmbeddingTable, placement: Placement
) -> None:
    partitioner = placement.partitioners[table.name]
    blocks = checkpoint.iter_rows(table.name, partitioner, server.index)
    while True:
        try:
            block = next(blocks, None)
        except KeyError as error:
            raise ConfigError(
                f"{checkpoint.path}: table {table.name!r}: {error.args[0]}; choose a partition that "
                "takes all keys of the checkpoint"
            ) from None
        if block is None:
            return
        columns = [block.values, *(block.state[name] for name in table.optimizer.state_names)]
        if block.steps is not None:
            columns.append(block.steps.view(np.float32).reshape(-1, 1))
        server.core.load_rows(i, block.keys, np.ascontiguousarray(np.hstack(columns)))
