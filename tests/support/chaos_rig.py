"""Parts of tests of `mpips chaos`: processes that look like ranks, and the report that its page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpips.chaos.records import NAME
from mpips.chaos.report import ChaosReport, CheckedPromise, FaultResult, promises_of
from mpips.rundir.files import RankPlace

# A rank with a forked child, which has the same environment and the same command line.
_RANK = """
import os, sys
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""

# A real run of ten minutes on two cores, beside other programs.
_FAULTS = (
    (36.0, "kill", "kill scheduler (rank 0, pid 8878)", "attempt 1 from memory", 9.7, 0),
    (49.0, "kill", "kill scheduler (rank 0, pid 10174)", "attempt 2 from memory", 11.7, 0),
    (67.0, "kill", "kill worker 0 (rank 2, pid 10509)", "attempt 3 from memory", 11.9, 0),
    (
        94.0,
        "flip-bits",
        "flip a bit of step-000000002203, drop the memory, kill worker 1",
        "attempt 4 from step-000000002002, 374 steps again",
        26.8,
        374,
    ),
    (
        154.0,
        "flip-bits",
        "flip a bit of step-000000003802, drop the memory, kill server 0",
        "attempt 5 from step-000000003602, 226 steps again",
        16.5,
        226,
    ),
    (201.0, "kill", "kill server 0 (rank 1, pid 15154)", "attempt 6 from memory", 13.8, 0),
    (226.0, "fill-disk", "fill /mnt/small for 3.9 s", "the attempt continued", 0.0, 0),
    (
        252.0,
        "flip-bits",
        "flip a bit of step-000000006403, drop the memory, kill worker 0",
        "attempt 7 from step-000000006202, 300 steps again",
        18.6,
        300,
    ),
    (287.0, "fill-disk", "fill /mnt/small for 3.8 s", "the attempt continued", 0.0, 0),
    (
        295.0,
        "pause",
        "pause worker 1 (rank 3, pid 17906) for 4.3 s",
        "the attempt continued",
        4.3,
        0,
    ),
    (
        351.0,
        "flip-bits",
        "flip a bit of step-000000009602, drop the memory, kill server 0",
        "attempt 8 from step-000000009403, 357 steps again",
        19.1,
        357,
    ),
    (366.0, "fill-disk", "fill /mnt/small for 2.1 s", "the attempt continued", 0.0, 0),
    (439.0, "kill", "kill worker 0 (rank 2, pid 19824)", "attempt 9 from memory", 10.3, 0),
    (465.0, "fill-disk", "fill /mnt/small for 3.6 s", "the attempt continued", 0.0, 0),
    (491.0, "fill-disk", "fill /mnt/small for 4.1 s", "the attempt continued", 0.4, 0),
    (504.0, "kill", "kill server 0 (rank 1, pid 22662)", "attempt 10 from memory", 36.5, 0),
)


def example() -> ChaosReport:
    """The report of the run."""
    faults = [
        FaultResult(
            at_s=at_s,
            kind=kind,
            what=what,
            attempt=0,
            effect=effect,
            downtime_s=down_s,
            failures=int(kind in ("kill", "flip-bits")),
            repeated_steps=repeated,
        )
        for at_s, kind, what, effect, down_s, repeated in _FAULTS
    ]
    detail = "set monitor.record = true to check that each update was applied exactly once"
    history = CheckedPromise(name=NAME, outcome="not checked", detail=detail)
    return ChaosReport(
        run="runs/clicks-20260102-030405-6b7a",
        seed=42,
        seconds=602.0,
        state="preempted",
        faults=faults,
        steps_per_s=28.6,
        quiet_steps_per_s=41.4,
        goodput=0.69,
        promises=promises_of(faults, [], "preempted", history),
    )


def place(rank: int, role: str, pid: int) -> RankPlace:
    """Return the recorded place of a rank."""
    return RankPlace(rank=rank, role=role, host="node", pid=pid)


@contextmanager
def rank_of(run: Path, generation: int, rank: int) -> Iterator[tuple[int, int]]:
    """Start a process that looks like a rank; yields its pid and that of its forked child."""
    env = {
        **os.environ,
        "MPIPS_RUN_DIR": str(run),
        "MPIPS_GENERATION": str(generation),
        "OMPI_COMM_WORLD_SIZE": "3",
        "OMPI_COMM_WORLD_RANK": str(rank),
    }
    with subprocess.Popen(
        [sys.executable, "-c", _RANK],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.kill()
