"""`mpips doctor --mpi` on real ranks, on this machine and between imitated nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import launcher
import multinode
import pytest

from mpips.doctor.launches import NAMES


def doctor(run: launcher.Launch, code: int = 0) -> dict[str, dict[str, Any]]:
    """The checks of one run by name."""
    assert run.wait() == code, run.tail()
    report = json.loads(run.stdout().strip().splitlines()[-1])
    return {check["name"]: check for check in report["checks"]}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mpips", "doctor", "--mpi", "--json", *arguments]


def test_ranks_of_this_machine_pass(tmp_path: Path) -> None:
    argv = command("-n", "3", "--folder", str(tmp_path))
    with launcher.Launch(argv, launcher.site_environment(), timeout_s=200.0) as run:
        found = doctor(run)
    assert set(NAMES) <= set(found)
    for name in NAMES:
        assert found[name]["status"] == "PASS" or name == "hdf5-write", found[name]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_fails_on_the_ranks(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    argv = command("--folder", str(missing))
    with launcher.Launch(argv, launcher.site_environment(), timeout_s=200.0) as run:
        found = doctor(run, 69)
    assert found["shared-folder"]["status"] == "FAIL"
    assert "rank 0 on " in found["shared-folder"]["reason"]
    # What follows in the launch is judged by itself.
    assert found["session"]["status"] == "PASS"


@pytest.mark.multinode
def test_between_nodes_windows_are_tried_and_a_private_folder_is_found(
    nodes2: multinode.Nodes,
) -> None:
    hosts = ",".join(nodes2.hosts)
    env = launcher.site_environment() | nodes2.environment
    # Each node has a /dev/shm of its own.
    argv = nodes2.on_head(
        command("-n", "2", "--hosts", hosts, "--folder", "/dev/shm", "--timeout", "24")
    )
    with launcher.Launch(argv, env, timeout_s=200.0) as run:
        found = doctor(run, 69)
    assert found["shared-folder"]["status"] == "FAIL"
    assert "not the same folder" in found["shared-folder"]["reason"]
    for name in ("ranks-start", "ranks-see", "versions", "clocks", "session", "rma", "p2p"):
        assert found[name]["status"] == "PASS", found[name]
    assert all(host in found["ranks-start"]["reason"] for host in nodes2.hosts)
    assert "rma" in found["session"]["reason"]
