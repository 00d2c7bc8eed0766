"""Choose the checkpoint that a training job starts from, and the place of each worker in the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mpips.checkpoint import Manifest, Retention, WorkerState, open_checkpoint
from mpips.checkpoint.start import Start, check_start, find_start
from mpips.config.schema import JobConfig
from mpips.config.sections import DataConfig
from mpips.config.triggers import Triggers
from mpips.data import Cursor, DataInfo, Dataset, DenseData, Moments, Sampling, Shape
from mpips.data.holdout import Holdout
from mpips.data.stream import StreamedData
from mpips.errors import ConfigError
from mpips.model.served import served
from mpips.monitor.progress import plural
from mpips.recovery.saving import Saving
from mpips.tasks import Task, load_task
from mpips.training import words
from mpips.training.example import ExampleMaker, names_of
from mpips.training.own_data import check_vocabulary
from mpips.training.preflight import task_options

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.training.epochs import Inputs


class TrainingPlan(msgspec.Struct):
    """The saving plan of a training job, from its configuration; see `mpips.recovery.saving.SavingPlan`.

    Attributes:
        config: The job.
        inputs: Its data; `choose` writes the place where the job starts into it.
        n_workers: Number of workers.
        comm: Communicator of all ranks; None: this process alone.
        run_id: Name of the run in its checkpoints, unless it continues another one.
    """

    config: JobConfig
    inputs: Inputs
    n_workers: int
    comm: MPI.Intracomm | None
    run_id: str

    def draft(self) -> Saving:
        """Return the options of saving, without a checkpoint to start from. Local."""
        return self._saving(Start())

    def choose(self, exchange: Path | None = None) -> Saving:
        """Find the checkpoint to start from and set the place in `inputs`. Collective over `comm`; blocks.

        Args:
            exchange: The run's exchange; see SavingPlan.

        Raises:
            ConfigError, CheckpointError: The requested checkpoint cannot be used.
        """
        wanted = self.config.checkpoint
        folder = Path(wanted.folder) if wanted.folder else None
        return self._saving(find_start(folder, wanted.resume, self.comm, exchange))

    def _saving(self, start: Start) -> Saving:
        """Return the options of saving with a start, and set its place in `inputs`."""
        wanted, inputs = self.config.checkpoint, self.inputs
        shape = job_shape(inputs, self.n_workers, self.config)
        inputs.sampling = Sampling(shape)
        inputs.saves = bool(wanted.folder)
        run_id = self.run_id
        notes: tuple[str, ...] = ()
        beginning: tuple[WorkerState, ...] = ()
        if start.path is not None and start.manifest is not None:
            fit_data(inputs, start.manifest.data, start.path)
            check_holdout(self.config, start.manifest.config, start.path)
            with open_checkpoint(start.path) as checkpoint:
                check_start(checkpoint, served(inputs.tables))
            run_id = start.manifest.run_id
            inputs.steps_before = start.manifest.step
            how = set_place(inputs, start.manifest.workers, start.manifest.sampling, shape)
            beginning = beginning_of(inputs, start.manifest, self.n_workers)
            notes = (f"starting from {start.name}, {how}",)
        return Saving(
            Path(wanted.folder) if wanted.folder else None,
            run_id,
            start.path,
            start.manifest,
            Retention(wanted.keep_last, wanted.keep_every),
            msgspec.to_builtins(self.config),
            inputs.sampling.to_config(),
            Triggers(
                wanted.every_steps,
                wanted.every_s,
                wanted.on_usr1,
                wanted.grace_s,
                wanted.incremental,
                wanted.compact,
            ),
            beginning=beginning,
            notes=notes,
            generation=start.generation,
            data=inputs.info.to_config(),
            attached=(
                *_moments(inputs.info),
                *inputs.info.arrays,
                *names_of(inputs.info),
                *words.names_of(inputs.info),
            ),
            example=self._example() if names_of(inputs.info) else None,
            is_exchange=start.in_memory,
        )

    def _example(self) -> ExampleMaker:
        """Return what predicts the example of checkpoints, with a task of its own."""
        inputs, config = self.inputs, self.config

        def source() -> tuple[Task, DataInfo]:
            # A start in memory may still change the order of columns, so look when it is needed.
            kind = load_task(config.task)
            options = task_options(kind, config.options)
            return kind(inputs.info, options, config.cluster.seed), inputs.info

        return ExampleMaker(source, config.cluster.seed)


def _moments(info: DataInfo) -> tuple[str, ...]:
    """Return the paths of the moments of such data in checkpoints."""
    return tuple(Moments.empty(info.n_features, info.n_fields, info.n_targets).to_arrays())


def beginning_of(inputs: Inputs, manifest: Manifest, n_workers: int) -> tuple[WorkerState, ...]:
    """Return the state of each worker of this job before its first step.

    A checkpoint contains this state if it is taken before the worker has ended a clock. The cursors in it
    belong to the order in which this job reads the data; those in the manifest belong to the order of the
    job that wrote it.
    """
    states = []
    for worker in range(n_workers):
        same = len(manifest.workers) == n_workers
        own = manifest.workers[worker] if same else WorkerState(worker=worker, clock=manifest.step)
        at = inputs.cursor(worker)
        cursor: dict[str, Any] = {"epoch": at.epoch, "step": at.step}
        if cursor.items() <= own.cursor.items():
            cursor = own.cursor  # contains the summed loss of the epoch so far as well
        states.append(msgspec.structs.replace(own, epoch=at.epoch, step=at.step, cursor=cursor))
    return tuple(states)


def fit_data(inputs: Inputs, described: dict[str, Any], where: Path) -> None:
    """Bring the columns of the data into the order of those that a checkpoint was trained on. Local.

    Args:
        inputs: Its data and task are replaced.
        described: Description of the data in the checkpoint's manifest; {} in older ones: nothing is
            checked.
        where: The checkpoint, for errors.

    Raises:
        ConfigError: Columns are missing or new, or the classes differ.
    """
    if not described:
        return
    there, here = DataInfo.from_config(described), inputs.info
    if (there.wants, there.labels, there.label_names) != (
        here.wants,
        here.labels,
        here.label_names,
    ):
        raise ConfigError(
            f"{where}: was trained on {_label_text(there)}, the training data now has "
            f"{_label_text(here)}: train on data with the same classes, or set checkpoint.resume = 'never'"
        )
    if "own" in (there.kind, here.kind):
        check_vocabulary(here, there, where)
        return
    if not there.columns or not here.columns or there.columns == here.columns:
        return
    if set(there.columns) != set(here.columns):
        missing = [name for name in there.columns if name not in here.columns]
        extra = [name for name in here.columns if name not in there.columns]
        raise ConfigError(
            f"{where}: was trained on other columns: the training data now lacks {missing} and has "
            f"{extra} more; train on data with the same columns, or set checkpoint.resume = 'never'"
        )
    order = [here.columns.index(name) for name in there.columns]
    inputs.info = replace(here, columns=there.columns)
    inputs.train, inputs.test = (_reorder(data, order) for data in (inputs.train, inputs.test))
    if inputs.final_test is not None:
        inputs.final_test.data = _reorder(inputs.final_test.data, order)
    if inputs.make_task is not None:
        inputs.task = inputs.make_task(inputs.info)


def check_holdout(config: JobConfig, there: Mapping[str, Any], where: Path) -> None:
    """Check that a job holds out the samples that the job of a checkpoint held out.

    Args:
        config: The job.
        there: Configuration in the checkpoint's manifest.
        where: The checkpoint, for errors.

    Raises:
        ConfigError: It does not: samples that the model was trained on would be evaluated.
    """
    data = there.get("data", {})
    seed = there.get("cluster", {}).get("seed", config.cluster.seed)
    names = ("validation", "folds", "fold")
    before = DataConfig(**{name: data[name] for name in names if name in data}).holdout(seed)
    own = config.data.holdout(config.cluster.seed)
    if own != before:
        had, has = (_held_text(one, s) for one, s in ((before, seed), (own, config.cluster.seed)))
        raise ConfigError(
            f"{where}: was trained with {had}, this job has {has}, so samples would be evaluated that were "
            "trained on: use the same values, or set checkpoint.resume = 'never'"
        )


def _held_text(holdout: Holdout | None, seed: int) -> str:
    """Return the options of a division of samples."""
    option = holdout.option if holdout is not None else "data.validation = 0"
    return f"{option} and cluster.seed = {seed}"


def _restore_watch(inputs: Inputs, workers: Sequence[WorkerState], in_place: bool) -> None:
    """Restore the state of early stopping, and the evaluation that may be missing.

    Args:
        inputs: Its state and `unevaluated` are set.
        workers: States of the workers of the earlier job.
        in_place: Each worker begins where it stood.
    """
    # The worker that is farthest ahead knows of the most evaluations.
    ahead = max(workers, key=lambda w: (w.epoch, w.step))
    if inputs.stopping is not None:
        inputs.stopping.restore(ahead.cursor)
    together = all((w.epoch, w.step) == (ahead.epoch, ahead.step) for w in workers)
    inputs.unevaluated = ahead.epoch > 0 and ahead.step == 0 and (in_place or together)


def _reorder(
    data: Dataset | StreamedData | None, order: list[int]
) -> Dataset | StreamedData | None:
    """Return the data with its columns in another order; `order`: the present place of each column."""
    if isinstance(data, StreamedData):
        return data.changed(lambda part: _reordered(part, order))
    return _reordered(data, order) if data is not None else None


def _reordered(data: Dataset, order: list[int]) -> Dataset:
    if isinstance(data, DenseData):
        return msgspec.structs.replace(data, x=data.x[:, order])
    place = np.argsort(order).astype(np.int32)
    fields = place[data.fields] if data.fields is not None else None
    return msgspec.structs.replace(data, fields=fields)


def _label_text(info: DataInfo) -> str:
    if info.wants == "targets":
        return "numbers (targets)"
    if info.wants == "several":
        return f"labels {', '.join(info.label_names)}"
    shown = ", ".join(info.class_names[:10])
    return f"classes {shown}{', ...' if info.n_classes > 10 else ''}"


def job_shape(inputs: Inputs, n_workers: int, config: JobConfig) -> Shape:
    """Return the numbers that determine the samples of this job's workers and their order."""
    n_total, seed = inputs.info.n_samples_total, config.cluster.seed
    return Shape.of_job(n_total, n_workers, inputs.batch_size, seed, inputs.block, inputs.window)


