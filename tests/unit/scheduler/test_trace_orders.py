"""The scheduler's part in traces: requests, orders, files, and requests that are given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpips.mpi.clock_offset import ClockOffset
from mpips.mpi.messages import Trace, TraceEnd
from mpips.rundir.directory import RunFolder, Supervised
from mpips.rundir.tracing import TraceFolder, TraceHead
from mpips.scheduler.trace_orders import TraceOrders


class Orders:
    """A scheduler with workers on ranks 2 and 3 and a server on rank 1, in time that the test sets."""

    def __init__(self, folder: Path, generation: int = 0, first_steps: int = 0) -> None:
        if not (folder / "runs").exists():
            RunFolder.create(folder / "runs", "job")
        self.run = RunFolder(next((folder / "runs").iterdir()))
        self.now = 0.0
        self.sent: list[tuple[int, Trace | TraceEnd]] = []
        supervised = Supervised(self.run, "job", "token", generation)
        self.orders = TraceOrders(
            supervised,
            (2, 3),
            (1,),
            lambda rank, order: self.sent.append((rank, order)),
            first_steps,
            lambda: self.now,
        )

    def poll(self) -> list[tuple[int, Trace | TraceEnd]]:
        """Poll after a long time; the orders that were sent."""
        self.now += 10.0
        self.sent.clear()
        self.orders.poll()
        return list(self.sent)

    def write(self, name: str, rank: int) -> None:
        head = TraceHead(
            rank=rank, role="", host="", clock_id="", offset_ns=0, error_ns=0, tables=()
        )
        TraceFolder(self.run, name).write(head, b"")


def test_a_request_is_ordered_ended_and_completed_once(tmp_path: Path) -> None:
    job = Orders(tmp_path)
    assert job.poll() == []
    folder = TraceFolder(job.run, "t")
    folder.ask(7)
    later = TraceFolder(job.run, "later")
    assert job.poll() == [(rank, Trace("t", 7)) for rank in (1, 2, 3)]
    later.ask(1)
    job.write("t", 2)
    assert job.poll() == []
    job.write("t", 3)
    # The servers end when all workers have.
    assert job.poll() == [(1, TraceEnd("t"))]
    assert folder.index() is None
    assert job.poll() == []
    job.write("t", 1)
    assert job.poll() == []
    index = folder.index()
    assert index is not None
    assert (index.ranks, index.missing, index.steps) == ((1, 2, 3), (), 7)
    assert job.poll() == [(rank, Trace("later", 1)) for rank in (1, 2, 3)]


def test_a_request_that_is_removed_is_given_up(tmp_path: Path) -> None:
    job = Orders(tmp_path)
    folder = TraceFolder(job.run, "t")
    folder.ask(7)
    job.poll()
    folder.request_file.unlink()
    assert job.poll() == [(rank, TraceEnd("t")) for rank in (1, 2, 3)]
    assert job.poll() == []
    assert folder.index() is None


def test_a_later_attempt_traces_again_and_the_end_of_the_job_completes(tmp_path: Path) -> None:
    first = Orders(tmp_path, first_steps=5)
    assert first.poll() == [(rank, Trace("begin-0", 5)) for rank in (1, 2, 3)]
    first.write("begin-0", 2)
    second = Orders(tmp_path, generation=1)
    assert second.poll() == [(rank, Trace("begin-0", 5)) for rank in (1, 2, 3)]
    folder = TraceFolder(second.run, "begin-0")
    assert not folder.rank_file(2).exists()
    second.write("begin-0", 3)
    second.orders.close()
    index = folder.index()
    assert index is not None
    assert (index.generation, index.ranks, index.missing) == (1, (3,), (1, 2))


def test_a_trace_that_nobody_gives_up_ends_by_its_timeout(tmp_path: Path) -> None:
    job = Orders(tmp_path)
    TraceFolder(job.run, "killed").ask(1_000_000, 25.0)
    assert job.poll() == [(rank, Trace("killed", 1_000_000)) for rank in (1, 2, 3)]
    folder = TraceFolder(job.run, "t")
    folder.ask(7, 300.0)
    job.write("killed", 2)
    assert job.poll() == job.poll() == []
    # Those that still record are told to end, and write what they have.
    assert job.poll() == [(rank, TraceEnd("killed")) for rank in (1, 3)]
    job.write("killed", 1)
    job.write("killed", 3)
    assert job.poll() == []
    index = TraceFolder(job.run, "killed").index()
    assert index is not None
    assert (index.ranks, index.missing, index.late) == ((1, 2, 3), (), True)
    assert job.poll() == [(rank, Trace("t", 7)) for rank in (1, 2, 3)]


@pytest.mark.parametrize(("written", "end", "late"), [((2, 3), 1, False), ((1, 3), 2, True)])
def test_a_rank_that_cannot_write_its_part_is_missing(
    tmp_path: Path, written: tuple[int, int], end: int, late: bool
) -> None:
    job = Orders(tmp_path)
    folder = TraceFolder(job.run, "t")
    folder.ask(7, 35.0)
    job.poll()
    for rank in written:
        job.write("t", rank)
    while not (orders := job.poll()):
        assert job.now < 100
    assert orders == [(end, TraceEnd("t"))]
    # The part of a busy server may take a while.
    assert job.poll() == job.poll() == []
    assert folder.index() is None
    assert job.poll() == []
    index = folder.index()
    assert index is not None
    assert (index.ranks, index.missing, index.late) == (written, (end,), late)


def test_a_request_whose_time_is_over_before_its_turn_is_removed(tmp_path: Path) -> None:
    job = Orders(tmp_path)
    TraceFolder(job.run, "first").ask(7, 300.0)
    job.poll()
    queued, last = TraceFolder(job.run, "queued"), TraceFolder(job.run, "last")
    queued.ask(7, 15.0)
    last.ask(9, float("inf"))
    job.poll()
    assert queued.request_file.exists()
    job.poll()
    job.poll()
    assert not queued.request_file.exists()
    for rank in (1, 2, 3):
        job.write("first", rank)
    job.poll()
    assert job.poll() == [(rank, Trace("last", 9)) for rank in (1, 2, 3)]


@pytest.mark.parametrize("text", ["", "[]", '{"steps":0,"time_s":1}', '{"steps":"x"}', "\xff"])
def test_what_is_no_request_has_no_effect(tmp_path: Path, text: str) -> None:
    job = Orders(tmp_path)
    folder = TraceFolder(job.run, "t")
    folder.path.mkdir(parents=True)
    folder.request_file.write_text(text)
    assert job.poll() == []


def test_the_shortest_round_trip_counts() -> None:
    offset = ClockOffset()
    assert offset.best == (0, -1)
    offset.add(1000, 9000, 3000)
    offset.add(5000, 12_100, 5200)  # a round trip of 200
    offset.add(6000, 14_000, 6900)
    offset.add(7000, 0, 7001)  # an answer without a time
    offset.add(0, 5, 6)  # no heartbeat was sent
    assert offset.best == (7000, 100)
