"""The record of the words in the training data, and the cells of other data that no training sample had.

The record is a Bloom filter of the keys of all words (Bloom, CACM 13(7), 1970): each key sets four bits, and
a key one of whose bits is 0 was never set. It has 8 to 16 bits for each word and at most `MOST_BYTES`, which
are enough for some three million words. With more words, it takes unknown ones for known ones more often;
the rate follows from the share of bits that are set, and `unknown` corrects its counts by it.

A filter of half the size has the two halves of a larger one, bit by bit. So workers make filters of one size
from their own keys, combine them, and halve the result as long as few enough bits are set. The result depends
on the words alone, not on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Dataset, SparseBatch, SparseData
from mpips.data.info import DataInfo
from mpips.model.distinct import distinct

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int64: TypeAlias = npt.NDArray[np.int64]
Float64: TypeAlias = npt.NDArray[np.float64]

PATH = "columns/words"  # of the array in a checkpoint
MOST_BYTES = 4 << 20
SHARE = 0.1  # of the cells of a column, above which unknown words are named
_LEAST_BYTES = 64
_BITS = 4  # that a key sets
_KEY_BITS = 16  # bits of a filter for each key before it is halved
_FULL = 0.5  # greatest share of bits that are set
_AT_ONCE = 1 << 16  # keys
_SECOND = 31  # bit of a key where its second number begins


class KnownWords:
    """The words of the training data.

    Attributes:
        bits: The filter, uint8, shape (n_bytes,), a power of 2.
    """

    def __init__(self, bits: Bytes) -> None:
        """Take a filter."""
        self.bits = bits
        self._n_set = int(np.unpackbits(bits).sum()) if len(bits) else 0

    @classmethod
    def of(cls, keys: Int64, n_keys: int) -> KnownWords:
        """Return a filter with these keys.

        Args:
            keys: Keys, int64, shape (n,).
            n_keys: Number of keys for which there must be room, an upper bound.
        """
        n_bytes = _LEAST_BYTES
        while n_bytes < MOST_BYTES and 8 * n_bytes < _KEY_BITS * n_keys:
            n_bytes *= 2
        bits = np.zeros(n_bytes, np.uint8)
        for start in range(0, len(keys), _AT_ONCE):
            for place in _places(keys[start : start + _AT_ONCE], n_bytes):
                np.bitwise_or.at(bits, place >> 3, (1 << (place & 7)).astype(np.uint8))
        return cls(bits)

    def halved(self) -> KnownWords:
        """Return the smallest filter of these words that has few enough bits set."""
        bits = self.bits
        while len(bits) > _LEAST_BYTES:
            half = len(bits) // 2
            smaller: Bytes = bits[:half] | bits[half:]
            if np.unpackbits(smaller).sum() > _FULL * 8 * half:
                break
            bits = smaller
        return KnownWords(bits)

    def has(self, keys: Int64) -> npt.NDArray[np.bool_]:
        """Return whether each key is in the filter, shape (n,)."""
        found = np.ones(len(keys), np.bool_)
        for place in _places(keys, len(self.bits)):
            found &= (self.bits[place >> 3] >> (place & 7).astype(np.uint8)) & 1 == 1
        return found

    @property
    def false_share(self) -> float:
        """Share of the keys that were never set for which `has` returns True."""
        return float((self._n_set / max(8 * len(self.bits), 1)) ** _BITS)


def _places(keys: Int64, n_bytes: int) -> Iterator[Int64]:
    """Yield the places of the bits that keys set."""
    last = 8 * n_bytes - 1
    # Keys are hashes already. An odd second number reaches all places.
    second = (keys >> _SECOND) | 1
    for i in range(_BITS):
        yield (keys + i * second) & last


class WordCounts:
    """The cells with words in each column of some data, and those whose word no training sample had.

    Attributes:
        cells, unknown: int64, shape (columns,).
    """

    def __init__(self, known: KnownWords, info: DataInfo) -> None:
        """Begin without cells.

        Args:
            known: The words of the training data.
            info: Its description.
        """
        self._known = known
        self._names = info.columns
        self._is_text = np.array([name in info.categorical for name in info.columns], np.bool_)
        self.cells = np.zeros(len(info.columns), np.int64)
        self.unknown = np.zeros(len(info.columns), np.int64)

    def add(self, data: Dataset | SparseBatch) -> None:
        """Count the cells of samples with the columns of the training data."""
        if not isinstance(data, SparseData | SparseBatch) or data.fields is None:
            return
        n = len(self._names)
        keys = data.indices if isinstance(data, SparseData) else data.keys
        is_word = self._is_text[data.fields]
        fields, keys = data.fields[is_word], keys[is_word]
        self.cells += np.bincount(fields, minlength=n)
        for start in range(0, len(keys), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            strange = fields[some][~self._known.has(keys[some])]
            self.unknown += np.bincount(strange, minlength=n)

    def counted(self, blocks: Iterable[Dataset]) -> Iterator[Dataset]:
        """Yield samples, and count their cells."""
        for block in blocks:
            self.add(block)
            yield block

    def add_counts(self, counts: Iterable[Iterable[int]]) -> None:
        """Add cells and unknown ones that another process has counted; see `counts`."""
        cells, unknown = (np.array(list(own), np.int64) for own in counts)
        self.cells += cells
        self.unknown += unknown

    @property
    def counts(self) -> list[list[int]]:
        """`cells` and `unknown` as plain values."""
        return [self.cells.tolist(), self.unknown.tolist()]

    def notes(self, source: str) -> tuple[str, ...]:
        """Return a sentence on each column with unknown words in more than `SHARE` of its cells.

        Args:
            source: The data, for people.
        """
        left = 1 - self._known.false_share
        estimates = np.minimum(np.rint(self.unknown / max(left, 1e-3)).astype(np.int64), self.cells)
        return tuple(
            f"{source}: column '{self._names[i]}': no training sample has the word of {estimates[i]:,} of "
            f"{self.cells[i]:,} cells, so they have no influence of their own; check that the column has the "
            "form that it had in training"
            for i in np.flatnonzero(estimates > SHARE * self.cells).tolist()
        )


def has_words(info: DataInfo) -> bool:
    """Return True if a checkpoint of a model of such data has a record of words."""
    return bool(info.n_fields and info.categorical)


def counts_of(known: KnownWords | None, info: DataInfo) -> WordCounts | None:
    """Return counts for data to be predicted; None: the model has no record of words."""
    return WordCounts(known, info) if known is not None and has_words(info) else None


def counted(
    blocks: Iterable[Dataset], counts: WordCounts | None, say: Callable[[str], None], source: str
) -> Iterator[Dataset]:
    """Yield samples and count their words; `say` gets the sentences on them behind the last samples."""
    if counts is None:
        yield from blocks
        return
    yield from counts.counted(blocks)
    for note in counts.notes(source):
        say(note)


def words_in(parts: Iterable[Dataset]) -> KnownWords:
    """Return the words of whole data, which one process reads."""
    keys = np.zeros(0, np.int64)
    for part in parts:
        assert isinstance(part, SparseData)
        keys = distinct(np.concatenate([keys, part.indices]))
    return KnownWords.of(keys, len(keys)).halved()
