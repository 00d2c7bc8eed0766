"""Three minutes of pushes and pulls without a pause: memory, descriptors and /dev/shm stay as they are.

MPIPS_SOAK_SECONDS makes it shorter or longer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
from launcher import launch

from mpips.bench.launching import Options, collect

SECONDS = float(os.environ.get("MPIPS_SOAK_SECONDS", "165"))
# A leak of 4 bytes in each of the 300,000 steps that even a slow machine makes is more.
MOST_BYTES = 1 << 20


@pytest.mark.timeout(SECONDS + 120)
def test_nothing_grows_while_workers_push(tmp_path: Path) -> None:
    chosen = msgspec.json.encode(Options(seconds=SECONDS)).decode()
    argv = ["nice", sys.executable, "-m", "mpips.bench.rank", "soak", chosen, str(tmp_path)]
    with launch(4, argv, timeout=SECONDS + 100) as job:
        assert job.wait() == 0, job.tail()
    found = {figure.name: figure for figure in collect(tmp_path).figures}
    assert found["soak_steps"].median > 10 * SECONDS
    growth = {name: f.median for name, f in found.items() if name.startswith("soak_rss_growth")}
    assert len(growth) == 4
    assert all(change <= MOST_BYTES for change in growth.values()), growth
    files = [f for name, f in found.items() if name.startswith("soak_fd_growth")]
    assert len(files) == 4
    for figure in (*files, found["soak_shm_growth"], found["soak_segments_growth"]):
        assert figure.median == 0, f"{figure.name}: {figure.median:+g} {figure.unit}"
