"""Scripts in a test: a job with all roles in this process."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import mpips
from mpips.session.init import current
from mpips.session.script import Script
from mpips.worker.embedding import EmbeddingHandle
from mpips.worker.worker import connection_of


@contextmanager
def script_job(**options: Any) -> Iterator[Script]:
    """Do what `mpips.init` does, and undo it: the block is the script, its end the end of the script.

    An exception of the block ends the job as it ends that of a script, and is raised again.
    """
    mpips.init(**{"verbose": False, "timeout_s": 20, **options})
    begun = current("the rig")
    try:
        yield begun
    except BaseException as error:
        begun.leave(error)
        raise
    else:
        begun.leave()
    finally:
        # A model and its job refer to each other; many jobs reserve more addresses than there are.
        gc.collect()


def wait_for_checkpoint(script: Script, folder: Path, step: int, table: str) -> None:
    """Let the server write the checkpoint of a step that has just ended, while the script stands still.

    Args:
        script: The script.
        folder: Folder of its checkpoints.
        step: The step.
        table: Name of a table, whose pulls let the server work.
    """
    assert script.worker is not None
    if script.worker.start is not None and script.worker.start.step == step:
        return  # the script continues there
    control: Any = connection_of(script.worker).control
    handle = script.worker.table(table)
    keys = [np.zeros(1, np.int64)] if isinstance(handle, EmbeddingHandle) else []
    end = time.monotonic() + 10
    # The scheduler plans the next one when it has the path.
    while (
        not control.scheduler.statistics()["checkpoints"]
        .get("path", "")
        .endswith(f"step-{step:012d}")
    ):
        assert time.monotonic() < end, f"no checkpoint of step {step}: {sorted(folder.iterdir())}"
        handle.pull(*keys)
