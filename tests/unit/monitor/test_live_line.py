"""The live line of progress at a terminal: messages in its place, the background, which terminal it is."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from progress_rig import FULL, Time

from mpips.monitor import line as line_module
from mpips.monitor import progress as module
from mpips.monitor.progress import LineDisplay, NoDisplay, PlainDisplay, Snapshot, make_display
from mpips.terminal import device
from mpips.terminal.device import Terminal, find_terminal


class TerminalStream(io.TextIOWrapper):
    """A stream that ends at a terminal."""

    def isatty(self) -> bool:
        return True


class Screen:
    """A named pipe in place of a terminal, and a stream to it: written text can be read at once."""

    def __init__(self, folder: Path) -> None:
        path = folder / "terminal"
        os.mkfifo(path)
        self._out = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.terminal = Terminal(str(path))
        self.stream = TerminalStream(path.open("wb", buffering=0), "utf-8", write_through=True)

    def text(self) -> str:
        """Return the text written since the last call."""
        try:
            return os.read(self._out, 1 << 20).decode()
        except BlockingIOError:
            return ""

    def close(self) -> None:
        self.stream.close()
        os.close(self._out)


@pytest.fixture
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    found = Screen(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize(("width", "bar"), [(60, False), (100, False), (160, True)])
def test_the_live_line_fits_the_terminal(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, width: int, bar: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stderr", screen.stream)
    display = LineDisplay(screen.terminal)
    display.update(FULL)
    written = screen.text()
    display.close()
    assert written.startswith("\r")
    assert written.endswith("1:02:03 left\x1b[K")
    assert ("━" in written) == bar
    assert len(re.sub("\x1b\\[[0-9]*[mK]|\r", "", written)) < width
    assert screen.text() == "\n"


def test_a_message_takes_the_place_of_the_line_which_is_drawn_below_it(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", screen.stream)
    monkeypatch.setattr(sys, "stdout", screen.stream)
    display = LineDisplay(screen.terminal)
    display.update(FULL)
    line = screen.text()
    print("mpips: warning: one", file=sys.stderr)
    print("two", end="")
    assert screen.text() == "\r\x1b[Kmpips: warning: one\ntwo"
    display.update(FULL)
    assert screen.text() == ""  # the message has no newline yet
    print()
    display.update(FULL)
    assert screen.text() == "\n" + line
    display.close()
    assert screen.text() == "\n"
    assert sys.stderr is screen.stream
    assert sys.stdout is screen.stream


def test_a_line_that_is_older_than_the_last_message_is_erased(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", screen.stream)
    display = LineDisplay(screen.terminal)
    display.update(FULL)
    line = screen.text()
    print("the run is done", file=sys.stderr)
    display.update(FULL)
    assert screen.text() == "\r\x1b[Kthe run is done\n" + line
    display.erase()
    assert screen.text() == "\r\x1b[K"
    assert sys.stderr is screen.stream
    # Without a line nothing is erased, and a second end does nothing.
    display.erase()
    LineDisplay(screen.terminal).erase()
    assert screen.text() == ""


def test_a_message_through_a_launcher_gets_time_to_arrive(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()
    monkeypatch.setattr(line_module, "time", time)
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    display = LineDisplay(screen.terminal)
    display.update(FULL)
    line = screen.text()
    print("mpips: warning", file=sys.stderr)
    assert (screen.text(), pipe.getvalue()) == ("\r\x1b[K", "mpips: warning\n")
    display.update(FULL)
    assert screen.text() == ""
    time.now += 0.4
    display.update(FULL)
    assert screen.text() == line
    display.close()


def test_the_cursor_is_never_hidden(screen: Screen) -> None:
    display = LineDisplay(screen.terminal)
    display.update(FULL)
    display.close()
    assert "\x1b[?25l" not in screen.text()


def test_a_stopped_terminal_stops_no_training(screen: Screen) -> None:
    # After Ctrl-S a terminal takes a few kB and then no more, like a pipe without a reader.
    display = LineDisplay(screen.terminal)
    for step in range(10_000):
        display.update(Snapshot(step=step))
    display.close()
    assert "step 1 " in screen.text()


def test_nothing_is_drawn_while_the_job_is_in_the_background(
    screen: Screen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "7").mkdir()
    stat = tmp_path / "7/stat"
    terminal = Terminal(screen.terminal.device, 7)
    for group, front, seen in ((7, 7, True), (7, 9, False), (7, -1, True)):
        stat.write_text(f"7 (mpirun (x)) S 1 {group} 1 34816 {front} 0")
        assert terminal.is_foreground(tmp_path) == seen
    monkeypatch.setattr(Terminal, "is_foreground", lambda self: False)
    display = LineDisplay(screen.terminal)
    display.update(FULL)
    display.close()
    assert screen.text() == ""


def test_no_color_is_heeded(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    written = []
    monkeypatch.setattr(sys, "stderr", screen.stream)
    for value in ("", "1"):
        monkeypatch.setenv("NO_COLOR", value)
        display = LineDisplay(screen.terminal)
        display.update(FULL)
        display.close()
        written.append(screen.text())
    assert "\x1b[32m" in written[0]
    assert "\x1b[32m" not in written[1]
    assert "━" in written[1]


def test_a_terminal_that_cannot_be_opened_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_terminal", lambda: Terminal("/none"))
    assert isinstance(make_display("auto"), PlainDisplay)


def test_kinds_of_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_terminal", lambda: None)
    assert isinstance(make_display("none"), NoDisplay)
    assert isinstance(make_display("plain"), PlainDisplay)
    assert isinstance(make_display("auto"), PlainDisplay)
    monkeypatch.setattr(module, "find_terminal", lambda: Terminal("/dev/null"))
    display = make_display("auto")
    assert isinstance(display, LineDisplay)
    display.close()


def proc(folder: Path, *processes: tuple[int, str, int, str]) -> Path:
    """Make an imitation of /proc from rows of (pid, name, parent, target of stderr)."""
    for pid, name, parent, stderr in processes:
        (folder / str(pid) / "fd").mkdir(parents=True)
        (folder / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0")
        (folder / str(pid) / "fd/2").symlink_to(stderr)
    return folder


@pytest.mark.parametrize(
    ("middle", "stderr", "found"),
    [
        ("prted", "/dev/tty", True),
        ("hydra_pmi_proxy", "/dev/tty", True),
        ("python", "/dev/tty", False),  # a supervisor reads the pipe
        ("prted", "/dev/null", False),
        ("prted", "/tmp/log", False),
    ],
)
def test_the_launchers_terminal_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, middle: str, stderr: str, found: bool
) -> None:
    monkeypatch.setattr(device.os, "getppid", lambda: 30)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    there = proc(tmp_path, (30, middle, 20, "pipe:[7]"), (20, "mpirun", 10, stderr))
    answer = find_terminal({"TERM": "xterm"}, there)
    assert answer == (Terminal(stderr, 20) if found else None)
    assert find_terminal({"TERM": "dumb"}, there) is None
