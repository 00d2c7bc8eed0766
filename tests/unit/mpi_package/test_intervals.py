"""Intervals of messages to the scheduler, and reports that wait for theirs."""

from __future__ import annotations

import pytest

from mpips.mpi import reports as module
from mpips.mpi.intervals import heartbeat_interval_s, report_interval_s
from mpips.mpi.messages import Report
from mpips.mpi.reports import PendingReport


@pytest.mark.parametrize("n_ranks", [1, 2, 300, 500])
def test_few_ranks_send_a_heartbeat_every_second(n_ranks: int) -> None:
    assert heartbeat_interval_s(n_ranks, 300.0) == 1.0
    assert heartbeat_interval_s(n_ranks, 2.0) == 0.25


@pytest.mark.parametrize("n_ranks", [1, 2, 125])
def test_few_ranks_send_each_report_at_once(n_ranks: int) -> None:
    assert report_interval_s(n_ranks) == 0.0


@pytest.mark.parametrize("n_ranks", [1000, 11_001, 100_000])
def test_the_scheduler_receives_500_of_each_kind_a_second(n_ranks: int) -> None:
    assert n_ranks / heartbeat_interval_s(n_ranks, 1e6) == 500.0
    assert n_ranks / report_interval_s(n_ranks) == 500.0


@pytest.mark.parametrize("n_ranks", [1, 1000, 11_001, 10**7])
@pytest.mark.parametrize("timeout_s", [0.1, 5.0, 300.0])
def test_eight_heartbeats_fit_into_the_timeout(n_ranks: int, timeout_s: float) -> None:
    assert heartbeat_interval_s(n_ranks, timeout_s) <= timeout_s / 8


class Clock:
    """Time that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


def test_reports_are_sent_at_once_without_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    sent: list[Report] = []
    pending = PendingReport(0.0, sent.append)
    for step in range(3):
        pending.add(Report(0, step, 8, 0.5, step))
    assert sent == [Report(0, step, 8, 0.5, step) for step in range(3)]


def test_reports_within_an_interval_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    sent: list[Report] = []
    pending = PendingReport(10.0, sent.append)
    for step in range(21):
        pending.add(Report(0, step, 8, 0.5, 2 * step))
        clock.now += 1.0
    assert sent == [
        Report(0, 0, 8, 0.5, 0),
        Report(0, 10, 80, 5.0, 20),
        Report(0, 20, 80, 5.0, 40),
    ]


def test_a_report_is_sent_when_it_is_due_though_no_other_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    sent: list[Report] = []
    pending = PendingReport(10.0, sent.append)
    pending.add(Report(0, 1, 8, 0.5, 1))
    pending.add(Report(0, 2, 8, 0.5, 2))
    pending.poll(clock.now + 9.0)
    assert len(sent) == 1
    pending.poll(clock.now + 10.0)
    assert sent[1:] == [Report(0, 2, 8, 0.5, 2)]
    pending.poll(clock.now + 100.0)
    assert len(sent) == 2


def test_an_epoch_is_reported_completely_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    sent: list[Report] = []
    pending = PendingReport(10.0, sent.append)
    for epoch in (0, 0, 0, 1, 1):
        pending.add(Report(epoch, 0, 8, 0.5, 0))
    assert [(r.epoch, r.samples) for r in sent] == [(0, 8), (0, 16)]
    pending.flush()
    pending.flush()
    assert [(r.epoch, r.samples, r.loss_sum) for r in sent[2:]] == [(1, 16, 1.0)]
