"""`mpips sweep` over real launches: interrupted in a trial, it continues from the checkpoint."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import launcher
from processes import until
from supervised import ENVIRONMENT

from mpips.checkpoint import list_checkpoints

SWEEP = [sys.executable, "-m", "mpips", "sweep"]


def test_an_interrupted_sweep_continues_with_the_trial_that_was_running(tmp_path: Path) -> None:
    env = {**launcher.site_environment(), **ENVIRONMENT}
    job = ["paced:PacedMlp", "--train", "digits", "-n", "3", "--epochs", "2", "--folder", "found"]
    varied = ["--grid", "train.batch_size=16,64", "--set", "checkpoint.every_steps=10"]
    # Steps are slow until this folder has a checkpoint, which it never has in the first part.
    env["PACED_UNTIL"] = str(tmp_path / "never")
    with launcher.Launch([*SWEEP, *job, *varied], env, 100.0, tmp_path) as run:

        def saved() -> bool:
            return any(list_checkpoints(path) for path in tmp_path.glob("found/*1-*/checkpoints"))

        assert until(saved, 60.0), run.tail()
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait() == 143, run.tail()
        assert "continue with: mpips sweep found" in run.stderr()
    del env["PACED_UNTIL"]
    with launcher.Launch([*SWEEP, "found", "--json"], env, 100.0, tmp_path) as run:
        assert run.wait() == 0, run.tail()
        results = [json.loads(line) for line in run.stdout().splitlines()]
    assert {result["state"] for result in results} == {"done"}
    assert [result["number"] for result in results] == [1, 2]  # more steps are better here
    first = json.loads((tmp_path / results[0]["run"] / "result.json").read_text())
    assert 0 < first["samples"] < 2 * 1438
