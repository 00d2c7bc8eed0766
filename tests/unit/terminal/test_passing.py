"""Progress bars of a rank: on the terminal of `mpips run` as they are written, in its log as few lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from io import StringIO
from typing import TextIO

import pytest

from mpips.terminal.passing import MARK, PassedRow, PassedStream, passed_text
from mpips.terminal.readable_log import STATE_S, ReadableLog
from mpips.terminal.screen import Tee


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def received(end: int) -> list[str | None]:
    """Return the text of each line in a pipe."""
    return [passed_text(line) for line in os.read(end, 1 << 16).decode().splitlines()]


def test_a_bar_without_a_newline_is_sent_when_it_is_flushed_and_comes_as_it_was_written(
    pipe: tuple[int, int],
) -> None:
    stream = PassedStream(pipe[1])
    stream.write(" 10%|█ \x1b[A")
    stream.flush()
    stream.write("\r 20%|██")
    stream.write("begun")
    stream.write(", ended\n")
    stream.flush()
    assert received(pipe[0]) == [" 10%|█ \x1b[A", "\r 20%|██", "begun, ended\n"]


def test_long_text_is_sent_in_pieces_that_do_not_mix_with_those_of_others(
    pipe: tuple[int, int],
) -> None:
    text = "\U0001f600" * 1000 + "\n"
    PassedStream(pipe[1]).write(text)
    lines = os.read(pipe[0], 1 << 16).splitlines(keepends=True)
    assert max(map(len, lines)) <= 4096
    assert "".join(passed_text(line.decode()) or "" for line in lines) == text


def test_a_stopped_terminal_stops_no_rank(pipe: tuple[int, int]) -> None:
    stream = PassedStream(pipe[1])
    log = StringIO()
    both = Tee(log, stream)  # type: ignore[arg-type]
    for _ in range(1000):
        both.write("x" * 299 + "\n")
    assert log.getvalue().count("\n") == 1000
    assert 0 < len(os.read(pipe[0], 1 << 20)) < 1000 * 299
    assert both.isatty()
    assert not Tee(log).isatty()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (f'{MARK}"\\r5%"\n', "\r5%"),
        (f'[job,1]<stderr>: {MARK}"x"\n', "x"),
        ('"x"\n', None),
        (f"{MARK}x\n", None),
        (f"{MARK}5\n", None),
    ],
)
def test_only_lines_with_the_mark_and_text_are_of_the_rank(line: str, text: str | None) -> None:
    assert passed_text(line) == text


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> PassedRow:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", StringIO())
        return PassedRow({"TERM": "xterm"})


def printed(row: PassedRow) -> str:
    stream: StringIO = row._stream  # type: ignore[assignment]
    return stream.getvalue()


def test_messages_are_above_the_bar_which_is_drawn_again(row: PassedRow) -> None:
    row.pass_on("begun\n\r 5%\r10%")
    print("a message", file=row)  # in two writes
    row.pass_on("\r20%")
    assert printed(row) == "begun\n\r 5%\r10%\r\x1b[Ka message\n\r10%\r20%"
    row.close()
    assert printed(row).endswith("\r20%\n")


def test_stderr_is_that_of_before_behind_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = StringIO()
    monkeypatch.setattr(sys, "stderr", plain)
    row = PassedRow()
    assert sys.stderr is row
    row.close()
    assert sys.stderr is plain
    assert PassedRow.at_terminal() is None


def test_a_message_in_one_write_is_followed_by_the_row(row: PassedRow) -> None:
    for text, again in (("\r10%", "\r10%"), ("wait ...", "wait ..."), ("\r10%\r   \r", "\r   ")):
        row.pass_on(text)
        row.write("a message\n")
        assert printed(row).endswith(f"{text}\r\x1b[Ka message\n{again}")
        row.pass_on("\n")
    before = printed(row)
    row.write("alone\n")
    assert printed(row) == before + "alone\n"
    row.close()
    assert printed(row) == before + "alone\n"


def test_behind_a_move_upwards_the_text_of_the_row_is_unknown(row: PassedRow) -> None:
    row.pass_on("\router\n")
    row.pass_on("\rinner\x1b[A")
    row.write("a message\n")
    assert printed(row).endswith("\x1b[A\r\x1b[Ka message\n")


def test_output_of_another_stream_at_the_same_terminal_is_above_the_row(
    row: PassedRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    row.pass_on("\r10%")
    out: TextIO = row._stream
    row.print_above(out, "loss 0.5\n")
    assert printed(row) == "\r10%\r\x1b[Kloss 0.5\n\r10%"


def test_a_terminal_that_erases_nothing_gets_a_new_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", StringIO())
    row = PassedRow({"TERM": "dumb"})
    row.pass_on("\r10%")
    row.write("a message\n")
    assert printed(row) == "\r10%\na message\n\r10%"
    row.close()


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def logged(*writes: str, at: dict[int, float] | None = None) -> str:
    """Return what the log has of these writes; `at`: the time of a write by its index."""
    out, clock = StringIO(), Clock()
    log = ReadableLog(out, clock)
    for i, text in enumerate(writes):
        clock.now = (at or {}).get(i, clock.now)
        log.write(text)
        log.flush()
    return out.getvalue()


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        (["a line\n", "begun", ", ended\n"], "a line\nbegun, ended\n"),
        (["\r 0%", "\r50%", "\r100%", "\n", "a line\n"], "100%\na line\n"),
        (["loading", "\r 50%\r100%  \n"], "loading\n100%\n"),
        (["windows\r\n", "two\r\r\n"], "windows\ntwo\n"),
        # tqdm with leave=False, then a line.
        (["\r 0%", "\r99%", "\r   \r", "a line\n"], "a line\n"),
        (["\r 50%", "a line\n", "\r100%", "\n"], " 50%\na line\n100%\n"),
        # print("\r", 50, "%", end="") is several writes.
        (["\r", " ", "50", " ", "%", "\r", " ", "60", "\n"], " 60\n"),
        (["\x1b[31mred\x1b[0m\n", "\r\x1b[32m50%\x1b[K\n"], "red\n50%\n"),
        # Two bars of tqdm: each step of the inner one goes down, draws it, and goes up.
        (
            [
                "\r0/2",
                "\n",
                "\r5%",
                "\x1b[A",
                "\n",
                "\r10%",
                "\x1b[A",
                "\r1/2",
                "\n",
                "\r5%",
                "\x1b[A",
                "\n",
                "\r\r",
                "\x1b[A",
                "\r2/2",
                "\n",
            ],
            "0/2\n1/2\n2/2\n",
        ),
    ],
)
def test_the_log_has_the_last_text_of_a_row(writes: list[str], expected: str) -> None:
    assert logged(*writes) == expected


def test_the_log_has_a_state_every_half_minute() -> None:
    writes = [f"\r{i}%" for i in range(10)]
    at = {4: STATE_S - 1, 5: STATE_S, 6: STATE_S + 1, 8: 2 * STATE_S}
    assert logged(*writes, at=at) == "5%\n8%\n"


def test_the_log_has_such_states_also_of_bars_that_are_drawn_below_others() -> None:
    step = ["\n", "\r{}%", "\x1b[A"]
    writes = ["\r0/2", *(text.format(i) for i in range(4) for text in step)]
    # The first one is written at the step below a bar that begins at 0 s, the last ones within a moment.
    assert logged(*writes, at={4: 10.0, 7: 20.0, 11: STATE_S + 0.5}) == "0/2\n3%\n"


def test_the_log_has_the_row_that_the_end_of_the_program_leaves() -> None:
    out = StringIO()
    log = ReadableLog(out)
    log.write("\r50%")
    log.end_row()
    log.end_row()
    assert out.getvalue() == "50%\n"
    log.write("a line\n")
    assert out.getvalue() == "50%\na line\n"
