"""The samples of an epoch that each worker reads, and their order.

Both are defined even if the number of workers changes in the middle of an epoch.

A worker reads its share of the samples (`mpips.data.shares`) in batches, in an order of its own. If a job
continues in the middle of an epoch with the same number of workers and the same batch size, each worker
continues at its cursor. Otherwise the samples that the workers have read before form a `Leg`. The numbers in
a leg determine which samples of each epoch its workers have read; the new workers divide the rest among them.
Any number of legs can follow each other in one epoch. Each sample of the epoch is read in exactly one of
them.

Data that does not fit into memory is read in windows (`mpips.data.stream`). Then the share of a worker
consists of blocks (`mpips.data.blocks`). In each epoch a worker reads its blocks in a random order, `window`
of them at a time, and the samples of a window in a random order.

Memory. The shares of workers are defined by numbers of samples in the file (`mpips.data.shares`), so a worker
finds its candidates without the shares of others. It makes the orders of the last leg's workers one after the
other, and drops those of its candidates that they have read. So it needs memory for its own share and for one
share of that leg. Only if an epoch has several legs, it needs one bit more for each sample of the data: the
orders in a leg depend on what the legs before it have left. A job that reads in windows needs no memory for
its share, but one bit for each sample of the data if an epoch has a leg.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.blocks import SampleBlocks
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
        block: Samples of a block, if the data is read in windows; the rule is then that of
            `mpips.data.blocks`. 0: the whole share is one window.
        window: Blocks of a window.
    """

    n_total: int
    n_workers: int
    batch_size: int
    seed: int
    shares: Shares = "interleaved"
    block: int = 0
    window: int = 0

    @classmethod
    def of_job(
        cls,
        n_total: int,
        n_workers: int,
        batch_size: int,
        seed: int,
        block: int = 0,
        window: int = 0,
    ) -> Shape:
        """Return the shape with which `mpips train` reads. A single worker has all samples by either rule."""
        shares: Shares = "mixed" if n_workers > 1 else "interleaved"
        return cls(n_total, n_workers, batch_size, seed, shares, block, window)

    @property
    def blocks(self) -> SampleBlocks:
        """The blocks of the data, if it is read in windows."""
        return SampleBlocks(self.n_total, self.n_workers, self.block)

    def owners(self, samples: Int64) -> Int64:
        """Return the worker of each sample, int64; `samples`: int64, any shape."""
        if self.block:
            return self.blocks.owners(samples)
        return owners(samples, self.n_workers, self.shares)

    def counts(self) -> tuple[int, ...]:
        """Return the number of samples of each worker; the numbers differ by at most one."""
        if self.block:
            return self.blocks.counts()
        return counts(self.n_total, self.n_workers, self.shares)


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
        legs: The earlier legs that have read samples of the epochs that this job reads.
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
        return np.concatenate([np.empty(0, np.int64), *self.windows(epoch, worker)])

    def windows(self, epoch: int, worker: int) -> Iterator[Int64]:
        """Yield the samples of an epoch that a worker reads, in its order, one window after the other."""
        legs = tuple(leg for leg in self.legs if leg.has_read(epoch))
        if self.shape.block:
            bits = _bits(legs, epoch)
            yield from _windows(self.shape, self.number, bits, epoch, worker)
            return
        left = _candidates(self.shape, _bits(legs[:-1], epoch), worker) if legs else None
        if left is not None:
            keep = np.ones(len(left), np.bool_)
            for read in _read_by_last(legs, epoch):
                mine = read[self.shape.owners(read) == worker]
                keep[np.searchsorted(left, mine)] = False
            left = left[keep]
        yield _order(self.shape, self.number, left, epoch, worker)

    def counts(self, epoch: int) -> tuple[int, ...]:
        """Return the number of samples of an epoch that each worker reads."""
        return _counts(self.shape, tuple(leg for leg in self.legs if leg.has_read(epoch)), epoch)


@lru_cache(maxsize=8)
def _counts(shape: Shape, legs: tuple[Leg, ...], epoch: int) -> tuple[int, ...]:
    """Return the number of samples that each worker of a job reads after legs that have read of the epoch."""
    found = np.array(shape.counts())
    for i in range(len(legs)):
        for read in _read_by_last(legs[: i + 1], epoch):
            found -= np.bincount(shape.owners(read), minlength=shape.n_workers)
    return tuple(found.tolist())


def _read_by_last(legs: tuple[Leg, ...], epoch: int) -> Iterator[Int64]:
    """Return what each worker of the last of these legs has read of an epoch, one after the other.

    The samples of a worker come in several arrays if it reads in windows.
    """
    leg = legs[-1]
    bits = _bits(legs[:-1], epoch)
    n_own = _counts(leg.shape, legs[:-1], epoch)
    for worker in range(leg.shape.n_workers):
        left = leg.n_read(worker, epoch, n_own[worker])
        for window in _orders(leg.shape, leg.number, bits, epoch, worker):
            if not left:
                break
            yield window[:left]
            left -= min(left, len(window))


def _orders(
    shape: Shape, number: int, bits: Bits | None, epoch: int, worker: int
) -> Iterator[Int64]:
    """Yield the samples of a worker whose bits are 1 (None: all), in its order."""
    if shape.block:
        yield from _windows(shape, number, bits, epoch, worker)
        return
    left = _candidates(shape, bits, worker) if bits is not None else None
    yield _order(shape, number, left, epoch, worker)


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
    return _unread(share, bits)


def _unread(samples: Int64, bits: Bits) -> Int64:
    """Return those of the samples whose bits are 1."""
    unread = bits[samples >> 3] >> (samples & 7).astype(np.uint8) & 1
    found: Int64 = samples[unread.astype(np.bool_)]
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
    order: Int64 = own[_permutation(seeds, len(own))]
    return order


def _windows(
    shape: Shape, number: int, bits: Bits | None, epoch: int, worker: int
) -> Iterator[Int64]:
    """Yield a worker's samples in its order, by (seed, epoch, worker, leg), window by window.

    Args:
        shape: Shape of the job, with blocks.
        number: Number of the leg in the run.
        bits: One bit for each sample of the data: 1 if it is to be read; None: all are.
        epoch: The epoch.
        worker: The worker.
    """
    seeds = [shape.seed, epoch, worker, number]
    starts, stops = shape.blocks.runs(worker)
    order = _permutation(seeds, len(starts))
    for place in range(0, len(order), shape.window):
        chosen = order[place : place + shape.window]
        ranges = zip(starts[chosen].tolist(), stops[chosen].tolist(), strict=True)
        samples = np.concatenate([np.arange(*ends, dtype=np.int64) for ends in ranges])
        if bits is not None:
            samples = _unread(samples, bits)
        yield samples[_permutation([*seeds, place // shape.window], len(samples))]


def _permutation(seeds: Sequence[int], n: int) -> Int64:
    """Return a random permutation of 0..n-1 by the seeds."""
    philox = np.random.Philox(np.random.SeedSequence(seeds))
    found: Int64 = np.random.Generator(philox).permutation(n)
    return found
