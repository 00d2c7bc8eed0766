"""One series of metrics over all attempts of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Event
from mpips.rundir.series import metrics_of, series, settled


def began(generation: int, step: int) -> Event:
    return Event(time_s=0.0, generation=generation, event="began", step=step)


def line(generation: int, step: int) -> dict[str, Any]:
    return {"generation": generation, "step": step}


def steps(lines: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(found["generation"], found["step"]) for found in lines]


def test_steps_that_a_later_attempt_repeats_are_not_in_the_series() -> None:
    lines = [
        line(0, 5),
        line(0, 10),
        line(0, 15),
        line(1, 12),
        line(1, 20),
        line(2, 8),
        line(2, 11),
    ]
    events = [began(0, 0), began(1, 10), Event(time_s=0.0, generation=1, event="failed", step=20)]
    assert steps(settled(lines[:5], events)) == [(0, 5), (0, 10), (1, 12), (1, 20)]
    # An attempt may begin before the one before it did.
    assert steps(settled(lines, [*events, began(2, 7)])) == [(0, 5), (2, 8), (2, 11)]
    assert settled(lines[:3], [began(0, 0)]) == lines[:3]
    assert settled(lines, []) == lines


def test_an_evaluation_that_a_later_attempt_repeats_counts_once() -> None:
    def evaluation(generation: int, step: int, **test: float) -> dict[str, Any]:
        return {**line(generation, step), "test": test}

    lines = [
        evaluation(0, 5, accuracy=0.1),
        line(0, 10),
        evaluation(0, 10, accuracy=0.2, auc=0.3),
        evaluation(0, 10, loss=1.0),
        evaluation(1, 10, accuracy=0.2),
        evaluation(2, 10, accuracy=0.2),
    ]
    # Attempts that begin at step 10 repeat one metric of it; the others are kept.
    kept = settled(lines, [began(0, 0), began(1, 10), began(2, 10)])
    assert kept == [*lines[:2], evaluation(0, 10, auc=0.3), lines[3], lines[5]]
    # One attempt may evaluate a step several times.
    assert settled([lines[5], lines[5]], []) == [lines[5], lines[5]]


def test_validation_and_test_data_of_a_step_are_evaluations_of_their_own() -> None:
    def evaluation(generation: int, **data: dict[str, float]) -> dict[str, Any]:
        return {**line(generation, 10), **data}

    lines = [
        evaluation(0, validation={"auc": 0.1, "f1": 0.2}),
        evaluation(0, test={"auc": 0.3}),
        evaluation(1, validation={"auc": 0.1}),
    ]
    kept = settled(lines, [began(0, 0), began(1, 10)])
    assert kept == [evaluation(0, validation={"f1": 0.2}), *lines[1:]]
    assert [metrics_of(one)[0] for one in (*lines[:2], line(0, 1))] == ["validation", "test", ""]


def test_lines_that_are_cut_off_or_of_another_form_are_left_out(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    assert series(run) == []
    run.metrics_file.write_bytes(
        b'{"generation":0,"step":1}\n\xff\n[]\n{"step":2}\n{"generation":0,"step":"x"}\n'
        b'{"generation":0,"step":3}\n{"generation":0,"st'
    )
    assert steps(series(run)) == [(0, 1), (0, 3)]
