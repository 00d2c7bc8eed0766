"""The trials of a sweep: options, states and results, the best first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_files import RunFiles, full_run

from mpips.monitor.trials import SweepFile, Trial
from mpips.rundir.directory import replace_json
from mpips.web.runs_data import RunsData
from mpips.web.sweep_data import SweepData


def trial(folder: Path, name: str, **values: Any) -> RunFiles:
    """Make a trial that is done, with these values in its result."""
    files = full_run(folder, name)
    rows = [{"epoch": 1, **{key: value for key, value in values.items() if key != "epochs"}}]
    report = {"epochs": 1, "seconds": 2.5, "history": rows, **values}
    files.run.result_file.write_text(json.dumps(report))
    return files


def sweep(folder: Path, metric: str = "", own: Any = None) -> None:
    """Make a sweep of three trials, the last of which has not started."""
    trial(folder, "a", log_loss=0.5, accuracy=0.75)
    trial(folder, "b", log_loss=0.25, accuracy=0.5, mine=3)
    RunFiles(folder, "c")
    trials = tuple(Trial(name, (f"train.lr={i}", "x=1")) for i, name in enumerate("abc"))
    # The file is written as `mpips sweep` writes it.
    own = {"mine": "none"} if own is None else own
    replace_json(folder / "sweep.json", SweepFile("job.toml", metric, trials, own))


def read(folder: Path) -> dict[str, Any]:
    runs = RunsData(folder)
    runs.listed()
    found = runs.sweep()
    assert found is not None
    return found


def test_trials_are_sorted_by_the_loss(tmp_path: Path) -> None:
    sweep(tmp_path)
    found = read(tmp_path)
    assert (found["metric"], found["higher"], found["keys"]) == (
        "log_loss",
        False,
        ["train.lr", "x"],
    )
    assert [t["run"] for t in found["trials"]] == ["b", "a", "c"]
    best, _, missing = found["trials"]
    assert best == {
        "number": 2,
        "run": "b",
        "values": ["1", "1"],
        "state": "done",
        "epoch": 1,
        "epochs": 1,
        "seconds": 2.5,
        "spread": None,
        "metrics": {"mine": 3, "log_loss": 0.25, "accuracy": 0.5},
    }
    assert (missing["state"], missing["metrics"], missing["epochs"]) == ("not started", {}, None)
    assert found["metrics"] == ["mine", "accuracy", "log_loss"]


@pytest.mark.parametrize(
    ("metric", "own", "first"),
    [("accuracy", {}, "a"), ("mine", {"mine": "higher"}, "b"), ("", {"mine": "none"}, "b")],
)
def test_the_metric_of_the_sweep_counts(tmp_path: Path, metric: str, own: Any, first: str) -> None:
    sweep(tmp_path, metric, own)
    assert read(tmp_path)["trials"][0]["run"] == first


def test_a_result_is_read_again_when_it_changes(tmp_path: Path) -> None:
    sweep(tmp_path)
    data = SweepData(tmp_path)
    states = {"a": "done", "b": "done", "c": ""}
    first = data.read(states)
    assert first is not None
    assert first["trials"][0]["run"] == "b"
    trial(tmp_path / "other", "a", log_loss=0.125)
    (tmp_path / "other/a/result.json").rename(tmp_path / "a/result.json")
    second = data.read(states)
    assert second is not None
    assert second["trials"][0]["run"] == "a"
    # A trial that is continued has no result until its end.
    third = data.read({**states, "a": "running"})
    assert third is not None
    assert third["trials"][0]["run"] == "b"


@pytest.mark.parametrize("text", ["", "[]", '{"trials": 5}', '{"trials": [{}]}', "[" * 100_000])
def test_a_damaged_sweep_is_a_folder_of_runs(tmp_path: Path, text: str) -> None:
    full_run(tmp_path)
    (tmp_path / "sweep.json").write_text(text)
    runs = RunsData(tmp_path)
    assert [row["name"] for row in runs.listed()] == ["job"]
    assert runs.sweep() is None


def test_names_lead_to_no_other_folder(tmp_path: Path) -> None:
    trial(tmp_path, "outside", log_loss=0.5)
    folder = tmp_path / "sweep"
    full_run(folder)
    names = ("../outside", str(tmp_path / "outside"), "..", ".", "", "a\0b", "a" * 5000, "job")
    (folder / "sweep.json").write_text(json.dumps({"trials": [{"run": name} for name in names]}))
    # A name that is too long for a folder is that of a trial without files.
    assert [(t["run"][:4], t["state"]) for t in read(folder)["trials"]] == [
        ("aaaa", ""),
        ("job", "ended"),  # it has no result
    ]


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    sweep(tmp_path)
    rows = '[{"log_loss": 1, "x": [], "y": null}]'
    text = f'{{"epochs": true, "seconds": {"9" * 400}, "history": {rows}, "log_loss": "1"}}'
    (tmp_path / "a/result.json").write_text(text)
    (found,) = [t for t in read(tmp_path)["trials"] if t["run"] == "a"]
    assert (found["epochs"], found["seconds"], found["metrics"]) == (None, None, {})
