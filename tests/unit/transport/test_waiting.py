"""The pace of waits over a network, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpips.transport import waiting
from mpips.transport.waiting import ReadPace, wait_for

CHECK_S = 30e-6  # of one look at the server
PIECE_S = 0.02  # of the short waits that a long one is made of


class Clock:
    """A clock that goes on with sleeps and checks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.checks = 100.0, 0
        monkeypatch.setattr(waiting.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(waiting.time, "sleep", self.pass_by)
        monkeypatch.setattr(waiting.os, "sched_yield", lambda: self.pass_by(1e-6))

    def pass_by(self, seconds: float) -> None:
        self.now += seconds

    def until(self, end: float) -> Callable[[], bool]:
        def done() -> bool:
            self.checks += 1
            self.pass_by(CHECK_S)
            return self.now >= end

        return done

    def wait(self, pace: ReadPace, end: float) -> None:
        """Wait in short pieces, with other work between them."""
        done = self.until(end)
        while not pace.wait_for(done, PIECE_S):
            self.pass_by(100e-6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    ("seconds", "most"),
    # 2 ms without pauses are 65 checks, and pauses up to 0.2 ms follow.
    [(0.001, 40), (0.01, 150), (0.1, 400), (1.0, 1000), (10.0, 6000)],
)
def test_long_waits_check_rarely_and_are_late_by_a_fiftieth(
    clock: Clock, seconds: float, most: int
) -> None:
    began = clock.now
    clock.wait(ReadPace(), began + seconds)
    late = clock.now - began - seconds
    assert clock.checks <= most
    assert 0 <= late <= max(0.02 * seconds, 0.4e-3)


def test_a_wait_in_pieces_is_one_wait(clock: Clock) -> None:
    pace, end = ReadPace(), clock.now + 0.5
    clock.wait(pace, end)
    together = clock.checks
    whole = Clock.until(clock, clock.now + 0.5)
    assert ReadPace().wait_for(whole, 1.0)
    assert together == pytest.approx(clock.checks - together, rel=0.1)


def test_another_wait_begins_without_pauses_again(clock: Clock) -> None:
    pace = ReadPace()
    clock.wait(pace, clock.now + 0.5)
    clock.checks = 0
    clock.wait(pace, clock.now + 0.001)
    after_success = clock.checks
    pace.wait_for(lambda: False, PIECE_S)
    clock.pass_by(0.1)
    clock.checks = 0
    clock.wait(pace, clock.now + 0.001)
    assert min(after_success, clock.checks) >= 25


def test_waits_for_messages_go_on_checking(clock: Clock) -> None:
    done, n = clock.until(clock.now + 1.0), 0
    while not wait_for(done, PIECE_S):
        n += 1
    assert n >= 45
    assert clock.checks > 5000


def test_a_wait_of_no_time_checks_once(clock: Clock) -> None:
    assert not ReadPace().wait_for(clock.until(clock.now + 1.0), 0.0)
    assert clock.checks == 1
