"""Samples of a stream count once, whichever of producer, server and reader dies."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import launcher
import pytest
from multinode import Nodes

PROGRAM = Path(__file__).with_name("programs") / "insitu.py"


def ended(folder: Path, how: str) -> dict:
    """The output of the program under `mpips run`."""
    folder.mkdir()
    command = [sys.executable, "-m", "mpips", "run", "-n", "6", str(PROGRAM), how]
    with launcher.Launch(command, launcher.site_environment(), 120.0, folder) as job:
        assert job.wait() == 0, job.tail(60)
        assert "expected rows: s.samples 48, s.counts 4; " in job.stderr()
        found: dict = json.loads(job.stdout().strip().splitlines()[-1])
        return found


def test_kills_of_a_producer_a_server_and_the_reader_change_nothing(tmp_path: Path) -> None:
    undisturbed, killed = (ended(tmp_path / how, how) for how in ("quiet", "kills"))
    assert (undisturbed.pop("attempt"), killed.pop("attempt")) == (0, 3)
    assert killed == undisturbed
    assert killed["counts"][0] == 160


@pytest.mark.long
def test_producers_and_readers_on_two_nodes_have_what_they_have_on_one(
    nodes2: Nodes, tmp_path: Path
) -> None:
    undisturbed = ended(tmp_path / "one", "quiet")
    # Scheduler, server and reader; server and both producers.
    with nodes2.start([3, 3], [sys.executable, str(PROGRAM), "quiet"], timeout=90) as job:
        assert job.wait() == 0, job.tail(60)
        assert json.loads(job.stdout().strip().splitlines()[-1]) == undisturbed
