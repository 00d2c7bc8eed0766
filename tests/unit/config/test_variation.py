"""The values of a sweep."""

from __future__ import annotations

import math

import pytest

from mpips.config.variation import Range, parse_list, parse_random, trials
from mpips.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1,2", ["1", "2"]),
        ("a = adam , sgd", ["adam", "sgd"]),
        ("options.hidden=[16,16],[32]", ["[16,16]", "[32]"]),
        ("table.optimizer={name='sgd',lr=1},adam", ["{name='sgd',lr=1}", "adam"]),
        ("data.label='x,y',z", ["'x,y'", "z"]),
        ("a=1", ["1"]),
    ],
)
def test_values_are_divided_at_commas_outside_of_brackets(text: str, values: list[str]) -> None:
    key, found = parse_list("--grid", text)
    assert key == text.partition("=")[0].strip()
    assert found == values


def test_all_combinations_for_each_draw() -> None:
    found = trials(["a=1,2", "b=x,y"], ["c=0.0:1.0"], 3, 7)
    assert len(found) == 12
    assert len(set(found)) == 12
    # The combinations of one draw have one value; the last key of the grid changes fastest.
    assert [trial[:2] for trial in found[:4]] == [
        ("a=1", "b=x"),
        ("a=1", "b=y"),
        ("a=2", "b=x"),
        ("a=2", "b=y"),
    ]
    assert len({trial[2] for trial in found[:4]}) == 1
    assert len({trial[2] for trial in found}) == 3
    assert trials(["a=1,2", "b=x,y"], ["c=0.0:1.0"], 3, 7) == found
    assert trials(["a=1,2", "b=x,y"], ["c=0.0:1.0"], 3, 8) != found
    assert trials(["a=1"], [], 9, 0) == [("a=1",)]
    assert trials([], [], 9, 0) == [()]


def drawn(text: str, n: int = 2000) -> list[float]:
    return [float(trial[0].partition("=")[2]) for trial in trials([], [text], n, 1)]


def test_draws_have_the_distribution_of_their_range() -> None:
    uniform = drawn("a=2:4.0")
    assert 2 <= min(uniform) < 2.01
    assert 3.99 < max(uniform) <= 4
    assert sum(uniform) / len(uniform) == pytest.approx(3, abs=0.05)
    logs = [math.log10(value) for value in drawn("a=1e-4:1:log")]
    assert -4 <= min(logs) < -3.98
    assert sum(logs) / len(logs) == pytest.approx(-2, abs=0.08)
    whole = drawn("a=1:3")
    assert {value: round(whole.count(value) / len(whole), 1) for value in set(whole)} == {
        1: 0.3,
        2: 0.3,
        3: 0.3,
    }
    # The share of a whole number is that of its interval: log(1.5 / 0.5) of log(8.5 / 0.5) for 1.
    whole = drawn("a=1:8:log")
    assert set(whole) == set(range(1, 9))
    assert whole.count(1) / len(whole) == pytest.approx(math.log(3) / math.log(17), abs=0.04)
    assert set(drawn("a=5,7")) == {5, 7}


def test_the_forms_of_random() -> None:
    assert parse_random("a=1:2") == ("a", Range(1, 2))
    assert parse_random("a=1e-3:2:log") == ("a", Range(0.001, 2, True))
    assert parse_random("a=x,y") == ("a", ["x", "y"])


@pytest.mark.parametrize(
    ("grid", "random", "message"),
    [
        ("a", "", "write KEY=VALUE,VALUE"),
        ("a=", "", "write KEY=VALUE,VALUE"),
        ("a=1,,2", "", "a value is empty"),
        ("", "a=1:x", "write KEY=LOW:HIGH"),
        ("", "a=1:2:exp", "write KEY=LOW:HIGH"),
        ("", "a=1:2:log:3", "write KEY=LOW:HIGH"),
        ("", "=1:2", "write KEY=LOW:HIGH"),
        ("", "a=true:false", "write KEY=LOW:HIGH"),
        ("", "a=2:1", "must be greater than the first"),
        ("", "a=nan:1", "must be greater than the first"),
        ("", "a=1:inf", "must be greater than the first"),
        ("", "a=0:1:log", "greater than 0"),
        ("a=1,2", "a=1:2", "a is given twice"),
        ("a=" + ",".join(map(str, range(1001))), "b=1:2", "10,010 trials; at most 10,000"),
    ],
)
def test_what_is_wrong_is_named(grid: str, random: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trials([grid] if grid else [], [random] if random else [], 10, 0)
