"""A process that belongs to a run by its environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def started(run: Path, generation: int) -> subprocess.Popen[bytes]:
    env = {**os.environ, "MPIPS_RUN_DIR": str(run), "MPIPS_GENERATION": str(generation)}
    return subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
