"""Counts of the uses of each held sample for training, by one reader."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpips.insitu.counts import ProducerCounts
from mpips.insitu.slots import SampleSlots

Int64 = NDArray[np.int64]
_AT_ONCE = 1 << 16  # ordinals whose slots are computed at once


class SampleUses:
    """The uses of held samples by one reader, since it was made.

    Which sample is in a slot follows from the counts alone, and is in its row: the ordinal among the samples
    for training of its producer. A slot that is written over between the counts that a reader knows and its
    pull gives a newer sample, whose ordinal the row has. So uses are always counted for the right sample.
    """

    def __init__(self, slots: SampleSlots, producers: int) -> None:
        """Begin with no sample."""
        self._slots = slots
        self._ordinals = np.full((producers, slots.n_train), -1, np.int64)
        self._uses = np.zeros((producers, slots.n_train), np.int64)
        self._known = [0] * producers  # samples for training that are in `_ordinals`

    def advance(self, counts: Sequence[ProducerCounts]) -> None:
        """Take the samples that these counts have more than the earlier ones."""
        for producer, each in enumerate(counts):
            first = self._known[producer]
            if self._slots.keep == "newest":
                first = max(first, each.trained - self._slots.n_train)
            for begin in range(first, each.trained, _AT_ONCE):
                end = min(begin + _AT_ONCE, each.trained)
                ordinals = np.arange(begin, end)
                slots = self._slots.training_slots(producer, ordinals)
                held = slots >= 0
                self._set(np.full(held.sum(), producer), slots[held], ordinals[held])
            self._known[producer] = max(each.trained, self._known[producer])

    def note(self, producers: Int64, slots: Int64, ordinals: Int64) -> None:
        """Count one use of each of these samples; a sample may be among them several times."""
        self._set(producers, slots, ordinals)
        np.add.at(self._uses, (producers, slots), 1)

    def below(self, most: int, sizes: Int64) -> Int64:
        """Return the places, among all filled slots, of samples with fewer than `most` uses.

        Args:
            most: At least 1.
            sizes: Filled slots for training of each producer.
        """
        is_filled = np.arange(self._slots.n_train) < sizes[:, None]
        return np.flatnonzero(self._uses[is_filled] < most)

    def _set(self, producers: Int64, slots: Int64, ordinals: Int64) -> None:
        """Note which samples are in slots, unless newer ones are known there; in equal slots the newest."""
        before = self._ordinals[producers, slots]
        np.maximum.at(self._ordinals, (producers, slots), ordinals)
        is_new = self._ordinals[producers, slots] > before
        self._uses[producers[is_new], slots[is_new]] = 0
