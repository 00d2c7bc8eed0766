"""What a training job starts from and where it saves to, by its configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mpips.checkpoint import Manifest, Retention, open_checkpoint
from mpips.config import JobConfig
from mpips.cuts.triggers import Triggers
from mpips.data import Cursor, Sampling, Shape
from mpips.saving import Saving, check_start, find_start

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.epochs import Inputs


def plan_saving(
    config: JobConfig,
    inputs: Inputs,
    n_workers: int,
    comm: MPI.Intracomm | None,
    run_id: str,
    speak: bool,
) -> Saving:
    """Find the checkpoint to start from and tell `inputs` the place. Collective over `comm` if given.

    With `speak` it says on stderr where training goes on, and what it did not use.

    Raises:
        ConfigError, CheckpointError: The checkpoint that was asked for cannot be used.
    """
    wanted = config.checkpoint
    folder = Path(wanted.folder) if wanted.folder else None
    start = find_start(folder, wanted.resume, comm)
    shape = Shape(inputs.info.n_samples_total, n_workers, inputs.batch_size, config.cluster.seed)
    inputs.sampling = Sampling(shape)
    if start.path is not None and start.manifest is not None:
        with open_checkpoint(start.path) as checkpoint:
            check_start(checkpoint, inputs.tables)
        run_id = start.manifest.run_id
        how = set_place(inputs, start.manifest, shape)
        if speak:
            lines = [*start.notes, f"starting from {start.path}, {how}"]
            print("\n".join(lines), file=sys.stderr, flush=True)
    return Saving(
        folder,
        run_id,
        start.path,
        start.manifest,
        Retention(wanted.keep_last, wanted.keep_every),
        msgspec.to_builtins(config),
        inputs.sampling.to_config(),
        Triggers(wanted.every_steps, wanted.every_s, wanted.on_usr1),
    )


def set_place(inputs: Inputs, manifest: Manifest, shape: Shape) -> str:
    """Let `inputs` begin where the workers of a checkpoint stood; says it in words."""
    cursors = [(w.epoch, w.step) for w in manifest.workers]
    inputs.first_epoch = min((epoch for epoch, _ in cursors), default=0)
    done = f"{inputs.first_epoch} of {inputs.n_epochs} epochs done"
    if not cursors or not manifest.sampling:
        return done
    before = Sampling.from_config(manifest.sampling)
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
