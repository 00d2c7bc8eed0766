"""The progress of a run: the fields of a line, plain lines, and the work of earlier launches."""

from __future__ import annotations

import io

import msgspec
import pytest
from progress_rig import FULL, Time

from mpips.data import Cursor, Sampling, Shape
from mpips.monitor import progress as module
from mpips.monitor.progress import (
    NoDisplay,
    PlainDisplay,
    ProgressMeter,
    Snapshot,
    duration,
    fields,
    fit,
    short,
)
from mpips.rundir.files import Progress
from mpips.scheduler import run_progress as run_progress_module
from mpips.scheduler.rank_table import RankTotals
from mpips.scheduler.run_progress import RunProgress
from mpips.training.epochs import Inputs


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


def test_a_script_shows_what_it_knows_of_epochs_rate_and_loss() -> None:
    known = Progress(step=1234, epoch=2, loss=0.000123)
    text = "step 1,234  loss 0.000123  staleness -  push - pull - GB/s"
    assert fit(fields(Snapshot.of(known)), 200) == text
    counted = msgspec.structs.replace(known, has_epochs=True)
    assert fit(fields(Snapshot.of(counted)), 200) == f"epoch 3  {text}"
    whole = msgspec.structs.replace(counted, n_epochs=4, share=0.5, left_s=61.0)
    assert fit(fields(Snapshot.of(whole)), 200) == f" 50%  epoch 3/4  {text}  1:01 left"
    # Without a loss its field is a dash, and no rate is shown in front of it.
    rated = msgspec.structs.replace(whole, loss=None, samples_per_s=8.0)
    assert "step 1,234  8 samples/s  loss -  stale" in fit(fields(Snapshot.of(rated)), 200)


def test_the_line_has_the_learning_rate_at_80_columns() -> None:
    known = Progress(step=1234, epoch=1, n_epochs=5, share=0.25, loss=0.12345, left_s=61.0)
    rated = msgspec.structs.replace(known, learning_rate=0.00123456, samples_per_s=6789.0)
    assert fit(fields(Snapshot.of(rated)), 80) == (
        " 25%  epoch 2/5  step 1,234  6,789 samples/s  loss 0.1235  lr 0.00123  1:01 left"
    )
    script = msgspec.structs.replace(rated, n_epochs=0, learning_rate=3e-5)
    assert "loss 0.1235  lr 3e-05  stale" in fit(fields(Snapshot.of(script)), 80)
    assert "lr" not in fit(fields(Snapshot.of(known)), 200)


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
