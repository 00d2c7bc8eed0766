"""Make some steps of a task on servers in this process, and count and time what each of them does.

Large updates go through staging memory, as in a job whose worker and server share a node, unless `staged` is
False.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mpips.config.options import SessionOptions
from mpips.data import Dataset, DenseData, SparseBatch, SparseData
from mpips.data.rows import SomeSamples
from mpips.data.stream import StreamedData
from mpips.model.buffers import BufferShares
from mpips.plan.stage import Stage, Tally
from mpips.plan.watching import SeenWorker
from mpips.training.epochs import Inputs
from mpips.training.prepare import ready

Int64 = NDArray[np.int64]
_WARM = 3  # first steps, whose times do not count


class Rehearsal(msgspec.Struct, frozen=True):
    """The counts and times of the steps.

    Attributes:
        n_servers: Servers over which the tables were split.
        records: Records that the worker wrote in all steps together, by server.
        steps: One tally per step, including the first ones, which warm up.
        keys: Keys that were pushed, sorted, int64, by embedding table.
        from_data: Embedding tables whose keys are those of the samples, except a few.
        extra: Keys of pushes that are not in the samples, sorted, int64, by embedding table.
        unused: Keys of samples that no push has, sorted, int64, by embedding table: those of columns that the
            task uses in another way.
    """

    n_servers: int
    records: list[int]
    steps: list[Tally]
    keys: dict[str, Int64]
    from_data: set[str]
    extra: dict[str, Int64]
    unused: dict[str, Int64]

    @property
    def measured(self) -> list[Tally]:
        """The steps whose times count."""
        return self.steps[_WARM:] or self.steps

    def seconds(self, of: Callable[[Tally], float]) -> float:
        """Return the mean of `of` over the measured steps without the slowest tenth, which were disturbed."""
        values = sorted(of(step) for step in self.measured)
        return statistics.fmean(values[: max(1, len(values) * 9 // 10)])

    def mean(self, of: Callable[[Tally], float]) -> float:
        """Return the mean of a count over all steps."""
        return statistics.fmean(of(step) for step in self.steps)


def _share(inputs: Inputs, n_workers: int) -> Inputs:
    """Return the inputs of worker 0 of `n_workers`, with its share of the samples as all of the data."""
    data = inputs.train
    assert data is not None
    if inputs.info.kind == "own":
        some = SomeSamples(data, np.arange(0, data.n, n_workers))
        info = replace(inputs.info, n_samples_total=some.n, n_local=some.n)
        return replace(inputs, train=cast(Any, some), info=info)
    if isinstance(data, StreamedData):
        data = next(data.parts())  # as many samples as a worker has in memory at a time
    part = data.take(np.arange(0, data.n, n_workers))
    own: Dataset
    if isinstance(part, SparseBatch):
        info = inputs.info
        own = SparseData(
            part.indptr,
            part.keys,
            part.values,
            part.labels,
            info.n_features,
            part.fields,
            info.n_fields,
        )
    else:
        own = DenseData(part.x, part.labels)
    info = replace(inputs.info, n_samples_total=own.n, n_local=own.n)
    return replace(inputs, train=own, info=info, block=0, window=0)


def rehearse(
    inputs: Inputs,
    options: SessionOptions,
    shares: BufferShares,
    n_servers: int,
    n_steps: int,
    *,
    n_workers: int = 1,
    max_s: float = 10.0,
    staged: bool = True,
    threads: int = 1,
) -> Rehearsal:
    """Let the task make up to `n_steps` steps on `n_servers` servers in this process. Blocks.

    The tables are made for this call, with their initial values.

    Args:
        inputs: Inputs of one process with all data, as of `mpips.training.prepare.prepare`.
        options: Options of the session.
        shares: Sizes of the buffers: of rings and staging memory.
        n_servers: Servers of the job.
        n_steps: Number of steps, 1 or more.
        n_workers: Workers of the job: the steps are those of its worker 0, on its share of the data.
        max_s: Seconds after which no further step begins.
        staged: Large updates go through staging memory.
        threads: Threads of NumPy's linear algebra, as a rank would have.
    """
    inputs = _share(inputs, n_workers)
    stage = Stage(inputs, options, shares, n_servers, staged)
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
    # A table of the data's keys may have a few others, such as a bias. A table of other keys has many.
    from_data = {name for name in keys if len(extra[name]) <= 0.01 * len(keys[name]) + 1}
    unused = {
        name: np.setdiff1d(np.concatenate(parts), keys[name])
        for name, parts in stage.unpushed.items()
    }
    return Rehearsal(n_servers, records, steps, keys, from_data, extra, unused)
