"""Open the checkpoint of a model, and read the arrays beside its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpips.checkpoint import Checkpoint, find_newest, open_checkpoint
from mpips.checkpoint.find import choose_checkpoint, is_checkpoint
from mpips.checkpoint.folder import find_folder, parse_name
from mpips.checkpoint.structure import ATTACHED
from mpips.data import DataInfo
from mpips.data.hdf5 import load_hdf5
from mpips.errors import CheckpointError, ConfigError


def open_undamaged(path: Path, best: bool) -> tuple[Checkpoint, tuple[str, ...]]:
    """Open a checkpoint whose data is undamaged: this one, or the newest or best of a folder.

    Returns:
        The checkpoint, and why newer ones of the folder are not used.

    Raises:
        ConfigError: There is no checkpoint.
        CheckpointError: It is damaged; or all in the folder are, then the error is that of the newest.
    """
    if best or is_checkpoint(path) or parse_name(path) is not None:
        checkpoint = open_checkpoint(choose_checkpoint(path, best))
        try:
            checkpoint.verify()
        except BaseException:
            checkpoint.close()
            raise
        return checkpoint, ()
    found = find_newest(find_folder(path))
    reasons = tuple(refusal.reason for refusal in found.refused)
    if found.checkpoint is None:
        raise CheckpointError(reasons[0] if reasons else f"{path}: contains no checkpoint")
    return found.checkpoint, reasons


def attached_of(checkpoint: Checkpoint, info: DataInfo) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays beside the tables, by their path in the file.

    Raises:
        ConfigError: An earlier version wrote the checkpoint, without them.
    """
    h5py = load_hdf5("reading the scale of the features")
    with checkpoint.opened() as opened, h5py.File(opened, "r") as file:
        arrays = {name: np.array(file[name]) for name in ATTACHED if name in file}
        arrays |= {name: np.array(file[name]) for name in info.arrays}
    if "features/count" not in arrays:
        version = checkpoint.manifest.versions.get("mpips", "an earlier version")
        raise ConfigError(
            f"{checkpoint.path}: was written by mpips {version} without the scale of the features; continue "
            "the training from it with this version, and use the checkpoint that this writes"
        )
    return arrays
