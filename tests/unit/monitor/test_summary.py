"""The summary at the end of a run."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from mpips.config.schema import JobConfig, load_config
from mpips.monitor.summary import differences, setbacks, summarize, write
from mpips.monitor.summary_text import staleness_text, text
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Event, RankPlace

REPORT: dict[str, Any] = {
    "accuracy": 0.98333,
    "loss": 0.01234,
    "epochs": 20,
    "history": [],
    "steps": 440,
    "samples": 14000,
    "seconds": 12.3,
    "samples_per_s": 1138.2,
    "n_samples": 700,
    "n_features": 400,
    "pushed_bytes": 12_300_000,
    "pulled_bytes": 3_450,
    "updates_pushed": 880,
    "updates_applied": 870,
    "updates_rejected": 10,
    "updates_scaled": 0,
    "updates_compensated": 0,
    "updates_late": 0,
    "staleness": [600, 270, 9, 1],
    "transports": {"shm": 3, "rma": 1},
    "checkpoint": {"path": "/far/step-1", "bytes": 5_000_000, "notes": ["by server 0 alone"]},
}
RANKS = [
    RankPlace(rank=0, role="scheduler", host="node1", pid=1),
    RankPlace(rank=1, role="server 0", host="node1", pid=2),
    RankPlace(rank=2, role="server 1", host="node2", pid=3),
    RankPlace(rank=3, role="worker 0", host="node2", pid=4),
]
VERSIONS = {"mpips": "9.9", "MPI": "Some MPI 7", "HDF5": ""}


def config(*sets: tuple[str, Any]) -> JobConfig:
    return load_config(None, [("task", "fm"), ("data.train", "a.svm"), *sets])


def failed(at: float, step: int, cause: str = "killed") -> Event:
    return Event(time_s=at, generation=0, event="failed", step=step, cause=cause)


def began(at: float, step: int) -> Event:
    return Event(time_s=at, generation=1, event="began", step=step)


def test_the_whole_block() -> None:
    lines = text(summarize(config(), REPORT, RANKS, VERSIONS)).splitlines()
    assert lines[0].startswith("mpips: fm, 20 epochs, ended 20")
    assert max(map(len, lines)) < 80
    rows = rows_of("\n".join(lines))
    assert rows["where"] == "node1, node2: scheduler, 2 servers, worker; transport shm x 3, rma x 1"
    assert rows["versions"].startswith("mpips 9.9, Some MPI 7, Python 3.")
    assert rows["options"] == "all defaults"
    assert rows["data"] == "a.svm: 700 samples, 400 features"
    assert rows["trained"] == "step 440, 14,000 samples in 12.30 s: 1,138 samples/s"
    assert rows["accuracy"] == "0.9833  (test)"
    assert rows["updates"] == "880 pushed, 870 applied, 10 rejected"
    assert rows["staleness"] == "mean 0.33; 0: 68%, 1: 31%, 2-3: 1%"
    assert rows["traffic"] == "12.3 MB pushed, 3.45 kB pulled"
    assert lines[-2].split() == ["checkpoint", "/far/step-1,", "5", "MB"]
    assert lines[-1].strip() == "by server 0 alone"
    assert "restarts" not in rows


def row_of(history: list[dict[str, float]], name: str = "by epoch") -> str:
    block = text(summarize(config(), {**REPORT, "history": history}, RANKS, VERSIONS))
    return rows_of(block).get(name, "")


def rows_of(block: str) -> dict[str, str]:
    """Return the values by their names, each on one line."""
    rows: dict[str, str] = {}
    name = ""
    for line in block.splitlines()[1:]:
        name, before = (line[2:16].strip(), "") if line[2:16].strip() else (name, rows[name] + " ")
        rows[name] = before + line[16:]
    return rows


def by_epoch(history: list[dict[str, float]]) -> list[list[str]]:
    """Return the words of the table of epochs, line by line."""
    lines = text(summarize(config(), {**REPORT, "history": history}, RANKS, VERSIONS)).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  by epoch"))
    table = [lines[first][16:]]
    for line in lines[first + 1 :]:
        if not line.startswith(" " * 16):
            break
        table.append(line[16:])
    return [line.split() for line in table]


def test_losses_and_metrics_of_every_epoch_are_shown() -> None:
    losses = [{"epoch": n, "loss": 1 / n} for n in range(1, 11)]
    losses[4]["accuracy"] = 0.5
    found = by_epoch(losses)
    assert found[0] == ["epoch", "accuracy", "training", "loss"]
    assert [row[0] for row in found[1:]] == [str(n) for n in range(1, 11)]
    assert found[1] == ["1", "-", "1.0000"]
    assert found[5] == ["5", "0.5000", "0.2000"]
    assert row_of(losses[:1]) == ""


def test_of_many_epochs_the_distance_is_named() -> None:
    losses: list[dict[str, float]] = [{"epoch": n, "loss": 1 / n} for n in range(1, 41)]
    found = by_epoch(losses)
    assert [row[0] for row in found[1:-1]] == [str(n) for n in range(4, 41, 4)]
    assert " ".join(found[-1]) == "(every 4th epoch of 40)"
    # Epochs that were evaluated come first.
    for n in (10, 20, 30, 40):
        losses[n - 1]["accuracy"] = 0.5
    found = by_epoch(losses)
    assert [row[0] for row in found[1:-1]] == ["10", "20", "30", "40"]
    assert " ".join(found[-1]) == "(each evaluated epoch of 40)"


def test_the_loss_of_the_training_has_a_name_of_its_own() -> None:
    history = [{"epoch": 1, "loss": 0.5, "log_loss": 0.25}]
    report = {**REPORT, "history": history, "loss": 0.5, "log_loss": 0.25}
    shown = text(summarize(config(), report, RANKS, VERSIONS))
    assert "  training loss 0.5000  (mean of the last epoch)" in shown
    assert "  log loss      0.2500  (" in shown
    assert "\n  loss " not in shown


def test_a_terminal_gets_styles_that_change_no_text() -> None:
    figures = summarize(config(), REPORT, RANKS, VERSIONS)
    styled = text(figures, colour=True)
    assert styled.startswith("\x1b[1mmpips: ")
    assert re.sub(r"\x1b\[\d+m", "", styled) == text(figures)


def test_one_epoch_is_one_epoch() -> None:
    one = text(summarize(config(), {**REPORT, "epochs": 1}, RANKS, VERSIONS))
    assert one.startswith("mpips: fm, 1 epoch, ended ")


def test_a_supervised_run_tells_its_setbacks_and_leaves_files(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    for event in (began(0, 0), failed(100, 40), failed(103, 40, "no memory"), began(105, 30)):
        run.note(event)
    found = summarize(config(), REPORT, RANKS, VERSIONS, run)
    assert found["setbacks"] == {
        "restarts": 2,
        "seconds": 5.0,
        "steps": 10,
        "causes": ["killed", "no memory"],
    }
    write(run, found)
    block = (run.path / "summary.txt").read_text()
    assert "2: 5.0 s without work, 10 steps repeated; last cause: no memory" in block
    assert "(last attempt)" in block
    assert block.rstrip("\n") == text(found)
    assert json.loads((run.path / "summary.json").read_text()) == found
    assert not list(run.path.glob(".summary*"))


def test_half_a_line_of_events_is_no_event(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    run.note(failed(1, 2))
    with run.events_file.open("a") as file:
        file.write('{"time_s": 3, "gen')
    assert [event.step for event in run.events()] == [2]


@pytest.mark.parametrize(
    ("events", "seconds", "steps"),
    [
        ([], 0.0, 0),
        ([began(0, 0)], 0.0, 0),
        ([began(0, 0), failed(10, 50), began(14, 50)], 4.0, 0),
        ([failed(10, 50), began(14, 20), failed(20, 60), began(21, 55)], 5.0, 35),
        ([failed(10, 50)], 90.0, 0),
    ],
)
def test_what_setbacks_cost(events: list[Event], seconds: float, steps: int) -> None:
    found = setbacks(events, 100.0)
    assert (found["seconds"], found["steps"]) == (seconds, steps)


def test_only_what_differs_from_the_defaults_is_an_option() -> None:
    assert differences(config()) == {}
    found = differences(
        config(
            ("train.epochs", 7),
            ("cluster.timeout_s", 300.0),
            ("table.consistency", "ssp"),
            ("tables.w.optimizer", {"name": "adam", "lr": 0.1}),
            ("run.ranks", 9),
            ("options.dim", 8),
        )
    )
    assert found == {
        "train.epochs": 7,
        "table.consistency": "ssp",
        "tables.w.optimizer": {"name": "adam", "lr": 0.1},
        "options.dim": 8,
    }


def test_long_values_stay_within_the_page() -> None:
    many = config(*((f"options.name_{i}", "x" * 30) for i in range(40)))
    hosts = [
        RankPlace(rank=i, role=f"worker {i}", host=f"node{i:04}.cluster", pid=i) for i in range(99)
    ]
    block = text(summarize(many, REPORT, hosts, VERSIONS)).splitlines()
    assert len(block) <= 25
    assert all(len(line) <= 96 for line in block)
    assert "and 95 more" in " ".join(" ".join(block).split())


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([], "no updates"),
        ([5], "mean 0.00; 0: 100%"),
        ([0] * 64 + [2], "mean 64.00; 64 and more: 100%"),
        ([999] + [0] * 9 + [1], "mean 0.01; 0: 100%, 8-15: 0.1%"),
    ],
)
def test_staleness_in_a_few_words(counts: list[int], expected: str) -> None:
    assert staleness_text(counts) == expected


def test_a_checkpoint_that_failed_is_in_the_summary() -> None:
    report = {**REPORT, "checkpoint": {"error": "disk full"}}
    assert "not written: disk full" in text(summarize(config(), report, RANKS, VERSIONS))


BEST = {"metric": "auc", "value": 0.83, "epoch": 4, "last": 0.8, "first": 0.7, "n_epochs": 20}


@pytest.mark.parametrize("kept", [True, False])
def test_validation_test_and_best_epoch_are_named(kept: bool) -> None:
    saved = {"metric": "auc", "value": 0.83, "epoch": 4, "path": "/far/step-000000000088"}
    report = {
        **REPORT,
        "evaluated_data": "validation",
        "best": saved if kept else None,
        "best_epoch": BEST,
        "test_metrics": {"auc": 0.815, "log_loss": 0.5},
        "test_epoch": 4 if kept else 20,
        "hint": "auc was best",
    }
    job = config(("data.validation", 0.1), ("data.test", "b.svm"))
    rows = rows_of(text(summarize(job, report, RANKS, VERSIONS)))
    assert rows["options"] == "all defaults"
    assert rows["data"] == "a.svm: 700 samples, 400 features; validation 0.1 of it; test b.svm"
    assert rows["accuracy"] == "0.9833  (validation)"
    shown = "auc 0.8300 after epoch 4 of 20"
    assert rows["best"] == (f"{shown}, in step-000000000088" if kept else shown)
    of = "after epoch 4, the best" if kept else "after epoch 20"
    assert rows["test"] == f"auc 0.8150, log loss 0.5000  ({of})"
    assert rows["note"] == "auc was best"
    job = config(("data.validation", ["v.svm", "w.svm"]))
    rows = rows_of(text(summarize(job, {**report, "skipped": {"validation": 2}}, RANKS, VERSIONS)))
    assert "validation v.svm, w.svm; 2 bad lines skipped" in rows["data"]
    assert (
        rows_of(text(summarize(config(), REPORT, RANKS, VERSIONS)))
        .keys()
        .isdisjoint(("best", "test", "note"))
    )


def test_the_time_of_a_run_begins_with_its_first_attempt(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    now = time.time()
    run.note(Event(time_s=now - 100.0, generation=0, event="began", step=0))
    run.note(Event(time_s=now - 50.0, generation=1, event="began", step=0))
    seconds = summarize(config(), REPORT, RANKS, VERSIONS, run)["wall_seconds"]
    assert 100.0 <= seconds < 150.0
