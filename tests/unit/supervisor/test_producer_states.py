"""The decisions about programs of [producers], event by event, without processes and clocks."""

from __future__ import annotations

from typing import Any

import pytest

from mpips.config.producers import ProducersConfig
from mpips.supervisor.producer_states import LONGEST_PAUSE_S, UNSERVED_S, MemberStates


def states(**options: Any) -> MemberStates:
    return MemberStates(ProducersConfig(command="x", **options))


def begun(machine: MemberStates, now: float = 0.0) -> list[int]:
    """The members that start now; their numbers."""
    members = machine.to_start(lambda number: True, now)
    for member in members:
        machine.started(member)
    return [member.number for member in members]


def named(machine: MemberStates) -> list[str]:
    return [member.state for member in machine.members]


def test_a_member_waits_for_its_own_queues() -> None:
    machine = states(members=3)
    assert machine.to_start(lambda number: False, 0.0) == []
    assert [m.number for m in machine.to_start(lambda number: number == 1, 0.0)] == [1]
    assert named(machine) == ["waiting"] * 3, "the caller starts it"


def unserved(machine: MemberStates, served: set[int], now: float) -> int | None:
    found = machine.unserved(lambda number: number in served, now)
    return None if found is None else found.number


def test_a_member_that_nobody_serves_is_named_after_a_while() -> None:
    machine = states(members=3)
    assert begun_of(machine, {0}) == [0]
    assert unserved(machine, {0}, 5.0) is None
    assert unserved(machine, {0}, 4.9 + UNSERVED_S) is None
    assert unserved(machine, {0}, 5.0 + UNSERVED_S) == 1
    # Another one has its own time, and so has the same one after it was served.
    assert unserved(machine, {0, 1}, 6.0 + UNSERVED_S) is None
    assert unserved(machine, {0, 1}, 6.0 + 2 * UNSERVED_S) == 2
    assert unserved(machine, {0, 1, 2}, 7.0 + 2 * UNSERVED_S) is None
    assert unserved(machine, {0, 1}, 8.0 + 2 * UNSERVED_S) is None
    assert unserved(machine, {0, 1}, 8.0 + 3 * UNSERVED_S) == 2


def test_a_member_that_waits_for_something_else_is_not_named() -> None:
    machine = states(members=2, at_once=1)
    assert begun(machine) == [0]
    # It waits for the place of member 0.
    assert unserved(machine, set(), 0.0) is None
    assert unserved(machine, set(), UNSERVED_S) is None
    machine = states(members=1)
    assert begun(machine) == [0]
    machine.ended(machine.members[0], 1, 10.0)
    # It waits for the end of its pause.
    assert unserved(machine, set(), 10.5) is None
    assert unserved(machine, set(), 11.0) is None
    assert unserved(machine, set(), 10.5 + UNSERVED_S) is None
    assert unserved(machine, set(), 11.0 + UNSERVED_S) == 0
    machine.stop()
    assert unserved(machine, set(), 11.0 + UNSERVED_S) is None


def begun_of(machine: MemberStates, served: set[int]) -> list[int]:
    """The members that start now, of those that are served."""
    members = machine.to_start(lambda number: number in served, 0.0)
    for member in members:
        machine.started(member)
    return [member.number for member in members]


def test_so_many_run_at_once_and_the_next_ones_follow() -> None:
    machine = states(members=5, at_once=2)
    assert begun(machine) == [0, 1]
    assert begun(machine) == []
    assert machine.ended(machine.members[0], 0, 1.0) == "end of its producers"
    assert begun(machine, 1.0) == [2]
    machine.ended(machine.members[1], 0, 2.0)
    machine.ended(machine.members[2], 0, 2.0)
    assert begun(machine, 2.0) == [3, 4]
    assert named(machine) == ["ended"] * 3 + ["running"] * 2


def test_a_member_that_pauses_gives_its_place_to_another_one() -> None:
    machine = states(members=2, at_once=1)
    assert begun(machine) == [0]
    assert machine.ended(machine.members[0], 1, 10.0) == "start"
    assert begun(machine, 10.5) == [1]
    assert begun(machine, 99.0) == []
    machine.ended(machine.members[1], 0, 99.0)
    assert begun(machine, 99.0) == [0]


def test_pauses_double_and_restarts_are_bounded() -> None:
    machine, now = states(max_restarts=9), 0.0
    (member,) = machine.members
    pauses = []
    for _ in range(9):
        assert begun(machine, now) == [0]
        assert machine.ended(member, 3, now) == "start"
        pauses.append(member.ready_at - now)
        assert begun(machine, member.ready_at - 0.01) == []
        now = member.ready_at
    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert begun(machine, now) == [0]
    assert machine.ended(member, -9, now) == "end of the run"
    assert (member.state, member.starts, member.failures) == ("failed", 10, 10)
    assert begun(machine, now + 1e6) == []


@pytest.mark.parametrize(
    ("on_failure", "following"), [("end", "end of the run"), ("continue", "end of its producers")]
)
def test_a_failure_ends_the_run_or_the_member(on_failure: Any, following: str) -> None:
    machine = states(members=2, on_failure=on_failure)
    begun(machine)
    assert machine.ended(machine.members[1], 1, 0.0) == following
    assert named(machine) == ["running", "failed"]


@pytest.mark.parametrize("on_failure", ["restart", "end", "continue"])
def test_a_command_that_is_not_there_never_starts_again(on_failure: Any) -> None:
    machine = states(on_failure=on_failure)
    begun(machine)
    expected = "end of its producers" if on_failure == "continue" else "end of the run"
    assert machine.ended(machine.members[0], 127, 0.0, futile=True) == expected
    assert named(machine) == ["failed"]


def test_an_end_after_a_replaced_queue_costs_no_restart() -> None:
    machine = states(on_failure="end")
    (member,) = machine.members
    for _ in range(5):
        assert begun(machine) == [0]
        assert machine.ended(member, 5, 0.0, replaced=True) == "start"
    assert member.failures == 0
    assert begun(machine) == [0]
    assert machine.ended(member, 5, 0.0) == "end of the run"


def test_a_member_whose_samples_are_missing_starts_again_only_if_it_had_ended() -> None:
    machine = states(members=3, on_failure="continue")
    begun(machine)
    ended, failed, running = machine.members
    machine.ended(ended, 0, 0.0)
    machine.ended(failed, 1, 0.0)
    assert [machine.misses_samples(m, 7.0) for m in (ended, failed, running)] == [
        True,
        False,
        False,
    ]
    assert begun(machine, 6.9) == []
    assert begun(machine, 7.0) == [0]


def test_a_stop_starts_nothing_and_calls_no_end_a_failure() -> None:
    machine = states(members=5, at_once=4)
    begun(machine)
    machine.stop()
    killed, halfway, done, paused, waiting = machine.members
    assert machine.ended(killed, -15, 0.0) == "nothing"
    assert machine.ended(halfway, 0, 0.0) == "nothing", "its handler of SIGTERM ends with code 0"
    assert machine.ended(done, 0, 0.0, closed=True) == "end of its producers"
    assert machine.ended(paused, 3, 0.0, replaced=True) == "nothing"
    assert named(machine) == ["stopped", "stopped", "ended", "stopped", "stopped"]
    assert begun(machine, 1e6) == []
    assert not machine.misses_samples(done, 1e6)
    assert waiting.starts == 0
