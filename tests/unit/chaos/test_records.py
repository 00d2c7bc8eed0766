"""Records of a disturbed run: what servers consumed twice or left out, also over restarts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mpips.chaos.records import check_records
from mpips.record.files import (
    DATA,
    END,
    FORMAT,
    HEAD,
    End,
    RecordHead,
    Role,
    block,
    record_file,
    record_folder,
)
from mpips.rundir.directory import RunFolder

TICK, FINISH = b"\x74\x00", b"\x75\x00"
MEMORY = "memory of the attempt before"


def at(sequence: int, clock: int) -> bytes:
    """The next entry has this sequence and clock, which are below 128."""
    return bytes([15, 0, sequence, clock])


def record(run: RunFolder, generation: int, data: bytes, start: str = "new") -> None:
    """Write the record of an attempt with a server, whose entries are `data`, and a worker."""
    folder = record_folder(run, generation)
    folder.mkdir(parents=True)
    roles: tuple[Role, ...] = ("server", "worker")
    for role in roles:
        head = RecordHead(
            format=FORMAT,
            role=role,
            index=0,
            n_servers=1,
            n_workers=1,
            tables=(),
            start=start,
            fingerprint="f",
        )
        parts = [block(HEAD, msgspec.json.encode(head))]
        parts += [block(DATA, data)] if role == "server" and data else []
        parts.append(block(END, msgspec.json.encode(End())))
        record_file(folder, role, 0).write_bytes(b"".join(parts))


def test_the_records_of_ended_attempts_are_checked(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    assert check_records(run, [], False).outcome == "not checked"
    assert "monitor.record" in check_records(run, [0], False).detail
    assert check_records(run, [], True).detail == "no attempt has ended"
    record(run, 0, TICK + FINISH)
    record(run, 1, b"")
    found = check_records(run, [0, 1], True)
    assert (found.outcome, found.detail) == (
        "held",
        "2 records of 2 attempts, 0 restarts in memory",
    )
    assert "no ended attempt has completed one" in check_records(run, [1], True).detail
    # An attempt without a record, and one with a break.
    assert "attempt 2: " in check_records(run, [0, 2], True).detail
    record(run, 3, TICK + at(5, 0) + TICK)
    found = check_records(run, [0, 3], True)
    assert found.outcome == "broken"
    assert found.detail.startswith("attempt 3: once: server 0: record 5")


@pytest.mark.parametrize(
    ("start", "data", "outcome"),
    [
        (MEMORY, at(2, 2) + TICK + TICK, "held"),
        # The record of the first attempt lacks its end.
        (MEMORY, at(9, 9) + TICK, "held"),
        (MEMORY, at(1, 1) + TICK, "record 1 of worker 0 was consumed again"),
        (MEMORY, at(0, 0) + TICK, "record 0 of worker 0 was consumed again"),
        (
            MEMORY,
            at(2, 2) + TICK + at(4, 3) + TICK,
            "record 4 of worker 0 was consumed without record 3",
        ),
        ("checkpoint step-000000000001", at(1, 1) + TICK, "held"),
        (
            "checkpoint step-000000000001",
            at(1, 1) + TICK + at(1, 2) + TICK,
            "record 1 of worker 0 was consumed again",
        ),
    ],
)
def test_records_are_consumed_once_over_restarts(
    start: str, data: bytes, outcome: str, tmp_path: Path
) -> None:
    run = RunFolder.create(tmp_path, "job")
    record(run, 0, TICK + TICK)
    record(run, 1, data, start)
    found = check_records(run, [0, 1], True)
    if outcome == "held":
        assert found.outcome == "held", found.detail
        restarts = "1 restart" if start == MEMORY else "0 restarts"
        assert found.detail.endswith(f"2 attempts, {restarts} in memory")
    else:
        assert found.outcome == "broken"
        assert outcome in found.detail


def test_only_an_attempt_that_began_anew_gets_the_history_check(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    jumps = TICK + at(1, 7) + TICK
    record(run, 0, jumps)
    assert "once" not in check_records(run, [0], True).detail
    assert "attempt 0: clocks: " in check_records(run, [0], True).detail
    # An attempt that continues begins with the clocks of the one before, which its record lacks.
    record(run, 1, jumps, MEMORY)
    assert check_records(run, [1], True).outcome == "held"


def test_nothing_is_concluded_over_an_attempt_without_a_record(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    record(run, 0, TICK + TICK)
    record(run, 2, at(1, 1) + TICK, MEMORY)
    found = check_records(run, [0, 1, 2], True)
    assert found.outcome == "held"
    assert "2 attempts, 0 restarts in memory; attempt 1: " in found.detail
