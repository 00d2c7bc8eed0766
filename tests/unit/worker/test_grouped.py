"""One worker's part in its group, with the native ends of the others played by the test."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpips import ASP, BSP, SGD, DenseTable, StallError, _native
from mpips.worker.groups.part import GroupPart
from mpips.worker.groups.tables import GroupedTables

N = 40

# Waits for records at servers, which are there.
ARRIVED: Any = SimpleNamespace(wait_for_all=lambda: None)


class Impatient:
    """The connection of worker `index`, whose every wait ends after some looks."""

    def __init__(self, index: int) -> None:
        self.index, self.control = index, SimpleNamespace(state="")
        self.meanwhile: Any = lambda: None  # what others do during a look

    def wait_until(self, done: Any, late: Any) -> None:
        if not any((self.meanwhile(), done())[1] for _ in range(3)):
            raise StallError(late())


class Group:
    """Workers 0 and 1 in memory that outlives the launch; `member` is the part of worker 1."""

    def __init__(self, consistency: BSP | ASP) -> None:
        table = DenseTable("t", (N,), SGD(1.0), consistency)
        layout = _native.NodeLayout(2, [(N, 0)], 1)
        memory = _native.SharedMemory.anonymous(layout.total_bytes, 0)
        rules = [("t", SGD().native(), False, 0, True)]
        self.leader, end = (
            _native.Reduction(memory, layout, worker, [0, 1], rules, True) for worker in range(2)
        )
        self._parts = [
            GroupPart({0: table}, (0, 1), number, memory, layout, reduction, outlives=True)
            for number, reduction in enumerate((self.leader, end))
        ]
        part = self._parts[1]
        self.connection: Any = Impatient(1)
        connection = self.connection
        names = ["worker 0 (rank 2)", "worker 1 (rank 3)"]
        self.member = GroupedTables(connection, part, names, ARRIVED)
        self.end = end
        self.values = end.values

    def part_of(self, worker: int) -> GroupPart:
        return self._parts[worker]


@pytest.fixture
def group() -> Group:
    return Group(BSP())


def test_a_worker_that_has_not_ended_the_clock_is_named(group: Group) -> None:
    with pytest.raises(
        StallError, match=r"worker 0 \(rank 2\), .* has not ended clock 0 of table 't'"
    ):
        group.member.before_tick()


def test_a_leader_whose_ticks_are_not_at_the_servers_is_named(group: Group) -> None:
    group.leader.tick()
    with pytest.raises(StallError, match=r"has not added its part"):
        group.member.before_tick()
    group.leader.advance()
    assert group.member.late() == (
        "worker 0 (rank 2), which leads this worker's group, has not ended clock 0 at all servers, or this "
        "worker has not received that"
    )


@pytest.mark.filterwarnings("error")
def test_updates_of_a_clock_whose_sum_is_beyond_float32_are_infinite(group: Group) -> None:
    for _ in range(2):
        group.member.push(0, np.full(N, 3e38, np.float32))
    group.leader.tick()
    with pytest.raises(StallError):
        group.member.before_tick()
    group.leader.advance()
    assert np.isinf(group.values(0, 0)).all()


def test_a_member_goes_on_only_when_the_leaders_ticks_are_at_all_servers(group: Group) -> None:
    written: list[str] = []
    group.member.hold(lambda: written.append("rows"))
    group.leader.tick()
    group.connection.meanwhile = group.leader.advance
    with pytest.raises(StallError, match="which leads this worker's group"):
        group.member.before_tick()  # the sums are complete
    assert written == []
    group.leader.note_sent(0, 1)
    group.member.hold(lambda: written.append("rows of the next clock"))
    with pytest.raises(StallError, match="has not ended clock 1"):
        group.member.before_tick()
    assert group.leader.sent(1) == 0  # only a leader notes its ticks


def test_the_leader_pushes_the_sums_and_notes_its_ticks_when_they_have_arrived() -> None:
    group = Group(BSP())
    order: list[str] = []
    connection: Any = Impatient(0)

    def arrive() -> None:
        assert group.leader.sent(0) == 0
        order.append("all servers have the ticks")

    arrivals: Any = SimpleNamespace(wait_for_all=arrive)
    leader = GroupedTables(connection, group.part_of(0), ["worker 0", "worker 1"], arrivals)
    leader.add(0, lambda values: order.append(f"sum {values[0]:g}"))
    leader.hold(lambda: order.append("rows"))
    leader.lead(lambda: order.append("change"))
    leader.push(0, np.full(N, 2.0, np.float32))
    leader.push(0, np.full(N, 3.0, np.float32))
    group.member.push(0, np.full(N, 4.0, np.float32))
    with pytest.raises(StallError):
        group.member.before_tick()
    connection.meanwhile = group.member.poll
    leader.before_tick()
    assert order == ["rows", "change", "sum 9"]
    leader.after_tick()
    assert order[3:] == ["all servers have the ticks"]
    assert group.leader.sent(0) == 1


def test_a_worker_that_has_finished_adds_no_part_of_sums(group: Group) -> None:
    """Nobody waits for it, so others may be in the next clock, whose sum has the same memory."""
    # This launch began when all servers had the ticks of clock 0 of both, and worker 0 repeats clock 0.
    group.leader.note_sent(0, 1)
    group.leader.note_sent(1, 1)
    group.member.before_tick()
    group.member.finish()
    group.leader.push(0, np.full(N, 2.0, np.float32), False)
    group.leader.tick()
    group.leader.advance()
    assert group.leader.complete(0)
    group.member.poll()
    assert group.end.updated(0) == 0


def test_only_the_leader_writes_a_change_of_hyperparameters() -> None:
    group = Group(ASP())
    order: list[str] = []
    group.member.add(0, lambda values: order.append(f"sum {values[0]:g}"))
    group.member.lead(lambda: order.append("change of clock 0"))
    group.connection.meanwhile = lambda: (group.leader.advance(), group.leader.note_sent(0, 1))
    group.leader.tick()
    group.member.before_tick()
    assert order == []
    # The leader finishes, and worker 1 leads. Its change of clock 0 is gone.
    group.leader.finish()
    group.member.lead(lambda: order.append("change of clock 1"))
    group.member.push(0, np.full(N, 2.0, np.float32))
    group.member.before_tick()
    assert order == ["change of clock 1", "sum 2"]


def test_a_pull_waits_for_the_leader_of_the_clock_before_at_each_server(group: Group) -> None:
    looks: list[int] = []
    clocks = [[0, 9], [9, 9]]  # of workers 0 and 1, at each server

    def channel(server: int) -> Any:
        return SimpleNamespace(clocks=lambda: (looks.append(server), clocks[server])[1])

    group.connection.channels = [channel(server) for server in range(2)]
    assert group.member.applied.is_applied(0, 0.0)
    assert looks == []  # there is no earlier clock
    group.leader.tick()
    group.connection.meanwhile = lambda: (group.leader.advance(), group.leader.note_sent(0, 1))
    group.member.before_tick()
    assert [group.member.applied.is_applied(server, 0.0) for server in range(2)] == [False, True]
    late = group.member.applied.late_at(0)
    assert late.startswith(
        "worker 0 (rank 2), which leads this worker's group, has not ended clock 0 at"
    )
    assert "server 0" in late
    clocks[0][0] = 1
    assert [group.member.applied.is_applied(server, 0.0) for server in range(2)] == [True, True]
    assert looks == [0, 1, 0]  # once it has been there it is there
    # The leader finishes after clock 1. Worker 1 leads clock 2, and its own ring has its pushes.
    group.leader.tick()
    group.connection.meanwhile = lambda: (group.leader.advance(), group.leader.note_sent(0, 2))
    group.member.before_tick()
    group.leader.finish()
    assert not group.member.applied.is_applied(0, 0.0)
    clocks[0][0] = _native.FINISHED_CLOCK
    assert group.member.applied.is_applied(0, 0.0)
    group.member.before_tick()
    looks.clear()
    group.member.after_tick()
    assert group.member.applied.is_applied(0, 0.0)


@pytest.mark.parametrize("consistency", [BSP(), ASP()])
def test_pushes_that_another_worker_carries_are_counted(consistency: BSP | ASP) -> None:
    group = Group(consistency)
    group.member.push(0, np.ones(N, np.float32))
    group.leader.tick()
    group.connection.meanwhile = lambda: (group.leader.advance(), group.leader.note_sent(0, 1))
    group.member.before_tick()
    counters: dict[str, int] = {"pushed": 3}
    group.member.count(counters)
    assert counters == {"pushed": 4, "applied": 1, "grouped": 1}
    figures: Any = SimpleNamespace(judged=0)
    group.member.add_figures(figures)
    # The leader counts the staleness of a sum under ASP.
    assert figures.judged == isinstance(consistency, BSP)


class Restarted:
    """Worker 1 of a group behind a restart, at clock 2; `asked` counts its questions for residuals."""

    def __init__(self) -> None:
        table = DenseTable("t", (N,), SGD(1.0), BSP())
        layout = _native.NodeLayout(2, [(N, 0)], 1)
        memory = _native.SharedMemory.anonymous(layout.total_bytes, 0)
        rules = [("t", SGD().native(), False, 0, True)]
        start = (2, 1, False, False)
        self.end = _native.Reduction(memory, layout, 1, [0, 1], rules, True, start)
        self.connection: Any = Impatient(1)
        part = GroupPart({0: table}, (0, 1), 1, memory, layout, self.end, outlives=True)
        names = ["worker 0 (rank 2)", "worker 1 (rank 3)"]
        self.member = GroupedTables(self.connection, part, names, ARRIVED)
        self.end.note_tick(1, 1)
        self.asked = 0
        handover: Any = SimpleNamespace(begin=self._ask, is_done=lambda: True, asked=None)
        self.member._handover = handover

    def _ask(self) -> None:
        self.asked += 1


@pytest.mark.parametrize(("finished_at", "asks"), [(0, True), (1, True), (2, False), (3, False)])
def test_a_worker_that_led_before_a_restart_takes_residuals_again_at_its_end(
    finished_at: int, asks: bool
) -> None:
    """It led its last clock, clock 1, if the lower worker had finished before it."""
    restarted = Restarted()
    if finished_at:
        restarted.end.note_tick(0, finished_at - 1)
    restarted.end.note_finish(0, finished_at)
    restarted.member.finish()
    restarted.member.finish()
    assert restarted.asked == asks


def test_a_lower_worker_that_has_ended_the_last_clock_has_the_residuals() -> None:
    restarted = Restarted()
    restarted.connection.meanwhile = lambda: restarted.end.note_tick(0, 1)
    restarted.member.finish()
    assert restarted.asked == 0


def test_the_end_of_a_worker_names_the_one_whose_end_it_does_not_know() -> None:
    restarted = Restarted()
    late = r"worker 0 \(rank 2\), of this worker's group, has neither ended clock 1 nor finished"
    with pytest.raises(StallError, match=late):
        restarted.member.finish()
    assert restarted.end.finished(1) == 0
