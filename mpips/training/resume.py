"""What a training job starts from and where it saves to, by its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mpips.checkpoint import Manifest, Retention, WorkerState, open_checkpoint
from mpips.checkpoint.start import Start, check_start, find_start
from mpips.config.schema import JobConfig
from mpips.config.triggers import Triggers
from mpips.data import Cursor, DataInfo, Dataset, DenseData, Sampling, Shape
from mpips.errors import ConfigError
from mpips.monitor.progress import plural
from mpips.recovery.saving import Saving

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.training.epochs import Inputs


@dataclass
class TrainingPlan:
    """What a training job saves and starts from, by its configuration; see SavingPlan.

    Attributes:
        config: The job.
        inputs: Told the place where the job starts.
        n_workers: Of the job.
        comm: All ranks; None: this process alone.
        run_id: Names the run in its checkpoints, if it does not continue another one.
    """

    config: JobConfig
    inputs: Inputs
    n_workers: int
    comm: MPI.Intracomm | None
    run_id: str

    def draft(self) -> Saving:
        """Return what is saved, without a checkpoint to start from. Local."""
        return self._saving(Start())

    def choose(self) -> Saving:
        """Find the checkpoint to start from and set the place in `inputs`. Collective over `comm`; blocks.

        Raises:
            ConfigError, CheckpointError: The checkpoint that was asked for cannot be used.
        """
        wanted = self.config.checkpoint
        folder = Path(wanted.folder) if wanted.folder else None
        return self._saving(find_start(folder, wanted.resume, self.comm))

    def _saving(self, start: Start) -> Saving:
        wanted, inputs = self.config.checkpoint, self.inputs
        shape = job_shape(inputs, self.n_workers, self.config)
        inputs.sampling = Sampling(shape)
        run_id = self.run_id
        notes: tuple[str, ...] = ()
        beginning: tuple[WorkerState, ...] = ()
        if start.path is not None and start.manifest is not None:
            fit_data(inputs, start.manifest.data, start.path)
            with open_checkpoint(start.path) as checkpoint:
                check_start(checkpoint, inputs.tables)
            run_id = start.manifest.run_id
            inputs.steps_before = start.manifest.step
            how = set_place(inputs, start.manifest.workers, start.manifest.sampling, shape)
            beginning = beginning_of(inputs, start.manifest, self.n_workers)
            notes = (*start.notes, f"starting from {start.path}, {how}")
        return Saving(
            Path(wanted.folder) if wanted.folder else None,
            run_id,
            start.path,
            start.manifest,
            Retention(wanted.keep_last, wanted.keep_every),
            msgspec.to_builtins(self.config),
            inputs.sampling.to_config(),
            Triggers(wanted.every_steps, wanted.every_s, wanted.on_usr1, wanted.grace_s),
            beginning=beginning,
            notes=notes,
            generation=start.generation,
            data=inputs.info.to_config(),
        )


def beginning_of(inputs: Inputs, manifest: Manifest, n_workers: int) -> tuple[WorkerState, ...]:
    """The state of each worker of this job before its first step.

    A checkpoint that is taken before a worker has ended a clock holds this state. Its cursor is one of this
    job's way of reading, while those in the manifest are of the way in which that job read.
    """
    states = []
    for worker in range(n_workers):
        same = len(manifest.workers) == n_workers
        own = manifest.workers[worker] if same else WorkerState(worker=worker, clock=manifest.step)
        at = inputs.cursor(worker)
        cursor: dict[str, Any] = {"epoch": at.epoch, "step": at.step}
        if cursor.items() <= own.cursor.items():
            cursor = own.cursor  # with what the worker has summed up so far
        states.append(msgspec.structs.replace(own, epoch=at.epoch, step=at.step, cursor=cursor))
    return tuple(states)


def fit_data(inputs: Inputs, described: dict[str, Any], where: Path) -> None:
    """Bring the data's columns into the order of those that a checkpoint was trained on. Local.

    Args:
        inputs: To be changed.
        described: As the checkpoint's manifest has it; {} in older ones, which are trusted.
        where: The checkpoint, for errors.

    Raises:
        ConfigError: Columns are missing or new, or classes are others.
    """
    if not described:
        return
    there, here = DataInfo.from_config(described), inputs.info
    if (there.wants, there.labels) != (here.wants, here.labels):
        raise ConfigError(
            f"{where}: was trained on {_label_text(there)}, the training data now has "
            f"{_label_text(here)}: train on data with the same classes, or set checkpoint.resume = 'never'"
        )
    if not there.columns or not here.columns or there.columns == here.columns:
        return
    if set(there.columns) != set(here.columns):
        missing = [name for name in there.columns if name not in here.columns]
        extra = [name for name in here.columns if name not in there.columns]
        raise ConfigError(
            f"{where}: was trained on other columns: the training data now lacks {missing} and has "
            f"{extra} more"
        )
    order = [here.columns.index(name) for name in there.columns]
    inputs.info = replace(here, columns=there.columns)
    if here.kind == "dense":
        inputs.train, inputs.test = (_reorder(data, order) for data in (inputs.train, inputs.test))
    if inputs.make_task is not None:
        inputs.task = inputs.make_task(inputs.info)


def _reorder(data: Dataset | None, order: list[int]) -> Dataset | None:
    if not isinstance(data, DenseData):
        return data
    return DenseData(data.x[:, order], data.labels)


def _label_text(info: DataInfo) -> str:
    if info.wants == "targets":
        return "numbers (targets)"
    shown = ", ".join(f"{label:g}" for label in info.labels[:10])
    return f"classes {shown}{', ...' if info.n_classes > 10 else ''}"


def job_shape(inputs: Inputs, n_workers: int, config: JobConfig) -> Shape:
    """Return what decides on the samples of this job's workers and on their order."""
    n_total, seed = inputs.info.n_samples_total, config.cluster.seed
    return Shape.of_job(n_total, n_workers, inputs.batch_size, seed)


