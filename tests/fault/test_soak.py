"""Many pushes and pulls without a pause: memory, open files and /dev/shm of all ranks stay as they are.

`python -m tests.bench soak --seconds N` runs the same for longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from launcher import launch

from mpips.bench.launching import collect, rank_command
from tests.bench.options import SuiteOptions

STEPS = 16_000
# Noise of resident memory is up to 30 KiB.
# The smallest object of Python, 16 bytes leaked in each step, is more.
MOST_BYTES = 128 << 10


@pytest.mark.timeout(300)
def test_nothing_grows_while_workers_push(tmp_path: Path) -> None:
    argv = rank_command("tests.bench.soak:push", SuiteOptions(steps=STEPS), tmp_path)
    with launch(4, argv, timeout=280) as job:
        assert job.wait() == 0, job.tail()
    found = {figure.name: figure for figure in collect(tmp_path).figures}
    assert found["soak_steps"].median == STEPS
    growth = {name: f.median for name, f in found.items() if name.startswith("soak_rss_growth")}
    assert len(growth) == 4
    assert all(change <= MOST_BYTES for change in growth.values()), growth
    files = [f for name, f in found.items() if name.startswith("soak_fd_growth")]
    assert len(files) == 4
    for figure in (*files, found["soak_shm_growth"], found["soak_segments_growth"]):
        assert figure.median == 0, f"{figure.name}: {figure.median:+g} {figure.unit}"
