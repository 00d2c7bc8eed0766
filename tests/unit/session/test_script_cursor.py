"""The cursor at which a script of a library continues, by the positions of the workers before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mpips.checkpoint.manifest import WorkerState
from mpips.checkpoint.position import Position, decode_part
from mpips.errors import ConfigError
from mpips.session.script import Script


def script(position: Position, n_workers: int) -> Any:
    """Return what `Script.cursor` reads of a script."""
    worker = SimpleNamespace(cursor=position.cursor, start=position.start)
    others: Any = Script.other_workers.fget  # type: ignore[attr-defined]
    found = SimpleNamespace(worker=worker, n_workers=n_workers)
    found.other_workers = others(found)
    return found


def cursor(position: Position, n_workers: int) -> Any:
    getter: Any = Script.cursor.fget  # type: ignore[attr-defined]
    return getter(script(position, n_workers))


def states(*steps: int) -> tuple[WorkerState, ...]:
    return tuple(
        WorkerState(worker=i, clock=n, cursor={"steps": n} if n else {})
        for i, n in enumerate(steps)
    )


def test_a_worker_without_a_clock_begins_at_its_own_beginning():
    in_memory = Position(0, 1, 2, 0, states(1, 0), clock=0)
    assert cursor(in_memory, 2) == {}
    assert cursor(Position(0, 0, 2, 0, states(1, 0), clock=1), 2) == {"steps": 1}


def test_another_number_of_workers_continues_at_the_common_place():
    assert cursor(Position(0, 2, 3, 4, states(4, 4)), 3) == {"steps": 4}


def test_another_number_of_workers_cannot_continue_at_different_places():
    with pytest.raises(ConfigError, match=r"2 workers, .*\(steps 4, 5\).*3 workers"):
        cursor(Position(0, 2, 3, 5, states(4, 5)), 3)


def test_a_noted_position_does_not_change_with_the_lists_of_the_program():
    position, own = Position(0, 0, 1), {"at": {"steps": [1]}, "pair": ({"a": [2]},)}
    position.set_cursor(own)
    sent = decode_part(position.coming_part(1, 1)).cursor
    position.note_tick(1, True, 1)
    own["at"]["steps"].append(2)  # type: ignore[index]
    own["pair"][0]["a"].clear()  # type: ignore[index]
    assert decode_part(position.part()).cursor == sent
    assert position.cursor == {"at": {"steps": [1]}, "pair": ({"a": [2]},)}


def test_a_restored_position_does_not_change_with_what_the_program_reads():
    position = Position(0, 0, 1, 1, (WorkerState(worker=0, clock=1, cursor={"at": [1]}),))
    assert position.start is not None
    assert position.start.cursor is not None
    position.start.cursor["at"].append(2)
    assert position.cursor == {"at": [1]}
