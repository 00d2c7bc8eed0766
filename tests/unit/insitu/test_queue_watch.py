"""Queues of a run: programs find them by name or run directory, `mpips run` watches and closes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import program_rig as rig
import pytest
from program_rig import Program, refused, serve

from mpips import StreamTable, run
from mpips._native import QueueWatch
from mpips.errors import ConfigError
from mpips.rundir.producers import FIRST, STREAM, queue_name
from mpips.supervisor.member_queues import MemberQueues, QueueState


@pytest.fixture
def name() -> Iterator[str]:
    with rig.queue_name() as chosen:
        yield chosen


def filled(program: Program, n: int) -> Program:
    program.declare("x", "float32", (3,))
    for _ in range(n):
        program.push(np.zeros(3, np.float32))
    return program


@pytest.mark.parametrize("no_name", [None, ""])
def test_a_program_without_a_name_takes_that_of_its_environment(
    name: str, no_name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(STREAM, raising=False)
    with refused(rig.USAGE, "no name is given, and MPIPS_STREAM has none"):
        Program(no_name)
    monkeypatch.setenv(STREAM, name)
    first, seventh = serve(name), serve(name, number=7)
    filled(Program(no_name), 2).detach()
    monkeypatch.setenv(FIRST, "5")
    filled(Program(no_name, 2), 3).detach()
    assert (first.written, seventh.written) == (2, 3)
    with refused(rig.STALLED, f"producer 6 of '{name}'"):
        Program(no_name, 1, 0.01)
    monkeypatch.setenv(STREAM, "a/b")
    with refused(rig.USAGE, "MPIPS_STREAM has none"):
        Program(no_name)


def test_a_program_opens_a_run_by_its_directory(name: str, tmp_path: Path) -> None:
    with refused(rig.STALLED, f"for 0.01 s {tmp_path} has not been the directory of a run"):
        Program(str(tmp_path), 0, 0.01)
    (tmp_path / "queue").write_text("not a name!\n")
    with refused(rig.USAGE, f"{tmp_path}/queue contains no name of queues"):
        Program(str(tmp_path))
    (tmp_path / "queue").write_text(name + "\n")
    with refused(rig.STALLED, f"producer 3 of '{name}'"):
        Program(str(tmp_path), 3, 0.01)
    queue = serve(name, number=3)
    filled(Program(f"{tmp_path}/", 3), 1).detach()
    assert queue.written == 1


def test_a_worker_serves_under_the_name_of_the_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StreamTable("s", {"x": ()}, 4)
    monkeypatch.delenv(STREAM, raising=False)
    with pytest.raises(ConfigError, match="no name is given, and only `mpips run` gives one"):
        run(stream.serve, [stream], verbose=False)
    monkeypatch.setenv(STREAM, name)
    watch = QueueWatch(name, 0)

    def main(worker: object) -> None:
        # The program ends between the start of the worker and its first look.
        from mpips.insitu.programs import ProgramServer

        made = ProgramServer.run

        def closed(server: ProgramServer) -> None:
            assert watch.look() is not None
            assert watch.close_producer()
            made(server)

        monkeypatch.setattr(ProgramServer, "run", closed)
        stream.serve(worker)  # type: ignore[arg-type]

    run(main, [stream], verbose=False)
    assert queue_name("token") != queue_name("other") != ""
    assert queue_name("token", "heat") == "heat"


def test_the_state_of_a_queue_is_that_of_its_two_ends(name: str) -> None:
    watch = QueueWatch(name, 0)
    assert watch.look() is None
    assert not watch.close_producer()
    queue = serve(name, produced=5)
    assert watch.look() == (True, False, False, 5, 0)
    program = filled(Program(name), 2)
    assert watch.look() == (True, True, False, 7, 0)
    assert not watch.close_producer(), "a program has it"
    program.detach()
    assert watch.look() == (True, False, False, 7, 0)
    assert watch.close_producer()
    assert watch.look() == (True, False, True, 7, 0)
    assert queue.is_closed
    # A queue without a name is still seen, but it is not served any more.
    queue.unlink()
    assert watch.look() == (False, False, True, 7, 0)
    again = serve(name, produced=6)
    assert watch.look() == (True, False, False, 6, 1)
    del again
    assert watch.look() == (False, False, False, 6, 1)


def test_the_lock_of_a_watch_is_given_back(name: str) -> None:
    queue, watch = serve(name), QueueWatch(name, 0)
    assert watch.look() is not None
    assert watch.close_producer()
    assert watch.look() == (True, False, True, 0, 0)
    assert not queue.is_attached
    Program(name).detach()


class Scripted:
    """A queue whose states are given."""

    def __init__(self, *states: tuple[bool, bool, bool, int, int] | None) -> None:
        self.state, self.closed = states[0], 0

    def look(self) -> tuple[bool, bool, bool, int, int] | None:
        return self.state

    def close_producer(self) -> bool:
        self.closed += 1
        return True


def test_a_member_is_served_when_all_of_its_queues_are() -> None:
    served, unserved = (True, False, False, 0, 0), (False, False, False, 0, 0)
    for states, expected in [
        ([served, served], True),
        ([served, unserved], False),
        ([served, None], False),
        ([served, (True, False, True, 0, 0)], False),
    ]:
        assert MemberQueues("s", [0, 1], (), [*map(Scripted, states)]).are_served is expected


def test_a_member_is_behind_if_a_new_queue_begins_before_its_last_sample() -> None:
    watch = Scripted((True, True, False, 8, 0))
    queues = MemberQueues("s", [0], (), [watch])
    queues.note()
    assert queues.produced == [8]
    for state, behind in [
        (QueueState(True, False, False, 8, 1), False),
        (QueueState(True, False, False, 7, 1), True),
        (QueueState(False, False, False, 7, 1), False),
        (QueueState(True, False, True, 7, 1), False),
    ]:
        watch.state = state
        assert queues.are_behind is behind
    assert MemberQueues("s", [0], [9], [watch]).produced == [9]
    assert MemberQueues("s", [0], [9, 9], [watch]).produced == [0], "of another number of queues"


def test_only_open_queues_without_a_program_are_closed() -> None:
    watches = [Scripted(state) for state in [
        (True, False, False, 1, 0), (False, False, False, 1, 0), (True, True, False, 1, 0),
        (True, False, True, 1, 0), None,
    ]]  # fmt: skip
    MemberQueues("s", range(5), (), watches).close()
    assert [watch.closed for watch in watches] == [1, 1, 0, 0, 0]
