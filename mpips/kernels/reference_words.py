"""The definition of the kernels of word vectors, in NumPy.

Examples with negative samples of Mikolov et al., "Distributed Representations of Words and Phrases and their
Compositionality", NIPS 2013, one after the other, with all rows changed in place. The C++ kernels do the same
float32 operations in the same order, so results agree bit for bit. Random numbers are those of SplitMix64
(Steele, Lea and Flood, OOPSLA 2014) by counter: number i of a key is the output for key + (i + 1) * STEP.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

LANES = 16  # partial sums of a dot product; rows have a multiple of it
BOUND, PLACES_PER_UNIT = 8, 128  # of the tables of sigmoids and losses: from -BOUND to BOUND
N_PLACES = 2 * BOUND * PLACES_PER_UNIT
STEP = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(x: UInt64) -> UInt64:
    """Return the finaliser of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_numbers(key: int, n: int) -> UInt64:
    """Return random numbers 0 to n - 1 of a key, uint64."""
    counters = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(STEP)
    return mix(counters + np.uint64(key & _MASK))


def uniforms(key: int, n: int) -> npt.NDArray[np.float64]:
    """Return numbers from 0 to below 1, float64, shape (n,)."""
    return (random_numbers(key, n) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def chunk_keys(seed: int, epoch: int, chunks: Int64) -> UInt64:
    """Return the keys of chunks in an epoch, uint64, shape (n,)."""
    epoch_key = random_numbers(seed, 1) + np.uint64((epoch + 1) * STEP & _MASK)
    return mix(mix(epoch_key) + (chunks.astype(np.uint64) + np.uint64(1)) * np.uint64(STEP))


def negatives_key(key: int) -> int:
    """Return the key of a chunk's negative samples."""
    return int(mix(np.array([~key & _MASK], np.uint64))[0])


def sigmoid_table() -> Float32:
    """Return 1 / (1 + exp(-x)) in the middle of each place, float32, shape (N_PLACES,)."""
    return (1 / (1 + np.exp(-_middles()))).astype(np.float32)


def loss_table() -> Float32:
    """Return log(1 + exp(-x)) in the middle of each place, float32, shape (N_PLACES,)."""
    return np.log1p(np.exp(-_middles())).astype(np.float32)


def _middles() -> npt.NDArray[np.float64]:
    return (np.arange(N_PLACES) + 0.5) / PLACES_PER_UNIT - BOUND


def sample_words(
    tokens: Int32, starts: Int64, keys: UInt64, thresholds: UInt64, window: int
) -> tuple[Int32, Int32, Int64]:
    """Return the sampled words, their reach, and where chunks begin; see native/src/words/examples.hpp."""
    words, reach, begins = [], [], [0]
    for c, key in enumerate(keys.tolist()):
        chunk = tokens[starts[c] : starts[c + 1]].tolist()
        for word, x in zip(chunk, random_numbers(key, len(chunk)).tolist(), strict=True):
            if word < 0:
                words.append(word)
                reach.append(0)
            elif x >> 32 < int(thresholds[word]):
                words.append(word)
                reach.append(1 + ((x & 0xFFFFFFFF) * window >> 32))
        begins.append(len(words))
    return np.array(words, np.int32), np.array(reach, np.int32), np.array(begins, np.int64)


def examples(
    words: Sequence[int], reach: Sequence[int], skip_gram: bool
) -> list[tuple[list[int], int]]:
    """Return the examples of a chunk: the words of the input, and the word that is predicted."""
    found: list[tuple[list[int], int]] = []
    for i, word in enumerate(words):
        if word < 0:
            continue
        begin, end = i, i + 1
        while begin > 0 and i - begin < reach[i] and words[begin - 1] >= 0:
            begin -= 1
        while end < len(words) and end - i <= reach[i] and words[end] >= 0:
            end += 1
        context = [*words[begin:i], *words[i + 1 : end]]
        if skip_gram:
            found += [([one], word) for one in context]
        elif context:
            found.append((context, word))
    return found


class NegativeSamples:
    """The negative samples of a chunk, in their order."""

    def __init__(self, key: int, pool: Sequence[int]) -> None:
        """Start with the first; `pool`: rows among which they are drawn."""
        self._key, self._pool, self._drawn = negatives_key(key), pool, 0

    def next(self) -> int:
        """Return the next row."""
        x = int(random_numbers(self._key, self._drawn // 2 + 1)[-1])
        half = x >> 32 if self._drawn % 2 == 0 else x & 0xFFFFFFFF
        self._drawn += 1
        return self._pool[half * len(self._pool) >> 32]


def dot(a: Float32, b: Float32) -> np.float32:
    """Return a dot product of rows: LANES partial sums, added in a fixed order."""
    sums = np.zeros(LANES, np.float32)
    for i in range(0, len(a), LANES):
        sums = sums + a[i : i + LANES] * b[i : i + LANES]
    sums = sums[:8] + sums[8:]
    sums = sums[:4] + sums[4:]
    return np.float32((sums[0] + sums[2]) + (sums[1] + sums[3]))


def place(value: np.float32) -> int:
    """Return the place of a dot product in the tables; NaN has place 0."""
    at = (value + np.float32(BOUND)) * np.float32(PLACES_PER_UNIT)
    return int(min(max(at, np.float32(0)), np.float32(N_PLACES - 1))) if at == at else 0


def train_example(
    inputs: Float32, outputs: Float32, rows: Sequence[int], targets: Sequence[int], rate: float
) -> float:
    """Train one example in place and return its loss before.

    Args:
        inputs: Input rows, float32, shape (n, stride).
        outputs: Output rows, float32, shape (m, stride).
        rows: Input rows of the example, whose mean is the input.
        targets: Output rows: that of the word, then those of negative samples. A negative sample that is the
            word itself does not count.
        rate: Learning rate.
    """
    sigmoids, losses, step = sigmoid_table(), loss_table(), np.float32(rate)
    h = inputs[rows[0]].copy()
    if len(rows) > 1:
        h = np.zeros_like(h)
        for row in rows:
            h = h + inputs[row]
        h = h * (np.float32(1) / np.float32(len(rows)))
    dots = [dot(h, outputs[t]) for t in targets]
    loss, factors = 0.0, []
    for k, (target, value) in enumerate(zip(targets, dots, strict=True)):
        at = place(value)
        if k == 0:
            loss += float(losses[at])
            factors.append((np.float32(1) - sigmoids[at]) * step)
        elif target == targets[0]:
            factors.append(np.float32(0))
        else:
            loss += float(losses[N_PLACES - 1 - at])
            factors.append(-sigmoids[at] * step)
    change = np.zeros_like(h)
    for factor, target in zip(factors, targets, strict=True):
        change = change + factor * outputs[target]
        outputs[target] = outputs[target] + factor * h
    for row in rows:
        inputs[row] = inputs[row] + change
    return loss
