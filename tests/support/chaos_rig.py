"""Parts of tests of `mpips chaos`: processes that look like ranks, and the report that its page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    detail = "81,204 records of 3 attempts, 2 restarts in memory"
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
