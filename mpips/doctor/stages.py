"""The reports of ranks to the process that started them: one at the start of each stage, one at its end.

A report is a line that begins with MARK, followed by a `StageReport` as JSON. Ranks print it, and mpirun
passes its output on from all hosts. So the reports of a rank that hangs or dies end with the stage that it
was in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

MARK = "mpips-doctor: "
# The stages of each kind of launch, in their order. "start" needs no MPI.
BASIC = ("start", "mpi", "facts", "folder", "fork", "session", "rma", "p2p", "hdf5")
NETWORK = ("start", "mpi", "rma")
FAILING = ("start", "mpi", "failing")


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """One report of one rank.

    Attributes:
        rank: Rank in COMM_WORLD; by the environment of the launcher before MPI is up.
        host: Name of its host.
        stage: Name of the stage.
        done: False at the start of the stage, True at its end.
        error: Reason why the stage failed; empty if it did not.
        data: Results of the stage.
    """

    rank: int
    host: str
    stage: str
    done: bool
    error: str = ""
    data: dict[str, Any] = {}


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one launch.

    Attributes:
        n: Number of ranks that were to start.
        stages: Names of the stages that they were to run.
        reports: Reports of all ranks, in the order in which they arrived.
        code: Exit code of mpirun; 124 if the launch was killed at its time limit.
        seconds: Duration of the launch.
        output: The most telling line of all other output.
        command: The command line of mpirun, without the program.
    """

    n: int
    stages: Sequence[str]
    reports: list[StageReport]
    code: int
    seconds: float
    output: str
    command: str

    def of(self, stage: str) -> dict[int, StageReport]:
        """Return the last report on a stage by rank."""
        return {report.rank: report for report in self.reports if report.stage == stage}

    def last(self) -> dict[int, StageReport]:
        """Return the last report of all by rank."""
        return {report.rank: report for report in self.reports}

    def trouble(self, stage: str) -> str:
        """Return what went wrong in a stage, with rank and host; "" if all ranks finished it."""
        reports = self.of(stage)
        errors = [report for report in reports.values() if report.error]
        if errors:
            first = min(errors, key=lambda report: report.rank)
            return f"rank {first.rank} on {first.host}: {first.error}"
        if len(reports) == self.n and all(report.done for report in reports.values()):
            return ""
        return self._unfinished(stage, reports)

    def _unfinished(self, stage: str, reports: dict[int, StageReport]) -> str:
        """Return which ranks did not finish a stage: those not started, else those stuck before or in it."""
        how = "hung" if self.code == 124 else f"ended (exit code of mpirun: {self.code})"
        stuck = [f"rank {r.rank} on {r.host}" for r in reports.values() if not r.done]
        last = self.last()
        # A rank that is still in an earlier stage is the cause; ranks in this stage wait for it.
        missing = [r for r in range(self.n) if r not in reports]
        earlier = [
            f"rank {r} on {last[r].host} in stage {last[r].stage!r}" for r in missing if r in last
        ]
        silent = [f"rank {r}" for r in missing if r not in last]
        if silent:
            when = f" within {self.seconds:.0f} s" if self.code == 124 else ""
            return f"{', '.join(silent)} did not start{when}: {self.output}"
        if earlier:
            return f"not reached: {', '.join(earlier)} {how}"
        return f"{', '.join(sorted(stuck))} {how}: {self.output}"


def parse(lines: Iterable[str]) -> tuple[list[StageReport], list[str]]:
    """Return the reports of ranks, and all other lines."""
    reports, others = [], []
    for line in lines:
        before, mark, text = line.partition(MARK)
        if not mark:
            others.append(line)
            continue
        try:
            reports.append(msgspec.json.decode(text, type=StageReport))
        except msgspec.DecodeError:
            others.append(before + text)
    return reports, others
