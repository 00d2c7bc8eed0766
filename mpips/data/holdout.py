"""The samples of the training data that are held out for validation.

They are a stratified random sample: of each block of B consecutive samples a number of places is drawn from
the seed and the number of the block, so that the first b blocks have floor(b * B * fraction) held-out samples
together. Which samples these are depends on the seed, the fraction and the place of a sample in the data, and
on nothing else: not on the number of workers, and not on the samples behind it.

For cross-validation the samples are dealt out to F folds instead: the draws order the samples of each block,
and sample i of all blocks in this order, counted from 0, belongs to fold 1 + i % F. So the folds are
disjoint, have all samples together, and sizes that differ by at most one. The samples of the last block are
ordered among themselves, so their folds also depend on their number.

The samples of each side are numbered without those of the other side. The rules that divide samples among
workers (`mpips.data.shares`, `mpips.data.blocks`) are applied to these numbers.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]

_BLOCK = 256  # samples
_AT_ONCE = 4096  # blocks for which places are drawn together
_STEP = np.uint64(0x9E3779B97F4A7C15)


class Holdout(msgspec.Struct, frozen=True):
    """The division of samples into those for training and those for validation.

    Attributes:
        fraction: Share of the held-out samples, above 0 and below 1; 0 with folds.
        seed: Seed of the draws.
        folds: Number of folds, of which one is held out; 0: a fraction is.
        fold: Number of this fold, from 1.
    """

    fraction: float
    seed: int
    folds: int = 0
    fold: int = 0

    @property
    def option(self) -> str:
        """The options of a job with this division, for messages."""
        if self.folds:
            return f"data.fold = {self.fold} of data.folds = {self.folds}"
        return f"data.validation = {self.fraction:g}"

    def held_before(self, blocks: Int64) -> Int64:
        """Return how many samples are held out of those before each block."""
        if self.folds:
            # Round up: of n samples, those with numbers fold - 1, fold - 1 + folds, ...
            n: Int64 = -(-(blocks * _BLOCK - (self.fold - 1)) // self.folds)
            return np.maximum(n, 0)
        found: Int64 = np.floor(blocks * _BLOCK * self.fraction).astype(np.int64)
        return found

    def held(self, blocks: Int64, n_total: int) -> npt.NDArray[np.bool_]:
        """Return which samples of some blocks are held out, shape (blocks, B); `n_total`: all samples."""
        places = blocks[:, None] * _BLOCK + np.arange(_BLOCK)
        draws = _mixed(places, self.seed)
        if self.folds:
            # Places without samples come last.
            draws[places >= n_total] = np.iinfo(np.uint64).max
        ranks = np.argsort(np.argsort(draws, axis=1, kind="stable"), axis=1, kind="stable")
        held: npt.NDArray[np.bool_]
        if self.folds:
            held = (blocks[:, None] * _BLOCK + ranks) % self.folds == self.fold - 1
            return held
        # The samples with the least draws of a block are held out.
        quotas = self.held_before(blocks + 1) - self.held_before(blocks)
        held = ranks < quotas[:, None]
        return held


class HoldoutSide:
    """The samples of data that are held out, or the others, in the order of the data.

    It needs memory for one number for each block of the data.

    Attributes:
        n: Number of samples of this side.
    """

    def __init__(self, holdout: Holdout, n_total: int, is_held: bool) -> None:
        """Count the samples.

        Args:
            holdout: The division.
            n_total: Samples of the data.
            is_held: True: the samples for validation; False: those for training.
        """
        self._holdout = holdout
        self._n_total = n_total
        self._is_held = is_held
        blocks = np.arange(-(-n_total // _BLOCK), dtype=np.int64)
        before = holdout.held_before(blocks)
        self._before = before if is_held else blocks * _BLOCK - before
        self.n = 0
        if n_total:
            last = holdout.held(blocks[-1:], n_total)[0, : n_total - int(blocks[-1]) * _BLOCK]
            self.n = int(self._before[-1] + (last == is_held).sum())

    def places(self, numbers: Int64) -> Int64:
        """Return the places in the data of samples of this side, int64, like `numbers`, in any order."""
        blocks = np.searchsorted(self._before, numbers, side="right") - 1
        places = np.empty_like(numbers)
        groups = blocks // _AT_ONCE
        for group in np.unique(groups).tolist():
            here = np.flatnonzero(groups == group)
            some, which = np.unique(blocks[here], return_inverse=True)
            # The places of this side in each block come first, in their order.
            is_other = self._holdout.held(some, self._n_total) != self._is_held
            order = np.argsort(is_other, axis=1, kind="stable")
            ranks = numbers[here] - self._before[some[which]]
            places[here] = some[which] * _BLOCK + order[which, ranks]
        return places


def _mixed(numbers: Int64, seed: int) -> npt.NDArray[np.uint64]:
    """Return pseudo-random numbers, one for each number and seed (two rounds of SplitMix64)."""
    x = numbers.astype(np.uint64) + np.uint64(seed * 0xD1342543DE82EF95 % (1 << 64))
    for _ in range(2):
        x = x + _STEP
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return x
