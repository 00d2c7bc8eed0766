"""Files that torch scripts write by themselves, and trackers that they use, after deaths of their workers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import documents
import launcher
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

PROGRAMS = Path(__file__).with_name("programs")
N_EPOCHS, N_STEPS = 4, 20  # of two_tower.py, steps of an epoch


def supervised(folder: Path, deaths: str, script: Path, *options: str, code: int = 0) -> str:
    """Run a script on two workers in a folder; return what `mpips run` wrote on stderr.

    Args:
        folder: Where the script writes.
        deaths: For `programs/killed_at.py`.
        script: The script.
        options: Of `mpips run`.
        code: The exit code.
    """
    folder.mkdir(exist_ok=True)
    program = [str(PROGRAMS / "killed_at.py"), deaths, str(script)]
    return run(folder, "-n", "4", *options, *program, code=code)


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run `mpips run` in a folder; return what it wrote on stderr."""
    command = [sys.executable, "-m", "mpips", "run", *arguments]
    environment = launcher.site_environment() | {"OMP_NUM_THREADS": "1"}
    with launcher.Launch(command, environment, 200.0, folder) as launched:
        assert launched.wait() == code, launched.tail(60)
        return launched.stderr()


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    "deaths",
    [
        # In a step of epoch 1, then at the end of epoch 2, between its best model and its line of the log.
        "1:backward:27,0:open log.csv:2",
        pytest.param(
            # At the first step, in the code behind an epoch and again there, and at the last line of the log.
            "0:backward:1,0:open log.csv:1,0:open log.csv:1,0:open log.csv:4",
            marks=pytest.mark.long,
        ),
    ],
    ids=["twice", "four times"],
)
def test_a_recommender_of_two_towers_that_is_killed_leaves_the_files_of_an_undisturbed_run(
    tmp_path: Path, deaths: str
) -> None:
    """Its own log, with the rates of its scheduler, and its own best model, bit by bit."""
    script = PROGRAMS / "two_tower.py"
    said = supervised(tmp_path / "calm", "", script)
    assert "killed by" not in said
    said = supervised(tmp_path / "killed", deaths, script, "--max-restarts", "5")
    n_deaths = len(deaths.split(","))
    assert said.count("killed by SIGKILL") == n_deaths, said
    assert said.count("after the failure, from memory") == n_deaths, said

    logs = [(tmp_path / name / "log.csv").read_text() for name in ("calm", "killed")]
    lines = [line.split(",") for line in logs[0].splitlines()]
    assert [int(line[0]) for line in lines] == list(range(N_EPOCHS))
    rates = [0.02 * 0.9 ** (epoch + 1) for epoch in range(N_EPOCHS)]
    assert [float(line[2]) for line in lines] == pytest.approx(rates)
    assert logs[1] == logs[0]
    calm, killed = (
        torch.load(tmp_path / name / "best.pt", weights_only=True) for name in ("calm", "killed")
    )
    assert list(killed) == list(calm)
    assert {"user.rows.rows.keys", "item.rows.rows.values"} <= set(calm)
    assert calm["item.rows.rows.values"].shape == (40, 8)
    assert all(torch.equal(value, calm[name]) for name, value in killed.items())
    # The model of the file is one of the log's: the best one, and not that of every epoch.
    assert max(float(line[1]) for line in lines) > float(lines[0][1])


def example_of_loggers(folder: Path) -> Path:
    """Write the example of the page, with trackers in place of its logger, and return its path."""
    (text,) = [
        block.text
        for path in sorted((documents.DOCS / "howto").glob("*.md"))
        for block in documents.blocks(path)
        if 'logger = Logger("regression")' in block.text
    ]
    changes = {
        'Logger("regression")': 'trackers.Trackers("regression")',
        "import mpips.torch\n": "import mpips.torch\nimport trackers\n",
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script = folder / "regression.py"
    script.write_text(text)
    return script


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.timeout(500)
def test_trackers_on_one_worker_have_each_step_once_after_deaths(tmp_path: Path) -> None:
    """Also those that are trained again, since the memory of the run is lost."""
    script = example_of_loggers(tmp_path)
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
    supervised(tmp_path / "calm", "", script)
    calm = lines_of(tmp_path / "calm/regression.wandb.jsonl")
    assert [line["step"] for line in calm] == [4, 8, 12]
    assert [line["epoch"] for line in calm] == [0, 1, 2]
    assert lines_of(tmp_path / "calm/regression.mlflow.jsonl") == calm
    assert lines_of(tmp_path / "calm/opened.jsonl") == [{"worker": 0, "launch": 0}]

    # Behind the line of epoch 0, whose code runs again; then in the first step after that of epoch 1.
    killed = tmp_path / "killed"
    deaths = "0:logged:1,1:backward:5"
    said = supervised(killed, deaths, script, "--max-restarts", "1", code=1)
    assert said.count("killed by SIGKILL") == 2, said
    logged = lines_of(killed / "regression.mlflow.jsonl")
    assert [line["step"] for line in logged] == [4, 4, 8]
    # The memory is lost and there is no checkpoint: all steps are trained and logged again.
    (directory,) = (killed / "runs").iterdir()
    run(killed, "--discard-memory", str(directory))
    run(killed, str(directory))
    logged = lines_of(killed / "regression.mlflow.jsonl")
    assert [line["step"] for line in logged] == [4, 4, 8, 4, 8, 12]
    assert {line["step"]: line for line in logged} == {line["step"]: line for line in calm}
    assert lines_of(killed / "regression.wandb.jsonl") == calm
    opened = lines_of(killed / "opened.jsonl")
    assert [line["worker"] for line in opened] == [0, 0, 0]
    assert opened[0]["launch"] < opened[1]["launch"] < opened[2]["launch"]
