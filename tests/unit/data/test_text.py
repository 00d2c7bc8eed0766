"""Words of a text: what separates them, counts of several workers, chunks, and files that are no text."""

from __future__ import annotations

import collections
import gzip
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from mpips.data import text
from mpips.data.options import Share
from mpips.errors import DataError

SPACES = [chr(c) for c in range(0x110000) if chr(c).isspace()]
LETTERS = "abcäß語\U0001f600"


def some_text(seed: int, n: int) -> str:
    """Return random words of few letters between all kinds of white space."""
    rng = random.Random(seed)
    parts = []
    for _ in range(n):
        parts.append("".join(rng.choices(LETTERS, k=rng.randint(1, 3))))
        parts.append(rng.choice(SPACES) if rng.random() < 0.3 else " ")
    return "".join(parts)


def written(folder: Path, content: str | bytes, name: str = "a.txt") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def learned(paths: list[str], n_workers: int, min_count: int = 1) -> list[text.Words]:
    """Return what each of some workers learns, and a rank that is none."""
    counters = [text.count_words(paths, w, n_workers) for w in range(n_workers)]
    found: dict[int, text.Words] = {}
    ranks = threading.Barrier(n_workers + 1)
    rows: list[Any] = [None] * (n_workers + 1)

    def learn(rank: int) -> None:
        def agree(what: str, work: Any, lengthy: bool) -> list[Any]:
            rows[rank] = work()
            ranks.wait()
            own = list(rows)
            ranks.wait()
            return own

        counter = counters[rank] if rank < n_workers else None
        found[rank] = text.add_counts(counter, min_count, agree)

    threads = [threading.Thread(target=learn, args=(rank,)) for rank in range(n_workers + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[rank] for rank in range(n_workers + 1)]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a few bytes at a time, and add counts in many rounds."""
    monkeypatch.setattr(text, "_BLOCK", 7)
    monkeypatch.setattr(text, "_ROUND", 5)


@pytest.mark.parametrize("n_workers", [1, 2, 3, 5])
def test_counts_do_not_depend_on_workers_blocks_and_rounds(
    tmp_path: Path, small_blocks: None, n_workers: int
) -> None:
    one, other = some_text(1, 300), some_text(2, 50)
    paths = [written(tmp_path, one), written(tmp_path, other, "b.txt")]
    wanted = collections.Counter(one.split() + other.split())
    order = sorted((w for w in wanted if wanted[w] >= 3), key=lambda w: (-wanted[w], w.encode()))
    *workers, server = learned(paths, n_workers, 3)
    for words in workers:
        assert words.text.decode().split("\n")[:-1] == order
        assert words.counts.tolist() == [wanted[w] for w in order]
        assert (words.n_different, words.n_words) == (len(wanted), wanted.total())
    assert server.text == b""


def test_compressed_files_are_counted_once(tmp_path: Path) -> None:
    paths = [written(tmp_path, "a a b")]
    for name in ("c.gz", "d.gz"):
        paths.append(written(tmp_path, gzip.compress(b"a c\n"), name))
    for n_workers in (1, 2, 4):
        assert learned(paths, n_workers)[0].text == b"a\nc\nb\n"
        assert learned(paths, n_workers)[0].counts.tolist() == [4, 2, 1]


def chunks(path: str, words: str, chunk_words: int, share: Share | None = None) -> list[list[int]]:
    """Return the tokens of each chunk of a file."""
    vocabulary = "".join(f"{word}\n" for word in words.split()).encode()
    found = text.read_chunks([path], vocabulary, chunk_words, share or Share(1, 0))
    pairs = zip(found.starts[:-1], found.starts[1:], strict=True)
    return [found.tokens[a:b].tolist() for a, b in pairs]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("a b\nc\n", [[0, 1, -1, 2, -1]]),
        # A line that no longer fits begins the next chunk.
        ("a b c\na b\n", [[0, 1, 2, -1], [0, 1, -1]]),
        # A longer line is cut.
        ("a a a a a a\nb\n", [[0, 0, 0, 0, -1], [0, 0, -1, 1, -1]]),
        # Unknown words count when chunks are cut, and join the words around them.
        ("x x a x b\n", [[0, -1], [1, -1]]),
        ("x x x x\na\n", [[], [0, -1]]),
        ("a\r\nb\r\n", [[0, -1, 1, -1]]),
        ("\ufeffa b", [[0, 1, -1]]),
        ("\n\n  \n", []),
    ],
)
def test_chunks_hold_whole_lines(tmp_path: Path, content: str, wanted: list[list[int]]) -> None:
    assert chunks(written(tmp_path, content), "a b c", 4) == wanted


def test_shares_are_the_chunks_of_one_reader(tmp_path: Path) -> None:
    path = written(tmp_path, some_text(4, 500).replace("c", "a"))
    whole = chunks(path, "a b aa ab", 7)
    assert len(whole) > 60
    for n in (2, 3):
        share = [Share(n, w, "mixed") for w in range(n)]
        found = [chunks(path, "a b aa ab", 7, one) for one in share]
        for one, own in zip(share, found, strict=True):
            assert own == [whole[i] for i in one.numbers(0, len(whole))]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"\xff", "is not UTF-8"),
        (b"\xc3(", "is not UTF-8"),
        (b"\xed\xa0\x80", "is not UTF-8"),  # a surrogate
        (b"\xc0\x80", "is not UTF-8"),  # a longer form than needed
        (b"\xf4\x90\x80\x80", "is not UTF-8"),  # beyond Unicode
        (b"\0", "contains a NUL byte"),
        (b"x" * 10000, "a word has 10001 bytes"),
    ],
)
def test_a_file_that_is_no_text_is_named_with_its_line(
    tmp_path: Path, bad: bytes, message: str
) -> None:
    path = written(tmp_path, b"one two\nthree f" + bad + b" four\n")
    with pytest.raises(DataError, match=rf"a\.txt: line 2, byte 1\d of the file: {message}"):
        text.count_words([path], 0, 1)
    with pytest.raises(DataError, match=f"a.txt: line 2.*{message}"):
        chunks(path, "one", 10)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DataError, match=r"^nowhere\.txt: cannot be read: No such file"):
        text.count_words(["nowhere.txt"], 0, 1)
