"""The end of a log of a program, for the page: long lines, bytes that are no text, and a cut meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_files import RunFiles, full_run, members

from mpips.rundir.producers import member_log
from mpips.supervisor.member_log import cut_log
from mpips.web import log_text
from mpips.web import members as members_module
from mpips.web.log_text import log_tail, logs_of

MOST = 4096
MEMBER_0 = -2  # number of its log


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    made = full_run(tmp_path)
    members(made)
    return made


def tail(files: RunFiles, most: int = MOST) -> dict[str, Any]:
    found = log_tail(files.run, 0, MEMBER_0, most)
    assert found is not None
    return found


def test_a_line_longer_than_the_end_is_shown_as_well(files: RunFiles) -> None:
    most = 1 << 17
    member_log(files.run, 0).write_bytes(b"a" * 300_000)
    found = tail(files, most)
    assert found["left_out"] == 300_000 - most
    assert found["lines"] == ["a" * most]


def test_the_first_line_is_whole(files: RunFiles) -> None:
    text = "".join(f"line {n}\n" for n in range(10_000))
    member_log(files.run, 0).write_text(text)
    for most in range(MOST, MOST + 12):
        found = tail(files, most)
        assert found["left_out"] == len(text) - most
        assert found["lines"] == [f"line {n}" for n in range(10_000 - len(found["lines"]), 10_000)]
        assert most - 20 < len("\n".join(found["lines"])) < most


def test_so_many_logs_are_shown(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row["rank"] for row in logs_of(files.run, 0)][-2:] == [MEMBER_0, MEMBER_0 - 1]
    monkeypatch.setattr(members_module, "MOST_MEMBERS", 1)
    assert [row["rank"] for row in logs_of(files.run, 0) if row["rank"] < -1] == [MEMBER_0]
    assert log_tail(files.run, 0, MEMBER_0 - 1) is None


def test_bytes_that_are_no_text_are_replaced(files: RunFiles) -> None:
    member_log(files.run, 0).write_bytes(b"\xff\x00\x1b[31m\n" + bytes(range(256)) + b"\nend\n")
    found = tail(files)
    assert found["lines"][0] == 3 * "\N{REPLACEMENT CHARACTER}" + "[31m"
    assert found["lines"][-1] == "end"
    text = "".join(found["lines"])
    assert not any(ord(c) < 32 and c != "\t" for c in text)


def test_a_log_that_is_cut_meanwhile_has_an_end(
    files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = member_log(files.run, 0)
    path.write_text("".join(f"line {n}\n" for n in range(10_000)))

    def size(log: Any, measure: Any = log_text._size) -> int:
        found: int = measure(log)
        cut_log(path, 2 * MOST)
        return found

    monkeypatch.setattr(log_text, "_size", size)
    found = tail(files)
    assert found["lines"][-1] == "line 9999"
    assert found["bytes"] == path.stat().st_size <= 2 * MOST
    assert found["left_out"] == max(found["bytes"] - MOST, 0)
