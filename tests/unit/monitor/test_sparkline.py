"""Curves of metrics.jsonl in a row of characters."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mpips.monitor.sparkline import (
    BLOCKS,
    PLAIN,
    Point,
    over_time,
    read_points,
    sparkline,
)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], BLOCKS),
        ([7.0, 0.0, None, 3.4, 3.6], "█▁ ▄▅"),
        ([5.0, 5.0, None], "▄▄ "),
        ([None, None], "  "),
        ([], ""),
        ([-1e308, 0.0, 1e308], "▁▅█"),
    ],
)
def test_a_value_is_a_level(values: list[float | None], expected: str) -> None:
    assert sparkline(values) == expected
    plain = sparkline(values, PLAIN)
    assert plain == expected.translate(str.maketrans(BLOCKS, PLAIN))
    assert plain.isascii()


def test_values_are_means_of_equal_intervals_of_time() -> None:
    points: list[tuple[float, float | None]] = [
        *((0.0, 1.0), (0.9, 3.0), (2.5, None), (3.9, 7.0), (4.0, 9.0), (1.5, math.nan)),
        *((math.inf, 1.0),),
    ]
    assert over_time(points, 4) == [2.0, None, None, 8.0]
    assert over_time(points[:1], 3) == [1.0, None, None]
    assert over_time([(0.0, 1e308), (1.0, 1e308), (9.0, 1.0)], 2) == [None, 1.0]
    assert over_time([], 2) == [None, None]


def test_lines_of_another_form_and_a_cut_off_one_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_points(path) == []
    path.write_bytes(
        b'{"time_s":1,"loss":0.5,"samples_per_s":10,"more":[1]}\n'
        b'{"time_s":2,"test":{"auc":0.5}}\n'
        b'{"time_s":3,"loss":null,"samples_per_s":20.5}\n'
        b'{"time_s":"4"}\nnothing\n\xff\xfe\n[1]\n{"time_s":5,"lo'
    )
    assert read_points(path) == [Point(1, 0.5, 10), Point(2), Point(3, None, 20.5)]
