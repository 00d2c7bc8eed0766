"""Lines of a file that grows, is torn off, thinned, replaced or vanishes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpips.web import line_file
from mpips.web.line_file import LineFile, sample


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines"


def test_lines_come_once_and_a_torn_one_when_it_is_complete(path: Path) -> None:
    lines = LineFile(path)
    assert lines.read() == (False, [])
    path.write_bytes(b"one\ntw")
    assert lines.read() == (False, [b"one"])
    assert lines.read() == (False, [])
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert lines.read() == (False, [b"two", b"three"])


@pytest.mark.parametrize("content", [b"one\n", b"another line\n" * 9, b"one\ntwo\nthree\n"])
def test_a_file_that_was_replaced_is_read_from_its_beginning(path: Path, content: bytes) -> None:
    path.write_bytes(b"one\ntwo\n")
    lines = LineFile(path)
    lines.read()
    new = path.with_name("new")
    new.write_bytes(content)
    os.replace(new, path)
    assert lines.read() == (True, content.splitlines())
    assert lines.read() == (False, [])


def test_a_file_with_the_same_inode_but_another_beginning_was_replaced(path: Path) -> None:
    path.write_bytes(b"one\n")
    lines = LineFile(path)
    lines.read()
    path.write_bytes(b"other\nlines\n")
    assert lines.read() == (True, [b"other", b"lines"])


def test_a_file_that_vanishes_is_empty_and_may_come_again(path: Path) -> None:
    path.write_bytes(b"one\n")
    lines = LineFile(path)
    lines.read()
    path.unlink()
    assert lines.read() == (True, [])
    assert lines.read() == (False, [])
    path.write_bytes(b"one\n")
    assert lines.read() == (False, [b"one"])


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    path.symlink_to(secret)
    assert LineFile(path).read() == (False, [])
    assert sample(path, 4) == []


def test_a_long_file_is_read_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_file, "_MOST_BYTES", 64)
    content = [f"line {i}".encode() for i in range(100)]
    path.write_bytes(b"\n".join(content) + b"\n")
    lines, found, at_end = LineFile(path), list[bytes](), []
    while new := lines.read()[1]:
        found += new
        at_end.append(lines.at_end)
    assert found == content
    assert not at_end[0]
    assert at_end[-1]


def test_a_line_without_an_end_is_skipped_when_it_is_too_long(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_file, "_MOST_BYTES", 64)
    monkeypatch.setattr(line_file, "_LONGEST_LINE", 256)
    path.write_bytes(b"x" * 1000 + b"\nlast\n")
    lines, found = LineFile(path), list[bytes]()
    for _ in range(10):
        found += lines.read()[1]
    assert found[-1] == b"last"
    assert len(found) <= 2


def test_a_sample_has_whole_lines_from_all_parts(path: Path) -> None:
    content = [f"{i:06}".encode() for i in range(10_000)]
    path.write_bytes(b"\n".join(content) + b"\n")
    found = sample(path, 20)
    assert len(found) == 20
    assert found == sorted(found)
    assert set(found) <= set(content)
    assert int(found[-1]) > 9_000
