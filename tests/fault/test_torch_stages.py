"""A torch model in stages: the bits of one process, whatever the cut, the failures and the restarts."""

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

from torch import nn  # noqa: E402

import mpips.torch  # noqa: E402

pytestmark = pytest.mark.timeout(300)
PROGRAM = str(Path(__file__).with_name("programs") / "staged_script.py")
SAME = ("losses", "norms", "right", "lr", "steps", "digest")


def ended(job: launcher.Launch, folder: Path, worker: int = 0) -> dict[str, Any]:
    assert job.wait() == 0, job.tail(60)
    return json.loads((folder / f"{worker}.json").read_text())


def alone(folder: Path, *options: str) -> dict[str, Any]:
    """Return the result of one process with two stages."""
    folder.mkdir()
    command = [sys.executable, PROGRAM, str(folder), "2", *options]
    with launcher.Launch(command, launcher.site_environment(), 100.0, folder) as job:
        return ended(job, folder)


def run(folder: Path, ranks: int, stages: int, *options: str) -> launcher.Launch:
    """Return a supervised run, with checkpoints."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mpips", "run", "-n", str(ranks), "--progress", "none"]
    command += [PROGRAM, str(folder), str(stages), "save=3", *options]
    return launcher.Launch(command, launcher.site_environment(), 180.0, folder)


def starts(folder: Path) -> list[tuple[str, int | None]]:
    """Return from what each attempt of a run has begun, and its step."""
    (events,) = (folder / "runs").glob("*/events.jsonl")
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return [(e["source"], e.get("step")) for e in lines if e["event"] == "began"]


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return [found[name] for name in SAME] == [expected[name] for name in SAME]


def check_killed(tmp_path: Path, ranks: int, stages: int, kill: str, *options: str) -> None:
    """Compare a run whose worker is killed in the middle of a step with one process."""
    expected = alone(tmp_path / "alone", "epochs=3", *options)
    with run(tmp_path / "run", ranks, stages, "epochs=3", f"kill={kill}", *options) as job:
        found = ended(job, tmp_path / "run")
    assert same(found, expected)
    assert found["share"] < 1.0
    first, second = starts(tmp_path / "run")
    assert first[0] != "checkpoint"
    assert second[0] == "checkpoint"
    assert second[1] in (3, 6)

    # The checkpoint is that of the whole model.
    state = torch.load(tmp_path / "run" / "state-0.pt", weights_only=True)
    (newest,) = (tmp_path / "run" / "runs").glob("*/checkpoints")
    model = nn.Module()
    model.head = nn.Linear(12, 4)
    with pytest.raises(mpips.ConfigError, match="has no table"):
        mpips.torch.load_checkpoint(nn.ModuleDict({"other": nn.Linear(12, 4)}), newest)
    mpips.torch.load_checkpoint(model, newest)
    assert model.head.weight.shape == state["head.weight"].shape


def test_a_stage_that_is_killed_in_a_step_ends_with_the_bits_of_one_process(tmp_path: Path) -> None:
    check_killed(tmp_path, 4, 2, "1:7:2")


def check_measured(tmp_path: Path, kill: str, source: str) -> None:
    """Compare a run with measured stages, whose first attempt is killed, with one process."""
    expected = alone(tmp_path / "alone", "cut=auto")
    assert expected["ends"] == [9, 11]
    folder = tmp_path / "run"
    with run(folder, 4, 2, "cut=auto", f"kill={kill}") as job:
        found = ended(job, folder)
    assert same(found, expected)
    # A measurement of the second attempt would cut at 2.
    assert found["ends"] == [9, 11]
    assert (starts(folder)[1][0] == "checkpoint") == (source == "checkpoint")
    (stored,) = (folder / "runs").glob("*/stages.json")
    assert json.loads(stored.read_text())["ends"] == [9, 11]


def test_measured_stages_are_those_of_the_first_attempt(tmp_path: Path) -> None:
    check_measured(tmp_path, "1:1:2", "the beginning")


@pytest.mark.long
def test_measured_stages_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    check_measured(tmp_path, "0:6:2", "checkpoint")
    # A new run that continues from this checkpoint has no other place to find them.
    (saved,) = (tmp_path / "run" / "runs").glob("*/checkpoints")
    options = ["2", "epochs=3", "cut=auto", f"resume={saved / 'latest'}"]
    folder = tmp_path / "next"
    folder.mkdir()
    command = [sys.executable, PROGRAM, str(folder), *options]
    with launcher.launch(4, command, {"SLANT": "1"}, 100.0) as job:
        found = ended(job, folder)
    assert found["ends"] == [9, 11]
    assert same(found, alone(tmp_path / "whole", "epochs=3", "cut=auto"))


@pytest.mark.long
def test_a_worker_with_another_example_ends_the_job_with_one_message(tmp_path: Path) -> None:
    command = [sys.executable, PROGRAM, str(tmp_path), "2", "cut=auto", "odd=1"]
    with launcher.launch(4, command, timeout=60.0) as job:
        assert job.wait() == 2, job.tail(60)
        text = job.stderr()
    (error,) = re.findall(r"mpips: error: .*", text)
    assert "worker 1 prepares another model, or another example or limit of AutoStages" in error


@pytest.mark.long
@pytest.mark.parametrize("place", range(12))
@pytest.mark.parametrize("worker", [0, 1])
def test_a_stage_is_killed_before_each_pass_of_a_step(
    tmp_path: Path, worker: int, place: int
) -> None:
    schedule = "gpipe" if place % 2 else "1f1b"
    check_killed(tmp_path, 4, 2, f"{worker}:7:{place}", f"schedule={schedule}")


@pytest.mark.long
@pytest.mark.parametrize("worker", range(4))
def test_each_of_four_stages_is_killed(tmp_path: Path, worker: int) -> None:
    check_killed(tmp_path, 6, 4, f"{worker}:8:4")


@pytest.mark.long
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_every_cut_has_the_bits_of_one_process(tmp_path: Path, stages: int, schedule: str) -> None:
    expected = alone(tmp_path / "alone")
    command = [sys.executable, PROGRAM, str(tmp_path), str(stages), f"schedule={schedule}"]
    with launcher.launch(2 + stages, command, timeout=150.0) as job:
        found = ended(job, tmp_path)
    assert same(found, expected)
    others = [json.loads((tmp_path / f"{w}.json").read_text()) for w in range(stages)]
    assert all(one["losses"] == found["losses"] for one in others)
    assert sum(one["share"] for one in others) == pytest.approx(1.0)


@pytest.mark.long
def test_two_pipelines_make_equal_bits_in_each_run_and_differ_from_one_by_rounding(
    tmp_path: Path,
) -> None:
    found = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        command = [sys.executable, PROGRAM, str(tmp_path / name), "2", "micro=2"]
        with launcher.launch(6, command, timeout=150.0) as job:
            found.append(ended(job, tmp_path / name))
    assert same(*found)
    states = [torch.load(tmp_path / "first" / f"state-{w}.pt") for w in (0, 2)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "second"), [((4, 2), (1, 2)), ((4, 2), (5, 3)), ((6, 4), (4, 2))]
)
def test_a_checkpoint_continues_with_another_number_of_stages(
    tmp_path: Path, first: tuple[int, int], second: tuple[int, int]
) -> None:
    expected = alone(tmp_path / "alone", "epochs=3")
    folder = tmp_path / "run"
    with run(folder, *first, "epochs=2") as job:
        ended(job, folder)
    (saved,) = (folder / "runs").glob("*/checkpoints")
    options = ("epochs=3", f"resume={saved / 'latest'}")
    command = [sys.executable, PROGRAM, str(tmp_path), str(second[1]), *options]
    with launcher.launch(second[0], command, timeout=150.0) as job:
        found = ended(job, tmp_path)
    assert same(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("worker", [0, 1])
def test_an_error_in_one_stage_ends_all_with_one_message(tmp_path: Path, worker: int) -> None:
    command = [sys.executable, PROGRAM, str(tmp_path), "2", f"fail={worker}:3"]
    with launcher.launch(4, command, timeout=120.0) as job:
        assert job.wait() == 1, job.tail(60)
        text = job.stderr()
    assert len(re.findall(r"mpips: error: ", text)) == 1
    assert f"worker {worker} (rank" in text
    assert "the planted error" in text


# The awaited message in the error of the other worker, if the worker of the first or of the last stage stops.
CALLS = {
    "forward_backward": (
        "the result of the stage for micro-batch 0",
        "the gradients of micro-batch 0",
    ),
    "clip_grad_norm_": ("the norms for clip_grad_norm_", "the norms for clip_grad_norm_"),
    "evaluation": ("the result of the stage for micro-batch 0", "the result of the model"),
    "full_state_dict": ("nothing", "the state for full_state_dict"),
}


@pytest.mark.long
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("worker", [0, 1])
def test_a_stage_that_is_stopped_is_named_with_what_is_missing(
    tmp_path: Path, worker: int, call: str
) -> None:
    option = f"strike={worker}:{int(signal.SIGSTOP)}:{call}"
    command = [sys.executable, PROGRAM, str(tmp_path), "2", option, "timeout=8"]
    with launcher.launch(4, command, timeout=120.0) as job:
        assert job.wait() == 124, job.tail(60)
        text = job.stderr()
    (error,) = re.findall(r"mpips: error: .*", text)
    # The scheduler misses the heartbeat of the process at about the same time.
    late = rf"worker {worker} \(rank {worker + 2} on [^)]*\) has sent no "
    missing = re.escape(f"message with {CALLS[call][worker]}; it does not answer, for ")
    assert re.search(rf"{late}({missing}|heartbeat for )[0-9.]+ s", error), error


@pytest.mark.long
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("worker", [0, 1])
def test_a_stage_is_killed_before_each_common_call(tmp_path: Path, worker: int, call: str) -> None:
    expected = alone(tmp_path / "alone")
    option = f"strike={worker}:{int(signal.SIGKILL)}:{call}"
    with run(tmp_path / "run", 4, 2, option) as job:
        found = ended(job, tmp_path / "run")
    assert same(found, expected)
    assert starts(tmp_path / "run")[1][0] == "checkpoint"
