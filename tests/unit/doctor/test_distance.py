"""The check of how far cores are from each other."""

from __future__ import annotations

import os

import pytest
from doctor_rig import Fake

from mpips.doctor import distance, machine

NEAR, FAR = 1.1e-7, 5.2e-7


@pytest.mark.parametrize(
    ("round_trips", "text"),
    [
        ({}, ""),
        ({(0, 1): NEAR}, "; a flag goes there and back from core 0 to 1 in 0.11 us"),
        (
            {(0, 1): NEAR, (0, 63): FAR},
            "; a flag goes there and back from core 0 to 1 in 0.11 us, 0 to 63 in 0.52 us: workers are best "
            "on cores near their server's",
        ),
        (
            {(0, 1): FAR},
            "; a flag goes there and back from core 0 to 1 in 0.52 us, far apart: values go past the caches",
        ),
    ],
)
def test_the_check_says_what_the_times_mean(tmp_path, round_trips, text):
    here = Fake(tmp_path)
    here.round_trips = round_trips
    found = machine.cores(here).named("cores")
    assert (found.status, found.reason) == ("PASS", "8 of 8 cores" + text)


@pytest.mark.parametrize("error", [RuntimeError("no answer"), OSError("no such core")])
def test_a_machine_that_cannot_be_measured_is_no_fault(tmp_path, error):
    class Broken(Fake):
        @property
        def round_trips(self):
            raise error

        @round_trips.setter
        def round_trips(self, value):
            pass

    found = machine.cores(Broken(tmp_path)).named("cores")
    assert found.status == "PASS"
    assert found.reason == f"8 of 8 cores; their distance was not measured: {error}"


def test_pairs_are_those_of_the_first_core(monkeypatch):
    monkeypatch.setattr(distance, "round_trip", lambda a, b: a + b / 100)
    assert distance.measure([4]) == {}
    assert distance.measure([0, 1]) == {(0, 1): 0.01}
    assert list(distance.measure([2, 3, 8, 9, 20, 30])) == [(2, 3), (2, 9), (2, 30)]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_cores_are_measured_and_this_thread_stays_where_it_was():
    cores = os.sched_getaffinity(0)
    assert 1e-9 < distance.round_trip(*sorted(cores)[:2]) < 1.0
    assert os.sched_getaffinity(0) == cores


def test_a_core_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setattr(distance, "_LIMIT_S", 0.2)
    with pytest.raises((OSError, RuntimeError)):
        distance.round_trip(min(os.sched_getaffinity(0)), 100_000)
