"""The progress of a run on the terminal: plain lines, the live line, and the work of earlier launches."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mpips.data import Cursor, Sampling, Shape
from mpips.monitor import line as line_module
from mpips.monitor import progress as module
from mpips.monitor import terminal
from mpips.monitor.progress import (
    LineDisplay,
    NoDisplay,
    PlainDisplay,
    ProgressMeter,
    Snapshot,
    duration,
    fields,
    fit,
    make_display,
    short,
)
from mpips.monitor.terminal import Terminal, find_terminal
from mpips.scheduler import run_progress as run_progress_module
from mpips.scheduler.rank_table import RankTotals
from mpips.scheduler.run_progress import RunProgress
from mpips.training.epochs import Inputs

FULL = Snapshot(0.421, 9, 20, 12345, 98765.4, 0.12345, 1.25, 2.5e9, 1.25e8, 3723.0)


class Time:
    """A clock that advances only when it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(run_progress_module, "time", time)
    return time


def test_the_line_has_the_traffic_between_nodes_where_there_is_room() -> None:
    between = msgspec.structs.replace(FULL, link_bytes_per_s=1.5e8)
    text = fit(fields(between), 200)
    assert "push 2.5 pull 0.125 GB/s  between nodes 0.15 GB/s  1:02:03 left" in text
    # It is the first field to go.
    assert fit(fields(between), len(text) - 1) == fit(fields(FULL), 200)
    for width in range(20, 160):
        assert len(fit(fields(between), width)) <= width


def test_the_line_has_every_field() -> None:
    assert fit(fields(FULL), 200) == (
        " 42%  epoch 9/20  step 12,345  98,765 samples/s  loss 0.1235  staleness 1.2  "
        "push 2.5 pull 0.125 GB/s  1:02:03 left"
    )


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.0, "0"), (61_200.0, "<0.001"), (1e6, "0.001"), (1.5e9, "1.5"), (34.56e9, "34.6")],
)
def test_rates_stay_short(rate: float, text: str) -> None:
    line = fit(fields(Snapshot(push_bytes_per_s=rate, pull_bytes_per_s=0.0)), 200)
    assert f"push {text} pull 0 GB/s" in line


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (98_765, "98,765"),
        (999_499, "999,499"),
        (1_234_567, "1.23M"),
        (99_999_999, "100M"),
        (9.9999e9, "10.0G"),
        (1.5e18, "1.50E"),
        (1e30, "1,000,000,000,000E"),
    ],
)
def test_huge_counts_stay_short(number: float, text: str) -> None:
    assert short(number) == text
    assert f"  {text} samples/s  " in fit(fields(Snapshot(samples_per_s=number, n_epochs=1)), 300)


def test_a_huge_loss_stays_short() -> None:
    assert "loss 1.235e+09  " in fit(fields(Snapshot(loss=1234567890.0)), 300)


@pytest.mark.parametrize("width", range(1, 140))
def test_no_width_is_overrun_and_the_weightiest_stays(width: int) -> None:
    line = fit(fields(FULL), width)
    assert len(line) <= width
    if width >= 20:
        assert line.startswith(" 42%")
        assert line.endswith("left")


def test_unknown_figures_are_dashes() -> None:
    line = fit(fields(Snapshot(n_epochs=1)), 200)
    assert "loss -  staleness -  push - pull - GB/s  - left" in line


def test_a_script_has_no_share_and_samples_only_if_it_tells_of_them() -> None:
    known = Snapshot(step=1234, push_bytes_per_s=1e9, pull_bytes_per_s=5e8)
    assert fit(fields(known), 200) == "step 1,234  staleness -  push 1 pull 0.5 GB/s"
    with_samples = msgspec.structs.replace(known, samples_per_s=50.0, loss=0.5)
    assert fit(fields(with_samples), 200).startswith(
        "step 1,234  50 samples/s  loss 0.5000  staleness"
    )
    assert fit(fields(with_samples), 5) == "step "


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0:00"), (59.6, "1:00"), (3599, "59:59"), (90061, "1 d 1:01:01")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def lines(steps: list[tuple[float, float]], clock: Time, share: float = 0.0) -> list[str]:
    """Return what a plain display prints at each (seconds since the last update, share that is done)."""
    out = io.StringIO()
    display = PlainDisplay(share, out)
    for seconds, done in steps:
        clock.now += seconds
        display.update(Snapshot(share=done, n_epochs=1))
    return [line.split()[0] for line in out.getvalue().splitlines()]


