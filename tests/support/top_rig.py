"""A run directory for `mpips top`: ranks, progress, a lease and one failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import Event, Lease, Progress, RankPlace, RankRow, Ranks, Status

NOW = 1_700_000_000.0
ROWS = (
    RankRow(rank=0, role="scheduler", host="node1", pid=1, state="scheduling", heard_s=NOW - 1),
    RankRow(
        rank=1,
        role="server 0",
        host="node1",
        pid=2,
        state="writing a checkpoint",
        records_per_s=12345.0,
        push_bytes_per_s=3.4e6,
        staleness=1.25,
        max_staleness=9,
        queue=31,
        heard_s=NOW - 1,
    ),
    RankRow(
        rank=2,
        role="worker 0",
        host="node2.cluster.example.org",
        pid=3,
        state="pulling 'a table with a long name'",
        clock=1234,
        samples_per_s=2500.0,
        clocks_per_s=10.0,
        push_bytes_per_s=2e9,
        pull_bytes_per_s=3e9,
        heard_s=NOW - 60,
    ),
)


def made(
    folder: Path,
    state: str = "running",
    name: str = "job",
    paths: dict[str, int] | None = None,
    **lease: Any,
) -> RunFolder:
    """Make a run directory of attempt 2, whose lease is a second old."""
    run = RunFolder.create(folder, name)
    found = {"generation": 2, "host": "head", "pid": 77, "time_s": NOW - 1, **lease}
    replace_json(run.lease_file, Lease(**found))
    progress = Progress(
        epoch=8,
        n_epochs=20,
        step=4321,
        samples=999,
        loss=0.5,
        samples_per_s=1234.5,
        share=0.42,
        left_s=61.0,
        staleness=0.5,
        push_bytes_per_s=2.5e9,
        pull_bytes_per_s=1e9,
    )
    status = Status(
        state=state,
        generation=2,
        time_s=NOW - 1,
        progress=progress,
        checkpoint="/x/checkpoints/step-000000004000",
        ranks=(RankPlace(rank=0, role="scheduler", host="node1", pid=1),),
        paths=paths or {"direct": 1},
    )
    replace_json(run.status_file, status)
    replace_json(run.ranks_file, Ranks(generation=2, time_s=NOW - 1, ranks=ROWS))
    run.note(Event(time_s=NOW - 99, generation=1, event="failed", step=40, cause="killed"))
    return run
