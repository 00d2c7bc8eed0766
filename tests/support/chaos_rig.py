"""A report of `mpips chaos`, as the page about it shows it."""

from __future__ import annotations

from mpips.chaos.report import ChaosReport, CheckedPromise, FaultResult, promises_of

_FAULTS = (
    (12.3, "kill", "kill server 0 (rank 1, pid 4242)", "attempt 1 from memory", 2.13),
    (31.0, "pause", "pause worker 1 (rank 4, pid 4310) for 3.2 s", "the attempt continued", 3.4),
    (52.4, "kill", "kill scheduler (rank 0, pid 4301)", "attempt 2 from memory", 2.28),
    (74.1, "kill", "kill worker 0 (rank 3, pid 4377)", "attempt 3 from memory", 2.19),
)


def example() -> ChaosReport:
    """A run of a minute and a half that survived four faults."""
    faults = [
        FaultResult(
            at_s=at_s,
            kind=kind,
            what=what,
            attempt=i,
            effect=effect,
            downtime_s=down_s,
            failures=int(kind == "kill"),
        )
        for i, (at_s, kind, what, effect, down_s) in enumerate(_FAULTS)
    ]
    detail = "81,204 records of 3 attempts"
    history = CheckedPromise(name="the history of updates is right", outcome="held", detail=detail)
    return ChaosReport(
        run="runs/clicks-20260102-030405-6b7a",
        seed=7,
        seconds=90.2,
        state="running",
        faults=faults,
        steps_per_s=184.2,
        quiet_steps_per_s=207.0,
        goodput=184.2 / 207.0,
        promises=promises_of(faults, [], "running", history),
    )
