"""The report on a run that was disturbed: each fault with its effect, and the promises that were checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from mpips.chaos.faults import Injected
from mpips.chaos.observing import Observation, StepTimes, failures_since
from mpips.chaos.schedule import PlannedFault
from mpips.monitor.progress import duration, plural
from mpips.rundir.files import Event
from mpips.terminal.table import text_table

Outcome = Literal["held", "broken", "not checked"]
# Promises that a fault can break, and their text.
FaultPromise = Literal["survival", "updates", "damage"]
_TEXTS: dict[FaultPromise, str] = {
    "survival": "every fault was survived",
    "updates": "no update was lost",
    "damage": "damage was detected",
}
DONE = "done"
INTERRUPTED = "not observed: interrupted"


class BrokenPromise(msgspec.Struct, frozen=True):
    """A promise that a fault has broken.

    Attributes:
        promise: Its name.
        reason: A sentence for people.
    """

    promise: FaultPromise
    reason: str


class FaultResult(msgspec.Struct, kw_only=True):
    """A fault and what followed.

    Attributes:
        at_s: Seconds from the beginning.
        kind: Name of its kind.
        what: Description of the fault, for people.
        attempt: Generation number of the attempt that it hit.
        effect: Description of the next attempt or step, for people.
        downtime_s: Time that it has cost, to about a second; see `StepTimes.downtime_s`. None: no further
            step was seen.
        failures: Attempts that failed after it.
        lost_steps: Steps of all workers that memory had and the next attempt did not recover.
        repeated_steps: Steps that were made again from a checkpoint.
        broken: Promises that it has broken.
    """

    at_s: float
    kind: str
    what: str
    attempt: int
    effect: str = ""
    downtime_s: float | None = None
    failures: int = 0
    lost_steps: int = 0
    repeated_steps: int = 0
    broken: list[BrokenPromise] = []


class CheckedPromise(msgspec.Struct, kw_only=True):
    """A promise of mpips in this run.

    Attributes:
        name: The promise.
        outcome: "held", "broken" or "not checked".
        detail: Counts, or the reason why it was not checked.
    """

    name: str
    outcome: Outcome
    detail: str


class ChaosReport(msgspec.Struct, kw_only=True):
    """The whole report; `mpips chaos --json` prints it.

    Attributes:
        run: Path of the run directory.
        seed: Seed of the schedule.
        seconds: Seconds from the first step seen to the end.
        state: State of the run at the end; see mpips.rundir.view.
        interrupted: Name of the signal that ended it early; "": none.
        faults: The faults, in their order.
        left_out: Faults that were impossible when they were due, with the reason.
        steps_per_s: Steps per second of the run; those that were lost or repeated count once.
        quiet_steps_per_s: Steps per second between the faults.
        goodput: The first of these divided by the second one; None: too few steps.
        promises: The promises that were checked.
    """

    run: str
    seed: int
    seconds: float = 0.0
    state: str = ""
    interrupted: str = ""
    faults: list[FaultResult] = []
    left_out: list[str] = []
    steps_per_s: float = 0.0
    quiet_steps_per_s: float = 0.0
    goodput: float | None = None
    promises: list[CheckedPromise] = []

    @property
    def held(self) -> bool:
        """True if a fault was injected and no promise is broken."""
        return bool(self.faults) and all(promise.outcome != "broken" for promise in self.promises)


def judge_fault(
    fault: PlannedFault,
    injected: Injected,
    before: Observation,
    after: Observation | None,
    last: Observation,
    steps: StepTimes,
) -> FaultResult:
    """Return the result of a fault.

    Args:
        fault: The plan.
        injected: The fault.
        before: The run just before it.
        after: The run when it was at work again; None: that was not seen.
        last: The newest observation.
        steps: The steps of the run over time.
    """
    known = len(before.events)
    failed = failures_since(last.events, known)
    begins = [event for event in last.events[known:] if event.event == "began"]
    result = _result(fault, injected, before)
    result.failures = len(failed)
    if begins and begins[0].source == "memory":
        result.lost_steps = max(before.recoverable - begins[0].step, 0)
    if any(event.source != "memory" for event in begins):
        result.repeated_steps = max(steps.greatest(before.generation) - begins[-1].step, 0)
    result.broken += _broken(result, injected, before.in_memory, begins, failed)
    starts = {Path(seen.start_path) for seen in (after, last) if seen and seen.start_path}
    if injected.damaged and Path(injected.damaged) in starts:
        text = f"{Path(injected.damaged).name} was read although a bit is changed"
        result.broken.append(BrokenPromise("damage", text))
    _describe(result, after, last, len(begins))
    return result


def interrupted_fault(
    fault: PlannedFault, injected: Injected, before: Observation, at_s: float
) -> FaultResult:
    """Return the result of a fault that was taken back early, because the command was interrupted."""
    result = _result(fault, injected, before)
    result.at_s, result.effect = round(at_s, 3), INTERRUPTED
    return result


def _result(fault: PlannedFault, injected: Injected, before: Observation) -> FaultResult:
    """Return what is known of a fault when it has just happened."""
    undetected = [BrokenPromise("damage", injected.broken)] if injected.broken else []
    return FaultResult(
        at_s=round(fault.at_s, 3),
        kind=fault.kind,
        what=injected.what,
        attempt=before.generation,
        broken=undetected,
    )


def _broken(
    result: FaultResult,
    injected: Injected,
    in_memory: bool,
    begins: Sequence[Event],
    failed: Sequence[Event],
) -> Iterator[BrokenPromise]:
    """Yield the promises about updates that the attempts after a fault have broken.

    Args:
        result: The result so far.
        injected: The fault.
        in_memory: The attempt that it hit could be continued in memory.
        begins: Begins of attempts after it.
        failed: Ends of attempts after it.
    """
    if result.lost_steps:
        count = plural(result.lost_steps, "step")
        text = (
            f"{count} of all workers in memory were not recovered by attempt {begins[0].generation}"
        )
        yield BrokenPromise("updates", text)
    for event in begins if injected.spares_memory and in_memory else ():
        if event.source != "memory":
            text = f"attempt {event.generation} began from {event.source} although the memory was there"
            yield BrokenPromise("updates", text)
    for event in failed[1:] if injected.ends_attempt else ():
        text = f"attempt {event.generation} after it failed as well: {event.cause}"
        yield BrokenPromise("survival", text)


def _describe(
    result: FaultResult, after: Observation | None, last: Observation, n_begins: int
) -> None:
    """Add the effect of a fault; a run that is not at work again is a broken promise unless it is done."""
    if after is None and last.state == DONE:
        result.effect = "the run was done"
    elif after is None:
        result.effect = f"not at work again ({last.state})"
        text = f"the run was not at work again after it ({last.state})"
        result.broken.append(BrokenPromise("survival", text))
    elif n_begins:
        source = after.start_source
        if source == "checkpoint":
            source = f"{Path(after.start_path).name}, {plural(result.repeated_steps, 'step')} again"
        result.effect = f"attempt {after.generation} from {source}"
    else:
        result.effect = "the attempt continued"


def promises_of(
    results: Sequence[FaultResult], unplanned: Sequence[str], state: str, history: CheckedPromise
) -> list[CheckedPromise]:
    """Return the promises with their outcome.

    Args:
        results: The faults.
        unplanned: Causes of attempts that failed although no fault had happened.
        state: State of the run at the end.
        history: The check of the record.
    """
    seen = [result for result in results if result.effect != INTERRUPTED or result.broken]
    broken = {name: _reasons(seen, name) for name in _TEXTS}
    n_survived = sum(not _reasons([result], "survival") for result in seen)
    flips = [result for result in seen if result.kind == "flip-bits"]
    n_detected = sum(not _reasons([result], "damage") for result in flips)
    lost = plural(sum(result.lost_steps for result in seen), "step")
    repeated = plural(sum(result.repeated_steps for result in seen), "step")
    counts: dict[FaultPromise, str] = {
        "survival": f"{n_survived} of {len(seen)}" if seen else "",
        "updates": f"{lost} lost, {repeated} made again" if seen else "",
        "damage": f"{n_detected} of {len(flips)} changed bits" if flips else "",
    }
    found = [_promise(name, counts[name], broken[name]) for name in _TEXTS]
    unplanned_text = "; ".join(unplanned)
    found.append(
        CheckedPromise(
            name="no attempt failed without a fault",
            outcome="broken" if unplanned else "held",
            detail=unplanned_text or f"state at the end: {state}",
        )
    )
    return [*found, history]


def _reasons(results: Sequence[FaultResult], name: FaultPromise) -> list[str]:
    """Return the reasons for which faults have broken a promise."""
    return [each.reason for result in results for each in result.broken if each.promise == name]


def _promise(name: FaultPromise, count: str, reasons: Sequence[str]) -> CheckedPromise:
    """Return a promise; without a count there was nothing to check."""
    text = _TEXTS[name]
    if not count:
        why = "no bit was changed" if name == "damage" else "no fault happened"
        return CheckedPromise(name=text, outcome="not checked", detail=why)
    detail = "; ".join([count, *reasons])
    return CheckedPromise(name=text, outcome="broken" if reasons else "held", detail=detail)


def report_lines(report: ChaosReport, width: int) -> list[str]:
    """Return the report as lines of text.

    Args:
        report: The report.
        width: Characters of a line; 0: any number.
    """
    count = plural(len(report.faults), "fault")
    lines = [
        f"{Path(report.run).name}: {count} in {duration(report.seconds)}, seed {report.seed}, "
        f"now {report.state}" + (f", ended by {report.interrupted}" if report.interrupted else "")
    ]
    if report.faults:
        rows = [["at", "down", "fault", "effect"]]
        rows += [
            [duration(r.at_s), _seconds(r.downtime_s), r.what, r.effect] for r in report.faults
        ]
        table = text_table(rows, right=(0, 1))
        # The fault and its effect take two lines where the terminal is narrow.
        if width and max(map(len, table)) > width:
            rows = [["at", "down", "fault"]]
            for r in report.faults:
                rows.append([duration(r.at_s), _seconds(r.downtime_s), r.what])
                rows.append(["", "", f"  {r.effect}"])
            table = text_table(rows, right=(0, 1))
        lines += ["", *table]
    else:
        why = f": the run was done after {duration(report.seconds)}; give it more steps"
        lines.append("no fault was injected" + (why if report.state == "done" else ""))
    lines += [f"left out: {text}" for text in report.left_out]
    lines.append("")
    if report.goodput is not None:
        lines.append(
            f"goodput      {100 * report.goodput:.0f} %: {report.steps_per_s:,.1f} steps/s, "
            f"{report.quiet_steps_per_s:,.1f} between the faults"
        )
    for promise in report.promises:
        lines.append(f"{promise.outcome:<12} {promise.name}: {promise.detail}")
    return lines


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
