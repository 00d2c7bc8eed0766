"""The checkpoint at the end of a job, if it cannot be written at once."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from local_job import run_local

from mpips import DenseTable
from mpips.checkpoint import find_newest
from mpips.checkpoint import folder as folders
from mpips.config.options import SessionOptions
from mpips.errors import CheckpointError
from mpips.recovery.saving import Saving
from mpips.rundir.directory import RunFolder, Supervised, replace_json
from mpips.rundir.files import Lease
from mpips.scheduler.job_statistics import is_saved
from mpips.snapshot import attachments
from mpips.snapshot import coordinator as coordinator_module
from mpips.snapshot import server_part as server_part_module
from mpips.worker.worker import Worker, connection_of

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the warnings of the coordinator, and make pauses take no time."""
    found: list[str] = []
    monkeypatch.setattr(coordinator_module, "_warn", found.append)
    monkeypatch.setattr(server_part_module, "_TRIES_S", (0.0, 0.0, 0.0, 0.0), raising=False)
    monkeypatch.setattr(server_part_module, "_FULL_S", 0.0, raising=False)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Supervised:
    """A supervised run."""
    folder = RunFolder.create(tmp_path, "job")
    replace_json(folder.lease_file, Lease(generation=0, host="h", pid=1, time_s=time.time()))
    return Supervised(folder, folder.path.name, folder.info().token, 0)


def failing(times: int, error: Exception, real: Callable[..., Any], calls: list[int]) -> Any:
    """Return a function that raises in its first calls and calls `real` afterwards."""

    def function(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return real(*arguments)

    return function


def train(folder: Path, run: Supervised | None = None) -> dict[str, Any]:
    """Run a job of one push that saves at its end; return its statistics."""

    def main(worker: Worker) -> None:
        worker.table("w").push(np.ones(4, np.float32))
        worker.clock()

    tables = [DenseTable("w", (4,))]
    return run_local(main, tables, SessionOptions(), saving=Saving(folder, "job"), run=run)[1]


def test_a_full_disk_is_waited_for_however_long(
    run: Supervised, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = folders.make_temporary
    monkeypatch.setattr(folders, "make_temporary", failing(40, FULL, real, calls))
    statistics = train(run.folder.checkpoints, run)
    assert is_saved(statistics)
    assert len(calls) == 41
    (line,) = warnings
    assert "No space left on device; the job waits and tries again" in line
    found = find_newest(run.folder.checkpoints).checkpoint
    assert found is not None
    found.close()


def test_another_failure_is_tried_again_a_few_times(
    run: Supervised, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(
        folders, "make_temporary", failing(4, BROKEN, folders.make_temporary, calls)
    )
    assert is_saved(train(run.folder.checkpoints, run))
    assert (len(calls), len(warnings)) == (5, 1)


def test_a_failure_that_stays_is_the_end(
    run: Supervised, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(folders, "make_temporary", failing(99, BROKEN, str, calls))
    statistics = train(run.folder.checkpoints, run)
    assert not is_saved(statistics)
    assert "Input/output error" in statistics["servers"][0]["checkpoint"]["error"]
    assert len(calls) == 5


def test_a_checkpoint_is_not_written_twice_because_older_ones_stay(
    run: Supervised, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    error = CheckpointError("step-1: cannot be removed: Input/output error")
    monkeypatch.setattr(server_part_module, "retain", failing(1, error, str, calls))
    assert is_saved(train(run.folder.checkpoints, run))
    assert [path.name for path in run.folder.checkpoints.glob("step-*")] == ["step-000000000001"]


def test_a_job_without_a_supervisor_fails_at_once(
    tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(folders, "make_temporary", failing(1, FULL, str, calls))
    statistics = train(tmp_path / "checkpoints")
    assert not is_saved(statistics)
    assert (len(calls), warnings) == (1, [])


def test_a_checkpoint_waits_for_what_worker_0_sends_beside_the_tables(tmp_path: Path) -> None:
    sent = {"features/count": np.array(7.0), "features/mean": np.arange(400_000.0)}

    def main(worker: Worker) -> None:
        attachments.send(connection_of(worker).control.tell, sent)
        worker.clock()

    saving = Saving(tmp_path, "job", attached=tuple(sent))
    tables = [DenseTable("w", (4,))]
    statistics = run_local(main, tables, SessionOptions(), saving=saving)[1]
    assert is_saved(statistics)
    found = find_newest(tmp_path).checkpoint
    assert found is not None
    with found, h5py.File(found.path / "state.h5") as file:
        found.verify()
        assert file["features/count"][()] == 7
        assert file["features/mean"][:].tobytes() == sent["features/mean"].tobytes()


def test_a_checkpoint_without_them_is_an_error_that_names_them(tmp_path: Path) -> None:
    saving = Saving(tmp_path, "job", attached=("features/count", "features/mean"))
    tables, options = [DenseTable("w", (4,))], SessionOptions(timeout_s=1.0)
    statistics = run_local(lambda worker: worker.clock(), tables, options, saving=saving)[1]
    error = statistics["servers"][0]["checkpoint"]["error"]
    assert "worker 0 has not sent features/count, features/mean" in error
    assert find_newest(tmp_path).checkpoint is None
