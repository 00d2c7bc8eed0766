"""`mpips chaos` on real runs: kills, pauses, changed bits and cut links; its own end; what it refuses.

The job counts the features of its samples, so a lost or doubled update shows at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import launcher
import multinode
import pytest
from supervised import COUNTING, EPOCHS, expected_counts, made_data

from mpips.chaos.processes import pids_of_ranks
from mpips.mpi.mpirun import mpi_environment
from mpips.rundir.directory import RunFolder
from mpips.supervisor.reap import processes_of, state_of
from tests.bench.kills import audit, content

_CHAOS = [sys.executable, "-m", "mpips", "chaos"]


def job(folder: Path, epochs: int, *settings: str) -> list[str]:
    """Return arguments of `mpips run` for the task, without its name."""
    own = [*COUNTING[1:], f"train.epochs={epochs}", *settings]
    sets = [word for text in own for word in ("--set", text)]
    return ["--train", str(made_data(folder)), *sets]


def chaos(folder: Path, *arguments: str, timeout: float = 170.0) -> launcher.Launch:
    """Start the command, with the report as JSON."""
    return launcher.Launch(
        [*_CHAOS, "--json", "--folder", str(folder / "runs"), *arguments],
        launcher.site_environment(),
        timeout,
        folder,
    )


def reported(launched: launcher.Launch, code: int) -> dict[str, Any]:
    """Wait for the end and return the report."""
    with launched:
        assert launched.wait() == code, launched.tail(60)
    found: dict[str, Any] = json.loads(launched.stdout().splitlines()[-1])
    return found


def until(is_met: Callable[[], bool], launched: launcher.Launch) -> None:
    deadline = time.monotonic() + 60.0
    while not is_met():
        assert launched.poll() is None, launched.tail(60)
        assert time.monotonic() < deadline, launched.tail(60)
        time.sleep(0.02)


def run_of(folder: Path) -> RunFolder | None:
    found = next((folder / "runs").glob("*/status.json"), None)
    return RunFolder(found.parent) if found is not None else None


def promise(report: dict[str, Any], name: str) -> str:
    [found] = [p["outcome"] for p in report["promises"] if p["name"] == name]
    return str(found)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "model", [("consistency=bsp", "reduce=sum"), ("consistency=asp",)], ids=["bsp", "asp"]
)
def test_every_update_counts_once_whoever_is_killed_or_paused(
    model: tuple[str, ...], tmp_path: Path
) -> None:
    epochs = 200
    options = [f"table.{text}" for text in model]
    arguments = job(tmp_path, epochs, *options, "checkpoint.every_steps=50")
    faults = ["--kill", "any", "--pause", "--longest", "2s", "--every", "3s", "--seed", "2"]
    length = ["--intervals", "fixed", "--for", "25s"]
    task = ["--launch", COUNTING[0], *faults, *length, "--", "-n", "5", "--servers", "2"]
    report = reported(chaos(tmp_path, *task, *arguments), 0)
    assert {fault["kind"] for fault in report["faults"]} == {"kill", "pause"}
    for fault in report["faults"]:
        assert fault["failures"] == int(fault["kind"] == "kill"), fault
        assert fault["broken"] == [], fault
    assert 0 < report["goodput"] < 1
    assert report["state"] == "preempted"
    # The run then makes the rest of its epochs.
    run = run_of(tmp_path)
    assert run is not None
    command = [sys.executable, "-m", "mpips", "run", "--quiet", str(run.path)]
    subprocess.run(command, env=mpi_environment(), check=True, timeout=150)
    mark = run.finished()
    assert mark is not None
    expected = expected_counts(tmp_path) // EPOCHS * epochs
    assert audit(content(Path(mark.checkpoint)), expected) == (0, 0)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_attempt_never_starts_from_a_checkpoint_with_a_changed_bit(tmp_path: Path) -> None:
    arguments = job(tmp_path, 100_000, "checkpoint.every_steps=30")
    faults = ["--flip-bits", "--every", "4s", "--intervals", "fixed", "--for", "14s", "--seed", "5"]
    task = ["--launch", COUNTING[0], *faults, "--", "-n", "4", "--servers", "1"]
    report = reported(chaos(tmp_path, *task, *arguments), 0)
    assert report["faults"]
    assert promise(report, "damage was detected") == "held"
    assert all("from step-" in fault["effect"] for fault in report["faults"])
    run = run_of(tmp_path)
    assert run is not None
    # All bits were changed back.
    for path in run.checkpoints.glob("step-*"):
        content(path)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_records_of_a_disturbed_run_are_checked_over_its_restarts(tmp_path: Path) -> None:
    record = ["table.consistency=asp", "monitor.record=true", "checkpoint.every_steps=30"]
    arguments = job(tmp_path, 100_000, *record)
    faults = ["--kill", "any", "--every", "6s", "--intervals", "fixed", "--for", "30s"]
    task = ["--launch", COUNTING[0], *faults, "--seed", "3", "--", "-n", "5", "--servers", "2"]
    report = reported(chaos(tmp_path, *task, *arguments), 0)
    assert report["faults"]
    [found] = [p for p in report["promises"] if p["name"] == "the history of updates is right"]
    assert found["outcome"] == "held"
    # It restarts from checkpoints alone.
    assert all("from step-" in fault["effect"] for fault in report["faults"])
    assert f"{len(report['faults'])} restart" in found["detail"]


@pytest.mark.timeout(200)
def test_ctrl_c_takes_back_a_pause_and_a_kill_of_the_command_ends_the_run(tmp_path: Path) -> None:
    arguments = ["--launch", COUNTING[0], "--every", "1s", "--intervals", "fixed", "--for", "10m"]
    ranks = ["--", "-n", "3", "--servers", "1", *job(tmp_path, 100_000)]
    pause = ["--pause", "--longest", "500s"]

    def stopped() -> list[int]:
        run = run_of(tmp_path)
        status = run.status() if run is not None else None
        if run is None or status is None:
            return []
        pids = pids_of_ranks(status.ranks, run.path, status.generation).values()
        return [pid for pid in pids if state_of(pid) == "T"]

    launched = chaos(tmp_path, *arguments, *pause, *ranks)
    with launched:
        until(lambda: bool(stopped()), launched)
        os.kill(launched.pid, signal.SIGINT)
        assert launched.wait() == 130, launched.tail(60)
    report = json.loads(launched.stdout().splitlines()[-1])
    assert report["interrupted"] == "SIGINT"
    assert [fault["effect"] for fault in report["faults"]] == ["not observed: interrupted"]
    # The paused rank wrote its part of the last checkpoint.
    assert report["state"] == "preempted"

    run = run_of(tmp_path)
    assert run is not None
    again = chaos(tmp_path, *arguments, *pause, *ranks)
    with again:
        until(lambda: len(list((tmp_path / "runs").glob("*/status.json"))) == 2, again)
        second = next(
            RunFolder(path.parent)
            for path in (tmp_path / "runs").glob("*/status.json")
            if path.parent != run.path
        )
        os.kill(again.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60.0
        while processes_of(second.path, 99):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.multinode
@pytest.mark.long
@pytest.mark.timeout(300)
def test_links_of_imitated_nodes_are_cut_and_slowed(
    nodes2: multinode.Nodes, tmp_path: Path
) -> None:
    hosts = ",".join(f"{host}:3" for host in nodes2.hosts)
    command = [sys.executable, "-m", "mpips", "run", "--quiet", "--max-restarts", "20"]
    command += ["--hosts", hosts, "-n", "5", "--servers", "2", "--folder", str(tmp_path / "runs")]
    started = nodes2.start_on_head(
        [*command, *job(tmp_path, 100_000), COUNTING[0]], None, 170.0, tmp_path
    )
    with started:
        until(lambda: run_of(tmp_path) is not None, started)
        run = run_of(tmp_path)
        assert run is not None
        faults = ["--partition", "--slow-link", "--longest", "2s", "--every", "4s", "--for", "25s"]
        report = reported(chaos(tmp_path, run.path.name, *faults, "--seed", "12"), 0)
        assert {fault["kind"] for fault in report["faults"]} == {"partition", "slow-link"}
        for node in range(2):
            queues = nodes2.run(node, ["tc", "qdisc", "show", "dev", "eth0"])
            assert "pfifo" not in queues
            assert "tbf" not in queues
        with contextlib.suppress(ProcessLookupError):
            os.kill(started.pid, signal.SIGTERM)
        assert started.wait() == 75, started.tail(60)
