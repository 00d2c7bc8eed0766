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

from mpips._native import keep_words, number_words, train_words
from mpips.kernels.reference_words import LANES, chunk_keys, loss_table, sigmoid_table, uniforms

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

    def pool(self, key: int) -> Int32:
        """Draw words with the probabilities of negative samples, int32, shape (n_pool,)."""
        if not self._negative:
            return np.empty(0, np.int32)
        return np.searchsorted(self._shares, uniforms(key, self._n_pool), "right").astype(np.int32)

    def draw(self, tokens: Int32, starts: Int64, keys: UInt64, pool: Int32) -> DrawnWords:
        """Draw the words that are kept, and number the rows that their examples need.

        Args:
            tokens: See `mpips.data.text.Chunks`.
            starts: As of `tokens`.
            keys: Keys of the chunks.
            pool: Value of `pool`.
        """
        words, reach, begins = keep_words(tokens, starts, keys, self._thresholds, self._window)
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
    """Return the probabilities with which words are kept, times 2^32, uint64, shape (n_words,).

    A word of frequency f is kept with probability (sqrt(f / sample) + 1) sample / f, as in the program of
    Mikolov et al.; the formula of their paper has no term sample / f.
    """
    if not sample:
        return np.full(len(counts), 1 << 32, np.uint64)
    share = counts / (sample * counts.sum())
    kept = np.minimum((np.sqrt(share) + 1) / share, 1.0)
    found: UInt64 = np.rint(kept * 2.0**32).astype(np.uint64)
    return found


def wide(rows: Float32) -> Float32:
    """Return a copy of rows, shape (n, dim), with zeros up to a multiple of 16 values."""
    n, dim = rows.shape
    found = np.zeros((n, -(-dim // LANES) * LANES), np.float32)
    found[:, :dim] = rows
    return found
