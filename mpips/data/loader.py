"""Batches of a worker's samples, in an order that depends only on (seed, epoch, worker).

All workers make the same number of steps per epoch, so that under BSP no worker waits for one that has no
step left. In the last steps of an epoch a batch can be short or empty. If a job of another shape has read
part of an epoch, only the rest is read; see `mpips.data.sampling`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mpips.data.dataset import Batch
from mpips.data.feed import Feed, MemoryFeed, WindowedData, WindowFeed
from mpips.data.rows import Samples
from mpips.data.sampling import Sampling, Shape
from mpips.data.shares import Shares, counts


@dataclass(frozen=True, order=True)
class Cursor:
    """The place of a batch: step `step` of epoch `epoch`, both numbered from 0."""

    epoch: int = 0
    step: int = 0

    def to_config(self) -> dict[str, int]:
        """Return plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Cursor:
        """Return the cursor that `to_config` wrote."""
        return cls(int(config["epoch"]), int(config["step"]))


def local_count(n_total: int, n_workers: int, worker: int, shares: Shares = "interleaved") -> int:
    """Return the number of samples, of `n_total`, that a worker has by the rule `shares`."""
    return counts(n_total, n_workers, shares)[worker]


class Loader:
    """Endless iterator over (cursor, batch), epoch after epoch.

    The cursor is the place of the batch; `after(cursor)` is the place to resume from when that batch is done.
    The loader needs memory for one permutation of the worker's samples, or of
    a window of them if the data is read in windows.
    """

    def __init__(
        self,
        data: Samples | WindowedData,
        n_total: int,
        n_workers: int,
        worker: int,
        batch_size: int,
        seed: int,
        cursor: Cursor | None = None,
        *,
        weighted: bool = True,
        sampling: Sampling | None = None,
    ) -> None:
        """Prepare to iterate; arithmetic only.

        Args:
            data: This worker's share of all samples, in the order of the file, by the rule of `sampling`.
                Without `sampling` the rule is "interleaved": the samples i with i % n_workers == worker. Or
                data that is read in windows, with a `sampling` whose shape has blocks.
            n_total: Samples of all workers.
            n_workers: Number of workers.
            worker: Index of this worker.
            batch_size: Samples per batch and worker.
            seed: Seed of the order, together with epoch and worker.
            cursor: Place of the first batch; None: epoch 0, step 0.
            weighted: The weight of a batch is n * n_workers / (samples of all workers in this step), so that
                the mean over workers is the mean over samples. Without it the weight is 1.
            sampling: The samples that earlier jobs have read, of the shape given by the numbers above; None:
                they have read none.

        Raises:
            ValueError: The numbers contradict each other.
        """
        if batch_size < 1 or n_total < 1 or not 0 <= worker < n_workers:
            raise ValueError(
                f"batch_size {batch_size} and n_total {n_total} must be positive and "
                f"worker {worker} from 0 to n_workers - 1 = {n_workers - 1}"
            )
        sampling = sampling or Sampling(Shape(n_total, n_workers, batch_size, seed))
        if isinstance(data, WindowedData) != bool(sampling.shape.block):
            raise ValueError(f"{type(data).__name__} with blocks of {sampling.shape.block} samples")
        expected = sampling.shape.counts()[worker]
        if data.n != expected:
            raise ValueError(
                f"worker {worker} of {n_workers} has {data.n} of {n_total} samples, expected {expected}; "
                "read with stride = n_workers and offset = worker"
            )
        self._data = data
        self._n_workers = n_workers
        self._worker = worker
        self._batch_size = batch_size
        self._sampling = sampling
        self._weighted = weighted
        # Compute the steps of a whole epoch from the largest share.
        most = (n_total + n_workers - 1) // n_workers
        self.steps_per_epoch = (most + batch_size - 1) // batch_size
        self.cursor = cursor or Cursor()
        self._n_steps: dict[int, int] = {}
        n_steps = self.steps_in(max(self.cursor.epoch, 0))
        if not 0 <= self.cursor.step < max(n_steps, 1) or self.cursor.epoch < 0:
            raise ValueError(
                f"{self.cursor}: must be an epoch from 0 on and a step from 0 to {n_steps - 1}"
            )

    def __iter__(self) -> Iterator[tuple[Cursor, Batch]]:
        """Iterate from `cursor` on, without end."""
        cursor = self.cursor
        while True:
            epoch = cursor.epoch
            counts = Counter(self._sampling.counts(epoch))
            with contextlib.closing(self._feed(epoch, cursor.step * self._batch_size)) as feed:
                for step in range(cursor.step, self.steps_in(epoch)):
                    n = min(self._batch_size, feed.n_left)
                    weight = self._weight(n, counts, step) if self._weighted else 1.0
                    yield Cursor(epoch, step), feed.take(n, weight)
            cursor = Cursor(epoch + 1, 0)

    def until(self, n_epochs: int) -> Iterator[tuple[Cursor, Batch]]:
        """Iterate from `cursor` to the end of epoch n_epochs - 1."""
        if self.steps_until(n_epochs) == 0:
            return
        for cursor, batch in self:
            yield cursor, batch
            if self.after(cursor).epoch >= n_epochs:
                return

    def steps_in(self, epoch: int) -> int:
        """Return the number of steps of an epoch, or of the rest of it that this job reads."""
        if epoch not in self._n_steps:
            self._n_steps[epoch] = -(-max(self._sampling.counts(epoch)) // self._batch_size)
        return self._n_steps[epoch]

    def steps_until(self, n_epochs: int, cursor: Cursor | None = None) -> int:
        """Return the steps from a place (None: `self.cursor`) to the end of epoch n_epochs - 1."""
        start = cursor or self.cursor
        steps = sum(self.steps_in(epoch) for epoch in range(start.epoch, n_epochs))
        return max(steps - start.step, 0)

    def after(self, cursor: Cursor) -> Cursor:
        """Return the place of the batch that follows the one at `cursor`."""
        if cursor.step + 1 < self.steps_in(cursor.epoch):
            return Cursor(cursor.epoch, cursor.step + 1)
        return Cursor(cursor.epoch + 1, 0)

    def _feed(self, epoch: int, n_skipped: int) -> Feed:
        """Return the samples of an epoch without the first `n_skipped`, in this worker's order."""
        n = self._sampling.counts(epoch)[self._worker]
        windows = self._sampling.windows(epoch, self._worker)
        if not isinstance(self._data, WindowedData):
            # Sample i of the file is sample i // n_workers of its worker, by either rule.
            order = next(windows) // self._n_workers
            return MemoryFeed(self._data, order[n_skipped:])
        return WindowFeed(self._data, windows, n, n_skipped)

    def _weight(self, n_here: int, counts: Counter[int], step: int) -> float:
        """Return the weight of a batch of `n_here` samples.

        Args:
            n_here: Samples of the batch.
            counts: Number of workers for each number of samples of the epoch.
            step: Step in the epoch.
        """
        n_before = step * self._batch_size
        n_global = sum(
            n_workers * min(max(n - n_before, 0), self._batch_size)
            for n, n_workers in counts.items()
        )
        return n_here * self._n_workers / n_global
