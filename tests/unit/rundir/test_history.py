"""history.jsonl of a long run: it stays small, and the lines that stay are those that were written."""

from __future__ import annotations

import msgspec
import pytest

from mpips.rundir.history import (
    AttemptHead,
    Checkpointed,
    Counts,
    interval_s,
    read_line,
    thin_history,
)

START = 1_700_000_000.0
HEAD = AttemptHead(time_s=START, generation=0, roles=("worker 0",), hosts=("here",))
SAVED = Checkpointed(time_s=START + 5.0, generation=0, step=9, name="step-9")


def counts(second: float, generation: int = 0) -> Counts:
    return Counts(time_s=START + second, generation=generation, clock=(int(second),))


def encoded(*lines: AttemptHead | Counts | Checkpointed) -> list[bytes]:
    return [msgspec.json.encode(line) + b"\n" for line in lines]


def seconds_left(lines: list[bytes]) -> list[int]:
    found = [read_line(line) for line in lines]
    return [line.clock[0] for line in found if isinstance(line, Counts)]


def test_lines_are_read_as_they_were_written() -> None:
    for line in (HEAD, SAVED, counts(3.0)):
        assert read_line(msgspec.json.encode(line)) == line


@pytest.mark.parametrize(
    "line", [b"", b"{}", b'{"type":"later","time_s":1}', msgspec.json.encode(HEAD)[:-4], b"\xff"]
)
def test_lines_of_another_form_are_none(line: bytes) -> None:
    assert read_line(line) is None


def test_a_day_with_rewrites_has_a_bounded_number_of_lines_and_keeps_both_ends() -> None:
    lines, now = encoded(HEAD), START
    for second in range(0, 86_400, 4):
        now = START + second
        lines += encoded(counts(float(second)))
        if second % 1200 == 0:
            lines = [line + b"\n" for line in thin_history(lines, now)]
    left = seconds_left(lines)
    assert len(left) < 1300
    assert left == sorted(left)
    assert left[-149:] == list(range(86_400 - 596, 86_400, 4))
    assert lines[0] == encoded(HEAD)[0]
    # How often the file was rewritten makes no difference to what is old enough.
    at_once = encoded(HEAD, *(counts(float(s)) for s in range(0, 86_400, 4)))
    assert seconds_left(list(thin_history(at_once, now)))[:140] == left[:140]


def test_heads_checkpoints_and_ends_of_attempts_stay() -> None:
    lines = encoded(HEAD, counts(1.0), SAVED, counts(2.0), counts(3.0, 1), counts(4.0, 1))
    left = list(thin_history(lines, START + 50_000.0))
    assert [type(read_line(line)) for line in left] == [
        *(AttemptHead, Counts, Checkpointed, Counts, Counts)
    ]
    assert seconds_left(left) == [1, 2, 4]


def test_more_ranks_are_counted_less_often() -> None:
    assert [interval_s(n) for n in (1, 32, 1000)] == [2.0, 2.0, 50.0]
