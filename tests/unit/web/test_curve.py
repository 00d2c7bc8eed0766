"""Rows of metrics.jsonl: a bounded number of them stands for all lines."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from mpips.rundir.files import Event
from mpips.web import curve as module
from mpips.web.curve import COLUMNS, Curve


def line(step: int, generation: int = 0, **more: Any) -> bytes:
    found = {
        "time_s": 1000.0 + step,
        "generation": generation,
        "step": step,
        "samples": 8 * step,
        "loss": 1.0 / step,
        "samples_per_s": 8.0,
        "staleness": 2.0,
        "push_bytes_per_s": 100.0,
        "pull_bytes_per_s": None,
    }
    return json.dumps(found | more).encode()


def evaluation(step: int, generation: int, **metrics: float) -> bytes:
    return line(step, generation, test=metrics, samples_per_s=None)


def began(generation: int, step: int) -> Event:
    return Event(time_s=1000.0, generation=generation, event="began", step=step)


def named(row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(COLUMNS, row, strict=True))


def test_rows_have_the_values_of_their_lines() -> None:
    curve = Curve()
    curve.add([line(1), line(2, loss=None)])
    assert named(curve.rows[0]) == {
        "time_s": 1001.0,
        "step": 1,
        "samples": 8,
        "loss": 1.0,
        "samples_per_s": 8.0,
        "staleness": 2.0,
        "push": 100.0,
        "pull": None,
        "generation": 0,
        "learning_rate": None,
    }
    assert named(curve.rows[1])["loss"] is None


def test_a_script_may_have_rates_and_count_no_samples() -> None:
    curve = Curve()
    curve.add([line(1, samples=0, samples_per_s=0.0, learning_rate=0.5)])
    row = named(curve.rows[0])
    assert (row["samples"], row["samples_per_s"], row["learning_rate"]) == (0, None, 0.5)
    curve = Curve()
    curve.add([line(i, learning_rate=float(i)) for i in (1, 2)], group=2)
    assert named(curve.rows[0])["learning_rate"] == 1.5


def test_damaged_lines_cost_themselves_alone() -> None:
    curve = Curve()
    curve.add(
        [
            b"",
            b"{",
            b"\xff\xfe",
            b"[1]",
            b'{"time_s": 1e999, "generation": 0}',
            line(1)[:-9],
            line(3),
        ]
    )
    assert [named(row)["step"] for row in curve.rows] == [3]


def test_evaluations_are_apart() -> None:
    curve = Curve()
    curve.add(
        [
            line(1),
            json.dumps({"time_s": 5, "generation": 0, "step": 1, "test": {"auc": 0.5}}).encode(),
        ]
    )
    assert len(curve.rows) == 1
    assert [(t[1], t[3]) for t in curve.tests] == [(1, {"auc": 0.5})]
    curve.add([b'{"time_s": 5, "generation": 0, "step": 2, "validation": {"auc": 0.25}}'])
    assert [(t[1], t[3]) for t in curve.tests[1:]] == [(2, {"validation auc": 0.25})]


def test_merged_rows_are_means_weighted_by_samples_and_the_ends_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_ROWS", 4)
    curve = Curve()
    curve.add([line(1, samples=8, loss=4.0), line(2, samples=32, loss=1.0)])
    curve.add([line(s, samples=40 + s, loss=9.0) for s in (9, 10, 11)])
    assert len(curve.rows) == 2
    first = named(curve.rows[0])
    assert (first["step"], first["samples"], first["time_s"]) == (2, 32, 1002.0)
    assert first["loss"] == (8 * 4.0 + 24 * 1.0) / 32
    assert curve.epoch == 1


def test_a_long_file_is_a_few_thousand_rows_with_the_same_mean() -> None:
    curve = Curve()
    curve.add(line(s, loss=float(s % 2)) for s in range(1, 40_001))
    assert 1500 <= len(curve.rows) <= 3001
    # Every part of the time has its share of rows, however often they were merged.
    quarters = Counter(named(row)["step"] * 4 // 40_001 for row in curve.rows)
    assert min(quarters.values()) >= 200
    assert curve.n_lines == 40_000
    whole = [named(row)["loss"] for row in curve.rows[:300]]
    assert whole == pytest.approx([0.5] * 300, abs=0.05)
    assert named(curve.rows[-1])["step"] == 40_000


def test_a_restarted_attempt_goes_on_at_its_samples() -> None:
    curve = Curve()
    curve.add([line(s) for s in range(1, 11)])
    # From step 6 on, with its own count of samples.
    curve.add([line(7, 1, samples=8), line(8, 1, samples=16)])
    assert [named(row)["samples"] for row in curve.rows[-3:]] == [80, 56, 64]
    # Attempts are not merged with each other.
    assert [named(row)["generation"] for row in curve.rows[-3:]] == [0, 1, 1]


def test_groups_of_lines_are_rows_with_the_same_means() -> None:
    lines = [line(s, loss=float(s), samples=s * (s + 1) // 2) for s in range(1, 13)]
    one, grouped = Curve(), Curve()
    one.add(lines)
    grouped.add(lines, group=5)
    assert [named(row)["step"] for row in grouped.rows] == [5, 10, 12]
    # Line s has s samples, so the mean of the first five is that of squares.
    assert named(grouped.rows[0])["loss"] == sum(s * s for s in range(1, 6)) / 15
    assert grouped.n_lines == 12
    # A group ends with its attempt, and a value that is no number makes a loss none.
    grouped.add([line(13, 1, loss=None), line(14, 1), line(15, 2)], group=5)
    assert [(named(row)["step"], named(row)["loss"]) for row in grouped.rows[3:]] == [
        (14, None),
        (15, 1 / 15),
    ]


def test_evaluations_that_a_restart_repeats_are_left_out() -> None:
    curve = Curve()
    curve.add([line(1), evaluation(10, 0, auc=0.1), evaluation(20, 0, auc=0.2), line(25)])
    curve.settle([began(0, 0)])
    assert [row[3]["auc"] for row in curve.tests] == [0.1, 0.2]
    epoch = curve.epoch
    # The attempt after it begins before the second evaluation, which is no part of the run any more.
    curve.settle([began(0, 0), began(1, 15)])
    assert [row[3]["auc"] for row in curve.tests] == [0.1]
    assert curve.epoch == epoch + 1
    curve.add([line(16, 1), evaluation(20, 1, auc=0.3)])
    curve.settle([began(0, 0), began(1, 15)])
    assert [(row[1], row[3]["auc"]) for row in curve.tests] == [(10, 0.1), (20, 0.3)]
    # Nothing is sent anew to browsers without a change.
    assert curve.epoch == epoch + 1


def test_an_evaluation_repeated_at_the_step_of_the_restart_counts_once() -> None:
    curve = Curve()
    curve.add([evaluation(10, 0, auc=0.1, loss=5.0), evaluation(10, 1, auc=0.4)])
    curve.settle([began(0, 0), began(1, 10)])
    assert [row[3] for row in curve.tests] == [{"loss": 5.0}, {"auc": 0.4}]


def test_the_best_evaluations_of_a_long_run_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_TESTS", 8)
    curve = Curve()
    values = [0.5] * 101
    values[2], values[40] = 0.75, 0.875
    for step in range(1, 101):
        curve.add([evaluation(step, 0, accuracy=values[step], log_loss=1 - values[step] / step)])
        steps = [test[1] for test in curve.tests]
        assert len(steps) <= 10
        assert steps[-1] == step
        # The best accuracy up to now, and the least loss, are never thinned out.
        assert (40 if step >= 40 else 2 if step >= 2 else 1) in steps
        assert 1 in steps
    assert curve.tests[-1][5] == 1, "epochs that are complete"
