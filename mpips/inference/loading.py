"""`mpips.load`, which imports what it needs when it is called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpips.inference.model import Model
    from mpips.inference.stored_tables import OnMissing


def load(
    path: str | os.PathLike[str],
    *,
    check: bool = True,
    best: bool = False,
    options: Mapping[str, Any] | None = None,
    on_missing: OnMissing = "initial",
) -> Model:
    """Load a model that `mpips train` or `mpips run` has trained. Not collective; blocks for reading.

    Args:
        path: A checkpoint, a folder of checkpoints, or a run directory, of which the newest readable
            checkpoint is taken.
        check: Predict the example in the checkpoint again, and compare.
        best: Take the best checkpoint of the run instead, which training with checkpoint.keep_best = true
            has marked.
        options: Options of the task that concern prediction alone, such as {"top": 3} of kge and mf, in place
            of those of the training.
        on_missing: Values of keys for which an embedding table has no row, such as ids that no sample of the
            training had: "initial", those that the row would begin with, as a pull in the training returns
            them; "zero"; or "error": a prediction or an evaluation that needs such a key raises DataError.

    Raises:
        ConfigError: There is no checkpoint, or none is marked as best; it is not one of a task, or its task
            cannot be imported, or has no such option.
        CheckpointError: The checkpoint is damaged, lacks what prediction needs, or its example is predicted
            differently than when it was trained.
        CapabilityError: h5py is missing.
    """
    from mpips.inference.model import load_model

    return load_model(path, check, best, options, on_missing)
