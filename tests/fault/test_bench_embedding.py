"""`mpips bench embedding` measures everything that it has a bar for, here in the short way."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launcher import launch, site_environment

from mpips.bench.measure import BARS

NAMES = {name for name in BARS if name.startswith("rows_")} | {"rows_push_fresh_vs_two_sided"}


def bench(folder: Path, env: dict[str, str] | None = None) -> dict:
    calibration = folder / "calibration.json"
    command = [sys.executable, "-m", "mpips", "bench", "embedding", "--quick", "--repetitions", "2"]
    done = subprocess.run(
        [*command, "--json", "--calibration", str(calibration)],
        env={**os.environ, **site_environment(), **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not calibration.exists()
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_every_ratio_of_rows_is_measured(tmp_path: Path) -> None:
    found = bench(tmp_path)
    absent = set() if importlib.util.find_spec("torch") else {"rows_adagrad_vs_torch"}
    assert set(found["ratios"]) == NAMES - absent
    assert set(found["skipped"]) == absent
    for comparison in found["comparisons"].values():
        assert len(comparison["ours"]) == len(comparison["baseline"]) == 2
        assert all(value > 0 for value in comparison["ours"] + comparison["baseline"])


def test_without_torch_numpy_stands_in_and_the_rest_is_skipped(tmp_path: Path) -> None:
    """An import hook that every rank gets through PYTHONPATH hides torch."""
    hook = tmp_path / "sitecustomize.py"
    hook.write_text("import sys\nsys.modules['torch'] = None\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    found = bench(tmp_path, {"PYTHONPATH": path})
    assert found["skipped"] == {
        "rows_adagrad_vs_torch": "torch is not installed: pip install torch"
    }
    assert set(found["ratios"]) == NAMES - {"rows_adagrad_vs_torch"}
    name = found["comparisons"]["rows_push_vs_index_add"]["baseline_name"]
    assert name == "numpy.subtract.at"


def test_the_two_sided_server_applies_every_push(tmp_path: Path) -> None:
    """The baseline must do the work that it is compared by."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import sys
import numpy as np
from mpips.bench.rank.two_sided import RowClient, RowServer
from mpips.mpi.launch import load_mpi

comm = load_mpi()
keys = np.random.default_rng(0).permutation(50)[:20]
rows = np.arange(60, dtype=np.float32).reshape(20, 3)
if comm.rank == 0:
    table = np.full((50, 3), 8, np.float32)
    RowServer(comm, 1, table, 20).serve(0.5)
    expected = np.full((50, 3), 8, np.float32)
    expected[keys] -= 3 * 0.5 * rows
    assert (table == expected).all()
else:
    client, out = RowClient(comm, 0), np.empty((20, 3), np.float32)
    for step in range(3):
        client.push(keys, rows)
    assert (client.pull(keys, out) == 8 - 1.5 * rows).all()
    client.stop()
"""
    )
    with launch(2, [sys.executable, str(program)]) as job:
        assert job.wait() == 0, job.tail()
