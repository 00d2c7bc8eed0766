"""An elastic run under mpirun on imitated nodes: hosts come and go, and every sample counts once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import launcher
import multinode
import pytest
import supervised
from long_runs import in_turn
from supervised import Run, check_counts, job

pytestmark = pytest.mark.multinode

# Steps take half a second until the gate is there, so that changes fall into an epoch of 11 to 22 clocks.
SLOW = [
    "table.consistency=ssp",
    "options.pause_s=0.0",
    "options.fitted=false",
    "options.pulls=true",
]


def start_elastic(nodes: multinode.Nodes, folder: Path, *arguments: str) -> tuple[Run, Path]:
    """An elastic `mpips run` with one server; its run, and the file that lets its steps be quick."""
    gate = folder / "gate"
    settings = [*SLOW, f"options.gate={gate}", "cluster.servers=1", "run.hosts_timeout_s=60"]
    task = job(folder, "slow_counts:Slow", *settings)
    command = supervised.command(*arguments, *task)
    run = Run(folder, nodes.start_on_head(command, supervised.ENVIRONMENT, 200.0, folder))
    return run, gate


def join(nodes: multinode.Nodes, node: int, run: Run, slots: int) -> launcher.Launch:
    """`mpips join` on a node."""
    command = [sys.executable, "-m", "mpips", "join", str(run.path), "--slots", str(slots)]
    inside = ["nsenter", f"--target={nodes.inits[node]}", "--all", f"--wd={run.folder}", *command]
    return launcher.Launch(inside, launcher.site_environment(), 150.0)


def hosts_of(status: dict) -> set[str]:
    return {place["host"] for place in status["ranks"]}


@in_turn(2, 4)
def test_a_run_grows_by_a_join_and_shrinks_when_it_leaves(
    nodes3: multinode.Nodes, tmp_path: Path
) -> None:
    a, b, _ = nodes3.hosts
    run, gate = start_elastic(nodes3, tmp_path, "--hosts", f"{a}:3", "--max-workers", "3")
    with run.launched:
        run.until(lambda s: bool(s["ranks"]) and s["progress"]["step"] >= 2)
        with join(nodes3, 1, run, 2) as joined:
            grown = run.until(lambda s: s["generation"] == 1 and s["progress"]["step"] >= 4)
            assert len(grown["ranks"]) == 5
            assert hosts_of(grown) == {a, b}
            joined.kill_gently = None  # type: ignore[attr-defined]
            for pid in joined.pids():
                os.kill(pid, signal.SIGTERM)
            shrunk = run.until(lambda s: s["generation"] == 2 and bool(s["ranks"]))
            assert hosts_of(shrunk) == {a}
            assert joined.wait(30) == 0, joined.tail()
            assert nodes3.segments(1) == set()
        gate.touch()
        assert run.launched.wait() == 0, run.launched.tail(80)
    check_counts(run, tmp_path)
