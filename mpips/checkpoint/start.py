"""The checkpoint from which a job starts: the search for it, and the check that it fits the job's tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mpips.checkpoint.find import find_newest, order
from mpips.checkpoint.manifest import Manifest
from mpips.checkpoint.reader import Checkpoint, open_checkpoint
from mpips.checkpoint.steps import Peers, finish
from mpips.errors import CheckpointError, ConfigError, MpipsError
from mpips.model.common_copy import COMMON
from mpips.model.shared_scales import scale_tables
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpi4py import MPI

RESUME_WORDS = ("auto", "never")
_UNUSED = "shared memory of a launch of another size not used"
_TIMEOUT_S = 300.0  # as in `find_newest`


class Start(msgspec.Struct, frozen=True):
    """The start of a job.

    Attributes:
        path: Folder of a verified checkpoint, or None.
        manifest: Manifest of the checkpoint, if any.
        generation: Least generation number of the job's own checkpoints.
        in_memory: The checkpoint is the run's exchange, in shared memory (mpips.recovery.exchange).
    """

    path: Path | None = None
    manifest: Manifest | None = None
    generation: int = 0
    in_memory: bool = False

    @property
    def name(self) -> str:
        """The source from which the job starts, for people."""
        return "shared memory" if self.in_memory else str(self.path)


def find_start(
    folder: Path | None, resume: str, comm: MPI.Intracomm | None, exchange: Path | None = None
) -> Start:
    """Find and verify the checkpoint from which a job starts. Collective over `comm` if given; blocking.

    The first rank prints a warning for each newer checkpoint that is damaged.

    Args:
        folder: Folder in which "auto" finds the newest undamaged checkpoint; None: nothing is saved.
        resume: "auto", "never", or the path of a checkpoint.
        comm: Ranks that share the reading.
        exchange: The exchange of the run, visible to all ranks; None: it has none. The job starts from it,
            whatever `resume` is, unless a checkpoint in `folder` is newer.

    Raises:
        CheckpointError: The requested checkpoint is damaged or does not exist; or there are checkpoints, but
            all are damaged.
        ConfigError: The folder cannot be read.
    """
    generation = next_generation(folder, comm)
    if exchange is not None and (start := _in_memory(exchange, folder, generation, comm)):
        return start
    if resume == "never" or (resume == "auto" and folder is None):
        return Start(generation=generation)
    if resume == "auto":
        assert folder is not None
        found = find_newest(folder, comm)
        if found.checkpoint is None:
            if found.refused:
                raise CheckpointError(
                    f"no checkpoint in {folder} can be used: {found.refused[0].reason}; check them by "
                    "`mpips ckpt verify`, or start without one by resume = 'never'"
                )
            return Start(generation=generation)
        found.checkpoint.close()
        if comm is None or comm.rank == 0:
            for refusal in found.refused:
                # A warning, which no option silences: the job repeats what it had done since this step.
                line = f"mpips: warning: checkpoint not used: {refusal.reason}"
                say(line)
        return Start(found.checkpoint.path, found.checkpoint.manifest, generation)
    path = Path(resume)
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        return Start(path, checkpoint.manifest, generation)


def _in_memory(
    exchange: Path, folder: Path | None, generation: int, comm: MPI.Intracomm | None
) -> Start | None:
    """Return the start from an exchange; None if it is not complete, or a checkpoint is newer.

    Collective over `comm` if given; blocking. The first rank decides. Checksums are not compared: no memory
    of the run has any.
    """
    mine = ""
    if comm is None or comm.rank == 0:
        places = [place for place in (exchange, folder) if place is not None and place.is_dir()]
        try:
            for refusal in order(exchange).refused:
                say(f"mpips: warning: {_UNUSED}: {refusal.reason}")
            newest = [found for place in places if (found := _newest(place)) is not None]
        except MpipsError:
            # `find_newest` reports what cannot be read.
            newest = []
        # If two are equally new, it is the first one.
        best = max(newest, key=lambda found: found[0], default=None)
        if best is not None and best[1].parent == exchange:
            mine = str(best[1])
    peers = Peers(comm, _TIMEOUT_S, f"looking for shared memory in {exchange}")
    if not (text := finish(peers.exchange(mine))[0]):
        return None
    path, problem, start = Path(text), "", None
    try:
        with open_checkpoint(path) as checkpoint:
            start = Start(path, checkpoint.manifest, generation, in_memory=True)
    except CheckpointError as error:
        problem = str(error)
    problems = [found for found in finish(peers.exchange(problem)) if found]
    if problems and (comm is None or comm.rank == 0):
        say(f"mpips: warning: {_UNUSED}: {problems[0]}")
    return None if problems else start


def _newest(folder: Path) -> tuple[tuple[int, int], Path] | None:
    """Return generation and step of the newest checkpoint in a folder, and its path; None if it has none."""
    for name in order(folder).readable[:1]:
        with open_checkpoint(name.path) as checkpoint:
            return (checkpoint.manifest.generation, name.step), name.path
    return None


def next_generation(folder: Path | None, comm: MPI.Intracomm | None) -> int:
    """Return a generation number greater than that of the newest checkpoint in a folder; 0 without one.

    Collective over `comm` if given; blocking. Without this number, a job that starts without a checkpoint in
    the folder of an earlier job would write checkpoints that count as older ones, and retention would remove
    them at once.

    Raises:
        StallError: Another rank did not come in time.
    """
    found = 0
    if folder is not None and (comm is None or comm.rank == 0):
        # Ignore errors here: `find_newest` raises them if the folder is needed.
        with suppress(ConfigError, CheckpointError):
            for name in order(folder).readable[:1]:
                with open_checkpoint(name.path) as checkpoint:
                    found = checkpoint.manifest.generation + 1
    peers = Peers(comm, _TIMEOUT_S, f"looking for checkpoints in {folder}")
    return int(finish(peers.exchange(found))[0])


def newest_name(folder: Path | None) -> str:
    """Return the name of the checkpoint that was published last, for messages; "none" without one. Local."""
    try:
        return os.readlink(folder / "latest") if folder is not None else "none"
    except OSError:
        return "none"


def absent_scales(checkpoint: Checkpoint, tables: Sequence[Table]) -> set[int]:
    """Return the tables of scales, by index, that begin anew: the run had another codec before. Local."""
    saved = {entry.name: tuple(entry.shape) for entry in checkpoint.manifest.tables}
    found = set()
    for i in scale_tables(tables).values():
        table = tables[i]
        if isinstance(table, DenseTable) and saved.get(table.name) != table.shape:
            found.add(i)
    return found


def check_start(checkpoint: Checkpoint, tables: Sequence[Table]) -> None:
    """Check that a checkpoint contains these tables. Local.

    Raises:
        CheckpointError: A table is missing in the checkpoint.
        ConfigError: A table has another kind, shape or optimizer in the checkpoint.
    """
    absent = absent_scales(checkpoint, tables)
    for i, table in enumerate(tables):
        if i in absent:
            continue
        entry = checkpoint.manifest.table(table.name)
        kind = "dense" if isinstance(table, DenseTable) else "embedding"
        shape = table.shape if isinstance(table, DenseTable) else (table.dim,)
        theirs = entry.shape if entry.kind == "dense" else entry.shape[1:]
        if entry.kind != kind or tuple(theirs) != tuple(shape):
            raise ConfigError(
                f"{checkpoint.path}: table {table.name!r} is {entry.kind} of shape {tuple(theirs)} in the "
                f"checkpoint, but {kind} of shape {tuple(shape)} in this job; use the options with which the "
                "run began (`mpips ckpt show`), or resume = 'never'"
            )
        if isinstance(table, EmbeddingTable) and table.hash_buckets != entry.hash_buckets:
            raise ConfigError(
                f"{checkpoint.path}: table {table.name!r} has hash_buckets = {entry.hash_buckets} in the "
                f"checkpoint, but {table.hash_buckets} in this job: its rows belong to other keys; "
                "use the former, or resume = 'never'"
            )
        names = (*table.optimizer.state_names, *table.optimizer.row_state_names)
        if tuple(state for state in entry.state if state != COMMON) != names:
            raise ConfigError(
                f"{checkpoint.path}: table {table.name!r} has the state of {entry.optimizer['name']}, but "
                f"this job's optimizer is {table.optimizer.name}; use the former, or resume = 'never'"
            )
