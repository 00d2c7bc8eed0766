"""Batches of a worker's own samples, in an order that depends on (seed, epoch, worker) alone.

Every worker makes the same number of steps per epoch, so that under BSP nobody waits for a worker
that has no step left; in an epoch's last steps a batch may be short or empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Batch, Dataset


@dataclass(frozen=True, order=True)
class Cursor:
    """The place of a batch: step `step` of epoch `epoch`, both counted from 0."""

    epoch: int = 0
    step: int = 0

    def to_config(self) -> dict[str, int]:
        """Return plain values, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Cursor:
        """Undo `to_config`."""
        return cls(int(config["epoch"]), int(config["step"]))


def local_count(n_total: int, n_workers: int, worker: int) -> int:
    """Return how many samples i < n_total have i % n_workers == worker."""
    return len(range(worker, n_total, n_workers))


class Loader:
    """Iterates over (cursor, batch), epoch after epoch without end.

    The cursor is that of the batch beside it; `after(cursor)` is where to resume once that batch is
    done. Memory: one permutation of the worker's samples.
    """

    def __init__(
        self,
        data: Dataset,
        n_total: int,
        n_workers: int,
        worker: int,
        batch_size: int,
        seed: int,
        cursor: Cursor | None = None,
        *,
        weighted: bool = True,
    ) -> None:
        """Prepare to iterate; arithmetic only.

        Args:
            data: The samples i of all with i % n_workers == worker.
            n_total: Samples of all workers.
            n_workers: Number of workers.
            worker: This worker's index.
            batch_size: Samples per batch and worker.
            seed: With epoch and worker decides the order.
            cursor: The first batch to give; the very first if None.
            weighted: Whether a batch weighs n * n_workers / (samples of all workers in this step),
                which makes the mean over workers the mean over samples, or 1.

        Raises:
            ValueError: The numbers contradict each other.
        """
        if batch_size < 1 or n_total < 1 or not 0 <= worker < n_workers:
            raise ValueError(
                f"batch_size {batch_size} and n_total {n_total} must be positive and "
                f"worker {worker} below n_workers {n_workers}"
            )
        if data.n != local_count(n_total, n_workers, worker):
            raise ValueError(
                f"worker {worker} of {n_workers} holds {data.n} of {n_total} samples, "
                f"expected {local_count(n_total, n_workers, worker)}"
            )
        self._data = data
        self._n_total = n_total
        self._n_workers = n_workers
        self._worker = worker
        self._batch_size = batch_size
        self._seed = seed
        self._weighted = weighted
        # Worker 0 has the most samples.
        self.steps_per_epoch = -(-local_count(n_total, n_workers, 0) // batch_size)
        self.cursor = cursor or Cursor()
        if not 0 <= self.cursor.step < self.steps_per_epoch or self.cursor.epoch < 0:
            raise ValueError(f"{self.cursor}: an epoch has steps 0 to {self.steps_per_epoch - 1}")

    def __iter__(self) -> Iterator[tuple[Cursor, Batch]]:
        """Iterate from `cursor` on, for ever."""
        cursor = self.cursor
        while True:
            order = self._order(cursor.epoch)
            epoch = cursor.epoch
            while cursor.epoch == epoch:
                yield cursor, self._batch(order, cursor.step)
                cursor = self.after(cursor)

    def until(self, n_epochs: int) -> Iterator[tuple[Cursor, Batch]]:
        """Iterate from `cursor` to the end of epoch n_epochs - 1."""
        if self.cursor.epoch >= n_epochs:
            return
        last = Cursor(n_epochs - 1, self.steps_per_epoch - 1)
        for cursor, batch in self:
            yield cursor, batch
            if cursor == last:
                return

    def after(self, cursor: Cursor) -> Cursor:
        """Return the place of the batch that follows the one at `cursor`."""
        if cursor.step + 1 < self.steps_per_epoch:
            return Cursor(cursor.epoch, cursor.step + 1)
        return Cursor(cursor.epoch + 1, 0)

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        seeds = np.random.SeedSequence([self._seed, epoch, self._worker])
        return np.random.Generator(np.random.Philox(seeds)).permutation(self._data.n)

    def _batch(self, order: npt.NDArray[np.int64], step: int) -> Batch:
        start = step * self._batch_size
        rows = order[start : start + self._batch_size]
        return self._data.take(rows, self._weight(step) if self._weighted else 1.0)

    def _weight(self, step: int) -> float:
        n_here = self._count_in_step(self._worker, step)
        # The first n_total % n_workers workers hold one sample more than the others.
        n_longer = self._n_total % self._n_workers
        n_global = n_longer * self._count_in_step(0, step)
        n_global += (self._n_workers - n_longer) * self._count_in_step(self._n_workers - 1, step)
        return n_here * self._n_workers / n_global

    def _count_in_step(self, worker: int, step: int) -> int:
        n_left = local_count(self._n_total, self._n_workers, worker) - step * self._batch_size
        return min(max(n_left, 0), self._batch_size)
