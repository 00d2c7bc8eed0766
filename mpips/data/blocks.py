"""The rule that divides samples among workers in blocks of consecutive ones: for data read in windows.

A round is as many blocks of B samples as there are workers, W. In round r, worker w has block
(w - h(r)) % W, with the rotations h of the rule "mixed" (`mpips.data.shares`), so that a share is a
stratified random sample of the blocks. The samples behind the last whole round, fewer than B * W, are
divided into W consecutive parts whose lengths differ by at most 1. So the shares of two workers differ by at
most one sample, and a worker reads its share in runs of B samples.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.shares import bounds, rotations

Int64: TypeAlias = npt.NDArray[np.int64]


class SampleBlocks(msgspec.Struct, frozen=True):
    """The blocks of a data set.

    Attributes:
        n_total: Samples of the data.
        n_workers: Number of workers, W.
        block: Samples of a block, B, at least 1.
    """

    n_total: int
    n_workers: int
    block: int

    @property
    def n_rounds(self) -> int:
        """Number of whole rounds."""
        return self.n_total // (self.block * self.n_workers)

    @property
    def n_in_rounds(self) -> int:
        """Samples of all whole rounds."""
        return self.n_rounds * self.block * self.n_workers

    def runs(self, worker: int) -> tuple[Int64, Int64]:
        """Return the first sample of each block of a worker, and the one behind its last, ascending."""
        rounds = np.arange(self.n_rounds, dtype=np.int64)
        places = (worker - rotations(rounds, self.n_workers)) % self.n_workers
        starts = (rounds * self.n_workers + places) * self.block
        first, last = bounds(self.n_total - self.n_in_rounds, worker, self.n_workers)
        if last == first:
            return starts, starts + self.block
        rest = self.n_in_rounds
        return np.append(starts, rest + first), np.append(starts + self.block, rest + last)

    def owners(self, samples: Int64) -> Int64:
        """Return the worker of each sample, int64."""
        blocks = samples // self.block
        rounds = blocks // self.n_workers
        found = (blocks + rotations(rounds, self.n_workers)) % self.n_workers
        # The first workers have one sample more of the rest where the number does not divide.
        each, more = divmod(self.n_total - self.n_in_rounds, self.n_workers)
        place = samples - self.n_in_rounds
        of_rest = np.where(
            place < more * (each + 1), place // (each + 1), (place - more) // max(each, 1)
        )
        return np.where(place >= 0, of_rest, found)

    def counts(self) -> tuple[int, ...]:
        """Return the number of samples of each worker."""
        rest = self.n_total - self.n_in_rounds
        whole = self.n_rounds * self.block
        ends = (bounds(rest, worker, self.n_workers) for worker in range(self.n_workers))
        return tuple(whole + last - first for first, last in ends)
