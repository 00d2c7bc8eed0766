"""The scheduler with messages that the tests make: silent ranks, the end of a job, work per poll."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from simulated_time import SimulatedTime

from mpips.mpi.messages import Bye, Done, Figures, Heartbeat, Message, Report, Stop, encode
from mpips.mpi.roles import Assignment
from mpips.scheduler.job_failure import JobFailure
from mpips.scheduler.rank_table import RankTable
from mpips.scheduler.scheduler import Scheduler

TIMEOUT_S = 60.0


class Inbox:
    """Messages for the scheduler, and those that it has sent."""

    def __init__(self) -> None:
        self.arrived: list[tuple[int, Message]] = []
        self.sent: list[tuple[int, Message]] = []

    def receive(self) -> list[tuple[int, Message]]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def send(self, rank: int, message: Message) -> None:
        self.sent.append((rank, message))

    def send_to_all(self, ranks: Iterable[int], message: Message) -> None:
        self.sent += [(rank, message) for rank in ranks]


class Job:
    """A scheduler on rank 0, servers behind it, then workers, in time that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_workers: int, n_servers: int) -> None:
        self._time = SimulatedTime(monkeypatch)
        self.inbox = Inbox()
        n = 1 + n_servers + n_workers
        servers, workers = tuple(range(1, 1 + n_servers)), tuple(range(1 + n_servers, n))
        self.assignment = Assignment((0,) * n, ("here",), 0, servers, workers)
        self.clocks: list[dict[int, int]] = []
        self.scheduler = Scheduler(
            self.inbox,  # type: ignore[arg-type]
            self.assignment,
            [10 + rank for rank in range(n)],
            TIMEOUT_S,
            None,
            on_poll=lambda coordinator, clocks: self.clocks.append(dict(clocks)),
        )

    @property
    def now(self) -> float:
        return self._time.now

    @now.setter
    def now(self, at: float) -> None:
        self._time.pass_by(at - self._time.now)

    def poll(self, *messages: tuple[int, Message]) -> list[tuple[int, Message]]:
        """Let messages arrive, poll, and return the messages sent."""
        self.inbox.arrived += messages
        self.inbox.sent.clear()
        self.scheduler.poll()
        return list(self.inbox.sent)


def beat(clock: int = 0) -> Heartbeat:
    return Heartbeat("computing", clock, None)


def worker_entry(worker: int) -> bytes:
    pushes = {"pushed": 10 + worker, "max_staleness": worker}
    return msgspec.json.encode({"worker": worker, "clock": 100 - worker, "pushes": pushes})


def server_entry(server: int) -> bytes:
    table = {"applied": 5, "staleness": [1, server, 0], "version": server}
    saved = {"path": "p", "bytes": 7, "notes": []}
    return msgspec.json.encode({"server": server, "tables": {"w": table}, "checkpoint": saved})


def naive_silence(last: dict[int, float], now: float) -> bool:
    """The definition: a rank has sent nothing for more than the timeout."""
    return max(now - at for at in last.values()) > TIMEOUT_S


@pytest.mark.parametrize("seed", range(20))
def test_a_silent_rank_is_found_at_the_poll_at_which_it_exceeds_the_timeout(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = np.random.default_rng(seed)
    job = Job(monkeypatch, 5, 2)
    last = dict.fromkeys(range(1, 8), job.now)
    dead, dies_at = int(random.integers(1, 8)), job.now + float(random.uniform(0, 500))
    for _ in range(100_000):
        job.now += float(random.uniform(0.1, 5.0))
        # Ranks may be silent for most of the timeout, and then send again.
        alive = [r for r in last if r != dead or job.now < dies_at]
        sends = [r for r in alive if random.random() < 0.05 or job.now - last[r] > 0.9 * TIMEOUT_S]
        last |= dict.fromkeys(sends, job.now)
        messages = [(rank, beat()) for rank in sends]
        if naive_silence(last, job.now):
            with pytest.raises(JobFailure) as found:
                job.poll(*messages)
            assert found.value.silent
            assert found.value.rank == dead or job.now - last[found.value.rank] > 0.7 * TIMEOUT_S
            return
        job.poll(*messages)
    pytest.fail("the rank that is dead was never silent for too long")


def test_the_message_names_the_silent_ranks_servers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, 2, 2)
    job.poll((3, beat(7)))
    job.now += 25.0
    job.poll((1, beat()))
    job.now += 25.0
    job.poll((1, beat()))
    job.now += 10.5
    expected = (
        r"server 1 \(rank 2 on here, pid 12\) has sent no heartbeat for 60.5 s; it was starting at clock "
        r"0; also silent: worker 0, worker 1; look at its process and host, or raise cluster.timeout_s"
    )
    with pytest.raises(JobFailure, match=expected):
        job.poll()


def test_a_message_names_at_most_sixteen_silent_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, 30, 1)
    for _ in range(3):
        job.now += 21.0
        job.scheduler._last_poll = job.now
        if job.now - 1000.0 < TIMEOUT_S:
            job.poll()
    with pytest.raises(JobFailure) as found:
        job.poll()
    assert str(found.value).count("worker") == 15
    assert "worker 14 and 15 more; look" in str(found.value)


def test_time_in_which_the_scheduler_was_stopped_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(monkeypatch, 2, 1)
    job.now += 59.0
    job.poll()
    for _ in range(2):
        job.now += 29.0
        job.poll()
    job.now += 2.5
    with pytest.raises(JobFailure):
        job.poll()


