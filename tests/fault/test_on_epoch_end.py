"""train.on_epoch_end on several ranks: called by one worker, once for an epoch, also when ranks die."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from model_rig import dense_csv
from supervised import start
from training import train

import mpips

PROGRAMS = Path(__file__).parent / "programs"
EPOCHS = 5


def env(folder: Path) -> dict[str, str]:
    """Return where the functions are, and the file for their calls."""
    return {"PYTHONPATH": str(PROGRAMS), "CALLS": str(folder / "calls.jsonl")}


def job(folder: Path, function: str, *more: str) -> list[str]:
    """Return the arguments of a job of five epochs."""
    train_file, test = dense_csv(folder / "a.csv", 300, 1), dense_csv(folder / "b.csv", 60, 2)
    sets = [f"train.epochs={EPOCHS}", "train.eval_every=2", "train.batch_size=10", *more]
    if function:
        sets.append(f"train.on_epoch_end=on_epochs:{function}")
    words = [word for text in sets for word in ("--set", text)]
    return ["--train", str(train_file), "--test", str(test), *words]


def calls(folder: Path) -> list[dict[str, Any]]:
    """Return the rows that the function was called with."""
    path = folder / "calls.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return them without the processes."""
    return [{k: v for k, v in row.items() if k != "pid"} for row in calls(folder)]


@pytest.mark.parametrize("model", ["bsp", pytest.param("asp", marks=pytest.mark.long)])
def test_one_worker_is_called_once_for_each_epoch(model: str, tmp_path: Path) -> None:
    arguments = ["softmax", *job(tmp_path, "note", f"table.consistency={model}")]
    found, _ = train(5, *arguments, env=env(tmp_path))
    assert rows(tmp_path) == found["history"]
    assert [row["epoch"] for row in rows(tmp_path)] == [1, 2, 3, 4, 5]
    assert ["accuracy" in row for row in rows(tmp_path)] == [False, True, False, True, True]
    assert len({row["pid"] for row in calls(tmp_path)}) == 1
    if model == "bsp":
        # A call changes no bit.
        plain, _ = train(5, "softmax", *job(tmp_path, "", "table.consistency=bsp"))
        assert plain["history"] == found["history"]


@pytest.mark.parametrize("eval_every", [pytest.param(1, marks=pytest.mark.long), 3])
def test_it_ends_the_training_of_all_workers(eval_every: int, tmp_path: Path) -> None:
    arguments = ["softmax", *job(tmp_path, "ends", f"train.eval_every={eval_every}")]
    found, _ = train(5, *arguments, env=env(tmp_path))
    assert found["stopped"] == "after epoch 2: by on_epoch_end"
    assert (found["epochs"], [row["epoch"] for row in calls(tmp_path)]) == (2, [1, 2])
    short, _ = train(5, "softmax", *job(tmp_path, "", "train.epochs=2"))
    for name in ("accuracy", "cross_entropy", "loss"):
        assert found[name] == short[name], name


@pytest.mark.parametrize(
    ("function", "text"),
    [
        pytest.param(
            "breaks",
            "'on_epochs:breaks' raised KeyError after epoch 2: 'no such column'",
            marks=pytest.mark.long,
        ),
        (
            "breaks_at_last",
            "'on_epochs:breaks_at_last' raised ValueError after epoch 3: at the end",
        ),
        ("leaves", "'on_epochs:leaves' raised SystemExit after epoch 2: 0"),
    ],
)
def test_an_exception_ends_the_job_and_is_named(function: str, text: str, tmp_path: Path) -> None:
    arguments = ["softmax", *job(tmp_path, function, "train.epochs=3")]
    _, said = train(5, *arguments, code=1, env=env(tmp_path))
    assert f"train.on_epoch_end = {text}" in said
    assert said.count("raised") == 1


@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.long), 5])
def test_a_call_that_does_not_return_is_a_stall_of_worker_0(n: int, tmp_path: Path) -> None:
    """The scheduler sees it, or another worker that waits; each names the worker and the call."""
    arguments = ["softmax", *job(tmp_path, "hangs", "cluster.timeout_s=4")]
    _, said = train(n, *arguments, code=124, env=env(tmp_path))
    silent = (
        r"worker 0 \(.*\) has sent no heartbeat .* it was calling on_epoch_end after epoch 2 at"
    )
    waiting = r"not all workers have come to reduce 'on_epoch_end of epoch 2'.*late: worker 0 \("
    assert re.search(silent, said) or (n > 2 and re.search(waiting, said)), said
    assert [row["epoch"] for row in calls(tmp_path)] == [1, 2]


def test_backup_workers_are_refused(tmp_path: Path) -> None:
    arguments = ["softmax", *job(tmp_path, "note", "table.backup=1")]
    _, said = train(5, *arguments, code=2, env=env(tmp_path))
    assert "on_epoch_end does not work with backup workers" in said
    assert calls(tmp_path) == []


@pytest.mark.parametrize(
    ("model", "step"),
    [
        pytest.param("bsp", 0, marks=pytest.mark.long),
        ("bsp", 1),
        pytest.param("asp", 1, marks=pytest.mark.long),
    ],
)
def test_a_warm_restart_repeats_no_call(model: str, step: int, tmp_path: Path) -> None:
    """A worker dies in a step of the third epoch; in its first one the call before it may come again."""
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    if model == "bsp":
        train(5, "on_epochs:Dying", *job(undisturbed, "note"), env=env(undisturbed))
    (tmp_path / "dies-at").write_text(str(step))
    consistency = f"table.consistency={model}"
    run = start(tmp_path, "-n", "5", "on_epochs:Dying", *job(tmp_path, "note", consistency))
    with run.launched:
        assert run.launched.wait() == 0, run.launched.tail(80)
    said = run.launched.stderr()
    warm = "from memory: step" in said
    assert warm or model == "asp", said
    found, expected = rows(tmp_path), rows(undisturbed)
    if model == "asp":
        # Worker 0 may have stood before the first step of the epoch.
        epochs = [row["epoch"] for row in found]
        # A step of ASP cannot always be repeated alike; then the run, which has no checkpoint, begins anew.
        again = ([1, 2, 3, 4, 5], [1, 2, 2, 3, 4, 5]) if warm else ([1, 2, 1, 2, 3, 4, 5],)
        assert epochs in again, said
        return
    if step == 0 and len(found) > EPOCHS:
        # Worker 0 stood at the beginning of the epoch: it cannot know that the call had returned.
        assert found[1] == found[2]
        del found[2]
    assert found == expected
    assert len({row["pid"] for row in calls(tmp_path)}) == 2


def test_a_call_that_did_not_return_is_made_again(tmp_path: Path) -> None:
    run = start(tmp_path, "-n", "5", "softmax", *job(tmp_path, "dies"))
    with run.launched:
        assert run.launched.wait() == 0, run.launched.tail(80)
    found = rows(tmp_path)
    assert [row["epoch"] for row in found] == [1, 2, 2, 3, 4, 5]
    assert found[1] == found[2]


def test_fit_on_ranks_calls_a_function_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(PROGRAMS)
    files = dense_csv(tmp_path / "a.csv", 200, 1), dense_csv(tmp_path / "b.csv", 50, 2)
    fit = mpips.fit(
        "softmax",
        *files,
        ranks=3,
        epochs=3,
        folder=tmp_path / "runs",
        on_epoch_end="on_epochs:ends",
    )
    assert fit.stopped == "after epoch 2: by on_epoch_end"
    assert [row["epoch"] for row in calls(tmp_path)] == [1, 2]