def go_on_in_memory(config: JobConfig, inputs: Inputs, saving: Saving, n_workers: int) -> str:
    """Let `inputs` begin where the workers stood in what the launch before has left; says it in words."""
    assert saving.origin is not None
    # The tables have the columns in the order of the launch that began anew.
    fit_data(inputs, saving.origin.data, Path("shared memory"))
    shape = job_shape(inputs, n_workers, config)
    inputs.first_epoch, inputs.cursors = 0, ()
    inputs.sampling = Sampling(shape)
    workers = [place.state for place in saving.places]
    how = set_place(inputs, workers, saving.origin.sampling, shape)
    inputs.steps_before = saving.steps_before
    inputs.clocks = tuple(place.clock for place in saving.places)
    return f"going on in memory at step {saving.steps_before + saving.first_clock}, {how}"


def set_place(
    inputs: Inputs, workers: Sequence[WorkerState], sampling: dict[str, Any], shape: Shape
) -> str:
    """Let `inputs` begin where workers stood; says it in words.

    Args:
        inputs: To be changed.
        workers: As they stood.
        sampling: How their cursors are to be read.
        shape: Of this job.
    """
    cursors = [(w.epoch, w.step) for w in workers]
    inputs.first_epoch = min((epoch for epoch, _ in cursors), default=0)
    done = f"{inputs.first_epoch} of {plural(inputs.n_epochs, 'epoch')} done"
    if not cursors or not sampling:
        return done
    before = Sampling.from_config(sampling)
    inside = max(cursors) > (inputs.first_epoch, 0)
    if before.shape == shape:
        inputs.sampling = before
        inputs.cursors = tuple(Cursor(*cursor) for cursor in cursors)
        return f"{done}, each worker at its step" if inside else done
    if before.shape.n_total != shape.n_total:
        return f"{done}; the data is another, so epoch {inputs.first_epoch + 1} begins anew"
    inputs.sampling = before.after(cursors, shape)
    if not inside:
        return done
    n_left = sum(inputs.sampling.counts(inputs.first_epoch))
    return f"{done}, {n_left} samples of the next one left for {shape.n_workers} workers"