def test_a_rank_that_is_done_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, 2, 1)
    job.poll((2, Done(worker_entry(0))))
    for _ in range(10):
        job.now += 20.0
        job.poll((1, beat()), (3, beat()))


def test_silence_is_checked_a_few_times_per_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, 50, 5)
    checks: list[float] = []
    check = job.scheduler._check_silence
    monkeypatch.setattr(
        job.scheduler, "_check_silence", lambda now: (checks.append(now), check(now))
    )
    for _ in range(10 * int(TIMEOUT_S)):
        job.now += 1.0
        job.poll(*[(rank, beat()) for rank in range(1, 56)])
    assert 1 <= len(checks) <= 10


def test_clocks_are_those_of_the_last_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, 2, 1)
    job.poll()
    job.poll((2, beat(3)), (1, beat(99)))
    job.poll((3, Report(0, 0, 8, 0.5, 4)))
    assert job.clocks == [{2: 0, 3: 0}, {2: 3, 3: 0}, {2: 3, 3: 4}]


def calls_of(work: Callable[[], object]) -> int:
    """Return the number of functions, of Python or C, that `work` calls, and of values of generators."""
    n = 0

    def count(frame: Any, event: str, argument: object) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return n


def test_a_message_and_a_poll_take_the_same_calls_for_any_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def calls(n_workers: int) -> list[int]:
        job = Job(monkeypatch, n_workers, 2)
        last = 2 + n_workers
        table = RankTable([])
        table.look = lambda: None  # type: ignore[method-assign]
        table.note_heartbeat = lambda rank, message: None  # type: ignore[method-assign]
        job.scheduler._rank_table = table
        job.scheduler._on_poll = lambda coordinator, clocks: None
        messages: list[Message] = [
            Heartbeat("computing", 5, Figures(at=1.0)),
            Report(0, 1, 8, 0.5, 1),
            Done(worker_entry(0)),
        ]
        found = [calls_of(lambda m=message: job.poll((last, m))) for message in messages]
        return [calls_of(job.poll), *found]

    assert calls(500) == calls(5)


def finished(monkeypatch: pytest.MonkeyPatch, n_workers: int, n_servers: int) -> Job:
    """Return a job whose ranks have all sent their statistics."""
    job = Job(monkeypatch, n_workers, n_servers)
    a = job.assignment
    *first, last = a.workers
    assert job.poll(*[(r, Done(worker_entry(a.worker_of[r]))) for r in first]) == []
    assert job.poll((last, Done(worker_entry(a.worker_of[last])))) == [
        (r, Stop()) for r in a.servers
    ]
    assert job.poll() == []
    assert not job.scheduler.finished
    job.poll(*[(r, Done(server_entry(a.server_of[r]))) for r in reversed(a.servers)])
    assert job.scheduler.finished
    return job


def test_the_first_worker_gets_all_statistics_and_the_others_the_totals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = finished(monkeypatch, 3, 2)
    byes = {rank: bye for rank, bye in job.inbox.sent if isinstance(bye, Bye)}
    assert sorted(byes) == [1, 2, 3, 4, 5]
    assert {rank for rank, bye in byes.items() if bye.complete} == {3}
    whole = msgspec.json.decode(byes[3].statistics)
    assert byes[3].statistics == job.scheduler.summary
    assert [row["server"] for row in whole["servers"]] == [0, 1]
    assert [row["worker"] for row in whole["workers"]] == [0, 1, 2]
    assert whole["scheduler"]["messages"] == 5
    totals = {
        "servers": {
            "number": 2,
            "tables": {"w": {"applied": 10, "staleness": [2, 1, 0], "version": 1}},
            "checkpoint": {"path": "p", "bytes": 7, "notes": []},
        },
        "workers": {"number": 3, "clock": 100, "pushes": {"pushed": 33, "max_staleness": 2}},
    }
    assert whole["totals"] == totals
    for rank in (1, 2, 4, 5):
        found = msgspec.json.decode(byes[rank].statistics)
        assert found == {"totals": totals, "scheduler": whole["scheduler"]}


def test_the_last_message_to_a_rank_is_as_long_for_any_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def longest(n_workers: int, n_servers: int) -> int:
        job = finished(monkeypatch, n_workers, n_servers)
        return max(len(encode(m)) for r, m in job.inbox.sent if r != job.assignment.workers[0])

    # Only numbers become longer, by a few digits.
    assert longest(1000, 100) <= longest(10, 2) + 40


def test_with_two_ranks_the_server_beside_the_scheduler_gets_no_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inbox = Inbox()
    assignment = Assignment((0, 0), ("here",), 0, (0,), (1,))
    scheduler = Scheduler(inbox, assignment, [1, 2], TIMEOUT_S, None)  # type: ignore[arg-type]
    inbox.arrived.append((1, Done(worker_entry(0))))
    scheduler.poll()
    assert scheduler.workers_done
    assert inbox.sent == []
    scheduler.take_own(0, server_entry(0))
    ((rank, bye),) = inbox.sent
    assert isinstance(bye, Bye)
    assert (rank, bye.complete, bye.statistics) == (1, True, scheduler.summary)
    assert msgspec.json.decode(scheduler.summary)["servers"][0]["server"] == 0


def test_a_report_that_is_older_than_a_heartbeat_takes_no_clock_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(monkeypatch, 2, 1)
    job.poll((2, beat(5000)), (3, beat(4000)))
    job.poll((2, Report(0, 20, 8, 4.0, 20)))
    assert job.clocks[-1] == {2: 5000, 3: 4000}
