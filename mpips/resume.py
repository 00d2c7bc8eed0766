"""What a training job starts from and where it saves to, by its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mpips.checkpoint import Retention, WorkerState, open_checkpoint
from mpips.config import JobConfig
from mpips.cuts.triggers import Triggers
from mpips.data import Cursor, Sampling, Shape
from mpips.saving import Saving, Start, check_start, find_start

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.epochs import Inputs


def plan_saving(
    config: JobConfig,
    inputs: Inputs,
    n_workers: int,
    comm: MPI.Intracomm | None,
    run_id: str,
    look: bool = True,
) -> Saving:
    """Find the checkpoint to start from and tell `inputs` the place. Collective over `comm` if given.

    Without `look` there is none; then it is local and quick.

    Raises:
        ConfigError, CheckpointError: The checkpoint that was asked for cannot be used.
    """
    wanted = config.checkpoint
    folder = Path(wanted.folder) if wanted.folder else None
    start = find_start(folder, wanted.resume, comm) if look else Start()
    shape = Shape(inputs.info.n_samples_total, n_workers, inputs.batch_size, config.cluster.seed)
    inputs.sampling = Sampling(shape)
    notes: tuple[str, ...] = ()
    if start.path is not None and start.manifest is not None:
        with open_checkpoint(start.path) as checkpoint:
            check_start(checkpoint, inputs.tables)
        run_id = start.manifest.run_id
        inputs.steps_before = start.manifest.step
        how = set_place(inputs, start.manifest.workers, start.manifest.sampling, shape)
        notes = (*start.notes, f"starting from {start.path}, {how}")
    return Saving(
        folder,
        run_id,
        start.path,
        start.manifest,
        Retention(wanted.keep_last, wanted.keep_every),
        msgspec.to_builtins(config),
        inputs.sampling.to_config(),
        Triggers(wanted.every_steps, wanted.every_s, wanted.on_usr1, wanted.grace_s),
        notes=notes,
        generation=start.generation,
    )


def go_on_in_memory(config: JobConfig, inputs: Inputs, saving: Saving, n_workers: int) -> str:
    """Let `inputs` begin where the workers stood in what the launch before has left; says it in words."""
    assert saving.origin is not None
    shape = Shape(inputs.info.n_samples_total, n_workers, inputs.batch_size, config.cluster.seed)
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
    done = f"{inputs.first_epoch} of {inputs.n_epochs} epochs done"
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
