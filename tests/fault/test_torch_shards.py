"""Layers that are divided between workers: the values of one process, restarts, late workers."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import launcher
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.timeout(300)
PROGRAM = str(Path(__file__).with_name("programs") / "sharded_script.py")
NARROW = str(Path(__file__).with_name("programs") / "narrow_shards.py")
CALLS = {
    "classes": ("gather", "max", "sum", "backward", "step"),
    "features": ("gather", "swap", "sum", "backward", "step"),
    "rows": ("gather", "swap", "backward", "step"),
}
State = dict[str, Any]


def ended(job: launcher.Launch, folder: Path) -> State:
    assert job.wait() == 0, job.tail(60)
    found: State = torch.load(folder / "result.pt")
    return found


def launched(folder: Path, ranks: int, *options: str, program: str = PROGRAM) -> State:
    """Return the result of a launch; one rank: of this process alone."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, program, str(folder), *options]
    if ranks == 1:
        with launcher.Launch(command, launcher.site_environment(), 100.0, folder) as job:
            return ended(job, folder)
    with launcher.launch(ranks, command, timeout=100.0, cwd=folder) as job:
        return ended(job, folder)


def run(folder: Path, ranks: int, *options: str) -> State:
    """Return the result of a supervised run that writes checkpoints."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mpips", "run", "-n", str(ranks), "--progress", "none"]
    command += [PROGRAM, str(folder), "save=3", *options]
    with launcher.Launch(command, launcher.site_environment(), 180.0, folder) as job:
        return ended(job, folder)


def sources(folder: Path) -> list[str]:
    """Return from what each attempt of a run has begun."""
    (events,) = (folder / "runs").glob("*/events.jsonl")
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return [e["source"] for e in lines if e["event"] == "began"]


def check_close(found: State, expected: State) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


def check_equal(found: State, expected: State) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_three_workers_train_as_one_process_does(tmp_path: Path) -> None:
    expected = launched(tmp_path / "one", 1)
    assert expected["head.rows.values"].shape == (11, 7)
    check_close(launched(tmp_path / "three", 5), expected)


def test_a_worker_that_is_killed_in_a_step_changes_no_bit(tmp_path: Path) -> None:
    expected = launched(tmp_path / "undisturbed", 4)
    found = run(tmp_path / "run", 4, f"strike=1:{int(signal.SIGKILL)}:backward")
    check_equal(found, expected)
    assert sources(tmp_path / "run")[1] == "checkpoint"


def test_a_worker_that_is_killed_between_messages_of_rows_changes_no_bit(tmp_path: Path) -> None:
    expected = launched(tmp_path / "undisturbed", 4, "layer=rows")
    found = run(tmp_path / "run", 4, "layer=rows", f"strike=1:{int(signal.SIGKILL)}:backward")
    check_equal(found, expected)
    assert sources(tmp_path / "run")[1] == "checkpoint"


@pytest.mark.long
@pytest.mark.parametrize(("layer", "dim", "n_rows"), [("features", 6, 9), ("rows", 6, 12)])
def test_three_workers_train_other_layers_as_one_process_does(
    tmp_path: Path, layer: str, dim: int, n_rows: int
) -> None:
    expected = launched(tmp_path / "one", 1, f"layer={layer}")
    assert expected["wide.rows.values"].shape == (n_rows, dim)
    check_close(launched(tmp_path / "three", 5, f"layer={layer}"), expected)


@pytest.mark.long
def test_workers_without_rows_and_samples_change_no_bit(tmp_path: Path) -> None:
    expected = launched(tmp_path / "one", 1, program=NARROW)
    assert expected["rows.rows.keys"].tolist() == [0, 1]
    assert (expected["product.rows.values"] != 1).all()
    check_equal(launched(tmp_path / "four", 6, program=NARROW), expected)


@pytest.mark.long
@pytest.mark.parametrize(
    ("layer", "call"), [(layer, call) for layer, calls in CALLS.items() for call in calls]
)
@pytest.mark.parametrize("worker", [0, 2])
def test_each_worker_is_killed_before_each_call(
    tmp_path: Path, worker: int, layer: str, call: str
) -> None:
    option = f"layer={layer}"
    expected = launched(tmp_path / "undisturbed", 5, option)
    found = run(tmp_path / "run", 5, option, f"strike={worker}:{int(signal.SIGKILL)}:{call}")
    check_equal(found, expected)
    assert sources(tmp_path / "run")[1] == "checkpoint"


@pytest.mark.long
@pytest.mark.parametrize(("first", "second"), [(4, 5), (5, 1), (3, 4)])
@pytest.mark.parametrize("layer", list(CALLS))
def test_a_checkpoint_continues_with_another_number_of_workers(
    tmp_path: Path, layer: str, first: int, second: int
) -> None:
    options = f"layer={layer}", "epochs=3"
    expected = launched(tmp_path / "whole", 1, *options)
    folder = tmp_path / "run"
    run(folder, first, options[0], "epochs=2")
    (saved,) = (folder / "runs").glob("*/checkpoints")
    found = launched(tmp_path / "next", second, *options, f"resume={saved / 'latest'}")
    assert found["steps"] == expected["steps"]
    check_close(found, expected)


@pytest.mark.long
@pytest.mark.parametrize(
    ("layer", "call"),
    [("classes", "gather"), ("classes", "backward"), ("features", "swap"), ("rows", "swap")],
)
def test_a_worker_that_is_stopped_is_named(tmp_path: Path, layer: str, call: str) -> None:
    options = f"layer={layer}", f"strike=1:{int(signal.SIGSTOP)}:{call}", "timeout=8"
    command = [sys.executable, PROGRAM, str(tmp_path), *options]
    with launcher.launch(4, command, timeout=120.0) as job:
        assert job.wait() == 124, job.tail(60)
        (error,) = re.findall(r"mpips: error: .*", job.stderr())
    assert re.search(r"worker 1 \(rank 3 on [^)]*\)", error), error