def test_a_plain_line_comes_every_5_percent(clock: Time) -> None:
    assert lines([(0.1, n / 100) for n in range(101)], clock) == [f"{n}%" for n in range(5, 101, 5)]


def test_or_every_30_seconds_whichever_is_first(clock: Time) -> None:
    assert lines([(10, n / 1000) for n in range(1, 10)], clock) == ["0%", "1%", "1%"]


def test_after_a_restart_the_next_line_is_5_percent_further(clock: Time) -> None:
    assert lines([(1, 0.62), (1, 0.64), (1, 0.66)], clock, share=0.61) == ["66%"]


def test_the_last_line_says_100_percent(clock: Time) -> None:
    assert lines([(1, 0.98), (1, 1.0), (1, 1.0)], clock, share=0.97) == ["100%"]


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
    monkeypatch.setattr(terminal.os, "getppid", lambda: 30)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    there = proc(tmp_path, (30, middle, 20, "pipe:[7]"), (20, "mpirun", 10, stderr))
    answer = find_terminal({"TERM": "xterm"}, there)
    assert answer == (Terminal(stderr, 20) if found else None)
    assert find_terminal({"TERM": "dumb"}, there) is None


def inputs(n_epochs: int, cursors: tuple[Cursor, ...] = (), first: int = 0) -> Inputs:
    class Info:
        n_samples_total = 103

    sampling = Sampling(Shape(103, 2, 10, 0))
    return Inputs(Info(), None, [], n_epochs, 10, None, None, 0, first, sampling, cursors)  # type: ignore[arg-type]


def test_a_run_that_begins_counts_from_nothing() -> None:
    way = inputs(4).run_progress()
    assert (way.total, way.done, way.share) == (412, 0, 0.0)


def test_a_restart_counts_from_the_beginning_of_the_run(clock: Time) -> None:
    # Worker 0 (52 samples an epoch) is at step 3 of epoch 2, worker 1 (51) at step 6 of epoch 1: all read.
    way = inputs(4, (Cursor(2, 3), Cursor(1, 6)), 1).run_progress()
    assert way.done == 2 * 52 + 30 + 51 + 51
    assert way.epoch == 1
    clock.now += 10
    way.add(2, 20, 10.0)
    assert way.share == pytest.approx((236 + 20) / 412)
    # The remaining time is computed from the rate of this launch.
    assert way.left_s == pytest.approx((412 - 256) / 20 * 10)


def test_what_legs_before_have_read_counts_too() -> None:
    before = Sampling(Shape(103, 2, 10, 0))
    job = inputs(4, (), 1)
    job.sampling = before.after([(1, 2), (1, 1)], Shape(103, 3, 10, 0))
    assert job.run_progress().done == 103 + 30


def test_the_pace_is_that_of_the_last_seconds(clock: Time) -> None:
    way = RunProgress(10, 1_000_000)
    for _ in range(60):
        clock.now += 1
        way.add(0, 100, 1.0)
    for _ in range(20):
        clock.now += 1
        way.add(0, 1000, 1.0)
    assert way.samples_per_s == pytest.approx(1000, rel=0.01)
    assert way.left_s is not None
    assert way.left_s == pytest.approx((1_000_000 - way.done) / (26_000 / 80))


def test_the_meter_shows_reports_and_looks_in_between(clock: Time) -> None:
    class Shown(NoDisplay):
        def __init__(self) -> None:
            self.seen: list[Snapshot] = []

        def update(self, now: Snapshot) -> None:
            self.seen.append(now)

    display = Shown()
    totals = RankTotals(push_bytes_per_s=5.0, pull_bytes_per_s=7.0, staleness=0.5)
    meter = ProgressMeter(display, RunProgress(2, 100), lambda: totals)
    meter.look()
    assert display.seen == []  # no step was made yet
    clock.now += 1
    meter.report(1, 17, 50, 25.0)
    clock.now += 40
    meter.look()
    last = display.seen[-1]
    assert len(display.seen) == 2
    assert (last.share, last.epoch, last.n_epochs, last.step, last.loss) == (0.5, 2, 2, 17, 0.5)
    assert (last.staleness, last.push_bytes_per_s, last.pull_bytes_per_s) == (0.5, 5.0, 7.0)
    assert last.left_s == pytest.approx(41.0)
    meter.close()
    assert len(display.seen) == 3
