"""What a training job starts from and where it saves to, by its configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mpips.checkpoint import Retention, open_checkpoint
from mpips.config import JobConfig
from mpips.saving import Saving, check_start, find_start

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.train import Inputs


def plan_saving(
    config: JobConfig, inputs: Inputs, comm: MPI.Intracomm | None, run_id: str, speak: bool
) -> Saving:
    """Find the checkpoint to start from and set `inputs.first_epoch`. Collective over `comm` if given.

    With `speak` it says on stderr where training goes on, and what it did not use.

    Raises:
        ConfigError, CheckpointError: The checkpoint that was asked for cannot be used.
    """
    wanted = config.checkpoint
    folder = Path(wanted.folder) if wanted.folder else None
    start = find_start(folder, wanted.resume, comm)
    if start.path is not None:
        with open_checkpoint(start.path) as checkpoint:
            check_start(checkpoint, inputs.tables)
            run_id = checkpoint.manifest.run_id
            inputs.first_epoch = min((w.epoch for w in checkpoint.manifest.workers), default=0)
        if speak:
            done = f"{inputs.first_epoch} of {inputs.n_epochs} epochs done"
            lines = [*start.notes, f"starting from {start.path}, {done}"]
            print("\n".join(lines), file=sys.stderr, flush=True)
    return Saving(
        folder,
        run_id,
        start.path,
        max(inputs.n_epochs, inputs.first_epoch),
        Retention(wanted.keep_last, wanted.keep_every),
        msgspec.to_builtins(config),
    )
