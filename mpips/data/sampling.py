"""The samples of an epoch that each worker reads, and their order.

Both are defined also when the number of workers changes in the middle of an epoch.

A worker reads its share of the samples (`mpips.data.shares`) in batches, in an order of its own. If a job
continues in the middle of an epoch with the same number of workers and the same batch size, each worker
continues at its cursor. Otherwise the samples that the workers have read before form a `Leg`. The numbers in
a leg determine which samples of each epoch its workers have read; the new workers divide the rest among them.
Any number of legs can follow each other in one epoch. Each sample of the epoch is read in exactly one of
them.

Memory. The shares of workers are defined by numbers of samples in the file (`mpips.data.shares`), so a worker
knows its candidates without the shares of others. It makes the orders of the last leg's workers one after the
other, and drops those of its candidates that they have read. So it needs memory for its own share and for one
share of that leg. Only if an epoch has several legs, it needs one bit more for each sample of the data: the
orders in a leg depend on what the legs before it have left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.shares import Shares, counts, numbers, owners

Int64 = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]


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

    def has_read(self, epoch: int) -> bool:
        """Return True if some worker has read samples of an epoch."""
        return max(self.cursors) > (epoch, 0)

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
        legs = tuple(leg for leg in self.legs if leg.has_read(epoch))
        left = _candidates(self.shape, _bits(legs[:-1], epoch), worker) if legs else None
        if left is not None:
            keep = np.ones(len(left), np.bool_)
            for read in _read_by_last(legs, epoch):
                mine = read[owners(read, self.shape.n_workers, self.shape.shares) == worker]
                keep[np.searchsorted(left, mine)] = False
            left = left[keep]
        return _order(self.shape, self.number, left, epoch, worker)

    def counts(self, epoch: int) -> tuple[int, ...]:
        """Return the number of samples of an epoch that each worker reads."""
        return _counts(self.shape, tuple(leg for leg in self.legs if leg.has_read(epoch)), epoch)


@lru_cache(maxsize=8)
def _counts(shape: Shape, legs: tuple[Leg, ...], epoch: int) -> tuple[int, ...]:
    """Return the number of samples that each worker of a job reads after legs that have read of the epoch."""
    found = np.array(counts(shape.n_total, shape.n_workers, shape.shares))
    for i in range(len(legs)):
        for read in _read_by_last(legs[: i + 1], epoch):
            owned = owners(read, shape.n_workers, shape.shares)
            found -= np.bincount(owned, minlength=shape.n_workers)
    return tuple(found.tolist())


def _read_by_last(legs: tuple[Leg, ...], epoch: int) -> Iterator[Int64]:
    """Return what each worker of the last of these legs has read of an epoch, one after the other."""
    leg = legs[-1]
    bits = _bits(legs[:-1], epoch)
    for worker in range(leg.shape.n_workers):
        left = _candidates(leg.shape, bits, worker) if bits is not None else None
        own = _order(leg.shape, leg.number, left, epoch, worker)
        yield own[: leg.n_read(worker, epoch, len(own))]


@lru_cache(maxsize=2)
def _bits(legs: tuple[Leg, ...], epoch: int) -> Bits | None:
    """Return one bit for each sample, 1 if none of these legs has read it, eight in a byte; None: no legs."""
    if not legs:
        return None
    bits = np.full(-(-legs[0].shape.n_total // 8), 255, np.uint8)
    for i in range(len(legs)):
        for read in _read_by_last(legs[: i + 1], epoch):
            # No other leg has read these samples, so their bits are 1.
            np.subtract.at(bits, read >> 3, np.left_shift(1, read & 7).astype(np.uint8))
    return bits


def _candidates(shape: Shape, bits: Bits | None, worker: int) -> Int64:
    """Return the samples of a worker's share whose bits are 1 (None: all), ascending."""
    share = numbers(shape.n_total, shape.n_workers, worker, shape.shares)
    if bits is None:
        return share
    unread = bits[share >> 3] >> (share & 7).astype(np.uint8) & 1
    found: Int64 = share[unread.astype(np.bool_)]
    return found


def _order(shape: Shape, number: int, left: Int64 | None, epoch: int, worker: int) -> Int64:
    """Return a worker's samples in its order, by (seed, epoch, worker, leg).

    Args:
        shape: Shape of the job.
        number: Number of the leg in the run.
        left: The worker's samples, ascending; None: its whole share of the data.
        epoch: The epoch.
        worker: The worker.
    """
    seeds = [shape.seed, epoch, worker]
    if left is None:
        own = numbers(shape.n_total, shape.n_workers, worker, shape.shares)
    else:
        own = left
        seeds.append(number)
    philox = np.random.Philox(np.random.SeedSequence(seeds))
    order: Int64 = own[np.random.Generator(philox).permutation(len(own))]
    return order
