"""Files that torch scripts write by themselves, after deaths of their workers."""

from __future__ import annotations

import sys
from pathlib import Path

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
