"""The result of writing a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from mpips.checkpoint.plan import ChainEnd


class CheckpointInfo(msgspec.Struct, frozen=True):
    """A checkpoint that was written.

    Attributes:
        path: Folder of the checkpoint.
        step: Step of the checkpoint.
        n_bytes: Size of the HDF5 file, bytes.
        seconds: Time from the first step of the writer to the last.
        notes: Messages for the user, for example that `latest` could not be set.
        removed: Names of files that failed writers had left and that were removed.
        place: Its place in a chain, of which it is the base or the last link.
    """

    path: Path
    step: int
    n_bytes: int
    seconds: float
    notes: tuple[str, ...]
    removed: tuple[str, ...]
    place: ChainEnd | None = None
