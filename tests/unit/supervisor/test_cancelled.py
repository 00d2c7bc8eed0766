"""What a cancelled Slurm job leaves in shared memory is removed on its nodes, and nothing else is."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest

from mpips.rundir.directory import RunFolder
from mpips.supervisor import cancelled
from mpips.transport.region import SHM, new_token, persistent, region_name

CANCELLED, REQUEUED, RUNNING = "COMPLETING None", "COMPLETING BeginTime", "RUNNING None"
LIMIT_S = 60.0
KEPT = ("run", "mark", "other")  # memory that no other job removes


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run in the run folder of a job."""
    return RunFolder.create(tmp_path / "folder", "run")


@pytest.fixture
def memory(run: RunFolder) -> Iterator[dict[str, Path]]:
    """Memory of the run and of another run; memory without a supervisor, which any job may remove."""
    other = new_token()
    names = {
        "run": region_name(persistent(run.info().token), "s0", "ab"),
        "mark": region_name(persistent(run.info().token), "s0-mark", "ab"),
        "other": region_name(persistent(other), "s0", "ab"),
        "unused": region_name(other, "w0"),
    }
    paths = {key: SHM / name for key, name in names.items()}
    for path in paths.values():
        path.write_bytes(b"0")
    yield paths
    for path in paths.values():
        path.unlink(missing_ok=True)


def slurm(folder: Path, squeue: str) -> dict[str, str]:
    """Return the environment of a job where squeue prints this for the job 7, and writes the file "asked"."""
    program = folder / "bin/squeue"
    program.parent.mkdir(exist_ok=True)
    line = f'[[ $* == *--job=7* ]] && touch "{folder}/asked" && echo "{squeue}"'
    program.write_text(f"#!/bin/bash\n{line}\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SLURM_JOB_ID": "7"}


class Watcher:
    """The program on a node of a job. Use it in a `with` block."""

    def __init__(self, run: RunFolder, folder: Path, squeue: str) -> None:
        command = [sys.executable, "-m", "mpips.supervisor.cancelled", str(run.path.parent)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=slurm(folder, squeue), cwd=folder
        )

    def __enter__(self) -> subprocess.Popen[bytes]:
        # It handles SIGTERM first, and then ignores the warnings, SIGHUP as the last one. Under nohup it has
        # ignored that from its start.
        status = Path(f"/proc/{self.process.pid}/status")

        def numbers(field: str) -> set[int]:
            mask = int(status.read_text().split(f"{field}:")[1].split()[0], 16)
            return {number for number in range(1, 65) if mask >> (number - 1) & 1}

        warnings = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP}
        until(lambda: signal.SIGTERM in numbers("SigCgt") and warnings <= numbers("SigIgn"))
        return self.process

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    assert processes.until(lambda: bool(condition()), LIMIT_S)


@pytest.mark.parametrize("how", ["a signal", "the end of the script"])
def test_memory_of_a_cancelled_job_is_removed(
    how: str, run: RunFolder, memory: dict[str, Path], tmp_path: Path
) -> None:
    with Watcher(run, tmp_path, CANCELLED) as process:
        assert process.stdin is not None
        assert all(memory[key].exists() for key in KEPT)
        if how == "a signal":
            process.send_signal(signal.SIGUSR1)
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        until(lambda: not any(memory[key].exists() for key in ("run", "mark", "unused")))
    assert memory["other"].exists()


def test_memory_stays_until_its_process_has_ended(
    run: RunFolder, memory: dict[str, Path], tmp_path: Path
) -> None:
    with memory["run"].open("rb") as file, Watcher(run, tmp_path, CANCELLED) as process:
        fcntl.flock(file, fcntl.LOCK_SH)
        process.send_signal(signal.SIGTERM)
        until(lambda: not memory["mark"].exists())
        assert memory["run"].exists()
        # Longer than the time after which it expects no more.
        time.sleep(cancelled._QUIET_S + 0.5)
        assert process.poll() is None
        assert memory["run"].exists()
        file.close()
        until(lambda: not memory["run"].exists())


@pytest.mark.parametrize("squeue", [REQUEUED, RUNNING, "COMPLETING TimeLimit", ""])
def test_memory_of_a_job_that_is_not_cancelled_stays(
    squeue: str, run: RunFolder, memory: dict[str, Path], tmp_path: Path
) -> None:
    with Watcher(run, tmp_path, squeue) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert (tmp_path / "asked").exists()
    assert all(memory[key].exists() for key in KEPT)


def test_memory_of_a_job_that_has_ended_by_itself_stays(
    run: RunFolder, memory: dict[str, Path], tmp_path: Path
) -> None:
    with Watcher(run, tmp_path, CANCELLED) as process:
        assert process.stdin is not None
        process.stdin.write(b"end\n")
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0
    assert not (tmp_path / "asked").exists()
    assert all(memory[key].exists() for key in KEPT)


def test_a_run_that_cannot_be_read_is_left_out(run: RunFolder, memory: dict[str, Path]) -> None:
    folder = run.path.parent
    RunFolder.create(folder, "another").info_file.write_text("{")
    (folder / "empty").mkdir()
    assert cancelled.left(folder) == sorted([memory["run"], memory["mark"]])
    assert cancelled.left(run.path) == cancelled.left(folder)
    assert cancelled.left(folder / "none") == []


def test_memory_is_removed_elsewhere_only_where_the_nodes_are_watched(tmp_path: Path) -> None:
    env = slurm(tmp_path, CANCELLED)
    assert cancelled.is_cancelled(env)
    assert not cancelled.is_removed_elsewhere(env)
    assert cancelled.is_removed_elsewhere({**env, cancelled.WATCHED: "1"})
    assert not cancelled.is_cancelled({**env, "SLURM_JOB_ID": "8"})
    del env["SLURM_JOB_ID"]
    assert not cancelled.is_cancelled(env)
    running = {**slurm(tmp_path, RUNNING), cancelled.WATCHED: "1"}
    assert not cancelled.is_removed_elsewhere(running)
    assert not cancelled.is_cancelled({"SLURM_JOB_ID": "7", "PATH": str(tmp_path)})
