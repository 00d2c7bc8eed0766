"""A process that belongs to a run by its environment."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path


def started(run: Path, generation: int) -> subprocess.Popen[bytes]:
    env = {**os.environ, "MPIPS_RUN_DIR": str(run), "MPIPS_GENERATION": str(generation)}
    return subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)


def begun(run: Path, generation: int) -> subprocess.Popen[bytes]:
    """Start one and wait until the kernel shows its environment, which it does only some time after exec."""
    process = started(run, generation)
    deadline = time.monotonic() + 10.0
    while not Path(f"/proc/{process.pid}/environ").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return process
