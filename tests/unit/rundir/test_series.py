"""One series of metrics over all attempts of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Event
from mpips.rundir.series import series, settled


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


def test_lines_that_are_cut_off_or_of_another_form_are_left_out(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    assert series(run) == []
    run.metrics_file.write_bytes(
        b'{"generation":0,"step":1}\n\xff\n[]\n{"step":2}\n{"generation":0,"step":"x"}\n'
        b'{"generation":0,"step":3}\n{"generation":0,"st'
    )
    assert steps(series(run)) == [(0, 1), (0, 3)]
