"""Checkpoints and run directories of earlier versions: read, shown, continued, or refused in a sentence.

`stored/mpips-VERSION.tar.xz` was written by that version, on one scheduler, two servers and two workers:

    mpips run -n 5 --servers 2 --name fm fm --train made.svm --test made.svm --epochs 3 --set options.dim=4
        --set checkpoint.every_steps=8
    mpirun -n 5 python script.py        (one server and three workers)
    mpips run -n 5 --servers 2 --name stopped logistic --train made.svm --epochs 400
        --set checkpoint.every_steps=20 --set checkpoint.keep_last=1    (SIGTERM after the first checkpoint)

An archive never changes. A release adds one.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import mpips
from mpips.cli import cli
from tests.support import launcher

STORED = sorted((Path(__file__).parent / "stored").glob("*.tar.xz"))
ALL_KEYS = np.array([7, -9, 1 << 40])

Command = Callable[..., Result]


def version_of(archive: Path) -> str:
    return archive.name.removeprefix("mpips-").removesuffix(".tar.xz")


@pytest.fixture(params=STORED, ids=version_of)
def version(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the versions; what it wrote lies in the working directory."""
    pytest.importorskip("h5py")
    with tarfile.open(request.param) as packed:
        if sys.version_info >= (3, 12):
            packed.extractall(tmp_path, filter="data")
        else:
            packed.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in tmp_path.glob("runs/*/run.json"):  # the files of a job are where it was started
        run = json.loads(path.read_text())
        path.write_text(json.dumps({**run, "cwd": str(tmp_path)}))
    return version_of(request.param)


@pytest.fixture
def command() -> Command:
    """Run `mpips ...`, which ends with 0."""

    def invoke(*arguments: str, code: int = 0) -> Result:
        done = CliRunner().invoke(cli, list(arguments), env={"COLUMNS": "200"})
        assert done.exit_code == code, done.output
        return done

    return invoke


def path_of(name: str) -> str:
    (found,) = Path("runs").glob(f"{name}-*")
    return str(found)


def test_the_oldest_archive_is_there() -> None:
    assert [version_of(path) for path in STORED][:2] == ["0.2.0", "0.3.0.dev0"]


def test_runs_are_listed_and_shown(version: str, command: Command) -> None:
    lines = {line.split()[0].partition("-")[0]: line for line in command("ls").output.splitlines()}
    assert " done " in lines["fm"]
    assert " preempted " in lines["stopped"]
    assert "0.9550" in command("top", "--once", path_of("fm")).output
    command("report", path_of("fm"), "--output", "report.html")
    assert version in Path("report.html").read_text()
    assert "nothing to do" in command("run", path_of("fm")).output


def test_checkpoints_are_verified_shown_compared_and_exported(
    version: str, command: Command
) -> None:
    folder = path_of("fm") + "/checkpoints"
    assert command("ckpt", "verify", folder).output.count("good") == 2
    assert f"with        mpips {version}, " in command("ckpt", "show", folder).output
    first, second = (f"{folder}/step-{step:012}" for step in (8, 12))
    assert "factor" in command("ckpt", "diff", first, second, code=1).output
    command("ckpt", "export", second, "--out", "out.npz")
    with np.load("out.npz") as found:
        assert any(name.startswith("factor") for name in found)


@pytest.mark.parametrize("steps", [0, 2])
def test_tables_are_restored_exactly_on_another_number_of_ranks(
    version: str, steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Integers: a mean of 1, 2 and 3 four times; Adagrad's sums go on where they were."""

    def work(worker: mpips.Worker) -> tuple[np.ndarray, np.ndarray]:
        w, rows = worker.table("w"), worker.table("rows")
        assert worker.start is not None
        for step in range(4, 4 + steps):
            w.push(np.full((3, 4), 2.0, np.float32))
            rows.push(ALL_KEYS, np.full((3, 2), step + 1, np.float32))
            worker.clock()
        return w.pull().copy(), rows.pull(ALL_KEYS).copy()

    tables = [
        mpips.DenseTable("w", (3, 4), mpips.SGD(lr=1.0)),
        mpips.EmbeddingTable("rows", 2, mpips.Adagrad(lr=0.5)),
    ]
    w, rows = mpips.run(work, tables, resume="kept/step-000000000004").value
    note = f"note: the checkpoint is from mpips {version}, and this is {mpips.__version__}\n"
    assert (note in capsys.readouterr().err) == (version != mpips.__version__)
    assert (w == -2.0 * (4 + steps)).all()
    fresh = mpips.run(
        lambda worker: worker.table("rows").pull(ALL_KEYS).copy(), tables, verbose=False
    ).value
    expected, total = fresh.astype(np.float64), 0.0
    for step in range(4 + steps):
        total += float(step + 1) ** 2
        expected -= 0.5 * (step + 1) / np.sqrt(total)
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)


def test_a_training_goes_on_from_the_last_epoch(version: str, command: Command) -> None:
    newest = path_of("fm") + "/checkpoints/step-000000000012"
    same = ("fm", "--train", "made.svm", "--set", "options.dim=4", "--progress", "none", "--json")
    shown = command("train", *same, "--epochs", "5", "--resume", newest).output.splitlines()
    note = f"note: the checkpoint is from mpips {version}, and this is {mpips.__version__}"
    assert (note in shown) == (version != mpips.__version__)
    found = json.loads(shown[-1])
    assert [line["epoch"] for line in found["history"]] == [4, 5]
    assert found["loss"] < 0.26


def test_a_model_predicts_or_what_it_lacks_is_named(version: str, command: Command) -> None:
    arguments = ("evaluate", path_of("fm"), "--data", "made.svm")
    if version == "0.2.0":
        found = CliRunner().invoke(cli, list(arguments)).exception
        assert isinstance(found, mpips.ConfigError)
        assert "was written by mpips 0.2.0 without the scale of the features" in str(found)
        assert "continue the training from it" in str(found)
    else:
        assert "0.955" in command(*arguments).output


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_that_was_interrupted_goes_on_under_mpirun(version: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "mpips", "run", path_of("stopped"), "--quiet"]
    environment = {**launcher.site_environment(), "PWD": os.getcwd()}
    with launcher.Launch(argv, environment, 200.0, tmp_path) as launched:
        assert launched.wait() == 0, launched.tail()
    summary = Path(path_of("stopped"), "summary.txt").read_text()
    assert "step 1,600" in summary or "step 1600" in summary
