"""Jobs that are told to end while they train: a last checkpoint, and nothing half done."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import processes
import pytest
from launcher import Launch, launch, site_environment
from supervised import PROGRAMS
from training import N_SAMPLES, assert_read, content, finish, numbers, wait_for_checkpoint

from mpips.checkpoint import list_checkpoints

SHORT = ["--set", "train.epochs=2", "--set", "train.batch_size=3"]
SLOW = ["--set", "options.pause_ms=20", "--set", "checkpoint.every_steps=2"]


def start(n: int, task: str, folder: Path, *more: str, env: dict[str, str] | None = None) -> Launch:
    """Training that saves into `folder`/run; on one process without any launcher."""
    command = [sys.executable, "-m", "mpips", "train", task, "--train", str(numbers(folder))]
    command += [*SHORT, "--save", str(folder / "run"), "--progress", "none", "--json", *more]
    env = {"PYTHONPATH": str(PROGRAMS), **(env or {})}
    if n > 1:
        return launch(n, command, env, 60.0)
    return Launch(command, {**site_environment(), **env}, 60.0)


def rank_pids(job: Launch) -> list[int]:
    """The processes that train."""
    found = []
    for pid in job.pids():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[1:4] == [b"-m", b"mpips", b"train"]:
            found.append(pid)
    return found


def regions_of(pids: list[int]) -> set[Path]:
    """The segments of mpips that these processes have mapped."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    return {Path(line.split()[-1]) for line in maps.splitlines() if "/dev/shm/mpips-" in line}


def existing(paths: set[Path]) -> list[Path]:
    """Those that are still there."""
    return [path for path in paths if path.exists()]


@pytest.mark.parametrize(
    ("n", "number"),
    [
        pytest.param(1, signal.SIGTERM, marks=pytest.mark.long),
        (1, signal.SIGINT),
        (3, signal.SIGTERM),
    ],
)
def test_told_to_end_a_job_saves_leaves_with_75_and_goes_on_later(
    tmp_path: Path, n: int, number: signal.Signals
) -> None:
    with start(n, "seen:Seen", tmp_path, *SLOW) as job:
        wait_for_checkpoint(tmp_path / "run", job)
        pids = rank_pids(job)
        assert len(pids) == n
        regions = regions_of(pids)
        assert len(regions) >= (2 if n > 1 else 0)
        # By hand, to one rank: the others hear of it.
        os.kill(max(pids), number)
        assert job.wait(30.0) == 75, job.tail()
        last = list_checkpoints(tmp_path / "run")[-1].path
        said = f"mpips: leaving: {number.name}: wrote checkpoint {last}, exit 75; run again"
        assert said in job.stderr()
        assert "mpips: error" not in job.stderr()
        assert not existing(regions)
    if n == 1:
        return
    with start(n, "seen:Seen", tmp_path) as job:
        rest = finish(job)
        assert f"starting from {last}" in job.stderr()
    assert 0 < rest["samples"] < 2 * N_SAMPLES
    assert_read(rest["checkpoint"]["path"], 2)


def test_a_second_sigterm_ends_a_job_that_has_not_come_to_save(tmp_path: Path) -> None:
    # The first step never ends.
    with start(
        1, "late:Late", tmp_path, "--set", "options.pause_ms=1e6", env=late(tmp_path)
    ) as job:
        wait_until_late(tmp_path, job, 1)
        (tmp_path / "go").touch()
        assert processes.until((tmp_path / "step").exists, 30.0), job.tail()
        job.send_signal(signal.SIGTERM)
        time.sleep(0.5)  # what comes within 0.3 s is one signal
        assert job.poll() is None, job.tail()
        job.send_signal(signal.SIGTERM)
        assert job.wait(10.0) == 143, job.tail()
        said = "mpips: stopped at once by a second SIGTERM, exit 143; newest checkpoint: none\n"
        assert said in job.stderr()


def test_mpirun_that_is_told_to_end_leaves_no_segment_and_a_good_checkpoint(tmp_path: Path) -> None:
    with start(3, "seen:Seen", tmp_path, *SLOW) as job:
        wait_for_checkpoint(tmp_path / "run", job)
        regions = regions_of(rank_pids(job))
        assert regions
        job.send_signal(signal.SIGTERM)
        assert job.wait(10.0) != 0
        assert processes.until(lambda: not rank_pids(job), 10.0)
    assert not existing(regions)
    for entry in list_checkpoints(tmp_path / "run"):
        content(entry.path)  # verifies it


def late(folder: Path) -> dict[str, str]:
    return {"LATE": str(folder / "go")}


def wait_until_late(folder: Path, job: Launch, n: int) -> None:
    """Until so many processes stand in the import of their task."""

    def there() -> bool:
        assert job.poll() is None, job.tail()
        return len(list(folder.glob("go-*"))) == n

    assert processes.until(there, 30.0), job.tail()


@pytest.mark.parametrize("n", [1, 2])
def test_usr1_that_comes_while_a_job_starts_is_acted_upon(tmp_path: Path, n: int) -> None:
    exits = ["--set", "checkpoint.on_usr1=exit", "--set", "options.pause_ms=20"]
    with start(n, "late:Late", tmp_path, *exits, env=late(tmp_path)) as job:
        wait_until_late(tmp_path, job, n)
        for pid in rank_pids(job):
            os.kill(pid, signal.SIGUSR1)
        (tmp_path / "go").touch()
        assert job.wait(30.0) == 75, job.tail()
        assert "mpips: leaving: SIGUSR1: wrote checkpoint" in job.stderr()
