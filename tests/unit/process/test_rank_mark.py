"""Programs that a rank starts are processes of their own; see mpips.process.rank_mark."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from mpips.mpi import launch
from mpips.process import rank_mark

RANK = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-1",
    "PMIX_RANK": "2",
    "PMIX_SERVER_URI41": "prterun-1.0;tcp4://127.0.0.1:1",
    "OMPI_MCA_btl": "^ofi",
    "PMIX_MCA_gds": "hash",
    "MPIPS_RUN_DIR": "/nowhere/run",
    "MPIPS_GENERATION": "0",
}
# What a program prints: the ranks it sees, and which of the variables it has kept.
PROGRAM = """
import json, os, sys
import mpips
from mpips.mpi import launch
from mpips.rundir import directory
kept = sorted(name for name in json.loads(sys.argv[1]) if name in os.environ)
print(json.dumps([launch.launched_size(), launch.launched_rank(), launch.local_size(), kept]))
"""


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the environment of this process as a marked rank."""
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(rank_mark.MARK, "")  # undone after the test
    rank_mark.mark()
    return dict(os.environ)


def started(env: dict[str, str]) -> list[object]:
    command = [sys.executable, "-c", PROGRAM, json.dumps(list(RANK))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


def test_a_program_of_a_rank_is_one_process_and_keeps_settings_alone(rank: dict[str, str]) -> None:
    assert started(rank) == [1, 0, 1, ["OMPI_MCA_btl", "PMIX_MCA_gds"]]


def test_the_rank_itself_stays_a_rank(rank: dict[str, str]) -> None:
    rank_mark.leave()
    assert (launch.launched_size(), launch.launched_rank()) == (4, 2)
    assert rank_mark.MARK in os.environ


@pytest.mark.parametrize(
    "anew",
    [
        {"PMIX_NAMESPACE": "prterun-2"},
        {"PMI_FD": "9"},
        {"SLURM_STEP_ID": "7"},
        {"MPIPS_GENERATION": "1"},
        {"OMPI_COMM_WORLD_RANK": "1"},
    ],
)
def test_a_launcher_below_a_rank_starts_ranks(rank: dict[str, str], anew: dict[str, str]) -> None:
    assert not rank_mark.is_beside_rank({**rank, **anew}, pid=1)
    assert rank_mark.is_beside_rank(rank, pid=1)


def test_a_process_without_a_launcher_has_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(rank_mark._OF_RANK)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    rank_mark.mark()
    assert rank_mark.MARK not in os.environ


def test_a_damaged_mark_is_without_effect() -> None:
    for text in ("", "x", ":", "12", "12:", "-1:00000000", "12:zz:1"):
        assert not rank_mark.is_beside_rank({**RANK, rank_mark.MARK: text}, pid=1)
