"""`mpips run script.py`: scripts that call mpips.run get what tasks get."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import launcher
import pytest
from long_runs import LONG

from mpips.checkpoint import find_newest

SCRIPT = Path(__file__).with_name("programs") / "scripted.py"


def run(folder: Path, *arguments: str, n: int = 4) -> launcher.Launch:
    """`mpips run` with these arguments in an empty folder."""
    command = [sys.executable, "-m", "mpips", "run", "-n", str(n), *arguments]
    return launcher.Launch(command, launcher.site_environment(), 120.0, folder)


def value(job: launcher.Launch) -> dict:
    return json.loads(job.stdout().strip().splitlines()[-1])


def test_a_script_that_is_killed_once_goes_on_in_memory_and_ends_right(tmp_path: Path) -> None:
    with run(tmp_path, str(SCRIPT), "20", "kill", "--lr", "7") as job:
        assert job.wait() == 0, job.tail()
        found, said = value(job), job.stderr()
    assert found["values"] == [-20.0] * 4
    assert found["first"] == 10
    assert found["argv"] == ["20", "kill", "--lr", "7"]
    assert found["main"] == "__main__"
    assert "killed by SIGKILL" in said
    assert "attempt 1 is at work" in said
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("scripted-")
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["progress"]["step"]) == ("done", 20)
    assert list((folder / "checkpoints").glob("step-*20"))
    top = [sys.executable, "-m", "mpips", "top", "--once"]
    with launcher.Launch(top, launcher.site_environment(), 30.0, tmp_path) as shown:
        assert shown.wait() == 0
        page = shown.stdout()
    assert "mpips: scripted.py, ended " in page
    assert "step 20; " in page
    assert "1: " in page
    assert "last cause: " in page
    assert "killed by SIGKILL" in page
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["updates_applied"] == 40
    assert "pushed (last attempt), 40 applied" in page
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["loss"] == 2.0
    assert last["samples"] % 5 == 0
    assert summary["roles"] == {"scheduler": 1, "server": 1, "worker": 2}


def test_the_start_of_an_attempt_is_recorded_before_a_worker_can_die(tmp_path: Path) -> None:
    with run(tmp_path, str(SCRIPT.with_name("begun.py")), n=5) as job:
        assert job.wait() == 0, job.tail()
        said = job.stderr()
    assert "attempt 1 is at work" in said
    (events,) = (tmp_path / "runs").glob("*/events.jsonl")
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    assert [(line["event"], line["generation"]) for line in lines] == [
        ("began", 0),
        ("failed", 0),
        ("began", 1),
    ]


def test_an_attempt_in_memory_saves_what_is_newer_than_an_earlier_run_in_the_same_folder(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "saved"
    for steps in (30, 20):
        with run(tmp_path, str(SCRIPT), str(steps), "kill", "--save", str(folder)) as job:
            assert job.wait() == 0, job.tail()
            assert value(job)["first"] == steps // 2
    newest = find_newest(folder).checkpoint
    assert newest is not None
    with newest:
        assert newest.manifest.step == 20
        assert (
            newest.manifest.generation == 3
        )  # two of the first run, and attempt 1 after attempt 0


def test_a_script_that_was_given_up_goes_on_by_its_run_directory(tmp_path: Path) -> None:
    arguments = ("--max-restarts", "0", str(SCRIPT), "20", "kill", "--lr", "7")
    with run(tmp_path, *arguments) as job:
        assert job.wait() == 1, job.tail()
        (folder,) = (tmp_path / "runs").iterdir()
    with run(tmp_path, str(folder)) as job:
        assert job.wait() == 0, job.tail()
        found = value(job)
    assert found["values"] == [-20.0] * 4
    assert found["first"] == 10
    assert found["argv"] == ["20", "kill", "--lr", "7"]


def test_a_script_that_says_no_position_does_not_continue_in_memory(tmp_path: Path) -> None:
    with run(tmp_path, str(SCRIPT), "20", "forgets") as job:
        assert job.wait() == 0, job.tail()
        found, said = value(job), job.stderr()
    assert found["values"] == [-20.0] * 4
    assert found["first"] == 0
    assert "not continuing in memory: main has stored no cursor; call worker.set_cursor" in said


ENDS = {
    "exit": (3, "main called sys.exit(3)"),
    "no-run": (2, "has ended without calling mpips.run(main, tables)"),
    "twice": (2, "mpips.run was called a second time"),
    "after": (1, "failed after its job, on rank 0: after the job"),
    "wrong-table": (2, "table 'w': shape = (-4,): each length must be 1 or more"),
}


# By day one of them is run again; "exit" and "wrong-table" are in test_errors.py and test_script.py.
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(how, marks=[pytest.mark.long] * (how in ("exit", "wrong-table")))
        for how in ENDS
    ],
)
def test_what_ends_a_script_is_one_sentence_with_its_exit_code(tmp_path: Path, how: str) -> None:
    code, said = ENDS[how]
    with run(tmp_path, "--max-restarts", "0", str(SCRIPT), "4", how, n=3) as job:
        assert job.wait() == (1 if how == "exit" else code), job.tail()
        text = job.stderr()
        (folder,) = (tmp_path / "runs").iterdir()
    if LONG or how == "after":
        with run(tmp_path, "--discard-memory", str(folder)) as job:
            assert job.wait() == 0, job.tail()
    assert said in " ".join(text.split()), text
    assert how in ("exit", "after") or "Traceback" not in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nosuch.py",), "nosuch.py: cannot be read: No such file or directory"),
        (("--lr=0.1", str(SCRIPT)), "--lr: applies only to a task"),
        (("--set", "train.epochs=3", str(SCRIPT)), "--set train.epochs=3: applies only to a task"),
        (
            ("--set", "redundancy.warm=false", "--set", "redundancy.partner=true", str(SCRIPT)),
            "redundancy.partner = true needs redundancy.warm = true",
        ),
    ],
    ids=["missing", "flag", "set", "no memory"],
)
def test_what_a_script_cannot_have_is_refused_before_it_starts(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    with run(tmp_path, *arguments) as job:
        assert job.wait() == 2, job.tail()
        assert said in job.stderr()
    assert not (tmp_path / "runs").exists()


def test_one_process_is_supervised_as_well_and_a_finished_run_is_not_run_again(
    tmp_path: Path,
) -> None:
    with run(tmp_path, str(SCRIPT), "4", "nothing", n=1) as job:
        assert job.wait() == 0, job.tail()
        assert value(job)["values"] == [-4.0] * 4
    (folder,) = (tmp_path / "runs").iterdir()
    with run(tmp_path, str(folder)) as job:
        assert job.wait() == 0, job.tail()
        assert "nothing to do" in job.stderr()


def test_a_flat_script_in_one_process_is_supervised(tmp_path: Path) -> None:
    flat = SCRIPT.with_name("flat.py")
    with run(tmp_path, str(flat), n=1) as job:
        assert job.wait() == 0, job.tail()
    with run(tmp_path, "--max-restarts", "0", str(flat), "step=raise", n=1) as job:
        assert job.wait() == 1, job.tail()
        assert "ValueError: at step" in job.stderr()
