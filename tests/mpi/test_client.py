"""A rank's messages to the scheduler: when heartbeats and reports are sent, and the statistics of the end."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from mpips.mpi import control
from mpips.mpi.control import Client
from mpips.mpi.messages import Bye, Done, Evaluated, Heartbeat, Message, Pong, Report

TIMEOUT_S = 300.0


class Line:
    """An endpoint whose messages the test makes, in time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 50.0
        self.arrived: list[tuple[int, Message]] = []
        self.sent: list[tuple[float, Message]] = []
        monkeypatch.setattr(control.time, "monotonic", lambda: self.now)

    def receive(self) -> list[tuple[int, Message]]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def send(self, rank: int, message: Message) -> None:
        self.sent.append((self.now, message))
        if isinstance(message, Heartbeat):
            self.arrived.append((0, Pong()))

    def send_to_all(self, ranks: Iterable[int], message: Message) -> None:
        raise AssertionError("a client sends to one rank")

    def of(self, kind: type) -> list[float]:
        """Times at which messages of a kind were sent."""
        return [at for at, message in self.sent if isinstance(message, kind)]


def client(line: Line, rank: int, n_ranks: int) -> Client:
    return Client(line, 0, "here", TIMEOUT_S, rank=rank, n_ranks=n_ranks)  # type: ignore[arg-type]


def test_ranks_of_a_large_job_send_heartbeats_at_times_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_ranks, times = 5_000, {}
    for rank in (1, 2499, 4999):
        line = Line(monkeypatch)
        sender = client(line, rank, n_ranks)
        for _ in range(300):
            sender.poll()
            line.now += 0.125
        times[rank] = line.of(Heartbeat)
    # The first at once, then one every ten seconds; the offset depends on the rank.
    assert times[4999] == [50.0, 60.0, 70.0, 80.0]
    assert times[2499] == [50.0, 55.0, 65.0, 75.0, 85.0]
    assert times[1][:3] == [50.0, 50.125, 60.125]  # after 4 ms, at the next poll


def test_the_end_of_a_worker_sends_what_is_not_reported_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line(monkeypatch)
    sender = client(line, 5, 5_000)
    for step in range(30):
        sender.clock = step
        sender.report(0, step, 8, 0.25)
        line.now += 1.0
    sender.tell(Evaluated(1, 30, {}))
    for step in (30, 31):
        sender.report(0, step, 8, 0.25)
    sender.done(b"{}")
    kinds = [type(message) for _, message in line.sent]
    assert kinds == [Report] * 4 + [Evaluated, Report, Report, Done]
    reports = [message for _, message in line.sent if isinstance(message, Report)]
    assert sum(report.samples for report in reports) == 32 * 8
    assert sum(report.loss_sum for report in reports) == 32 * 0.25
    assert reports[3].clock == 29


def test_a_rank_adds_its_own_statistics_to_the_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(monkeypatch)
    sender = client(line, 5, 3)
    own = {"worker": 4, "clock": 7}
    sender.done(msgspec.json.encode(own))
    totals = {"totals": {"workers": {"number": 2}}, "scheduler": {"polls": 1}}
    line.arrived.append((0, Bye(msgspec.json.encode(totals))))
    sender.poll()
    assert sender.final_statistics is not None
    assert msgspec.json.decode(sender.final_statistics) == {**totals, "own": own}


def test_all_statistics_are_passed_on_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line(monkeypatch)
    sender = client(line, 5, 3)
    line.arrived.append((0, Bye(b'{"workers":[]}', complete=True)))
    sender.poll()
    assert sender.final_statistics == b'{"workers":[]}'
