"""The bound of the logs of programs: beginning and end stay, and the missing bytes are counted."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from mpips.supervisor import member_log
from mpips.supervisor.member_log import cut_line, cut_log

MOST = 4096
LINE = re.compile(rb"--- (\d{1,18}) bytes were cut here \(producers.log_mib\)\n")


def lines(first: int, end: int) -> bytes:
    return b"".join(b"line %d of the program\n" % n for n in range(first, end))


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def parts(path: Path) -> tuple[bytes, int, bytes]:
    """Beginning, number of missing bytes, and end."""
    beginning, n, end = LINE.split(path.read_bytes())
    return beginning, int(n), end


def test_a_log_of_the_greatest_size_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = lines(0, 1000)[:MOST]
    path.write_bytes(text)
    assert not cut_log(path, MOST)
    assert path.read_bytes() == text
    append(path, b"\n")
    assert not cut_log(path, 0)
    assert cut_log(path, MOST)


@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_beginning_and_end_stay_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: Any, piece: int
) -> None:
    monkeypatch.setattr(member_log, "_PIECE", piece)
    path, written = tmp_path / "log", b""
    first_beginning = b""
    for n in range(0, 4000, 100):
        more = lines(n, n + 100)
        append(path, more)
        written += more
        cut_log(path, MOST)
        assert path.stat().st_size <= MOST
        if len(written) <= MOST:
            assert path.read_bytes() == written
            continue
        beginning, missing, end = parts(path)
        assert written == beginning + written[len(beginning) : len(beginning) + missing] + end
        assert MOST // 4 - 40 < len(beginning) <= MOST // 4
        assert len(end) >= MOST // 2 - 40
        assert beginning.endswith(b"program\n")
        assert end.startswith(b"line ")
        first_beginning = first_beginning or beginning
        assert beginning == first_beginning


def test_text_without_lines_is_cut_as_well(tmp_path: Path) -> None:
    path, written = tmp_path / "log", b""
    for n in range(8):
        more = b"%d" % n * MOST
        append(path, more)
        written += more
        assert cut_log(path, MOST) is (n > 0)
    beginning, missing, end = parts(path)
    assert beginning == b"0" * (MOST // 4) + b"\n"
    assert end == b"7" * (MOST // 2)
    assert len(beginning) - 1 + missing + len(end) == len(written)


def test_what_is_printed_meanwhile_is_part_of_the_end(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "log"
    path.write_bytes(lines(0, 300))
    said: list[bytes] = []

    def pread(fd: int, n: int, at: int, read: Any = os.pread) -> bytes:
        if len(said) < 6:
            said.append(b"said %d\n" % len(said))
            append(path, said[-1])
        found: bytes = read(fd, n, at)
        return found

    monkeypatch.setattr(member_log, "_PIECE", 500)
    monkeypatch.setattr(os, "pread", pread)
    cut_log(path, MOST)
    assert len(said) == 6
    assert path.read_bytes().endswith(lines(299, 300) + b"".join(said))


def test_a_program_that_prints_faster_than_it_is_cut_does_not_hold_the_cut(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "log"
    path.write_bytes(lines(0, 300))

    def pread(fd: int, n: int, at: int, read: Any = os.pread) -> bytes:
        append(path, lines(0, 100))
        found: bytes = read(fd, n, at)
        return found

    monkeypatch.setattr(member_log, "_PIECE", 500)
    monkeypatch.setattr(os, "pread", pread)
    assert cut_log(path, MOST)
    assert path.stat().st_size < 3 * MOST


def test_a_line_that_looks_like_a_cut_is_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fake = b"--- " + b"9" * 900 + b" bytes were cut here (producers.log_mib)\n"
    path.write_bytes(fake + lines(0, 300))
    assert cut_log(path, MOST)
    beginning, missing, end = parts(path)
    assert beginning.startswith(fake)
    assert len(beginning) + missing + len(end) == len(fake + lines(0, 300))


def test_a_program_that_prints_such_lines_behind_the_cut_changes_no_count(tmp_path: Path) -> None:
    path, written = tmp_path / "log", b""
    for n in range(12):
        # The first quarter contains no such line.
        more = lines(0, 60) if n == 0 else cut_line(n) * 40
        append(path, more)
        written += more
        cut_log(path, MOST)
    found = LINE.search(path.read_bytes())
    assert found is not None
    beginning, end = path.read_bytes()[: found.start()], path.read_bytes()[found.end() :]
    assert lines(0, 60).startswith(beginning)
    assert len(beginning) > MOST // 8
    assert len(beginning) + int(found[1]) + len(end) == len(written)
    assert written.endswith(end)


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(lines(0, 300))
    (tmp_path / "log").symlink_to("other")
    with pytest.raises(OSError, match="symbolic links"):
        cut_log(tmp_path / "log", MOST)
    assert cut_line(3) == b"--- 3 bytes were cut here (producers.log_mib)\n"
