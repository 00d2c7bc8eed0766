"""MODEL of commands that use a trained model: paths, and the names of runs as `mpips ls` shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpips.cli import cli
from mpips.cli.choosing import find_model
from mpips.config.schema import load_config
from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder
from mpips.training.train import train


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunFolder]:
    """Two runs of the working folder, the older one first."""
    monkeypatch.chdir(tmp_path)
    return [RunFolder.create(tmp_path / "runs", name) for name in ("digits-1", "digits-2")]


def test_a_name_is_the_newest_run_that_begins_so_and_a_path_wins(
    runs: list[RunFolder], tmp_path: Path
) -> None:
    older, newer = runs
    assert find_model("digits", "runs") == newer.path
    assert find_model(older.path.name, "runs") == older.path
    assert find_model(str(older.path), "runs") == older.path
    (tmp_path / "digits").mkdir()
    assert find_model("digits", "runs") == Path("digits")
    (tmp_path / "runs").rename(tmp_path / "others")
    assert find_model("digits-1", "others") == tmp_path / "others" / older.path.name


def test_what_does_not_exist_names_the_newest_runs(runs: list[RunFolder]) -> None:
    with pytest.raises(ConfigError) as caught:
        find_model("nosuch", "runs")
    text = str(caught.value)
    assert text.startswith("no folder 'nosuch' here, and no run 'nosuch' in ")
    assert runs[0].path.name in text
    # What opens a path raises the error about it.
    assert find_model("no/such", "runs") == Path("no/such")


def test_commands_take_the_name_of_a_run(runs: list[RunFolder], tmp_path: Path) -> None:
    _, newer = runs
    rows = "".join(f"{i % 2},{i % 7},{i % 5}\n" for i in range(60))
    (tmp_path / "a.csv").write_text("label,x,y\n" + rows)
    job = [("task", "softmax"), ("data.train", "a.csv"), ("train.epochs", 1)]
    train(load_config(None, [*job, ("checkpoint.folder", str(newer.path / "checkpoints"))]))
    run = CliRunner()

    def done(*arguments: str) -> str:
        result = run.invoke(cli, list(arguments), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    name = newer.path.name
    found = json.loads(done("evaluate", "digits-2", "--data", "a.csv", "--json"))
    assert Path(found["model"]).parent == newer.path / "checkpoints"
    done("predict", name, "--data", "a.csv", "--out", "p.csv")
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 61
    done("export", name, "--format", "npz", "-o", "m.npz", "--folder", "runs")
    assert (tmp_path / "m.npz").exists()
