"""The report: promises, exit code, and text for terminals."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from chaos_rig import example

from mpips.chaos.report import (
    BrokenPromise,
    ChaosReport,
    CheckedPromise,
    FaultResult,
    check_records,
    promises_of,
    report_lines,
)
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

UNCHECKED = CheckedPromise(name="the history of updates is right", outcome="not checked", detail="")


def outcomes(results: list[FaultResult], unplanned: tuple[str, ...] = ()) -> list[str]:
    return [p.outcome for p in promises_of(results, unplanned, "running", UNCHECKED)][:4]


def fault(**more: object) -> FaultResult:
    values = {"effect": "attempt 1 from memory", "kind": "kill", **more}
    return FaultResult(at_s=1.0, what="kill server 0", attempt=0, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("results", "unplanned", "expected"),
    [
        ([], (), ["not checked", "not checked", "not checked", "held"]),
        ([fault()], (), ["held", "held", "not checked", "held"]),
        ([fault()], ("attempt 3: it broke",), ["held", "held", "not checked", "broken"]),
        (
            [
                fault(),
                fault(
                    lost_steps=2, broken=[BrokenPromise("updates", "2 steps were not recovered")]
                ),
            ],
            (),
            ["held", "broken", "not checked", "held"],
        ),
        (
            [
                fault(
                    effect="not at work again (failed)",
                    broken=[BrokenPromise("survival", "not at work again")],
                )
            ],
            (),
            ["broken", "held", "not checked", "held"],
        ),
        (
            [
                fault(
                    repeated_steps=9,
                    broken=[BrokenPromise("updates", "attempt 1 began from checkpoint")],
                )
            ],
            (),
            ["held", "broken", "not checked", "held"],
        ),
        ([fault(kind="flip-bits", repeated_steps=9)], (), ["held", "held", "held", "held"]),
        (
            [fault(kind="flip-bits", broken=[BrokenPromise("damage", "step-7 was read")])],
            (),
            ["held", "held", "broken", "held"],
        ),
    ],
)
def test_each_broken_promise_is_named_once(
    results: list[FaultResult], unplanned: tuple[str, ...], expected: list[str]
) -> None:
    assert outcomes(results, unplanned) == expected
    promises = promises_of(results, unplanned, "running", UNCHECKED)
    report = ChaosReport(run="r", seed=1, faults=results, promises=promises)
    # A run into which no fault was injected has shown nothing.
    assert report.held == (bool(results) and "broken" not in expected)
    assert ("no fault was injected" in report_lines(report, 0)) == (not results)


def test_the_json_of_a_report_has_all_of_it() -> None:
    report = example()
    assert msgspec.json.decode(msgspec.json.encode(report), type=ChaosReport) == report


def test_a_report_fits_into_narrow_terminals() -> None:
    wide, narrow = report_lines(example(), 80), report_lines(example(), 76)
    assert wide == report_lines(example(), 0)
    assert 76 < max(map(len, wide)) <= 80
    # A fault and its effect have two lines in a narrower terminal.
    assert max(map(len, narrow)) <= 76
    assert len(narrow) == len(wide) + 4
    for result in example().faults:
        assert any(line.endswith(result.what) for line in narrow)
        assert any(line.endswith(f"  {result.effect}") for line in narrow)


def test_faults_that_were_left_out_and_signals_are_reported() -> None:
    report = example()
    report.left_out = ["kill at 0:10: no server"]
    report.interrupted = "SIGINT"
    lines = report_lines(report, 0)
    assert "left out: kill at 0:10: no server" in lines
    assert lines[0].endswith("now running, ended by SIGINT")


TICK, FINISH, GAP = b"\x74\x00", b"\x75\x00", b"\x0f\x00\x05\x00"


def record(run: RunFolder, generation: int, data: bytes) -> None:
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
            start="new",
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
    assert (found.outcome, found.detail) == ("held", "2 records of 2 attempts")
    assert "no ended attempt has completed one" in check_records(run, [1], True).detail
    # An attempt without a record, and one with a break.
    assert "attempt 2: " in check_records(run, [0, 2], True).detail
    record(run, 3, TICK + GAP + TICK)
    found = check_records(run, [0, 3], True)
    assert found.outcome == "broken"
    assert found.detail.startswith("attempt 3: once: server 0: record 5")
