"""Records of a disturbed run: what servers consumed twice or left out, also over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from attempts_rig import TICK, entry, from_checkpoint, put, steps_of, write

from mpips.chaos.records import check_records
from mpips.record.files import End
from mpips.rundir.directory import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run without attempts."""
    return RunFolder.create(tmp_path, "job")


def server(run: RunFolder, attempt: int, data: bytes, **head: object) -> None:
    """Write the record of an attempt whose server has these entries."""
    write(run, attempt, (0, 0), ended=True, **head)
    put(run, attempt, "server", 0, data, End(), **head)


def test_nothing_is_checked_without_records(run: RunFolder) -> None:
    found = check_records(run, [0], False)
    assert found.outcome == "not checked"
    assert "monitor.record" in found.detail
    assert check_records(run, [], True).detail == "no attempt has ended"
    write(run, 0, (0, 0))
    found = check_records(run, [0], True)
    assert found.outcome == "not checked"
    assert "no ended attempt has completed one" in found.detail


def test_each_attempt_and_the_restarts_between_them_are_checked(run: RunFolder) -> None:
    write(run, 0, (6, 5))
    write(run, 1, (5, 5), **from_checkpoint(0, 4, 3))
    write(run, 2, (2, 2), ended=True, **from_checkpoint(1, 6, 7))
    found = check_records(run, range(3), True)
    assert (found.outcome, found.detail) == (
        "held",
        # A pull and a tick for each clock.
        "50 records of 3 attempts, 2 restarts from checkpoints; "
        "those of 2 attempts may lack their last entries",
    )


@pytest.mark.parametrize("start", [{}, from_checkpoint(0, 1, 1)])
def test_every_attempt_gets_the_history_check(run: RunFolder, start: dict[str, object]) -> None:
    write(run, 0, (2, 2))
    again = entry(TICK, 0) + bytes([15, 0, 0, 1]) + entry(TICK, 0)
    server(run, 1, again, **start)
    found = check_records(run, range(2), True)
    assert found.outcome == "broken"
    assert found.detail.startswith(
        "attempt 1: once: server 0: record 0 of worker 0 (tick, clock 1) was"
    )


def test_a_start_from_clocks_that_the_attempt_before_lacks_is_a_break(run: RunFolder) -> None:
    write(run, 0, (3, 3), ended=True)
    write(run, 1, (2, 2), **from_checkpoint(0, 3, 4))
    found = check_records(run, range(2), True)
    assert found.outcome == "broken"
    assert found.detail.startswith(
        "restart: server 0 of attempt 0 has not consumed the tick of clock 3"
    )


def test_some_of_many_breaks_are_printed(run: RunFolder) -> None:
    twice = entry(TICK, 0) + b"".join(bytes([15, 0, 0, c]) + entry(TICK, 0) for c in range(1, 9))
    server(run, 0, twice)
    detail = check_records(run, [0], True).detail
    assert detail.count("was consumed again") == 5
    assert detail.endswith("; and 3 more")


def test_an_attempt_without_a_record_is_a_note(run: RunFolder) -> None:
    write(run, 0, (4, 4), ended=True)
    put(run, 1, "server", 0, steps_of(0), None)
    write(run, 3, (2, 2), ended=True, **from_checkpoint(1, 2, 2))
    found = check_records(run, range(4), True)
    assert found.outcome == "held"
    counts, *notes = found.detail.split("; ")
    assert counts == "24 records of 2 attempts, 0 restarts from checkpoints"
    assert notes[0].startswith("attempt 1 is left out: ")
    assert "worker-0.rec: is missing" in notes[0]
    assert notes[1].startswith("attempt 2 is left out: ")
    assert "server-0.rec: is missing" in notes[1]
    assert notes[2].startswith(
        "restart: attempt 3 began from checkpoint step-2, and the attempt that"
    )
    assert len(notes) == 3
    assert "attempt 1 is left out" in check_records(run, [1], True).detail


def test_a_damaged_entry_is_a_note(run: RunFolder) -> None:
    write(run, 0, (4, 4), ended=True)
    server(run, 1, bytes([TICK, 9]))
    found = check_records(run, range(2), True)
    assert found.outcome == "held"
    assert "attempt 1 is left out: " in found.detail
    assert "has the worker 9 of 2" in found.detail
