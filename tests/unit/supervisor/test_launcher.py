"""The mpirun that is found, and the output of an attempt."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import pytest

from mpips.errors import CapabilityError
from mpips.rundir.directory import RunFolder
from mpips.supervisor.attempt import Attempt
from mpips.supervisor.launcher import find_launcher


def test_a_missing_launcher_is_a_missing_capability(tmp_path: Path) -> None:
    broken = tmp_path / "mpirun"
    broken.write_text("#!/bin/sh\necho strange\n")
    broken.chmod(0o700)
    with pytest.raises(CapabilityError, match=r"belongs to neither .* 'strange'"):
        find_launcher({"PATH": str(tmp_path)}, tmp_path)
    with pytest.raises(CapabilityError, match="there is no mpirun"):
        find_launcher({"PATH": str(tmp_path / "none")}, tmp_path)


def test_the_mpirun_of_the_environment_comes_before_others(tmp_path: Path) -> None:
    found = {}
    for name in ("site", "venv/bin"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        program = folder / "mpirun"
        program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.0'\n")
        program.chmod(0o700)
        found[name] = str(program)
    env = {"PATH": str(tmp_path / "site")}
    # A folder is an environment by its pyvenv.cfg: without one this is the system's own mpirun.
    assert find_launcher(env, tmp_path / "venv").path == found["site"]
    (tmp_path / "venv/pyvenv.cfg").touch()
    assert find_launcher(env, tmp_path / "venv").path == found["venv/bin"]


@pytest.mark.parametrize("copied", [True, False])
def test_output_of_ranks_passes_through_a_supervisor_that_draws(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    run = RunFolder.create(tmp_path, "job")
    run.attempt(0).mkdir(parents=True)
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    command = [sys.executable, "-c", "print('one'); print('two')"]
    attempt = Attempt(run, 0, command, os.environ, str(tmp_path), copy_stdout=copied)
    deadline = time.monotonic() + 30
    while not attempt.wait(0.05):
        assert time.monotonic() < deadline
    assert attempt.close().code == 0
    direct = capfd.readouterr().out
    assert (shown.getvalue(), direct) == (("one\ntwo\n", "") if copied else ("", "one\ntwo\n"))
