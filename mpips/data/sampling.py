"""The samples of an epoch that each worker reads, and their order.

Both are defined also when the number of workers changes in the middle of an epoch.

A worker reads its share of the samples (`mpips.data.shares`) in batches, in an order of its own. If a job
continues in the middle of an epoch with the same number of workers and the same batch size, each worker
continues at its cursor. Otherwise the samples that the workers have read before form a `Leg`. The numbers in
a leg determine which samples of each epoch its workers have read; the new workers divide the rest among them.
Any number of legs can follow each other in one epoch. Each sample of the epoch is read in exactly one of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.shares import Shares, counts, numbers, owners

Int64 = npt.NDArray[np.int64]


class Shape(msgspec.Struct, frozen=True):
    """The numbers that determine the samples of each worker of a job and their order.

    Attributes:
        n_total: Samples of the data.
        n_workers: Number of workers.
        batch_size: Samples per batch and worker.
        seed: Seed of the orders.
        shares: The rule that divides samples among workers. Checkpoints without it were written when
            "interleaved" was the only rule.
    """

    n_total: int
    n_workers: int
    batch_size: int
    seed: int
    shares: Shares = "interleaved"

    @classmethod
    def of_job(cls, n_total: int, n_workers: int, batch_size: int, seed: int) -> Shape:
        """Return the shape with which `mpips train` reads. A single worker has all samples by either rule."""
        shares: Shares = "mixed" if n_workers > 1 else "interleaved"
        return cls(n_total, n_workers, batch_size, seed, shares)


class Leg(msgspec.Struct, frozen=True):
    """The samples that workers of one shape have read: all those before their cursors.

    Attributes:
        shape: The shape of their job.
        number: Number of legs before this one in the run.
        cursors: (epoch, step) of each worker: the next batch that it would have read.
    """

    shape: Shape
    number: int
    cursors: tuple[tuple[int, int], ...]

    def n_read(self, worker: int, epoch: int, n_own: int) -> int:
        """Return the number of samples of an epoch that a worker has read, of its `n_own` samples."""
        at, step = self.cursors[worker]
        if at != epoch:
            return n_own if at > epoch else 0
        return min(step * self.shape.batch_size, n_own)


class Sampling(msgspec.Struct, frozen=True):
    """The samples that a job reads: all those that no earlier leg has read.

    Attributes:
        shape: The shape of this job.
        number: Number of legs before this job in the run.
        legs: The legs that have read samples of epochs that this job reads, too.
    """

    shape: Shape
    number: int = 0
    legs: tuple[Leg, ...] = ()

    def to_config(self) -> dict[str, Any]:
        """Return plain values, for a checkpoint."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Sampling:
        """Return the sampling that `to_config` wrote."""
        return msgspec.convert(config, cls)

    def after(self, cursors: Sequence[tuple[int, int]], shape: Shape) -> Sampling:
        """Return the sampling of a job of another shape that continues from `cursors`.

        Args:
            cursors: (epoch, step) of each worker of this sampling.
            shape: The shape of the job that continues.
        """
        leg = Leg(self.shape, self.number, tuple(cursors))
        first = min(epoch for epoch, _ in cursors)
        legs = [old for old in (*self.legs, leg) if max(old.cursors) > (first, 0)]
        return Sampling(shape, self.number + 1, tuple(legs))

    def own(self, epoch: int, worker: int) -> Int64:
        """Return the samples of an epoch that a worker reads, in its order.

        Returns:
            int64, shape (n,): numbers of samples in the whole data.
        """
        left = _left(self.legs, self.shape.n_total, epoch)
        return _order(self.shape, self.number, left, epoch, worker)

    def counts(self, epoch: int) -> tuple[int, ...]:
        """Return the number of samples of an epoch that each worker reads."""
        shape, left = self.shape, _left(self.legs, self.shape.n_total, epoch)
        if left is None:
            return counts(shape.n_total, shape.n_workers, shape.shares)
        owned = owners(left, shape.n_workers, shape.shares)
        return tuple(int(n) for n in np.bincount(owned, minlength=shape.n_workers))


@lru_cache(maxsize=4)
def _left(legs: tuple[Leg, ...], n_total: int, epoch: int) -> Int64 | None:
    """Return the samples of an epoch that no leg has read, ascending; None: all samples."""
    left: Int64 | None = None
    for leg in legs:
        # Skip a leg that has read nothing of this epoch.
        if max(leg.cursors) <= (epoch, 0):
            continue
        parts = []
        for worker in range(leg.shape.n_workers):
            own = _order(leg.shape, leg.number, left, epoch, worker)
            parts.append(own[: leg.n_read(worker, epoch, len(own))])
        everything = np.arange(n_total) if left is None else left
        left = np.setdiff1d(everything, np.concatenate(parts), assume_unique=True)
    return left


def _order(shape: Shape, number: int, left: Int64 | None, epoch: int, worker: int) -> Int64:
    """Return a worker's samples among those left (None: all), shuffled by (seed, epoch, worker, leg)."""
    seeds = [shape.seed, epoch, worker]
    if left is None:
        own = numbers(shape.n_total, shape.n_workers, worker, shape.shares)
    else:
        own = left[owners(left, shape.n_workers, shape.shares) == worker]
        seeds.append(number)
    philox = np.random.Philox(np.random.SeedSequence(seeds))
    order: Int64 = own[np.random.Generator(philox).permutation(len(own))]
    return order
