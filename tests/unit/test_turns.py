"""What takes turns from commit to commit, and rows of the matrix of faults that always run."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import long_runs
import matrix_rows
import msgspec
import pytest

from mpips.testing import faults, matrix


@pytest.fixture
def by_day(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(long_runs, "LONG", False)
    return monkeypatch


def test_consecutive_commits_run_all_cases_and_each_a_part(by_day: pytest.MonkeyPatch) -> None:
    cases = list(range(43))
    found = []
    for commit in range(1006, 1010):
        by_day.setenv(long_runs.TURN, str(commit))
        found.append(long_runs.taking_turns(cases, 4))
    assert sorted(itertools.chain(*found)) == cases
    assert {len(part) for part in found} == {10, 11}
    by_day.setenv(long_runs.TURN, "1010")
    assert long_runs.taking_turns(cases, 4) == found[0]
    by_day.setattr(long_runs, "LONG", True)
    assert long_runs.taking_turns(cases, 4) == cases


def test_each_whole_test_is_run_by_one_of_consecutive_commits(
    by_day: pytest.MonkeyPatch,
) -> None:
    for number in range(5):
        names = []
        for commit in range(70, 73):
            by_day.setenv(long_runs.TURN, str(commit))
            names.append(long_runs.in_turn(number, 3).name)
        assert sorted(names) == ["long", "long", "sampled"]
    by_day.setattr(long_runs, "LONG", True)
    assert {long_runs.in_turn(number, 3).name for number in range(3)} == {"sampled"}


def test_a_turn_is_the_number_of_commits_and_stays(
    by_day: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert long_runs.commits(tmp_path) == 0
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for number in (1, 2):
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True)
        assert long_runs.commits(tmp_path) == number
    by_day.delenv(long_runs.TURN, raising=False)
    by_day.setattr(long_runs, "commits", lambda folder: 12)
    assert long_runs.turn() == 12
    by_day.setattr(long_runs, "commits", lambda folder: 13)
    assert long_runs.turn() == 12
    by_day.delenv(long_runs.TURN)


def test_without_git_there_is_a_turn(by_day: pytest.MonkeyPatch, tmp_path: Path) -> None:
    by_day.setenv("PATH", str(tmp_path))
    assert long_runs.commits(tmp_path) == 0


@pytest.fixture(scope="module")
def covered() -> list[matrix.Run]:
    """The runs of the sample without those of TOGETHER; the search takes seconds."""
    return matrix.sample()[: -len(matrix.TOGETHER)]


@pytest.fixture
def _searched(covered: list[matrix.Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "covering", lambda pairs: list(covered))


def always() -> list[matrix.Run]:
    """Return the runs of the sample with a row that is new or changed."""
    changed = set(matrix_rows.changed())
    return [run for run in matrix.sample() if not changed.isdisjoint(matrix_rows.rows_of(run))]


@pytest.mark.usefixtures("_searched")
def test_stored_rows_are_those_of_today_and_each_is_in_the_sample() -> None:
    """Fails after a change of a row: run the whole sample, then store the rows."""
    assert matrix_rows.changed() == []
    assert matrix_rows.stored().keys() == matrix_rows.digests().keys()
    rows = {row for run in matrix.sample() for row in matrix_rows.rows_of(run)}
    assert rows == matrix_rows.digests().keys()


@pytest.mark.usefixtures("_searched")
@pytest.mark.parametrize("kind", ["task", "transport", "place", "how", "together"])
def test_runs_with_a_changed_row_always_run(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    assert always() == []
    task, place = faults.TASKS["local"], faults.PLACES["placed"]
    if kind == "task":
        other = msgspec.structs.replace(task, settings=(*task.settings, "table.steps=3"))
        monkeypatch.setitem(faults.TASKS, "local", other)
    elif kind == "transport":
        monkeypatch.setitem(faults.TRANSPORTS, "rma", ("rma", {}))
    elif kind == "place":
        monkeypatch.setitem(faults.PLACES, "placed", msgspec.structs.replace(place, passes=(5, 9)))
    elif kind == "how":
        monkeypatch.setitem(faults.HOWS, "stopped", faults.How(("worker", "server")))
    else:
        rows = list(matrix.TOGETHER)
        rows[1] = ("rows-asp", 1, "p2p", *rows[1][3:])
        monkeypatch.setattr(matrix, "TOGETHER", tuple(rows))
    names = {
        "task": "task local",
        "transport": "transport rma",
        "place": "place placed",
        "how": "how stopped",
        "together": "together 1",
    }
    assert matrix_rows.changed() == [names[kind]]
    runs = always()
    assert 0 < len(runs) < len(matrix.sample())
    assert all(names[kind] in list(matrix_rows.rows_of(run)) for run in runs)


def test_a_new_row_is_found(tmp_path: Path) -> None:
    stored = matrix_rows.stored()
    del stored["place worker"]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(stored))
    assert matrix_rows.changed(path) == ["place worker"]
