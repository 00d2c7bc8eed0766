"""Text at a terminal: whole words, its columns and colours, and elapsed time."""

from __future__ import annotations

import ast
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import TextIO

import pytest

from mpips.terminal import elapsed as elapsed_module
from mpips.terminal.elapsed import Elapsed, show_elapsed
from mpips.terminal.screen import (
    OF_RANKS,
    Tee,
    columns,
    command_text,
    for_ranks,
    has_colour,
    say,
    state_style,
    styled,
    wrapped,
)
from mpips.terminal.table import text_table

ROOT = Path(__file__).parents[3]


def set_size(file: int, lines: int, columns: int) -> None:
    fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """A terminal of 30 columns."""
    ours, theirs = pty.openpty()
    set_size(theirs, 25, 30)
    for name in ("COLUMNS", "NO_COLOR", OF_RANKS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(theirs, "w") as stream:
        yield stream
    os.close(ours)


def test_words_stay_whole_and_lines_that_fit_stay_as_they_are() -> None:
    text = "data: digits: 10 classes (see the-long-word-that-fits-nowhere)\n  a   b"
    lines = wrapped(text, 20).split("\n")
    assert lines == [
        "data: digits: 10",
        "  classes (see",
        "  the-long-word-that-fits-nowhere)",
        "  a   b",
    ]
    assert wrapped(text, 0) == text


def test_colours_take_no_columns() -> None:
    line = styled("x" * 10, "red") + " y"
    assert wrapped(line, 12) == line


def test_states_have_colours() -> None:
    states = ("done", "PASS", "failed", "FAIL", "running", "WARN")
    assert [state_style(state) for state in states] == ["green"] * 2 + ["red"] * 2 + ["yellow"] * 2


def test_a_copy_of_a_wrapped_command_is_the_command() -> None:
    words = ["mpirun", "-n", "4", "'a b'", "python", "-m", "mpips", "train"]
    text = command_text(words, 24)
    assert max(map(len, text.split("\n"))) <= 24
    assert text.replace(" \\\n ", "") == " ".join(words)
    assert command_text(words, 0) == " ".join(words)
    # A word that is wider than the terminal leaves the backslash at the end of its line.
    text = command_text(["/a/path/of/python/that/is/long", *words], 24)
    assert wrapped(text, 24) == text


def test_a_terminal_has_columns_and_colours(
    terminal: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert columns(terminal) == 30
    assert columns(terminal, {"COLUMNS": "44"}) == 44
    assert has_colour(terminal)
    assert not has_colour(terminal, {"TERM": "xterm", "NO_COLOR": "1"})
    assert not has_colour(terminal, {"TERM": "dumb"})
    monkeypatch.setattr(sys, "stdout", terminal)
    assert for_ranks()[OF_RANKS].split()[0] == "30"


def test_a_file_has_neither(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        assert columns(file, {"COLUMNS": "80", "TERM": "xterm", OF_RANKS: "72 72"}) == 0
        assert not has_colour(file, {"TERM": "xterm", OF_RANKS: "72 72"})
    assert columns(StringIO()) == 0


def test_a_pseudo_terminal_of_a_launcher_is_no_terminal(
    terminal: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", terminal)
    # Open MPI gives ranks one without a size as stdout, wherever mpirun writes to.
    set_size(terminal.fileno(), 0, 0)
    assert columns(terminal, {"TERM": "xterm"}) == 0
    assert columns(terminal, {OF_RANKS: "72 0"}) == 72
    monkeypatch.setattr(sys, "stdout", None)
    assert columns(terminal, {OF_RANKS: "72 0"}) == 0, "as stderr"


def test_messages_are_wrapped_only_at_a_terminal(
    terminal: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(terminal, "write", written.append, raising=False)
    say("mpips: error: one word and another one", err=False)
    out = StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    say("mpips: error: one word and another one", err=False)
    monkeypatch.setattr(sys, "stdout", None)
    say("mpips: nothing is printed in a process without this stream", err=False)
    assert written == ["mpips: error: one word and\n  another one\n"]
    assert out.getvalue() == "mpips: error: one word and another one\n"


def test_the_log_of_a_rank_is_not_wrapped_for_the_terminal(
    terminal: TextIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `mpips run` has a terminal of 30 columns; rank 0 writes to its log, and through a pipe to the launcher.
    monkeypatch.setenv(OF_RANKS, "30 30")
    here, there = os.pipe()
    with (tmp_path / "rank-0.log").open("w+") as log, os.fdopen(there, "w") as shown:
        monkeypatch.setattr(sys, "stderr", Tee(log, shown))
        say("mpips: error: one word and another one")
        assert columns(sys.stderr) == 30
        assert os.read(here, 100) == b"mpips: error: one word and\n  another one\n"
        log.seek(0)
        assert log.read() == "mpips: error: one word and another one\n"
    os.close(here)


def test_a_narrow_table_omits_optional_columns_and_names_them() -> None:
    rows = [["run", "task", "size"], ["a-1", "softmax", "1 kB"]]
    assert text_table(rows, width=20, optional=(1, 2)) == [
        "run  task     size",
        "a-1  softmax  1 kB",
    ]
    assert text_table(rows, width=12, optional=(1, 2)) == [
        "run  size",
        "a-1  1 kB",
        "not shown in 12 columns: task",
    ]
    assert text_table(rows, optional=(1, 2)) == text_table(rows)


def test_styles_change_no_column() -> None:
    rows = [["run", "state"], ["a", "done"], ["bb", "failed"]]
    found = text_table(rows, styles={0: "bold", (1, 1): "green"})
    assert found[0].startswith("\x1b[1m")
    assert "\x1b[32mdone\x1b[0m" in found[1]
    assert found[2] == text_table(rows)[2] == "bb   failed"


def test_elapsed_time_is_printed_each_time_the_interval_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(elapsed_module.time, "monotonic", lambda: now[0])
    printed: list[str] = []
    # Pytest's stderr is no terminal: a log gets the same lines.
    elapsed = Elapsed("reading", printed.append)
    for second in range(721):
        now[0] = float(second)
        elapsed.look()
    seconds = [*range(10, 601, 10), 660, 720]
    assert printed == [f"reading ... {second} s" for second in seconds]


def test_the_time_of_a_block_that_prints_nothing_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elapsed_module, "FIRST_S", 0.001)
    seen = elapsed_module.threading.Event()
    with show_elapsed("reading", lambda line: seen.set()):
        assert seen.wait(60.0)


def test_work_does_not_end_because_its_terminal_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(elapsed_module.time, "monotonic", lambda: now[0])
    tried: list[str] = []

    def closed(line: str) -> None:
        tried.append(line)
        raise BrokenPipeError

    elapsed = Elapsed("reading", closed)
    for now[0] in (10.0, 11.0, 20.0):
        elapsed.look()
    assert tried == ["reading ... 10 s", "reading ... 20 s"]


def test_messages_for_people_are_wrapped() -> None:
    """No message goes to stderr past `say`, which knows the terminal."""
    # The program that ends ranks on a host, children that are forked, and the progress line.
    allowed = {"supervisor/reap.py", "process/forked.py", "monitor/progress.py"}
    found = []
    for path in sorted((ROOT / "mpips").rglob("*.py")):
        name = path.relative_to(ROOT / "mpips").as_posix()
        if name in allowed or name.startswith(("bench/", "testing/")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            is_print = isinstance(node.func, ast.Name) and node.func.id == "print"
            if any(word.arg == ("file" if is_print else "err") for word in node.keywords):
                function = ast.unparse(node.func)
                if function in ("print", "click.echo") and "StringIO" not in ast.unparse(node):
                    found.append(f"{name}:{node.lineno}")
    assert found == []
