"""Who reads which samples of an epoch in which order, also after the number of workers has changed.

A worker reads its share of the samples (`mpips.data.shares`), in an order of its own, in batches.
Where a job goes on from the middle of an epoch with as many workers and batches as large, each worker goes
on at its cursor. Otherwise what the workers have behind them is a `Leg`: from its numbers it follows which
samples of each epoch they have seen, and the rest is read in the new way. Any number of legs may follow each
other in one epoch; each sample is in exactly one of them.
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
    """What decides on a job's samples and their order.

    Attributes:
        n_total: Samples of the data.
        n_workers: Number of workers.
        batch_size: Samples per batch and worker.
        seed: Of the orders.
        shares: The rule that divides samples among workers. Checkpoints that do not name it were
            written when there was only "interleaved".
    """

    n_total: int
    n_workers: int
    batch_size: int
    seed: int
    shares: Shares = "interleaved"

    @classmethod
    def of_job(cls, n_total: int, n_workers: int, batch_size: int, seed: int) -> Shape:
        """Return the shape by which `mpips train` reads. One worker has all samples by either rule."""
        shares: Shares = "mixed" if n_workers > 1 else "interleaved"
        return cls(n_total, n_workers, batch_size, seed, shares)


class Leg(msgspec.Struct, frozen=True):
    """What workers of one shape have read: everything before their cursors.

    Attributes:
        shape: Theirs.
        number: Of legs before this one in the run.
        cursors: (epoch, step) of each worker.
    """

    shape: Shape
    number: int
    cursors: tuple[tuple[int, int], ...]

    def n_read(self, worker: int, epoch: int, n_own: int) -> int:
        """Samples of an epoch that a worker has read, of `n_own` that are its own."""
        at, step = self.cursors[worker]
        if at != epoch:
            return n_own if at > epoch else 0
        return min(step * self.shape.batch_size, n_own)


class Sampling(msgspec.Struct, frozen=True):
    """The way in which a job reads its data.

    Attributes:
        shape: Of this job.
        number: Of legs before it.
        legs: Those that have read samples of epochs which this job is to read.
    """

    shape: Shape
    number: int = 0
    legs: tuple[Leg, ...] = ()

    def to_config(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Sampling:
        """Undo `to_config`."""
        return msgspec.convert(config, cls)

    def after(self, cursors: Sequence[tuple[int, int]], shape: Shape) -> Sampling:
        """The way to read what is left when workers of this sampling stand at `cursors`."""
        leg = Leg(self.shape, self.number, tuple(cursors))
        first = min(epoch for epoch, _ in cursors)
        legs = [old for old in (*self.legs, leg) if max(old.cursors) > (first, 0)]
        return Sampling(shape, self.number + 1, tuple(legs))

    def own(self, epoch: int, worker: int) -> Int64:
        """A worker's samples of an epoch in their order, as numbers in the whole data."""
        left = _left(self.legs, self.shape.n_total, epoch)
        return _order(self.shape, self.number, left, epoch, worker)

    def counts(self, epoch: int) -> tuple[int, ...]:
        """How many samples of an epoch each worker reads."""
        shape, left = self.shape, _left(self.legs, self.shape.n_total, epoch)
        if left is None:
            return counts(shape.n_total, shape.n_workers, shape.shares)
        owned = owners(left, shape.n_workers, shape.shares)
        return tuple(int(n) for n in np.bincount(owned, minlength=shape.n_workers))


@lru_cache(maxsize=4)
def _left(legs: tuple[Leg, ...], n_total: int, epoch: int) -> Int64 | None:
    """The samples of an epoch that no leg has read, ascending; None: all."""
    left: Int64 | None = None
    for leg in legs:
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
    seeds = [shape.seed, epoch, worker]
    if left is None:
        own = numbers(shape.n_total, shape.n_workers, worker, shape.shares)
    else:
        own = left[owners(left, shape.n_workers, shape.shares) == worker]
        seeds.append(number)
    philox = np.random.Philox(np.random.SeedSequence(seeds))
    order: Int64 = own[np.random.Generator(philox).permutation(len(own))]
    return order
