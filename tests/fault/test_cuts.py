"""Checkpoints in the middle of training: interrupted anywhere, on any shape, and the same in the end."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import sys
from pathlib import Path

import numpy as np
import processes
import pytest
from launcher import Launch, launch, wait_for_file
from long_runs import LONG
from training import (
    N_SAMPLES,
    assert_read,
    assert_same,
    content,
    finish,
    made_data,
    numbers,
    train,
    wait_for_checkpoint,
)

import mpips
from mpips.checkpoint import Manifest, list_checkpoints, open_checkpoint

PROGRAMS = Path(__file__).with_name("programs")
KEEP = ["--set", "checkpoint.keep_last=1000"]


def manifest_of(path: Path) -> Manifest:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.manifest


def in_the_middle(folder: Path) -> list[Path]:
    """Checkpoints at which some worker stands inside an epoch."""
    found = [entry.path for entry in list_checkpoints(folder)]
    return [path for path in found if any(w.step for w in manifest_of(path).workers)]


def start(n: int, *arguments: str, timeout: float = 90.0) -> Launch:
    """`mpips train` on n ranks, in the background; the folder of programs is on its path."""
    command = [sys.executable, "-m", "mpips", "train", *arguments, "--progress", "none", "--json"]
    return launch(n, command, {"PYTHONPATH": str(PROGRAMS)}, timeout)


# Each: ranks and servers before, after.
SHAPES = [((5, 2), (4, 1)), ((4, 1), (6, 3)), ((2, 1), (3, 1))]
MLP, FM = "paced:PacedMlp, adam", "paced:PacedFm, adagrad"


# More servers than before: with dense tables and with rows.
@pytest.mark.parametrize(
    ("shapes", "name"),
    [
        (SHAPES[1], FM),
        pytest.param(SHAPES[0], FM, marks=pytest.mark.long),
        (SHAPES[2], MLP),
        pytest.param(SHAPES[1], MLP, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_from_the_middle_of_an_epoch_bsp_gives_the_same_bits(
    tmp_path: Path, shapes: tuple[tuple[int, int], tuple[int, int]], name: str
) -> None:
    task, _, optimizer = name.partition(", ")
    data = "digits" if task == "paced:PacedMlp" else str(made_data(tmp_path))
    env = {"PYTHONPATH": str(PROGRAMS), "PACED_UNTIL": str(tmp_path / "whole")}
    common = [task, "--train", data, "--set", f"table.optimizer={optimizer}", *KEEP]
    common += ["--set", "train.epochs=3", "--set", "train.batch_size=16"]
    (n, servers), (m, others) = shapes
    every = ["--set", "checkpoint.every_steps=9", "--servers", str(servers)]
    whole, _ = train(n, *common, *every, "--save", str(tmp_path / "whole"), env=env)
    places = in_the_middle(tmp_path / "whole")
    assert places
    for i, path in enumerate({places[0], places[-1]} if LONG else {places[0]}):
        where = ["--resume", str(path), "--servers", str(others)]
        rest, told = train(m, *common, *where, "--save", str(tmp_path / f"rest{i}"), env=env)
        assert "each worker at its step" in told
        assert 0 < rest["samples"] < whole["samples"]
        assert rest["loss"] == whole["loss"]
        assert_same(content(whole["checkpoint"]["path"]), content(rest["checkpoint"]["path"]))
        assert Path(rest["checkpoint"]["path"]).name == Path(whole["checkpoint"]["path"]).name


def test_after_a_kill_bsp_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    common = ["fm", "--train", str(made_data(tmp_path)), "--servers", "2", *KEEP]
    common += ["--set", "train.epochs=40", "--set", "train.batch_size=8"]
    whole, _ = train(5, *common, "--save", str(tmp_path / "whole"))
    folder = tmp_path / "killed"
    every = ["--set", "checkpoint.every_steps=11", "--save", str(folder)]
    for number in (1, 2):
        with start(5, *common, *every) as job:
            wait_for_checkpoint(folder, job, number)
            job.kill()
    rest, told = train(5, *common, *every)
    assert "starting from" in told
    assert rest["samples"] < whole["samples"]
    assert_same(content(whole["checkpoint"]["path"]), content(rest["checkpoint"]["path"]))


@pytest.mark.parametrize(
    "model", ["asp", *(pytest.param(name, marks=pytest.mark.long) for name in ("bsp", "ssp"))]
)
def test_on_another_shape_each_sample_of_the_epoch_is_read_once(tmp_path: Path, model: str) -> None:
    common = ["seen:Seen", "--train", str(numbers(tmp_path)), "--set", "train.epochs=3", *KEEP]
    if model != "bsp":
        common += ["--set", f"table.consistency={model}"]
    common += ["--set", "checkpoint.every_steps=3", "--set", "options.pause_ms=40"]

    def run(n: int, servers: int, batch: int, folder: Path, *more: str) -> dict:
        size = ["--set", f"train.batch_size={batch}", "--servers", str(servers)]
        until = ["--save", str(folder), "--set", f"options.until={folder}"]
        with start(n, *common, *size, *until, *more) as job:
            return finish(job)

    first = run(5, 1, 7, tmp_path / "first")
    assert_read(first["checkpoint"]["path"], 3)
    n_before = 3 * N_SAMPLES
    # From shape to shape, each time from the middle of an epoch.
    folder = tmp_path / "first"
    for i, (n, servers, batch) in enumerate([(6, 2, 4), *([(2, 1, 30), (4, 1, 5)] * LONG)]):
        place = in_the_middle(folder)[0]
        folder = tmp_path / f"part{i}"
        last = run(n, servers, batch, folder, "--resume", str(place))
        assert_read(last["checkpoint"]["path"], 3)
        assert 0 < last["samples"] < n_before


def test_a_signal_asks_for_a_checkpoint_and_training_goes_on(tmp_path: Path) -> None:
    """A signal to mpirun, then one to a worker."""
    ready, folder = tmp_path / "ready", tmp_path / "run"
    argv = [sys.executable, str(PROGRAMS / "cutting.py"), str(ready), str(folder)]
    with launch(5, [*argv, json.dumps({"servers": 2})], timeout=60.0) as job:
        pids = [int(line) for line in wait_for_file(ready, 30.0, job).split()]
        for number, pid in ((1, job.pid), (2, pids[0])):
            os.kill(pid, signal.SIGUSR1)
            wait_for_checkpoint(folder, job, number)
            # Signals within a second are one.
            step = int(ready.with_suffix(".step").read_text())
            assert processes.until(
                lambda s=step: int(ready.with_suffix(".step").read_text()) > s + 1200, 30.0
            )
        ready.with_suffix(".stop").touch()
        assert job.wait() == 0, job.tail()
        said = json.loads(job.stdout().splitlines()[-1])
    assert said["written"] == 2
    assert said["failed"] == said["given_up"] == 0


@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.long), 4])
def test_on_a_signal_to_exit_the_job_leaves_with_75_and_goes_on_later(
    tmp_path: Path, n: int
) -> None:
    folder = tmp_path / "run"
    common = ["seen:Seen", "--train", str(numbers(tmp_path)), "--set", "train.epochs=2"]
    common += ["--set", "train.batch_size=3", "--save", str(folder)]
    pause = ["--set", "options.pause_ms=20", "--set", "checkpoint.on_usr1=exit"]
    with start(n, *common, *pause, "--set", "checkpoint.every_steps=2") as job:
        wait_for_checkpoint(folder, job)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(30.0) == 75, job.tail()
        assert "mpips: leaving: " in job.stderr()
        assert "mpips: error" not in job.stderr()
    last = list_checkpoints(folder)[-1].path
    assert str(last) in job.stderr()
    with start(n, *common) as job:
        rest = finish(job)
        assert f"starting from {last}" in job.stderr()
    assert 0 < rest["samples"] < 2 * N_SAMPLES
    assert_read(rest["checkpoint"]["path"], 2)


def test_a_checkpoint_that_cannot_be_written_is_said_and_tried_again(tmp_path: Path) -> None:
    ready, folder = tmp_path / "ready", tmp_path / "run"
    folder.mkdir()
    argv = [sys.executable, str(PROGRAMS / "cutting.py"), str(ready), str(folder)]
    options = {"servers": 2, "every_steps": 50}
    # Who else writes there has the lock of the folder.
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with launch(5, [*argv, json.dumps(options)], timeout=60.0) as job:
            wait_for_file(ready, 30.0, job)
            assert processes.until(lambda: "another process is writing" in job.stderr(), 20.0)
            assert not list_checkpoints(folder)
            fcntl.flock(lock, fcntl.LOCK_UN)
            wait_for_checkpoint(folder, job)
            ready.with_suffix(".stop").touch()
            assert job.wait() == 0, job.tail()
            warnings = [line for line in job.stderr().splitlines() if "mpips: warning" in line]
            said = json.loads(job.stdout().splitlines()[-1])
    assert said["failed"] >= 1
    assert said["written"] >= 1
    assert len(warnings) == said["failed"]
    assert all(line.endswith("training continues") for line in warnings)


def test_a_full_disk_is_survived_by_a_job_of_one_process(tmp_path: Path) -> None:
    n = 200_000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def main(worker: mpips.Worker) -> int:
        table = worker.table("w")
        for clock in range(400):
            if clock == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (n, before[1]))
            if clock == 200:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            table.push(np.ones(n, np.float32))
            worker.set_cursor({"clock": clock + 1})
            worker.clock()
        return 400

    try:
        tables = [mpips.DenseTable("w", (n,), mpips.SGD(1.0), mpips.BSP("sum"))]
        outcome = mpips.run(main, tables, save=tmp_path, every_steps=20, resume="never")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = outcome.statistics["scheduler"]["checkpoints"]
    assert said["failed"] >= 1
    assert said["written"] >= 1
    for entry in list_checkpoints(tmp_path):
        found = content(str(entry.path))
        clock = manifest_of(entry.path).workers[0].cursor["clock"]
        assert (found["/tables/w/values"] == -clock).all()


def test_a_worker_that_never_comes_to_the_cut_holds_up_the_others_for_a_while_only(
    tmp_path: Path,
) -> None:
    """It waits for them outside of mpips: the rings are let go, and training goes on."""
    ready, folder = tmp_path / "ready", tmp_path / "run"
    argv = [sys.executable, str(PROGRAMS / "stuck.py"), str(ready), str(folder)]
    with launch(4, argv, timeout=60.0) as job:
        assert job.wait() == 0, job.tail()
        said = json.loads(job.stdout().splitlines()[-1])
        assert "was given up" in job.stderr()
    assert said["given_up"] >= 1
