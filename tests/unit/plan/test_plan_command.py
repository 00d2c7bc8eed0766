"""The command `mpips plan`: its text, exit codes, mistakes and files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from planning_rig import BIG, job, planned

from mpips.plan.report import as_json, as_text, per_step


@pytest.mark.parametrize(("n", "per_node"), [(200, 8), (40, 40)])
def test_text_fits_a_hundred_columns_and_contains_everything(
    svm: Path, n: int, per_node: int
) -> None:
    plan = planned(
        job("fm", svm), n, per_node, hardware=replace(BIG, cores=64), with_range=n == per_node
    )
    text = as_text(plan)
    assert max(map(len, text.splitlines()[1:])) <= 100  # the first line has the name of the data
    for words in ("messages to servers", "measured here", "a checkpoint has", "it fits"):
        assert words in text
    assert per_step(plan)["messages"] > 0
    report = as_json(plan)
    assert json.loads(json.dumps(report)) == report
    assert len(report["roles"]) == n
    if n == per_node:
        assert len(plan.cells) > 10
        assert "bottleneck: " in text
        assert "samples/s" in text
        assert report["prediction"]["step_s"] > 0


def mpips(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mpips", "plan", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_exit_code_is_2_if_the_job_cannot_fit(svm: Path) -> None:
    fits = mpips("logistic", "--train", str(svm), "-n", "4", "--json")
    assert fits.returncode == 0, fits.stderr
    assert json.loads(fits.stdout)["fits"] is True
    tight = mpips("logistic", "--train", str(svm), "-n", "4", "--shm", "0.001")
    assert tight.returncode == 2
    assert "cannot run: node0: /dev/shm needs" in tight.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "4", "--rows", "weight"], "--rows 'weight': expected TABLE=N"),
        (["-n", "4", "--rows", "w=5"], "no such embedding table; there are: weight"),
        (["-n", "4", "--servers", "3"], "servers = 3 is too many for 4 ranks: use 1 or 2"),
        (["-n", "1", "--servers", "2"], "servers = 2 is too many for 1 rank"),
        (["-n", "4", "--calibration", "no.json"], "no such calibration file"),
        (["-n", "4", "--set", "cluster.slot_kib=0"], "slot_kib = 0"),
    ],
)
def test_a_mistake_is_answered_by_one_sentence(svm: Path, arguments: list[str], words: str) -> None:
    done = mpips("logistic", "--train", str(svm), *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_plan_leaves_no_folder_for_checkpoints(svm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = mpips("logistic", "--train", str(svm), "-n", "3", "--set", f"checkpoint.folder={folder}")
    assert done.returncode == 0, done.stderr
    assert not folder.exists()


def test_a_plot_is_written(svm: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    wanted = ("logistic", "--train", str(svm), "-n", "3", "--plot", str(path), "--cores")
    done = mpips(*wanted, "2")
    assert done.returncode == 0, done.stderr
    assert path.read_bytes().startswith(b"\x89PNG")
    done = mpips(*wanted, "1")
    assert done.returncode == 69
    assert "nothing to draw, because no time is predicted: 2 workers and servers" in done.stderr
