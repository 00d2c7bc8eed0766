"""Where a sample goes: a function of the table's seed, the producer and its counts, and of nothing else.

So a producer that is started again puts a sample that it pushes again where it had put it, and a sample is
held out or not whatever happens.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.insitu.counts import ProducerCounts

Keep = Literal["reservoir", "newest"]
_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_HELD_OUT, _RESERVOIR = 1, 2


class SampleSlots(msgspec.Struct, frozen=True):
    """The slots of one producer: those of samples for training, then those of held-out samples.

    Attributes:
        n_train: SampleSlots of samples for training.
        n_held_out: SampleSlots of held-out samples.
        share: Share of the samples that are held out.
        keep: "reservoir": each sample so far is held with the same probability (algorithm R; Vitter, "Random
            Sampling with a Reservoir", ACM TOMS 1985). "newest": the newest samples are held.
        seed: Seed of the table.
    """

    n_train: int
    n_held_out: int
    share: float
    keep: Keep
    seed: int

    @property
    def n(self) -> int:
        """Return the number of all slots."""
        return self.n_train + self.n_held_out

    def is_held_out(self, producer: int, number: int) -> bool:
        """Return True if the sample is held out. `number`: how many samples came before it."""
        return bool(self.share) and uniform(self.seed, producer, number, _HELD_OUT) < self.share

    def of(self, producer: int, counts: ProducerCounts) -> tuple[int | None, bool]:
        """Return the slot of the next sample, None if it is left out; and whether it is held out.

        The slot follows from the ordinal of the sample among those of its kind, so `training_slots` can find
        it without the numbers of dropped and held-out samples.

        `counts`: Counts of the producer before the sample.
        """
        is_held_out = self.is_held_out(producer, counts.produced)
        before = counts.held_out if is_held_out else counts.trained
        first, size = (self.n_train, self.n_held_out) if is_held_out else (0, self.n_train)
        if before < size:
            return first + before, is_held_out
        if self.keep == "newest":
            return first + before % size, is_held_out
        place = int(uniform(self.seed, producer, before, _RESERVOIR, is_held_out) * (before + 1))
        return (first + place if place < size else None), is_held_out

    def training_slots(self, producer: int, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of samples for training, -1 for those that are left out.

        `ordinals`: Their places among the samples for training of their producer, from 0, shape (n,).
        """
        if self.keep == "newest":
            return ordinals % self.n_train
        drawn = uniform_numbers(self.seed, producer, ordinals, _RESERVOIR, False)
        places = (drawn * (ordinals + 1)).astype(np.int64)
        places[places >= self.n_train] = -1
        return np.where(ordinals < self.n_train, ordinals, places)

    def filled(self, counts: ProducerCounts) -> tuple[int, int]:
        """Return how many slots of samples for training, and of held-out ones, hold a sample."""
        return min(counts.trained, self.n_train), min(counts.held_out, self.n_held_out)


def uniform(seed: int, *words: int) -> float:
    """Return a number from 0 to below 1 that follows from the arguments (splitmix64, Steele et al. 2014)."""
    state = seed & _MASK
    for word in words:
        state = _mixed((state ^ word) & _MASK)
    return (state >> 11) / (1 << 53)


def uniform_numbers(
    seed: int, producer: int, ordinals: NDArray[np.int64], *words: int
) -> NDArray[np.float64]:
    """Return `uniform(seed, producer, ordinal, *words)` for each ordinal."""
    first = np.uint64(_mixed((seed & _MASK) ^ producer))
    state = _mixed_all(first ^ ordinals.astype(np.uint64))
    for word in words:
        state = _mixed_all(state ^ np.uint64(word))
    numbers: NDArray[np.float64] = (state >> np.uint64(11)) / float(1 << 53)
    return numbers


def _mixed(x: int) -> int:
    x = (x + _STEP) & _MASK
    for shift, factor in _ROUNDS:
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return x ^ (x >> 31)


def _mixed_all(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(_STEP)  # arrays of uint64 wrap around
    for shift, factor in _ROUNDS:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))
