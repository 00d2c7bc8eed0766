"""A job in one process that fails: the process goes on, so nothing may remain in the way of the next job."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_job import run_local

from mpips import BSP, SGD, DenseTable
from mpips.checkpoint import list_checkpoints, steps
from mpips.checkpoint.writer import CheckpointWriter
from mpips.config.options import SessionOptions
from mpips.config.triggers import Triggers
from mpips.recovery.saving import Saving
from mpips.snapshot import server_part
from mpips.worker.worker import Worker

N = 4096
ONES = np.ones(N, np.float32)
TABLES = [DenseTable("t", (N,), SGD(1.0), BSP(reduce="sum"), init="zeros")]


class OwnError(Exception):
    """An error of the program."""


@pytest.fixture(autouse=True)
def uncollected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the cyclic collector from tidying up, and write in steps of a few hundred bytes."""
    monkeypatch.setattr(server_part, "SMALL_BLOCK_BYTES", 512)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def job(folder: Path, clocks: int, dies: Any = None) -> dict[str, Any]:
    """Run some clocks with a checkpoint at every second one; `dies` is called after each clock."""

    def main(worker: Worker) -> None:
        for clock in range(1, clocks + 1):
            worker.table("t").push(ONES)
            worker.clock()
            if dies is not None:
                dies(clock, worker)

    saving = Saving(folder, "r", triggers=Triggers(every_steps=2))
    return run_local(main, TABLES, SessionOptions(), saving)[1]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def open_in(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return [name for name in found if name.startswith(str(folder))]


def check_the_next_job(folder: Path) -> None:
    assert not [name for name in names(folder) if name.startswith(".writing")]
    assert open_in(folder) == []
    checkpoint = job(folder, 4)["servers"][0]["checkpoint"]
    assert "error" not in checkpoint
    assert list_checkpoints(folder)[-1].step == 4


@pytest.mark.parametrize("n_steps", [1, 2, 3, 5, 8, 12, 20])
def test_a_failure_while_a_checkpoint_is_written_leaves_the_folder_free(
    tmp_path: Path, n_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, done = server_part.ServerPart._step, []

    def counted(part: server_part.ServerPart, work: Any) -> None:
        if part._writer is not None:
            done.append(work)
        real(part, work)

    def dies(clock: int, worker: Worker) -> None:
        if len(done) >= n_steps:
            raise OwnError

    monkeypatch.setattr(server_part.ServerPart, "_step", counted)
    with pytest.raises(
        OwnError
    ) as kept:  # a notebook keeps the last exception, and with it all frames
        job(tmp_path / "c", 100_000, dies)
    monkeypatch.undo()
    check_the_next_job(tmp_path / "c")
    assert kept.value is not None


def test_a_failure_while_the_file_is_made_waits_for_the_thread_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_make, real_join = CheckpointWriter._make_file, steps.Background.join
    entered, released = threading.Event(), threading.Event()

    def make(writer: CheckpointWriter, plans: Any) -> Any:
        entered.set()
        assert released.wait(30)
        return real_make(writer, plans)

    def join(background: Any, limit_s: float | None = None) -> None:
        released.set()
        real_join(background, limit_s)

    def dies(clock: int, worker: Worker) -> None:
        if entered.is_set():
            raise OwnError

    monkeypatch.setattr(CheckpointWriter, "_make_file", make)
    monkeypatch.setattr(steps.Background, "join", join)
    with pytest.raises(OwnError):
        job(tmp_path / "c", 100_000, dies)
    monkeypatch.undo()
    check_the_next_job(tmp_path / "c")


def test_an_interrupt_of_the_last_checkpoint_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # At the first step of the writer: how many steps there are depends on a thread.
    def hit(work: Any, between: Any) -> None:
        def interrupted() -> None:
            between()
            raise KeyboardInterrupt

        steps.drive(work, interrupted)

    monkeypatch.setattr(server_part, "drive", hit)
    with pytest.raises(KeyboardInterrupt) as kept:
        job(tmp_path / "c", 3)
    monkeypatch.undo()
    check_the_next_job(tmp_path / "c")
    assert kept.value is not None
