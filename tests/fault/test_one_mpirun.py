"""A solver and its trainers as two programs of one mpirun: both end well, and neither outlives the other."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import launcher
import program_rig
import pytest
from compiled_examples import EXAMPLES, compile_example

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    """A name of queues; the solver is compiled."""
    compile_example("heat_mpi", "mpicc", tmp_path)
    with program_rig.queue_name() as chosen:
        yield chosen


def start(folder: Path, solver: list[str], trainer: list[str], n_trainers: int) -> launcher.Launch:
    """The solver on two ranks, and a Python program on others, in one mpirun."""
    flags = launcher.mpirun_flags(2 + n_trainers)
    program = [sys.executable, *trainer]
    words = [*flags, "-n", "2", "./heat_mpi", *solver, ":", "-n", str(n_trainers), *program]
    env = launcher.site_environment()
    mpirun = shutil.which("mpirun", path=env["PATH"]) or "mpirun"
    return launcher.Launch([mpirun, *words], env, 120.0, folder)


def test_a_solver_and_its_trainers_share_one_mpirun(name: str, tmp_path: Path) -> None:
    trainer = [str(EXAMPLES / "heat_mpi.py"), "2", name]
    with start(tmp_path, ["4", name], trainer, 4) as job:
        assert job.wait() == 0, job.tail(60)
        text = job.stdout()
    assert sorted(re.findall(r"heat_mpi: rank (\d) of 2 has pushed 160 samples", text)) == [
        "0",
        "1",
    ]
    assert "samples: 320, producers: 2" in text
    assert "error of the learned step: below 10 % of a change" in text


def test_a_solver_that_aborts_ends_the_trainers(name: str, tmp_path: Path) -> None:
    trainer = [str(EXAMPLES / "heat_mpi.py"), "2", name]
    with start(tmp_path, ["4", "no name"], trainer, 3) as job:
        assert job.wait() == program_rig.USAGE, job.tail(60)
        assert "heat_mpi: mpips_open: the name must have 1 to 64 letters" in job.stderr()
        assert not job.pids()


def test_a_trainer_that_fails_ends_the_solver(name: str, tmp_path: Path) -> None:
    trainer = [str(PROGRAMS / "failing_trainer.py"), "2", name]
    with start(tmp_path, ["100000", name], trainer, 4) as job:
        assert job.wait() == 1, job.tail(60)
        assert "ArithmeticError: no use for (1, 12, 24)" in job.stderr()
        assert not job.pids()
