"""The best checkpoint of a run: one is written and marked after an evaluation that is better than all before.

All workers wait at the place of the evaluation until the checkpoint is durable, so it has the values that
were evaluated (under ASP and SSP those at the end of the evaluation, during which other workers may still
push). A run that ends before that starts again before this evaluation. So no state is needed but the marks in
the folder of checkpoints: worker 0 reads them at the start, and a checkpoint that could not be written leaves
the one before it the best. `mpips.checkpoint.retention` never removes the best one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mpips.checkpoint.find import order
from mpips.checkpoint.reader import open_checkpoint
from mpips.errors import CheckpointError, ConfigError
from mpips.model.best_value import BestValue
from mpips.training.stopping import shared_value
from mpips.worker.best import can_cut_here, save_best
from mpips.worker.worker import Worker


class BestCheckpoint(msgspec.Struct):
    """The best value that a checkpoint of the run has, and that checkpoint.

    Attributes:
        metric: Name of the watched metric.
        higher: Higher values are better.
        data: The data on which epochs are evaluated, in words. Values on other data do not count.
        folder: Folder of checkpoints.
        run_id: Id of the run in its checkpoints.
        best: The best value; None: no checkpoint is marked.
        path: The checkpoint; "" on workers other than worker 0 if an earlier launch has written it.
    """

    metric: str
    higher: bool
    data: str = ""
    folder: Path = Path()
    run_id: str = ""
    best: BestValue | None = None
    path: str = ""

    def begin(self, worker: Worker) -> None:
        """Take the best checkpoint of earlier launches into account. Collective over workers; blocks."""
        known = self._stored() if worker.index == 0 else None
        row = [1.0, known.value, known.epoch] if known is not None else [0.0, 0.0, 0.0]
        found = worker.reduce("the best checkpoint", np.array(row))
        assert found is not None
        if found[0]:
            self.best = self._value(int(found[2]), float(found[1]))

    def _stored(self) -> BestValue | None:
        """Return the value of the best checkpoint in the folder, if this run has one; sets `path`."""
        # A folder that cannot be read has no best checkpoint; what cannot be written there is reported then.
        try:
            name = order(self.folder).best
            if name is None:
                return None
            with open_checkpoint(name.path) as checkpoint:
                manifest = checkpoint.manifest
        except (ConfigError, CheckpointError, OSError):
            return None
        best = manifest.best
        own = self._value(0, 0.0)
        if best is None or not best.is_comparable(own) or manifest.run_id != self.run_id:
            return None
        self.path = str(name.path)
        return best

    def agree(self, worker: Worker, epochs: int, found: Mapping[str, float] | None) -> None:
        """Write a checkpoint if an evaluation is the best one. Collective over workers; blocks until durable.

        After a restart in memory a server may have records of a worker from beyond this place. Then the run
        has passed this evaluation before, with its checkpoint, and nothing is written.

        Args:
            worker: This worker.
            epochs: Number of complete epochs.
            found: Metrics on worker 0; None on others.

        Raises:
            ConfigError: The evaluation has no such metric.
        """
        cannot = float(not can_cut_here(worker))
        value, n_unable = shared_value(
            worker, f"best checkpoint, epoch {epochs}", self.metric, found, (cannot,)
        )
        new = self._value(epochs, value)
        if not math.isfinite(value) or (self.best is not None and not new.is_better(self.best)):
            return
        if n_unable:
            return
        path = save_best(worker, new)
        if path:
            self.best, self.path = new, path

    def _value(self, epoch: int, value: float) -> BestValue:
        return BestValue(
            metric=self.metric, value=value, higher=self.higher, epoch=epoch, data=self.data
        )

    def report(self) -> dict[str, Any] | None:
        """Return the best checkpoint as plain values, on worker 0; None: there is no best checkpoint."""
        if self.best is None:
            return None
        found: dict[str, Any] = {
            "metric": self.metric,
            "value": self.best.value,
            "epoch": self.best.epoch,
            "path": self.path,
        }
        return found