def continue_in_memory(config: JobConfig, inputs: Inputs, saving: Saving, n_workers: int) -> str:
    """Let `inputs` begin where the workers stood in the memory of the launch before; return it in words.

    Args:
        config: The job.
        inputs: Its place is set.
        saving: The start of this launch, with the places of the workers.
        n_workers: Number of workers.
    """
    assert saving.origin is not None
    # The rows of the tables follow the order of columns of the launch that began anew.
    fit_data(inputs, saving.origin.data, Path("shared memory"))
    shape = job_shape(inputs, n_workers, config)
    inputs.first_epoch, inputs.cursors = 0, ()
    inputs.sampling = Sampling(shape)
    workers = [place.state for place in saving.places]
    how = set_place(inputs, workers, saving.origin.sampling, shape)
    inputs.steps_before = saving.steps_before
    inputs.clocks = tuple(place.clock for place in saving.places)
    return f"continuing in memory at step {saving.steps_before + saving.first_clock}, {how}"


def set_place(
    inputs: Inputs, workers: Sequence[WorkerState], sampling: dict[str, Any], shape: Shape
) -> str:
    """Let `inputs` begin where the workers of an earlier job stood; return it in words.

    Args:
        inputs: Its place is set.
        workers: States of the workers of the earlier job.
        sampling: The order of samples to which their cursors belong.
        shape: Shape of this job. A job of another shape reads what is left of the epoch in a new order.
    """
    cursors = [(w.epoch, w.step) for w in workers]
    watched = (inputs.stopping, inputs.best, inputs.callback)
    if any(one is not None for one in watched) and cursors:
        same = bool(sampling) and Sampling.from_config(sampling).shape == shape
        _restore_watch(inputs, workers, same)
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
        return f"{done}; the data has changed, so epoch {inputs.first_epoch + 1} starts again"
    inputs.sampling = before.after(cursors, shape)
    if not inside:
        return done
    n_left = sum(inputs.sampling.counts(inputs.first_epoch))
    return f"{done}, {n_left} samples of the next one left for {shape.n_workers} workers"
