"""The suite `elastic`: what it computes from the times of steps."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from mpips.bench import elastic
from mpips.bench.launching import Options
from mpips.bench.measure import BARS
from mpips.bench.rank.stepping import read_steps, steps_file


def test_times_of_steps_are_read_up_to_the_last_whole_one(tmp_path: Path) -> None:
    assert read_steps(tmp_path, 0).tolist() == []
    steps_file(tmp_path, 0).write_bytes(struct.pack("ddd", 1.0, 2.5, 3.0)[:-3])
    assert read_steps(tmp_path, 0).tolist() == [1.0, 2.5]
    assert read_steps(tmp_path, 1).tolist() == []


@pytest.mark.parametrize(
    ("begin", "end", "longest"),
    [
        (0.0, 9.0, 4.0),
        (2.1, 2.2, 1.0),  # within the step from 2 to 3
        (3.5, 8.0, 4.0),  # in the pause, which began before
        (7.1, 7.3, 0.5),
        (7.6, 9.0, 0.0),  # no step ends behind it
    ],
)
def test_a_pause_counts_whole_though_it_began_before(
    begin: float, end: float, longest: float
) -> None:
    times = np.array([1.0, 2.0, 3.0, 7.0, 7.5])
    assert elastic._longest(times, begin, end) == longest


def test_the_worst_change_of_a_repetition_counts_and_has_a_bar() -> None:
    results = elastic._Results()
    for name in ("survivor_gap_s", "server_gap_s"):
        results.add(name, 0.6)
    for name, values in zip(elastic._CHANGES, ((0.1, 0.2), (0.9, 0.3), (0.2, 1.3)), strict=True):
        for value in values:
            results.add(f"scale_{name}_beyond_launch_s", value)
    found = results.findings()
    worst = next(f for f in found.figures if f.name == "scale_beyond_launch_s")
    assert worst.values == [0.9, 1.3]
    assert found.notes == [
        "survivor_gap_s: 0.60, bar <= 0.5 NOT met",
        "server_gap_s: 0.60, bar <= 1.5 met",
        "scale_beyond_launch_s: 1.10, bar <= 1 NOT met",
    ]


def test_on_several_nodes_it_is_skipped_with_its_reason() -> None:
    found = elastic.run("elastic", Options(), nodes=2)
    assert "without --nodes" in found.skipped["elastic"]
    assert elastic.GOODPUT in BARS
