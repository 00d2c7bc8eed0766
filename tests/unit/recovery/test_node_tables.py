"""Memory of replicated tables that a launch finds: which of it counts, and which is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mpips import _native
from mpips.checkpoint import WorkerState
from mpips.model.optimizer import SGD
from mpips.recovery import replica_memory
from mpips.recovery.memory import Place
from mpips.recovery.node_tables import NodeTables, marked, memory_name
from mpips.transport.region import Regions, new_token, own_segments, persistent, unlink_job
from mpips.worker.replicated.memory import make_memory

LAYOUT = _native.NodeLayout(1, [(100, 0)], 2, True)
RULES: list[Any] = [("w", SGD(1.0).native(), True, 0, False)]


@pytest.fixture
def token() -> Iterator[str]:
    found = persistent(new_token())
    yield found
    unlink_job(found)


def launch(token: str, generation: int) -> NodeTables:
    """The tables of a launch of one rank."""

    def agree(what: str, work: Callable[[], Any]) -> list[Any]:
        return [work()]

    assignment = SimpleNamespace(workers=(0,), node_of=(0,), node_names=("here",))
    cluster: Any = SimpleNamespace(token=token, rank=0, assignment=assignment, agree=agree)
    return NodeTables(cluster, Regions(token, True, True), generation, LAYOUT, RULES)


def leave(token: str, generation: int, value: float, mark: int | None) -> None:
    """Leave what a launch leaves that made no step. `mark`: the generation of its mark; None: none."""
    name = memory_name(0, generation)
    memory = make_memory(Regions(token, True, True), name, LAYOUT)
    memory.view(LAYOUT.array(0, 0), 400, True).view("f4")[:] = value
    _native.set_start_versions(memory, LAYOUT, [7])
    _native.set_local_workers(memory, LAYOUT, [0], 0)
    if mark is not None:
        replica_memory.mark(token, name, mark)


def place(clock: int) -> Place:
    return Place(clock, WorkerState(worker=0, clock=clock), clock)


def value(tables: NodeTables) -> float:
    memory = _native.SharedMemory.anonymous(LAYOUT.total_bytes, 0)
    tables.write(memory)
    return float(memory.view(LAYOUT.array(0, 0), 4, False).view("f4")[0])


def test_only_memory_of_the_last_launch_that_came_to_work_or_a_later_one_counts(token: str) -> None:
    leave(token, 2, 2.0, 2)
    leave(token, 3, 3.0, 3)
    leave(token, 4, 4.0, None)  # its launch ended before the memory was complete
    assert marked(token) == {"n0g2": 2, "n0g3": 3}
    tables = launch(token, 5)
    assert tables.find(3, [place(0)]) == ""
    assert value(tables) == 3.0
    assert {part for part, _ in own_segments(token)} == {"n0g2", "n0g2-mark", "n0g3", "n0g3-mark"}
    tables.forget()
    # Launch 5 comes to work, and removes the rest.
    leave(token, 5, 5.0, None)
    tables.note_made("n0g5")
    tables.mark()
    tables.clean()
    assert marked(token) == {"n0g5": 5}
    assert {part for part, _ in own_segments(token)} == {"n0g5", "n0g5-mark"}


def test_why_there_are_no_tables_is_said(token: str) -> None:
    def why(served: int, clock: int) -> str:
        return launch(token, 9).find(served, [place(clock)])

    assert why(0, 0) == "the replicated tables are gone: no node has memory of them"
    leave(token, 2, 2.0, 2)
    assert (
        why(3, 0) == "the replicated tables are gone: the memory on here is of an earlier attempt"
    )
    missing = "the updates of worker 0 in clock 0 are missing"
    assert why(2, 1) == f"the replicated tables are gone: on here, table 'w': {missing}"
    assert why(2, 2).endswith("table 'w': the values at clock 2 are not complete")
    # A failed search leaves the start of a launch without memory as it is.
    tables = launch(token, 9)
    assert tables.find(2, [place(5)])
    assert (tables.base, tables.start_of(0)) == (0, (0, 0, False, False))


def test_memory_that_a_running_process_uses_is_not_taken(token: str) -> None:
    leave(token, 2, 2.0, 2)
    used = Regions(token, True, True).reopen("n0g2")
    found = launch(token, 3).find(2, [place(0)])
    assert "the replicated tables are gone: " in found
    assert "use" in found
    del used
