"""Training of word vectors on rows that a worker has pulled: what is drawn, and where rows lie.

Random numbers come from counters with a key for each chunk of the text (`mpips.kernels.reference_words`), so
that the examples of a chunk in an epoch depend on the seed alone. Negative samples are drawn in two stages.
A pool is drawn from the whole vocabulary for each batch, and the negative samples of the batch are drawn from
the pool with equal probabilities: each of them has the probabilities of the vocabulary, and a worker pulls no
more rows than the pool has.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from mpips._native import number_words, sample_words, train_words
from mpips.kernels.reference_words import LANES, chunk_keys, loss_table, sigmoid_table, uniforms

# Curvature of the loss along a row for each update. With it the quotient in `damping` is within 0.1 of what
# the changes of three workers on text8 must be multiplied by to add up to those of one worker on all.
_CURVATURE = 0.18
Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]


class DrawnWords(msgspec.Struct, frozen=True):
    """The words of some chunks that are left after subsampling, with a pool of negative samples.

    Attributes:
        words: Numbers of words, int32, shape (n,); -1 ends a sentence.
        reach: Words of the window on each side, int32, shape (n,).
        starts: Place of each chunk, int64, shape (n_chunks + 1,).
        keys: Key of the random numbers of each chunk, uint64, shape (n_chunks,).
        pool: Words among which negative samples are drawn, int32, shape (n_pool,).
        inputs: Keys of the input rows, int64, shape (n_inputs,).
        outputs: Keys of the output rows, int64, shape (n_outputs,); the first are those of `inputs`.
        places: Row of each word of the vocabulary, int32; -1: none.
    """

    words: Int32
    reach: Int32
    starts: Int64
    keys: UInt64
    pool: Int32
    inputs: Int64
    outputs: Int64
    places: Int32

    def chunk(self, i: int) -> DrawnWords:
        """Return chunk `i` alone, with the rows of all."""
        part = slice(self.starts[i], self.starts[i + 1])
        starts = self.starts[i : i + 2] - self.starts[i]
        words, reach, keys = self.words[part], self.reach[part], self.keys[i : i + 1]
        return msgspec.structs.replace(self, words=words, reach=reach, starts=starts, keys=keys)


class WordModel:
    """Numbers that are the same for all batches of a job."""

    def __init__(
        self,
        counts: Int64,
        *,
        skip_gram: bool,
        window: int,
        negative: int,
        sample: float,
        exponent: float,
        n_pool: int,
        seed: int,
    ) -> None:
        """Compute probabilities from the counts of words, int64, shape (n_words,)."""
        self._skip_gram, self._window, self._negative = skip_gram, window, negative
        self._n_pool, self._seed = n_pool, seed
        self._thresholds = thresholds(counts, sample)
        weights = np.cumsum(counts.astype(np.float64) ** exponent)
        self._shares = weights / weights[-1]
        self._sigmoids, self._losses = sigmoid_table(), loss_table()

    def keys(self, epoch: int, chunks: Int64) -> UInt64:
        """Return the keys of the random numbers of chunks, by their numbers in the text."""
        return chunk_keys(self._seed, epoch, chunks)

    def pool(self, key: int, n: int = 0) -> Int32:
        """Draw `n` words (0: those of a step) with the probabilities of negative samples, int32."""
        found = np.searchsorted(self._shares, uniforms(key, n or self._n_pool), "right")
        return np.minimum(found, len(self._shares) - 1).astype(np.int32)

    def draw(self, tokens: Int32, starts: Int64, keys: UInt64, pool: Int32) -> DrawnWords:
        """Draw the words that are sampled, and number the rows that their examples need.

        Args:
            tokens: See `mpips.data.text.Chunks`.
            starts: As of `tokens`.
            keys: Keys of the chunks.
            pool: Value of `pool`.
        """
        words, reach, begins = sample_words(tokens, starts, keys, self._thresholds, self._window)
        places = np.full(len(self._thresholds), -1, np.int32)
        inputs = number_words(words, places, 0)
        others = number_words(pool, places, len(inputs))
        outputs = np.concatenate([inputs, others])
        return DrawnWords(words, reach, begins, keys, pool, inputs, outputs, places)

    def train(
        self, drawn: DrawnWords, inputs: Float32, outputs: Float32, rate: float
    ) -> tuple[float, int]:
        """Train all examples of drawn words; `inputs` and `outputs` change.

        Args:
            drawn: The words.
            inputs: Value of `wide` of the rows of `drawn.inputs`.
            outputs: The same of `drawn.outputs`.
            rate: Learning rate; 0: nothing changes.

        Returns:
            The summed loss of the examples before their own updates, in nats, and their number.
        """
        return train_words(
            drawn.words,
            drawn.reach,
            drawn.starts,
            drawn.keys,
            drawn.places,
            inputs,
            outputs,
            drawn.places[drawn.pool],
            self._sigmoids,
            self._losses,
            self._skip_gram,
            self._negative,
            rate,
            None,
        )


def thresholds(counts: Int64, sample: float) -> UInt64:
    """Return the probabilities with which words are sampled, times 2^32, uint64, shape (n_words,).

    A word of frequency f is sampled with probability (sqrt(f / sample) + 1) sample / f, as in the program of
    Mikolov et al.; the formula of their paper has no term sample / f.
    """
    if not sample:
        return np.full(len(counts), 1 << 32, np.uint64)
    share = counts / (sample * counts.sum())
    sampled = np.minimum((np.sqrt(share) + 1) / share, 1.0)
    found: UInt64 = np.rint(sampled * 2.0**32).astype(np.uint64)
    return found


def updates_of(drawn: DrawnWords, n_examples: int, negative: int) -> tuple[Float32, Float32]:
    """Return about how many examples change each of the rows `inputs` and `outputs`, float32.

    A word is taken to be in as many examples as the mean word, and in the expected number of negative
    samples.
    """
    words = drawn.places[drawn.words[drawn.words >= 0]]
    occurrences = np.bincount(words, minlength=len(drawn.outputs)).astype(np.float32)
    occurrences *= np.float32(n_examples / max(len(words), 1))
    pool = np.bincount(drawn.places[drawn.pool], minlength=len(drawn.outputs)).astype(np.float32)
    pool *= np.float32(n_examples * negative / max(len(drawn.pool), 1))
    return occurrences[: len(drawn.inputs)], occurrences + pool


def damping(path: Float32, n_workers: int) -> Float32:
    """Return the factor of the changes of rows that all workers compute from the same old values.

    A row moves to where its gradient vanishes, 1 - exp(-c path) of the way: `path` is its number of updates
    times the learning rate, c a curvature. n workers one after the other would go 1 - exp(-n c path) of the
    way. The factor is the quotient of this and n times that: 1 for rows with few updates, whose changes add
    up, and 1 / n for rows with many, whose changes are n estimates of one. It is raised by 1 + 2 / n^2, since
    old values slow the training down; more would let it diverge, as plain sums do from three workers on.

    Args:
        path: float32, shape (n,).
        n_workers: Workers whose changes are added.
    """
    way = -np.expm1(-_CURVATURE * path)
    together = -np.expm1(-_CURVATURE * n_workers * path)
    ratio = np.where(path > 0, together / (n_workers * np.maximum(way, 1e-30)), 1)
    found: Float32 = np.minimum((1 + 2 / n_workers**2) * ratio, 1).astype(np.float32)
    return found


def wide(rows: Float32) -> Float32:
    """Return a copy of rows, shape (n, dim), with zeros up to a multiple of 16 values."""
    n, dim = rows.shape
    found = np.zeros((n, -(-dim // LANES) * LANES), np.float32)
    found[:, :dim] = rows
    return found
