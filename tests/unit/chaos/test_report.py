"""The report: promises, exit code, and text for terminals."""

from __future__ import annotations

import msgspec
import pytest
from chaos_rig import example

from mpips.chaos.report import (
    BrokenPromise,
    ChaosReport,
    CheckedPromise,
    FaultResult,
    promises_of,
    report_lines,
)

OUTCOMES = ("held", "broken", "not checked")
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
    report = msgspec.structs.replace(report, state="done", seconds=2.0)
    why = "no fault was injected: the run was done after 0:02; give it more steps"
    assert (why in report_lines(report, 0)) == (not results)


def test_the_json_of_a_report_has_all_of_it() -> None:
    report = example()
    assert msgspec.json.decode(msgspec.json.encode(report), type=ChaosReport) == report


def test_a_report_fits_into_80_columns() -> None:
    # Sentences are wrapped where they are printed.
    wide, narrow = (
        [line for line in report_lines(example(), width) if not line.startswith(OUTCOMES)]
        for width in (0, 80)
    )
    assert max(map(len, narrow)) <= 80 < max(map(len, wide)) <= 140
    assert report_lines(example(), 140) == report_lines(example(), 0)
    # A fault and its effect have two lines there.
    assert len(narrow) == len(wide) + len(example().faults)
    for result in example().faults:
        assert any(line.endswith(result.what) for line in narrow)
        assert any(line.endswith(f"  {result.effect}") for line in narrow)


def test_faults_that_were_left_out_and_signals_are_reported() -> None:
    report = example()
    report.left_out = ["kill at 0:10: no server"]
    report.interrupted = "SIGINT"
    lines = report_lines(report, 0)
    assert "left out: kill at 0:10: no server" in lines
    assert lines[0].endswith("now preempted, ended by SIGINT")
