"""`mpips demo` with an mpirun that a test makes; tests/fault/test_demo.py has a real one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from mpips.cli import cli, demo
from mpips.errors import CapabilityError, ConfigError, MpipsError
from mpips.inference import loading
from mpips.supervisor.launcher import Launcher
from mpips.supervisor.submit import find_root

REPORT = {
    "epochs": 15,
    "n_samples": 1438,
    "seconds": 0.5,
    "accuracy": 0.975,
    "checkpoint": {"path": "/model/step-9"},
}
Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A call of `mpips demo` with this script as mpirun."""

    def apply(script: str, *arguments: str, kind: str = "serial") -> Result:
        path = tmp_path / "mpirun"
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(demo, "find_launcher", lambda: Launcher(str(path), "mpich", ""))
        monkeypatch.setattr(demo, "hdf5_kind", lambda: kind)
        return CliRunner().invoke(cli, ["demo", *arguments])

    return apply


def printing(report: object) -> str:
    """Return a script that prints a report between lines of others."""
    return f"echo before; echo '{json.dumps(report)}'; echo after"


def test_the_saved_model_is_loaded_and_compared(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        loading, "load", lambda path: SimpleNamespace(evaluate=lambda data: {"accuracy": 0.975})
    )
    done = call(printing(REPORT))
    assert done.exit_code == 0, done.output
    lines = [line.split(maxsplit=1) for line in done.output.splitlines()]
    assert [name for name, _ in lines] == ["mpips", "$", "trained", "saved", "next"]
    assert lines[2][1] == "15 epochs of 1,438 images in 0.5 s; test accuracy 0.9750"
    assert lines[3][1] == (
        "by all servers, without MPI-IO, as h5py has no MPI; loaded again: test accuracy 0.9750"
    )
    assert " --save " in lines[1][1]
    differs = call(printing({**REPORT, "accuracy": 0.5}))
    assert isinstance(differs.exception, MpipsError)
    assert "0.9750, and the training 0.5000: they must be equal" in str(differs.exception)


def test_a_model_that_was_not_saved_is_a_failure(call: Call) -> None:
    done = call(printing({**REPORT, "checkpoint": {"error": "disk full"}}))
    assert isinstance(done.exception, MpipsError)
    assert "the model was not saved: disk full" in str(done.exception)


def test_without_h5py_nothing_is_saved(call: Call) -> None:
    done = call(printing({**REPORT, "checkpoint": None}), kind="none")
    assert done.exit_code == 0, done.output
    assert " --save " not in done.output
    assert "nothing, because h5py is not installed: pip install h5py" in done.output


def test_a_failed_launch_shows_its_end_and_its_code(call: Call) -> None:
    done = call("for i in {1..50}; do echo line $i; done; echo reason >&2; exit 7")
    assert done.exit_code == 7
    assert "line 10\n" not in done.output
    assert "line 50\nreason\n" in done.output
    assert "mpips doctor --mpi" in done.output
    silent = call("echo nothing of use")
    assert isinstance(silent.exception, CapabilityError)
    assert "printed no report but ['nothing of use']" in str(silent.exception)


def test_a_launch_that_does_not_end_is_stopped(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "_LIMIT_S", 0.2)
    os.mkfifo(tmp_path / "never")
    done = call(f"echo begun; exec cat {tmp_path}/never")
    assert isinstance(done.exception, CapabilityError)
    assert "did not end within 0.2 s, and was stopped: begun; mpips doctor" in str(done.exception)


def test_it_is_refused_under_a_launcher(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    done = call("exit 0")
    assert isinstance(done.exception, ConfigError)
    assert "call it without mpirun" in str(done.exception)


def test_a_copy_has_what_can_be_submitted(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "start"
    done = call("exit 9", "--copy", str(folder))
    assert done.exit_code == 0, done.output
    monkeypatch.setenv("MPIPS_ROOT", str(folder))
    assert find_root() == folder
    assert (folder / "examples/digits_torch.py").is_file()
    names = {path.name for path in (folder / "jobs").iterdir()}
    assert {"env.sh", "train.sbatch", "configs", "README.md"} <= names
    assert not {"setup.sh", "quickstart.sh"} & names
    again = call("exit 9", "--copy", str(folder))
    assert isinstance(again.exception, ConfigError)
    assert "exists already" in str(again.exception)
