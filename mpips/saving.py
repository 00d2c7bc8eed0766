"""What a job keeps: the state of its servers as a checkpoint at the end, and where it starts from.

At the end every worker has finished and every ring is empty, so the shards of all servers make one
consistent cut without anybody being stopped for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpips.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    DenseShardData,
    EmbeddingShardData,
    ManifestHead,
    Retention,
    ServerState,
    WorkerState,
    find_newest,
    open_checkpoint,
    retain,
)
from mpips.checkpoint.shards import ShardData, counts_steps
from mpips.errors import CheckpointError, ConfigError, MpipsError
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.placement import Placement
from mpips.server import Server

if TYPE_CHECKING:
    from mpi4py import MPI

RESUME_WORDS = ("auto", "never")


@dataclass(frozen=True)
class Saving:
    """Where a job saves to and what it starts from; the same on every rank.

    Attributes:
        folder: The run's `checkpoints` folder, or None: nothing is saved.
        run_id: Names the run in its checkpoints.
        start: The checkpoint to start from, or None.
        epochs: Epochs that the data cursor stands at when the job ends.
        retention: Which older checkpoints stay.
        config: The resolved configuration, as JSON holds it.
    """

    folder: Path | None
    run_id: str
    start: Path | None = None
    epochs: int = 0
    retention: Retention = field(default_factory=Retention)
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    """What a job starts from: a verified checkpoint or None, and what a user should know of the choice."""

    path: Path | None = None
    notes: tuple[str, ...] = ()


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
    if resume == "never" or (resume == "auto" and folder is None):
        return Start()
    if resume == "auto":
        assert folder is not None
        found = find_newest(folder, comm)
        if found.checkpoint is None:
            if found.refused:
                raise CheckpointError(
                    f"no checkpoint in {folder} can be used: {found.refused[0].reason}; "
                    "start anew with resume = 'never'"
                )
            return Start()
        found.checkpoint.close()
        skipped = tuple(f"not used: {refusal.reason}" for refusal in found.refused)
        return Start(found.checkpoint.path, skipped)
    path = Path(resume)
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
    return Start(path)


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


def shards_of(server: Server, placement: Placement, tables: Sequence[Table]) -> list[ShardData]:
    """Private copies of everything that a server holds."""
    shards: list[ShardData] = []
    core = server.core
    for i, table in enumerate(tables):
        names = table.optimizer.state_names
        if isinstance(table, EmbeddingTable):
            keys, rows = core.embedding_content(i)
            dim = table.dim
            state = {name: rows[:, (1 + k) * dim : (2 + k) * dim] for k, name in enumerate(names)}
            steps = None
            if counts_steps(table):
                steps = np.ascontiguousarray(rows[:, -1]).view(np.uint32)
            shards.append(
                EmbeddingShardData(table.name, keys, rows[:, :dim], state, steps, core.steps(i))
            )
            continue
        part = next((p for p in placement.dense[table.name] if p.server == server.index), None)
        if part is not None:
            dense_state = {name: core.dense_state(i, k) for k, name in enumerate(names)}
            shards.append(
                DenseShardData(
                    table.name, part.start, core.dense_values(i), dense_state, core.steps(i)
                )
            )
    return shards


class Saver:
    """A server's part in saving. Collective over the servers; `save` never raises MpipsError.

    Attributes:
        result: {"path", "bytes", "seconds", "notes"} of what was saved, or {"error"}; None before.
    """

    def __init__(
        self,
        saving: Saving,
        server: Server,
        placement: Placement,
        tables: Sequence[Table],
        n_workers: int,
        comm: MPI.Intracomm | None,
        timeout_s: float,
    ) -> None:
        """`comm`: all servers, in order; None: this process alone."""
        self._saving = saving
        self._server = server
        self._placement = placement
        self._tables = list(tables)
        self._n_workers = n_workers
        self._comm = comm
        self._timeout_s = timeout_s
        self.result: dict[str, Any] | None = None

    def save(self, between: Callable[[], None]) -> None:
        """Write the state of all servers; `between` is called between bounded pieces of work."""
        if self._saving.folder is None:
            return
        try:
            for _ in self._steps(self._saving.folder):
                between()
        except MpipsError as error:
            self.result = {"error": str(error)}

    def _steps(self, folder: Path) -> Iterator[bool]:
        writer = CheckpointWriter(
            self._comm,
            folder,
            self._head(),
            shards_of(self._server, self._placement, self._tables),
            ServerState([self._server.core.applied(w) for w in range(self._n_workers)]),
            timeout_s=self._timeout_s,
        )
        yield from writer.steps()
        info = writer.info
        self.result = {
            "path": str(info.path),
            "bytes": info.n_bytes,
            "seconds": round(info.seconds, 3),
            "notes": list(info.notes),
        }
        if self._server.index == 0:
            retain(folder, self._saving.retention)

    def _head(self) -> ManifestHead:
        core = self._server.core
        clocks = [core.clock(w) for w in range(self._n_workers)]
        generation, before = 0, 0
        if self._saving.start is not None:
            with open_checkpoint(self._saving.start) as checkpoint:
                generation = checkpoint.manifest.generation + 1
                before = checkpoint.manifest.step
        return ManifestHead(
            run_id=self._saving.run_id,
            generation=generation,
            step=before + max(clocks),
            wall_time_s=time.time(),
            tables=self._tables,
            workers=[
                WorkerState(worker=w, clock=clock, epoch=self._saving.epochs)
                for w, clock in enumerate(clocks)
            ],
            config=self._saving.config,
        )
