"""The checkpoint that a job starts from: which one, and whether it holds the job's tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mpips.checkpoint.find import find_newest, order
from mpips.checkpoint.manifest import Manifest
from mpips.checkpoint.reader import Checkpoint, open_checkpoint
from mpips.checkpoint.steps import Peers, finish
from mpips.errors import CheckpointError, ConfigError
from mpips.model.table import DenseTable, Table

if TYPE_CHECKING:
    from mpi4py import MPI

RESUME_WORDS = ("auto", "never")
_TIMEOUT_S = 300.0  # as for looking through the checkpoints themselves


@dataclass(frozen=True)
class Start:
    """The start of a job: a verified checkpoint or None, and notes for the user on the choice."""

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
        # A folder that is needed is read again, and its error raised, by `find_newest`.
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
