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
from supervised import Run, check_counts, job

pytestmark = pytest.mark.multinode

# Steps take half a second until the gate is there, so changes fall into an epoch of 7 to 22 clocks.
SLOW = [
    "table.consistency=ssp",
    "options.pause_s=0.0",
    "options.fitted=false",
    "options.pulls=true",
]


def start_elastic(nodes: multinode.Nodes, folder: Path, *arguments: str) -> tuple[Run, Path]:
    """An elastic `mpips run` with one server; its run, and the file that lets its steps be quick."""
    gate = folder / "gate"
    options = ["cluster.servers=1", "run.hosts_timeout_s=60", f"options.gate={gate}"]
    command = supervised.command(*arguments, *job(folder, "slow_counts:Slow", *SLOW, *options))
    run = Run(folder, nodes.start_on_head(command, supervised.ENVIRONMENT, 200.0, folder))
    return run, gate


def join(nodes: multinode.Nodes, node: int, run: Run, slots: int) -> launcher.Launch:
    """`mpips join` on a node."""
    command = [sys.executable, "-m", "mpips", "join", str(run.path), "--slots", str(slots)]
    inside = ["nsenter", f"--target={nodes.inits[node]}", "--all", f"--wd={run.folder}", *command]
    return launcher.Launch(inside, launcher.site_environment(), 150.0)


def end_join(joined: launcher.Launch) -> None:
    """SIGTERM to the command on its node, as of scancel --batch; it must end well."""
    for pid in joined.pids():
        if pid != joined.pid:  # nsenter
            os.kill(pid, signal.SIGTERM)
    assert joined.wait(40) == 0, joined.tail()


def wait_for(run: Run, generation: int, step: int = 0) -> set[str]:
    """Wait until an attempt is at work, and has come to a step of the run; its hosts."""
    status = run.until(
        lambda s: (
            s["generation"] == generation and bool(s["ranks"]) and s["progress"]["step"] >= step
        )
    )
    return {place["host"] for place in status["ranks"]}


def test_a_run_grows_by_a_join_and_shrinks_before_it_leaves(
    nodes3: multinode.Nodes, tmp_path: Path
) -> None:
    a, b, _ = nodes3.hosts
    run, gate = start_elastic(nodes3, tmp_path, "--hosts", f"{a}:3", "--max-workers", "3")
    with run.launched:
        wait_for(run, 0, 2)
        with join(nodes3, 1, run, 2) as joined:
            assert wait_for(run, 1, 4) == {a, b}
            end_join(joined)
        assert nodes3.pids(1) == []
        assert nodes3.segments(1) == set()
        assert wait_for(run, 2) == {a}
        gate.touch()
        assert run.launched.wait() == 0, run.launched.tail(80)
        said = run.launched.stderr()
    check_counts(run, tmp_path)
    assert f"mpips run: {b} is there: the job continues with 5 ranks" in said
    assert f"mpips run: {b} leaves: the job continues with 3 ranks" in said
    assert "restart 1 of" not in said


def test_a_run_follows_its_hostfile_and_goes_on_without_a_lost_node(
    nodes3: multinode.Nodes, tmp_path: Path
) -> None:
    a, b, c = nodes3.hosts
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"{a} slots=3\n")
    run, gate = start_elastic(nodes3, tmp_path, "--hostfile", str(hostfile), "--elastic")
    with run.launched:
        wait_for(run, 0, 2)
        hostfile.write_text(f"{a} slots=3\n{b} slots=1\n{c} slots=1\n")
        assert wait_for(run, 1, 4) == {a, b, c}
        nodes3.kill(1)
        assert wait_for(run, 2) == {a, c}
        gate.touch()
        assert run.launched.wait() == 0, run.launched.tail(80)
        said = run.launched.stderr()
    check_counts(run, tmp_path)
    assert "restart 1 of 3" in said


@pytest.mark.long
def test_a_run_waits_for_a_join_when_too_few_hosts_are_left(
    nodes3: multinode.Nodes, tmp_path: Path
) -> None:
    a, b, c = nodes3.hosts
    options = ["--hosts", f"{a}:3,{b}:1", "--elastic", "--min-workers", "2"]
    run, gate = start_elastic(nodes3, tmp_path, *options, "--set", "checkpoint.every_steps=2")
    with run.launched:
        wait_for(run, 0, 4)
        nodes3.kill(1)
        run.until(lambda s: s["message"].startswith("waiting for hosts"))
        with join(nodes3, 2, run, 2) as joined:
            hosts = run.until(lambda s: s["state"] == "running" and s["generation"] > 0)
            assert {place["host"] for place in hosts["ranks"]} == {a, c}
            gate.touch()
            assert run.launched.wait() == 0, run.launched.tail(80)
            assert joined.wait(30) == 0, joined.tail()
            assert "has ended (done)" in joined.stderr()
    check_counts(run, tmp_path)
