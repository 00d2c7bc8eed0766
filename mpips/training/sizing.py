"""Samples of a batch and tables of a task, for any number of workers: a task may choose by it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mpips.checkpoint import Manifest, open_checkpoint
from mpips.checkpoint.find import order
from mpips.config.overrides import apply_overrides
from mpips.config.schema import JobConfig
from mpips.data import Sampling
from mpips.data.words import SCALED, TEXTS
from mpips.errors import MpipsError
from mpips.model.consistency import common_reduction
from mpips.model.local_sgd import Local
from mpips.model.partition import FrequencyPartition
from mpips.model.table import Table
from mpips.mpi.one_rank import Ranks
from mpips.tasks import Schedule, Task


class Sizing(msgspec.Struct, frozen=True):
    """The settings that determine batches and tables of a job, with its task and its number of workers.

    Attributes:
        config: The job.
        n_epochs: Epochs of the run.
        measured: Frequencies of the keys of the training data, for tables that are partitioned by them.
        earlier: Workers, and samples of a batch of each, of the job whose checkpoint this job starts from;
            None: there is no such job, or the configuration sets train.batch_size.
        chosen: Samples of a batch that the task has chosen by the data; None: it has not.
    """

    config: JobConfig
    n_epochs: int
    measured: FrequencyPartition | None = None
    earlier: tuple[int, int] | None = None
    chosen: int | None = None

    def batch_size(self, task: Task, n_workers: int) -> int:
        """Return the samples of a step of one worker.

        Where the job sets none, it has those that the task has chosen by the data; else it keeps those of the
        checkpoint: a task may choose others for more epochs. With another number of workers the task chooses
        anew.
        """
        if self.config.train.batch_size:
            return self.config.train.batch_size
        if self.chosen is not None:
            return self.chosen
        if self.earlier is not None and self.earlier[0] == n_workers:
            return self.earlier[1]
        return self.suitable(task, n_workers)

    def suitable(self, task: Task, n_workers: int) -> int:
        """Return the samples of a step of one worker that the task would choose."""
        if not hasattr(task, "suitable_batch_size"):
            return task.default_batch_size
        return task.suitable_batch_size(n_workers, self.n_epochs)

    def note(self, task: Task, n_workers: int) -> list[str]:
        """Return a sentence about a batch size that is kept but that the task would not choose; or none."""
        size, suitable = self.batch_size(task, n_workers), self.suitable(task, n_workers)
        if self.config.train.batch_size or self.chosen is not None or size == suitable:
            return []
        return [
            f"{size} samples per batch, as in the checkpoint; a new run would have {suitable} "
            "(train.batch_size)"
        ]

    def tables(self, task: Task, n_workers: int) -> list[Table]:
        """Return the task's tables for a run of this length, with the overrides of the configuration."""
        tables = apply_overrides(task.tables(), self.config, self.measured)
        if not hasattr(task, "schedule") or type(task).schedule is Task.schedule:
            return tables
        # Let the task adapt its learning rates to the length of the run, then take its tables again.
        averaged = frozenset(
            table.name
            for table in tables
            if isinstance(table.consistency, Local) or common_reduction(table.consistency) == "mean"
        )
        size = self.batch_size(task, n_workers)
        task.schedule(Schedule(self.n_epochs, size, n_workers, averaged))
        return apply_overrides(task.tables(), self.config, self.measured)


def earlier_batches(ranks: Ranks, config: JobConfig) -> tuple[int, int] | None:
    """Return `Sizing.earlier`. Collective over the ranks; blocks."""
    if config.train.batch_size or not _may_start(config):
        return None

    def look() -> tuple[int, int] | None:
        manifest = start_manifest(config) if ranks.is_scheduler else None
        if manifest is None or not manifest.sampling:
            return None
        try:
            shape = Sampling.from_config(dict(manifest.sampling)).shape
        except (MpipsError, msgspec.ValidationError):
            return None
        return shape.n_workers, shape.batch_size

    rows = ranks.agree("looking for a checkpoint", look, True)
    found = next((row for row in rows if row is not None), None)
    return (found[0], found[1]) if found is not None else None


def earlier_words(ranks: Ranks, config: JobConfig) -> int:
    """Return the rule for words (`mpips.data.words`) of a job: that of the checkpoint that it starts from.

    Collective over the ranks; blocks.
    """
    if not _may_start(config):
        return SCALED

    def look() -> int | None:
        manifest = start_manifest(config) if ranks.is_scheduler else None
        if manifest is None or not manifest.data:
            return None
        return int(manifest.data.get("words", TEXTS))

    rows = ranks.agree("looking for the words of a checkpoint", look, True)
    return next((row for row in rows if row is not None), SCALED)


def _may_start(config: JobConfig) -> bool:
    """Return True if a job may start from a checkpoint."""
    wanted = config.checkpoint
    return wanted.resume != "never" and (wanted.resume != "auto" or bool(wanted.folder))


def start_manifest(config: JobConfig) -> Manifest | None:
    """Return the manifest of the checkpoint that a job will probably start from; None: none was found. Local.

    `find_start` verifies the start later and raises its errors. If the newest checkpoint is damaged, it takes
    the one before it, most likely of the same shape; if not, the epoch goes on in a new order.
    """
    if not _may_start(config):
        return None
    wanted = config.checkpoint
    try:
        if wanted.resume == "auto":
            newest = order(Path(wanted.folder)).readable[:1]
            if not newest:
                return None
            path = newest[0].path
        else:
            path = Path(wanted.resume)
        with open_checkpoint(path) as checkpoint:
            return checkpoint.manifest
    except (MpipsError, msgspec.ValidationError):
        return None
