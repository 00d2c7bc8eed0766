"""A server's part in checkpoints, in a job of one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from harness import dense

import mpips
from mpips.checkpoint import list_checkpoints
from mpips.snapshot import server_part
from mpips.snapshot.copy import ServerCopy


def cannot_remove(*_: object) -> None:
    raise mpips.CheckpointError("step-1: cannot be removed: Device or resource busy")


@pytest.mark.parametrize("error", [mpips.CheckpointError, OSError])
def test_a_job_that_is_to_end_leaves_though_older_checkpoints_could_not_be_removed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: type[Exception],
) -> None:
    def cannot_remove(*_: object) -> None:
        raise error("step-1 cannot be removed")

    def main(worker: mpips.Worker) -> None:
        for clock in range(100_000):
            if clock == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
            worker.table("w").push(np.ones(8, np.float32))
            worker.clock()

    monkeypatch.setattr(server_part, "retain", cannot_remove)
    with pytest.raises(SystemExit) as caught:
        mpips.run(main, [dense()], save=tmp_path, on_usr1="exit")
    assert caught.value.code == 75
    last = list_checkpoints(tmp_path)[-1].path
    note = (
        f"{last} was written, but older checkpoints could not be removed: step-1 cannot be removed"
    )
    assert note in capfd.readouterr().err


def test_the_last_checkpoint_is_written_though_older_ones_could_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_part, "retain", cannot_remove)
    outcome = mpips.run(lambda worker: worker.clock(), [dense()], save=tmp_path)
    found = outcome.statistics["servers"][0]["checkpoint"]
    assert found["path"] == str(list_checkpoints(tmp_path)[-1].path)
    assert "error" not in found
    assert "older checkpoints could not be removed" in found["notes"][-1]


def test_a_copy_without_memory_is_reported_with_its_reason_and_tried_once_per_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    copy, attempts = ServerCopy.copy, []

    def without_memory_at_first(self: ServerCopy) -> object:
        attempts.append(1)
        if len(attempts) == 1:
            raise MemoryError
        return copy(self)

    def main(worker: mpips.Worker) -> int:
        for _ in range(200):
            worker.table("w").push(np.ones(8, np.float32))
            worker.clock()
        return worker.now

    monkeypatch.setattr(ServerCopy, "copy", without_memory_at_first)
    outcome = mpips.run(main, [dense()], save=tmp_path, every_steps=50)
    statistics = outcome.statistics["scheduler"]["checkpoints"]
    assert (statistics["given_up"], statistics["written"]) == (1, len(attempts) - 1)
    assert len(attempts) > 1
    expected = (
        "a checkpoint was given up: server 0 has no memory for the copy of its shards; training"
    )
    assert expected in capfd.readouterr().err


def test_no_residuals_wait_for_a_checkpoint_after_the_job(tmp_path: Path) -> None:
    """The last cut is the end of the job, so no checkpoint takes the files of the end."""

    def main(worker: mpips.Worker) -> None:
        for _ in range(4):
            worker.table("w").push(np.ones(8, np.float32))
            worker.clock()

    table = dense(8, compression=mpips.TopK(0.5))
    outcome = mpips.run(main, [table], save=tmp_path, every_steps=4)
    assert outcome.statistics["scheduler"]["checkpoints"]["written"] == 1
    assert len(list_checkpoints(tmp_path)) == 1
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".worker")]
