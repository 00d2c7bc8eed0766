"""`mpips demo` under mpirun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mpips.checkpoint.structure import hdf5_kind
from mpips.inference.loading import load


@pytest.mark.skipif(hdf5_kind() == "none", reason="checkpoints need h5py")
def test_an_installation_trains_saves_and_loads(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mpips", "demo", "-n", "3", "--save", str(tmp_path / "model")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = load(tmp_path / "model").evaluate("digits")["accuracy"]
    assert accuracy > 0.95
    assert f"loaded again: test accuracy {accuracy:.4f}\n" in done.stdout
    assert "15 epochs of 1,438 images" in done.stdout
