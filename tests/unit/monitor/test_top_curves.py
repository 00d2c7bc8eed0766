"""Curves of the loss and of the rate in `mpips top`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from top_rig import NOW, made

from mpips.monitor.sparkline import BLOCKS
from mpips.monitor.top import as_dict, look, page
from mpips.rundir.directory import RunFolder


def add_metrics(run: RunFolder) -> None:
    lines = [
        {"time_s": NOW - 100 + i, "loss": 2.0 - i / 64, "samples_per_s": 1000.0 + i % 2 * 250.0}
        for i in range(65)
    ]
    lines[10] = {"time_s": NOW - 90, "loss": None, "samples_per_s": 900.0}
    lines.append({"time_s": NOW - 1, "test": {"auc": 0.5}})
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(("width", "height"), [(80, 0), (160, 0), (50, 0), (80, 24), (30, 0)])
def test_curves_show_the_whole_run(tmp_path: Path, width: int, height: int) -> None:
    run = made(tmp_path)
    add_metrics(run)
    lines = page(look(run, NOW), width, height)
    assert all(len(line) <= width for line in lines), lines
    curves = [line for line in lines if "█" in line]
    if width < 32:
        assert not curves
        return
    assert curves[0].startswith("loss      █")
    assert curves[0].endswith("▁  2.0000 to 1.0000")
    assert curves[1].startswith("samples/s ")
    assert curves[1].endswith("  1,000 to 1,000")
    levels = [BLOCKS.index(c) for c in curves[0].split()[1]]
    assert levels == sorted(levels, reverse=True)
    assert lines[lines.index(curves[1]) + 1] == ""
    assert "points" not in as_dict(look(run, NOW))


@pytest.mark.parametrize("n", [2, 3, 10, 30, 200])
def test_a_curve_of_few_points_has_no_gaps_but_where_the_run_stood_still(
    tmp_path: Path, n: int
) -> None:
    run = made(tmp_path)
    times = [NOW - 300 + i + 0.2 * (i % 3) for i in range(n)]
    lines = [
        {"time_s": t, "loss": 1.0 / (1 + i), "samples_per_s": 5.0} for i, t in enumerate(times)
    ]

    def loss() -> str:
        run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (line,) = (line for line in page(look(run, NOW), 120) if line.startswith("loss"))
        return line[10:].rsplit("  ", 1)[0]

    assert len(loss()) == min(n * 2 // 3 + 1, 60)
    assert " " not in loss()
    for line in lines[n // 2 :]:
        line["time_s"] += 10 * n
    assert n < 10 or loss().count(" ") > len(loss()) // 2


def test_curves_leave_room_for_the_ranks_and_are_plain_where_they_must_be(tmp_path: Path) -> None:
    run = made(tmp_path)
    add_metrics(run)
    assert not any("█" in line for line in page(look(run, NOW), 80, height=8))
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "mpips", "top", str(run.path), "--once"],
        env=env,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    (loss,) = (line for line in done.stdout.splitlines() if line.startswith("loss"))
    assert loss.startswith("loss      #")
    assert loss.endswith("_  2.0000 to 1.0000")
