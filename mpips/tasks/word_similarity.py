"""Similarity of words: the correlation with the scores of word pairs, and nearest neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpips.data.vocabulary import Vocabulary
from mpips.errors import DataError
from mpips.tasks.base import EmbeddingHandle, Float32, Keys

_BLOCK = 1 << 14  # rows of the vocabulary that are compared at a time
_QUERIES = 256  # words that are looked up at a time


class WordPairs:
    """Pairs of words with scores of their similarity, such as those of WordSim-353 or SimLex-999."""

    def __init__(self, pairs: list[tuple[str, str, float]]) -> None:
        """Take pairs and their scores."""
        self._pairs = pairs

    @classmethod
    def read(cls, path: str) -> WordPairs:
        """Read pairs: word, word and score in a line, separated by tabs, commas, semicolons or spaces.

        Empty lines and lines that begin with # are skipped, and a first line without a number.

        Raises:
            DataError: The file cannot be read, or a line is not a pair; names the line.
        """
        pairs: list[tuple[str, str, float]] = []
        try:
            with open(path, encoding="utf-8-sig") as file:
                lines = file.read().splitlines()
        except OSError as error:
            raise DataError(
                f"options.similarity: {path}: cannot be read: {error.strerror or error}"
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: byte {error.start} is not UTF-8") from None
        for number, line in enumerate(lines, 1):
            fields = line.replace(",", " ").replace(";", " ").split()
            if not fields or fields[0].startswith("#"):
                continue
            try:
                one, other, score = fields[0], fields[1], float(fields[2])
            except (IndexError, ValueError):
                if number == 1:
                    continue
                raise DataError(
                    f"{path}: line {number}: {line[:60]!r}: must be two words and a number"
                ) from None
            pairs.append((one, other, score))
        if len(pairs) < 2:
            raise DataError(f"{path}: contains {len(pairs)} pairs of words: must be 2 or more")
        return cls(pairs)

    def correlation(self, table: EmbeddingHandle, words: bytes) -> float:
        """Return Spearman's correlation of the scores and the cosines of those pairs that the model has.

        Words are looked up as they are, then in small letters.

        Args:
            table: Vectors of words.
            words: The words in the order of their keys, a line feed behind each.

        Returns:
            A number from -1 to 1; 0 for fewer than two pairs, or equal values.
        """
        vocabulary = Vocabulary.from_array(np.frombuffer(words, np.uint8))

        def keys(names: list[str]) -> Keys:
            found, small = vocabulary.keys(names), vocabulary.keys(n.lower() for n in names)
            return np.where(found < 0, small, found)

        one, other = keys([p[0] for p in self._pairs]), keys([p[1] for p in self._pairs])
        known = (one >= 0) & (other >= 0)
        if known.sum() < 2:
            return 0.0
        a, b = table.pull(one[known]), table.pull(other[known])
        cosines = (normalised(a) * normalised(b)).sum(axis=1)
        return spearman(cosines, np.array([p[2] for p in self._pairs])[known])


class Neighbours:
    """Nearest neighbours of words by the cosine of their vectors."""

    def __init__(self, words: bytes, n: int) -> None:
        """Take the words in the order of their keys, a line feed behind each; `n`: neighbours of each."""
        self._names = np.array(words.decode().split("\n")[:-1])
        self._n = min(n, len(self._names) - 1)

    def columns(self, table: EmbeddingHandle, keys: Keys) -> dict[str, Any]:
        """Return the neighbours of words: columns word, neighbour, cosine; the nearest of a word first.

        Pulls all vectors once for 256 words, in blocks.

        Args:
            table: Vectors of words.
            keys: The words, int64, shape (n,).
        """
        found = [
            self._nearest(table, keys[i : i + _QUERIES]) for i in range(0, len(keys), _QUERIES)
        ]
        near = np.concatenate([one for one, _ in found] or [np.empty((0, self._n), np.int64)])
        cosines = np.concatenate([c for _, c in found] or [np.empty((0, self._n), np.float32)])
        return {
            "word": self._names[np.repeat(keys, self._n)],
            "neighbour": self._names[near.ravel()],
            "cosine": cosines.ravel(),
        }

    def _nearest(self, table: EmbeddingHandle, keys: Keys) -> tuple[Keys, Float32]:
        """Return the keys and cosines of neighbours, shape (n, self._n)."""
        queries = normalised(table.pull(keys))
        near = np.empty((len(keys), 0), np.int64)
        cosines = np.empty((len(keys), 0), np.float32)
        for first in range(0, len(self._names), _BLOCK):
            block = np.arange(first, min(first + _BLOCK, len(self._names)))
            found = queries @ normalised(table.pull(block)).T
            found[keys[:, np.newaxis] == block] = -np.inf  # a word is no neighbour of itself
            near = np.hstack([near, np.broadcast_to(block, found.shape)])
            cosines = np.hstack([cosines, found])
            # A stable order, so that equal cosines come in the order of keys.
            best = np.argsort(-cosines, axis=1, kind="stable")[:, : self._n]
            near = np.take_along_axis(near, best, axis=1)
            cosines = np.take_along_axis(cosines, best, axis=1)
        return near, cosines


def normalised(rows: Float32) -> Float32:
    """Return rows of length 1; zeros stay zeros."""
    lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    found: Float32 = rows / np.maximum(lengths, np.float32(1e-30))
    return found


def spearman(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Return the correlation of the ranks of two series; equal values share their mean rank."""
    x, y = _ranks(a) - (len(a) - 1) / 2, _ranks(b) - (len(b) - 1) / 2
    spread = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / spread if spread else 0.0


def _ranks(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: npt.NDArray[np.float64] = (ends - (counts + 1) / 2)[places.ravel()]
    return found
