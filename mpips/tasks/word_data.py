"""The data of the task `word2vec`: chunks of a text with their vocabulary, and words to look up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.options import Share
from mpips.data.rows import Arrays, Purpose, TaskPart, describe_samples, grouped
from mpips.data.several import files_of
from mpips.data.text import Agree, Chunks, Words, add_counts, count_words, read_chunks, words_of
from mpips.data.vocabulary import Vocabulary
from mpips.errors import DataError
from mpips.tasks.word_similarity import WordPairs

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

# Paths of the arrays in checkpoints.
WORDS, COUNTS, TOTALS = "vocabulary/words", "task/counts", "task/totals"
_SHOWN = 5  # unknown words that a note names


class ChunkBatch(msgspec.Struct, frozen=True):
    """Some chunks of a text; see `mpips.data.text.Chunks`.

    Attributes:
        tokens: Numbers of words, int32, shape (n_tokens,); -1 ends a sentence.
        starts: Place of each chunk in `tokens`, and the end of the last, int64, shape (n + 1,).
        numbers: Number of each chunk in the text, int64, shape (n,).
        weight: Not used: pushes are changes of rows, not means of gradients.
    """

    tokens: Int32
    starts: Int64
    numbers: Int64
    weight: float = 1.0

    @property
    def n(self) -> int:
        """Number of chunks."""
        return len(self.numbers)

    def part(self, first: int, end: int) -> ChunkBatch:
        """Return chunks `first` to below `end`."""
        starts = self.starts[first : end + 1]
        tokens = self.tokens[starts[0] : starts[-1]]
        return ChunkBatch(tokens, starts - starts[0], self.numbers[first:end], self.weight)


class ChunkData(msgspec.Struct, frozen=True):
    """A worker's chunks in memory; `chunks` are those of its share."""

    chunks: Chunks

    @property
    def n(self) -> int:
        """Number of chunks."""
        return len(self.chunks.numbers)

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(a.nbytes for a in (self.chunks.tokens, self.chunks.starts, self.chunks.numbers))

    def take(self, rows: Int64, weight: float = 1.0) -> ChunkBatch:
        """Copy chunks `rows` (int64, shape (n,), any order) into a batch."""
        c = self.chunks
        begins, ends = c.starts[rows], c.starts[rows + 1]
        parts = [c.tokens[b:e] for b, e in zip(begins.tolist(), ends.tolist(), strict=True)]
        tokens = np.concatenate(parts) if parts else np.empty(0, np.int32)
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(ends - begins, out=starts[1:])
        return ChunkBatch(tokens, starts, c.numbers[rows], weight)


class QueryBatch(msgspec.Struct, frozen=True):
    """Words to look up: their keys, int64, shape (n,)."""

    keys: Int64
    weight: float = 1.0

    @property
    def n(self) -> int:
        """Number of words."""
        return len(self.keys)


class QueryData(msgspec.Struct, frozen=True):
    """Words to look up: their keys, int64, shape (n,)."""

    keys: Int64

    @property
    def n(self) -> int:
        """Number of words."""
        return len(self.keys)

    def take(self, rows: Int64, weight: float = 1.0) -> QueryBatch:
        """Copy words `rows` (int64, shape (n,), any order) into a batch."""
        return QueryBatch(self.keys[rows], weight)


def learn_words(
    path: str, options: Any, worker: int | None, n_workers: int, agree: Agree
) -> Arrays:
    """Count the words of a text, each worker a part of it. Collective over the ranks; blocks.

    Args:
        path: A file, or a pattern of several.
        options: Options of the task.
        worker: Index of this worker; None on ranks that are not workers.
        n_workers: Number of workers.
        agree: See `mpips.data.text.Agree`.

    Returns:
        Words, most frequent first, their counts, and the numbers of words and of different words of the text;
        {} on ranks that are not workers.

    Raises:
        DataError: A file cannot be read, or no word occurs often enough.
    """
    counted: list[Any] = []

    def count() -> None:
        if worker is not None:
            counted.append(count_words(files_of(path), worker, n_workers))

    agree(f"counting the words of {path}", count, True)
    words = add_counts(counted[0] if counted else None, options.min_count, agree)

    def check() -> None:
        if worker is not None:
            _check(path, words, options)

    agree("checking words", check, True)
    if worker is None:
        return {}
    text, counts = words.text, words.counts
    if options.max_words and len(counts) > options.max_words:
        counts = counts[: options.max_words]
        text = b"".join(word + b"\n" for word in text.split(b"\n", len(counts))[: len(counts)])
    totals = np.array([words.n_words, words.n_different], np.int64)
    return {WORDS: np.frombuffer(text, np.uint8), COUNTS: counts, TOTALS: totals}


def _check(path: str, words: Words, options: Any) -> None:
    if not words.n_words:
        raise DataError(f"{path}: contains no words")
    if not len(words.counts):
        raise DataError(
            f"{path}: none of its {words.n_different:,} different words occurs {options.min_count} times: "
            "set options.min_count to a smaller number"
        )
    if options.similarity:
        WordPairs.read(options.similarity)


def read_text(path: str, options: Any, share: Share, like: Arrays, purpose: Purpose) -> TaskPart:
    """Read a worker's chunks of a text. Not collective; blocks.

    Args:
        path: A file, or a pattern of several.
        options: Options of the task.
        share: The chunks of this worker.
        like: Value of `learn_words`.
        purpose: "train" or "test".

    Raises:
        DataError: A file cannot be read, or contains no words.
    """
    chunks = read_chunks(files_of(path), like[WORDS].tobytes(), options.chunk_words, share)
    if purpose != "train":
        info = describe_samples(chunks.n_total, len(chunks.numbers), path)
        return TaskPart(ChunkData(chunks), info)
    info = describe_samples(chunks.n_total, len(chunks.numbers), path, like)
    n_words, n_different = like[TOTALS].tolist()
    note = (
        f"words: {len(like[COUNTS]):,} of {n_different:,} different ones are trained, "
        f"{int(like[COUNTS].sum()):,} of {n_words:,} in the text"
    )
    return TaskPart(ChunkData(chunks), info, like, (note,))


def read_queries(path: str, like: Arrays, say: Callable[[str], None]) -> Iterator[QueryData]:
    """Yield words to look up, separated by white space. Not collective; reads while iterated over.

    Words that the model does not have are left out, with a note at the end.

    Raises:
        DataError: The file cannot be read or contains no words, or the model has none of them.
    """
    vocabulary = Vocabulary.from_array(like[WORDS])
    n = n_unknown = 0
    first: list[str] = []  # unknown words

    def known() -> Iterator[int]:
        nonlocal n, n_unknown
        for file in files_of(path):
            for words in words_of(file):
                for word, key in zip(words, vocabulary.keys(words).tolist(), strict=True):
                    n += 1
                    if key >= 0:
                        yield key
                        continue
                    n_unknown += 1
                    if len(first) < _SHOWN:
                        first.append(word)

    for keys in grouped(known()):
        yield QueryData(np.array(keys, np.int64))
    named = ", ".join(first) + (", ..." if n_unknown > _SHOWN else "")
    if n == n_unknown:
        what = f"the model has none of its words ({named})" if n else "contains no words"
        raise DataError(
            f"{path}: {what}: must be words of the training data, separated by spaces or lines"
        )
    if n_unknown:
        say(f"{path}: {n_unknown} of {n} words are not in the model: {named}")
