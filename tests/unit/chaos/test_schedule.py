"""The schedule of faults: decided by the seed alone."""

from __future__ import annotations

import statistics

import pytest

from mpips.chaos.schedule import FaultChoice, between, chosen, make_schedule

CHOICES = [
    FaultChoice(kind="kill", roles=("server", "worker")),
    FaultChoice(kind="pause", roles=("any",)),
    FaultChoice(kind="partition"),
]


def test_a_seed_makes_one_schedule_and_another_seed_another_one() -> None:
    first = make_schedule(CHOICES, 7, 30.0, 600.0)
    assert first == make_schedule(CHOICES, 7, 30.0, 600.0)
    assert first != make_schedule(CHOICES, 8, 30.0, 600.0)


def test_a_longer_schedule_begins_like_a_shorter_one() -> None:
    short = make_schedule(CHOICES, 7, 30.0, 300.0)
    assert make_schedule(CHOICES, 7, 30.0, 600.0)[: len(short)] == short


def test_fixed_intervals_have_a_fault_in_their_middle() -> None:
    found = make_schedule(CHOICES, 1, 10.0, 45.0, first_s=5.0, intervals="fixed")
    assert [fault.at_s for fault in found] == [10.0, 20.0, 30.0, 40.0]


def test_exponential_intervals_have_the_mean_and_the_spread_of_independent_failures() -> None:
    times = [fault.at_s for fault in make_schedule(CHOICES, 3, 30.0, 60_000.0, first_s=100.0)]
    gaps = [b - a for a, b in zip([100.0, *times], times, strict=False)]
    assert all(gap > 0 for gap in gaps)
    assert times[-1] < 60_000.0
    assert statistics.mean(gaps) == pytest.approx(30.0, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(30.0, rel=0.15)


def test_kinds_and_their_roles_are_drawn_alike() -> None:
    found = make_schedule(CHOICES, 2, 1.0, 6000.0)
    kinds = [(fault.kind, fault.role) for fault in found]
    share = {key: kinds.count(key) / len(kinds) for key in set(kinds)}
    expected = {("kill", "server"): 1 / 6, ("kill", "worker"): 1 / 6, ("pause", "any"): 1 / 3}
    assert share == pytest.approx({**expected, ("partition", ""): 1 / 3}, abs=0.03)
    assert all(0 <= fault.which < 1 and 0 <= fault.how_long < 1 for fault in found)


def test_nothing_is_planned_without_a_kind_or_without_time() -> None:
    assert make_schedule([], 1, 1.0, 100.0) == []
    assert make_schedule(CHOICES, 1, 10.0, 5.0, intervals="fixed") == []


@pytest.mark.parametrize(("number", "element"), [(0.0, "a"), (0.34, "b"), (0.999, "c")])
def test_a_number_chooses_an_element(number: float, element: str) -> None:
    assert chosen("abc", number) == element


def test_a_number_chooses_a_length() -> None:
    assert between(2.0, 6.0, 0.25) == 3.0
