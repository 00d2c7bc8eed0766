"""`mpips.load`, which imports what it needs when it is called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpips.inference.model import Model


def load(
    path: str | os.PathLike[str],
    *,
    check: bool = True,
    best: bool = False,
    options: Mapping[str, Any] | None = None,
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

    Raises:
        ConfigError: There is no checkpoint, or none is marked as best; it is not one of a task, or its task
            cannot be imported, or has no such option.
        CheckpointError: The checkpoint is damaged, lacks what prediction needs, or its example is predicted
            differently than when it was trained.
        CapabilityError: h5py is missing.
    """
    from mpips.inference.model import load_model

    return load_model(path, check, best, options)
