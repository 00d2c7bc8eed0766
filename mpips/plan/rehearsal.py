"""Some steps of a task on servers in this process: what each step sends, what it computes, how long.

Large updates go by way of staging memory, as a job does where worker and server share a node, unless
`staged` is False.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mpips.config.options import SessionOptions
from mpips.data import Dataset, DenseData, SparseBatch, SparseData
from mpips.plan.stage import Stage, Tally
from mpips.plan.watching import SeenWorker
from mpips.training.epochs import Inputs
from mpips.training.train import ready

Int64 = NDArray[np.int64]
_WARM = 3


@dataclass(frozen=True)
class Rehearsal:
    """What the steps did together.

    Attributes:
        n_servers: Servers that the tables were split over.
        records: By server, records that the worker wrote in all steps together.
        steps: One tally a step, the first ones, which warm up, included.
        keys: Of each embedding table, the keys that were pushed, sorted.
        from_data: Embedding tables whose keys are those of the samples, but for a few.
        extra: Of these tables, the keys that are not in the samples.
    """

    n_servers: int
    records: list[int]
    steps: list[Tally]
    keys: dict[str, Int64]
    from_data: set[str]
    extra: dict[str, Int64]

    @property
    def measured(self) -> list[Tally]:
        """Those that count for time."""
        return self.steps[_WARM:] or self.steps

    def seconds(self, of: Callable[[Tally], float]) -> float:
        """Mean over the measured steps, without the slowest tenth, which something else made slow."""
        values = sorted(of(step) for step in self.measured)
        return statistics.fmean(values[: max(1, len(values) * 9 // 10)])

    def mean(self, of: Callable[[Tally], float]) -> float:
        """Of counts, over all steps."""
        return statistics.fmean(of(step) for step in self.steps)


def _share(inputs: Inputs, n_workers: int) -> Inputs:
    """The same with the samples of worker 0 of so many, as if there were no others."""
    data = inputs.train
    assert data is not None
    part = data.take(np.arange(0, data.n, n_workers))
    own: Dataset
    if isinstance(part, SparseBatch):
        own = SparseData(part.indptr, part.keys, part.values, part.labels, inputs.info.n_features)
    else:
        own = DenseData(part.x, part.labels)
    info = replace(inputs.info, n_samples_total=own.n, n_local=own.n)
    return replace(inputs, train=own, info=info)


def rehearse(
    inputs: Inputs,
    options: SessionOptions,
    n_servers: int,
    n_steps: int,
    *,
    n_workers: int = 1,
    max_s: float = 10.0,
    staged: bool = True,
    threads: int = 1,
) -> Rehearsal:
    """Let the task make up to `n_steps` steps on `n_servers` servers in this process. Blocks.

    The tables are made anew, with their initial values; nothing outlives the call.

    Args:
        inputs: As `mpips.training.train.prepare` makes them for one process, with all data.
        options: Of the session; ring and staging are made by them.
        n_servers: As in the job.
        n_steps: At least one.
        n_workers: Of the job: the steps are those of its worker 0, on that one's share of the data.
        max_s: After so many seconds no further step is begun.
        staged: Whether large updates go by staging memory.
        threads: For NumPy's linear algebra, as a rank would have.
    """
    inputs = _share(inputs, n_workers)
    stage = Stage(inputs, options, n_servers, staged)
    loader = ready(stage.worker, inputs, options.seed)
    before = [channel.writer.next_sequence for channel in stage.connection.channels]
    steps: list[Tally] = []
    seen = SeenWorker(stage)
    deadline = time.monotonic() + max_s
    with threadpool_limits(threads):
        for _, batch in loader:
            steps.append(stage.step(inputs, batch, seen))
            if len(steps) >= n_steps or time.monotonic() > deadline:
                break
    records = [
        channel.writer.next_sequence - first
        for channel, first in zip(stage.connection.channels, before, strict=True)
    ]
    keys = {name: np.unique(np.concatenate(parts)) for name, parts in stage.keys.items()}
    extra = {name: np.unique(np.concatenate(parts)) for name, parts in stage.strange.items()}
    # A bias, say, is a row that no sample holds; a table of other keys would have many of them.
    from_data = {name for name in keys if len(extra[name]) <= 0.01 * len(keys[name]) + 1}
    return Rehearsal(n_servers, records, steps, keys, from_data, extra)
