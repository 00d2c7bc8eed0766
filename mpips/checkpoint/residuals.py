"""The residuals of workers in a checkpoint: whose they are.

They are arrays in the images of workers (mpips.checkpoint.worker_image), one for each table with residuals:
the flattened tensor. mpips.worker.image.start has the rule for other numbers of workers.

Groups of workers. The leader of a group pushes the sums of all of the group, so the residuals of a table that
the group sums belong to the leader. In a job with groups the leader of a group takes those of all workers of
its group, at the start its lowest worker; the others, which push nothing to the table, start with zeros. A
leader that ends before others of its group hands its residuals over to the next leader, from the clock of its
end on (mpips.worker.groups.handover). Its last file still has them. A checkpoint of a later clock has them
in the file of the next leader already, so its manifest has them in `ImageFile.without` of this worker.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint.manifest import WorkerState
from mpips.checkpoint.worker_files import read_worker
from mpips.checkpoint.worker_image import RESIDUALS
from mpips.model.grouping import Groups

Float32 = NDArray[np.float32]


class HasWorkers(Protocol):
    """The part of a manifest on workers."""

    @property
    def workers(self) -> Sequence[WorkerState]:
        """States of the workers, by index."""


def handed_over(groups: Groups, clocks: Sequence[int], finished: Collection[int]) -> frozenset[int]:
    """Return the workers that have finished and whose residuals another worker of their group has.

    The worker that leads clock c takes those of the leader before it when it ends c. So those of a worker
    that has finished at clock c are another one's from the first cut on at which one of its group is beyond
    c.

    Args:
        groups: Workers of each group.
        clocks: Clock of each worker at the cut.
        finished: Workers that have finished.
    """
    return frozenset(
        worker
        for group in groups
        for worker in group
        if worker in finished and max(clocks[w] for w in group) > clocks[worker]
    )


def without(
    workers: Sequence[WorkerState], handed: Collection[int], grouped: Collection[str]
) -> list[WorkerState]:
    """Return the states for a manifest, in which residuals that were handed over count once.

    Args:
        workers: States of the workers at the cut.
        handed: Workers whose residuals of the tables of `grouped` another worker has.
        grouped: Names of tables whose updates groups of workers sum.
    """
    names = tuple(sorted(grouped))
    return [
        msgspec.structs.replace(
            state, files=tuple(msgspec.structs.replace(f, without=names) for f in state.files)
        )
        if state.worker in handed
        else state
        for state in workers
    ]


def read_residuals(path: Path, manifest: HasWorkers, worker: int) -> dict[str, Float32]:
    """Return the residuals of a worker of a checkpoint, by table; float32, flat; {}: it has none. Blocks.

    Raises:
        CheckpointError: The file cannot be read.
    """
    image = read_worker(path, manifest.workers[worker])
    return dict(image[RESIDUALS].arrays) if RESIDUALS in image else {}
