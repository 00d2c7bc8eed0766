"""Files of text: the words in them are counted, and turned into chunks of numbers.

A text is read in blocks, so that memory holds one block and the words that differ. White space of any kind
separates words, and a line feed ends a sentence. Text is UTF-8; a byte order mark is skipped.

To count, each worker reads its own range of bytes of every file; compressed files, which have no ranges, are
counted one by one by different workers. Then the counts of all workers are added, in rounds with a part of
the words each, because the words of all workers together may need more memory than there is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips._native import WordCounter, WordEncoder
from mpips.data.compressed import compression_of, opened
from mpips.data.options import Share
from mpips.errors import DataError

Int32: TypeAlias = npt.NDArray[np.int32]
Int64: TypeAlias = npt.NDArray[np.int64]
# Calls a function on all ranks and returns all results; see `mpips.mpi.cluster.Cluster.agree`.
Agree: TypeAlias = Callable[[str, Callable[[], Any], bool], list[Any]]

SENTENCE_END = -1  # between the numbers of words
_BLOCK = 1 << 22  # bytes that are read at a time
_MOST_PENDING = 1 << 26  # bytes without ASCII white space, such as those of a file that is no text
_ROUND = 1 << 20  # words of all workers in a round
_SPACES = b" \n\t\r\v\f"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Chunks(msgspec.Struct, frozen=True):
    """Chunks of a text: whole sentences of the same file, or a part of one that is longer than a chunk.

    Attributes:
        tokens: Numbers of words in the order of the text, int32, shape (n_tokens,); `SENTENCE_END` ends each
            sentence. Words outside the vocabulary are left out.
        starts: Place of each chunk in `tokens`, and the end of the last, int64, shape (n + 1,).
        numbers: Number of each chunk in the whole text, int64, shape (n,).
        n_total: Chunks of the whole text.
        n_words: Words of the whole text, those outside the vocabulary included.
    """

    tokens: Int32
    starts: Int64
    numbers: Int64
    n_total: int
    n_words: int


class Words(msgspec.Struct, frozen=True):
    """The words of a text, most frequent first; equally frequent ones in the order of their bytes.

    Attributes:
        text: The words in UTF-8, a line feed behind each.
        counts: Number of occurrences of each word, int64, shape (n,).
        n_different: Different words of the text, those that were left out included.
        n_words: Words of the text, as `n_different`.
    """

    text: bytes
    counts: Int64
    n_different: int
    n_words: int


def count_words(paths: Sequence[str], worker: int, n_workers: int) -> WordCounter:
    """Count the words of a worker's part of some files. Not collective; blocks.

    Raises:
        DataError: A file cannot be read or contains no text; names file and line.
    """
    counter = WordCounter()
    for i, path in enumerate(paths):
        if compression_of(path):
            if i % n_workers == worker:
                _feed(counter, path)
            continue
        with _named(path):
            size = os.path.getsize(path)
            begin, end = (_cut(path, size * w // n_workers, size) for w in (worker, worker + 1))
        _feed(counter, path, begin, end)
    return counter


def add_counts(counter: WordCounter | None, min_count: int, agree: Agree) -> Words:
    """Add up the counts of all workers. Collective over the ranks; blocks.

    Args:
        counter: Counts of this worker's part of the text; None on ranks that are not workers.
        min_count: Words that occur less often are left out.
        agree: See `Agree`.

    Returns:
        The words, equal on all workers; none on other ranks.
    """
    n_counted = sum(agree("counting words", lambda: len(counter or ()), True))
    n_rounds = max(1, -(-n_counted // _ROUND))
    texts: list[bytes] = []
    counts: list[int] = []
    n_different = n_words = 0
    for i in range(n_rounds):

        def part(i: int = i) -> tuple[bytes, bytes]:
            words, found = counter.part(i, n_rounds) if counter is not None else (b"", np.empty(0))
            return words, found.astype(np.int64).tobytes()

        rows = agree("adding counts of words", part, True)
        if counter is None:
            continue
        total = WordCounter()
        for words, found in rows:
            total.add(words, np.frombuffer(found, np.int64))
        words, found = total.part(0, 1)
        n_different, n_words = n_different + len(found), n_words + int(found.sum())
        keep = np.flatnonzero(found >= min_count)
        split = words.split(b"\n")
        texts += [split[k] for k in keep.tolist()]
        counts += found[keep].tolist()
    order = sorted(range(len(texts)), key=lambda k: (-counts[k], texts[k]))
    text = b"".join(texts[k] + b"\n" for k in order)
    return Words(text, np.array([counts[k] for k in order], np.int64), n_different, n_words)


def read_chunks(paths: Sequence[str], words: bytes, chunk_words: int, share: Share) -> Chunks:
    """Read a worker's share of the chunks of some files, which are read as one. Not collective; blocks.

    Args:
        paths: The files.
        words: The vocabulary; see `Words.text`.
        chunk_words: Greatest number of words of a chunk.
        share: The chunks of this worker.

    Raises:
        DataError: A file cannot be read or contains no text; names file and line.
    """
    encoder = WordEncoder(words, chunk_words)
    tokens, lengths, numbers = [np.empty(0, np.int32)], [0], []
    n_total = 0

    def take() -> None:
        nonlocal n_total
        found, n_tokens = encoder.take()
        own = share.numbers(n_total, n_total + len(n_tokens))
        starts = np.concatenate([[0], np.cumsum(n_tokens)])
        for i in (own - n_total).tolist():
            tokens.append(found[starts[i] : starts[i + 1]])
        lengths.extend(n_tokens[own - n_total].tolist())
        numbers.append(own)
        n_total += len(n_tokens)

    for path in paths:
        _feed(encoder, path, then=take)
        encoder.finish()
        take()
    return Chunks(
        np.concatenate(tokens),
        np.cumsum(np.array(lengths, np.int64)),
        np.concatenate(numbers) if numbers else np.empty(0, np.int64),
        n_total,
        encoder.n_words,
    )


def words_of(path: str) -> Iterator[list[str]]:
    """Yield the words of a file, block by block. Not collective; reads while iterated over.

    Raises:
        DataError: The file cannot be read or contains no text; names the place.
    """
    with _named(path):
        for place, block in _blocks(path, 0, None):
            skipped = 3 if place == 0 and block.startswith(_BYTE_ORDER_MARK) else 0
            try:
                words = block[skipped:].decode().split()
            except UnicodeDecodeError as error:
                what = "is not UTF-8"
                raise DataError(_located(path, place + skipped + error.start, what)) from None
            yield words


class _named:
    """Turns errors of the system into DataError, which names the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise DataError for an OSError of the block."""
        if isinstance(error, OSError):
            raise DataError(f"{self._path}: cannot be read: {error.strerror or error}") from error


def _cut(path: str, at: int, size: int) -> int:
    """Return the first place from `at` on behind which white space ends, or `size`: no word crosses it."""
    if at <= 0 or at >= size:
        return min(max(at, 0), size)
    with open(path, "rb") as file:
        file.seek(at - 1)
        place = at - 1
        while block := file.read(_BLOCK):
            found = [i for i in (block.find(space) for space in _each(_SPACES)) if i >= 0]
            if found:
                return place + min(found) + 1
            place += len(block)
    return size


def _each(text: bytes) -> Iterator[bytes]:
    return (text[i : i + 1] for i in range(len(text)))


def _blocks(path: str, begin: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield (place, bytes) of a file from `begin` to `end`; each block ends at white space, or at the end."""
    with opened(path) as file:
        if begin:
            file.seek(begin)
        place, pending = begin, b""
        while True:
            n = _BLOCK if end is None else min(_BLOCK, end - place - len(pending))
            block = file.read(n) if n else b""
            if not block:
                break
            pending += block
            cut = max(pending.rfind(space) for space in _each(_SPACES)) + 1
            if cut:
                yield place, pending[:cut]
                place, pending = place + cut, pending[cut:]
            elif len(pending) > _MOST_PENDING:
                raise DataError(
                    f"{path}: {_MOST_PENDING >> 20} MiB without white space: must be text"
                )
        if pending:
            yield place, pending


def _feed(
    reader: WordCounter | WordEncoder,
    path: str,
    begin: int = 0,
    end: int | None = None,
    then: Callable[[], None] = lambda: None,
) -> None:
    """Feed a file, or a range of it, block by block; call `then` after each.

    Raises:
        DataError: The file cannot be read or contains no text; names file and line.
    """
    with _named(path):
        for place, block in _blocks(path, begin, end):
            skipped = 3 if place == 0 and block.startswith(_BYTE_ORDER_MARK) else 0
            try:
                reader.feed(block[skipped:])
            except ValueError as error:
                what, at = error.args
                raise DataError(_located(path, place + skipped + at, what)) from None
            then()


def _located(path: str, place: int, what: str) -> str:
    """Return the message of an error of the text at byte `place` of a file."""
    line = 1
    with opened(path) as file:
        left = place
        while left and (block := file.read(min(left, _BLOCK))):
            line, left = line + block.count(b"\n"), left - len(block)
        shown = file.read(12)
    return f"{path}: line {line}, byte {place} of the file: {what} ({shown!r}): must be UTF-8 text"
