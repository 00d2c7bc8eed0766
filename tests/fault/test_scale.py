"""`mpips scale` under mpirun: more and fewer workers and servers within epochs, every sample once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import launcher
from supervised import Run, alive, check_counts, job, start


def scale(run: Run, *arguments: str) -> str:
    """Change the size of a run and return what the command printed."""
    done = subprocess.run(
        [sys.executable, "-m", "mpips", "scale", str(run.path), *arguments],
        capture_output=True,
        text=True,
        env=launcher.site_environment(),
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + run.launched.tail(60)
    return done.stdout


def test_a_job_grows_and_shrinks_and_every_sample_counts_once(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    options = ["pause_s=0.0", "fitted=false", "pulls=true", f"gate={gate}"]
    settings = ["table.consistency=ssp", *(f"options.{option}" for option in options)]
    shape = ["-n", "4", "--servers", "1"]
    run = start(tmp_path, *shape, *job(tmp_path, "slow_counts:Slow", *settings), timeout=200.0)
    with run.launched:
        # In the middle of an epoch of 22 clocks.
        run.until(lambda s: bool(s["ranks"]) and s["progress"]["step"] >= 3)
        assert "continues with 3 workers and 2 servers, from shared memory" in scale(
            run, "--workers", "+1", "--servers", "2"
        )
        grown = run.until(lambda s: s["generation"] == 1 and bool(s["ranks"]))
        assert len(grown["ranks"]) == 6
        # A death in the new size continues in its memory.
        os.kill(next(p["pid"] for p in grown["ranks"] if p["role"] == "worker 2"), signal.SIGKILL)
        run.until(lambda s: s["generation"] == 2 and bool(s["ranks"]))
        assert "continues with 1 worker and 2 servers, from shared memory" in scale(
            run, "--workers", "-2"
        )
        gate.touch()
        assert run.launched.wait() == 0, run.launched.tail(60)
        said = run.launched.stderr()
        check_counts(run, tmp_path)
    assert "attempt 2 is at work" in said
    assert "from memory" in said
    assert said.count("after the change, from memory: step") == 2
    assert "1 of 3" in said  # changes are no restarts
    assert "2 of 3" not in said
    assert not alive(run)
