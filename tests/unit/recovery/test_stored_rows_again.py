"""Tables larger than memory over restarts, checkpoints and several servers: the same rows, to the bit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpips.checkpoint import ManifestHead, open_checkpoint, write_checkpoint
from mpips.errors import RecoveryError
from mpips.model import storage
from mpips.model.consistency import BSP
from mpips.model.optimizer import Adam
from mpips.model.storage import Storage
from mpips.model.table import EmbeddingTable
from mpips.recovery.restore import restore
from mpips.server.storage_files import remove_files
from mpips.snapshot.copy import shards_in_place
from mpips.transport.region import unlink_job
from tests.support.harness import Rig
from tests.support.recovery_rig import Launches

CLOCKS = 16
PLAIN = EmbeddingTable("e", 4, Adam(0.1), BSP(), "uniform(1)")


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables have as few rows in memory as these tests need."""
    monkeypatch.setattr(storage, "LEAST_ROWS", 2)


def stored(folder: Path, n_rows: int) -> EmbeddingTable:
    """The table with so many rows in memory."""
    return replace(PLAIN, storage=Storage(str(folder), n_rows * PLAIN.row_bytes / 2**20))


def step(workers, clock: int) -> None:
    """Push what workers push at this clock of the run: some keys often, most seldom."""
    for w, worker in enumerate(workers):
        rng = np.random.default_rng([clock, w])
        keys = np.unique((1000 * rng.random(60) ** 2).astype(np.int64) * 3 - 900)
        worker.table("e").pull(keys)
        worker.table("e").push(keys, rng.normal(size=(len(keys), 4)).astype(np.float32))
    for worker in workers:
        worker.clock()


def rows_of(*cores) -> dict[int, bytes]:
    """Return key -> row with its state over all servers."""
    found = {}
    for core in cores:
        keys, rows = core.embedding_content(0)
        found |= dict(zip(keys.tolist(), map(bytes, rows), strict=True))
    return found


def straight(clocks: int = CLOCKS) -> dict[int, bytes]:
    """The rows of a server that has all of them in memory, without a restart."""
    rig = Rig(PLAIN, n_workers=2, n_slots=16)
    workers = [rig.worker(w) for w in range(2)]
    for clock in range(clocks):
        step(workers, clock)
    return rows_of(rig.core)


@pytest.mark.parametrize(("n_servers", "n_rows"), [(1, 2), (1, 50), (3, 20)])
def test_restarts_in_memory_change_no_bit_and_leave_no_file(tmp_path, n_servers, n_rows):
    table = stored(tmp_path, n_rows)
    launches = Launches(table, n_servers=n_servers, n_workers=2)
    try:
        for clock in range(CLOCKS):
            step(launches.workers, clock)
            if clock in (0, 3, 4, 11):
                launches.again()
        cores = [server.core for server in launches.servers]
        assert all(core.storage_counts(0)["cold"] > 50 for core in cores)
        assert rows_of(*cores) == straight()
        assert len(list(tmp_path.iterdir())) == n_servers
        # Files of a job that has its memory stay.
        remove_files([table])
        assert len(list(tmp_path.iterdir())) == n_servers
        unlink_job(launches.token)
        remove_files([table])
        assert list(tmp_path.iterdir()) == []
    finally:
        launches.close()


@pytest.mark.parametrize("harm", ["gone", "other"])
def test_a_file_that_is_not_that_of_the_memory_is_refused(tmp_path, harm):
    launches = Launches(stored(tmp_path, 20), n_workers=2)
    try:
        for clock in range(3):
            step(launches.workers, clock)
        (path,) = tmp_path.iterdir()
        if harm == "gone":
            path.unlink()
        else:
            with path.open("r+b") as file:
                os.pwrite(file.fileno(), b"\xff", 8)
        message = {"gone": "is gone", "other": "with other rows or another memory_mib"}[harm]
        with pytest.raises(RecoveryError, match=message):
            launches.again()
    finally:
        launches.close()


def written(rig: Rig, folder: Path, at: int) -> Path:
    shards = shards_in_place(rig.server, rig.placement, rig.tables)
    head = ManifestHead("run", 1, at, 1.7e9, rig.tables)
    return write_checkpoint(None, folder, head, shards, timeout_s=60.0).path


def test_a_checkpoint_has_the_same_bytes_with_and_without_storage(tmp_path):
    found = []
    for i, table in enumerate((PLAIN, stored(tmp_path, 30))):
        rig = Rig(table, n_workers=2, n_slots=16)
        workers = [rig.worker(w) for w in range(2)]
        for clock in range(9):
            step(workers, clock)
        with open_checkpoint(written(rig, tmp_path / str(i), 9)) as checkpoint:
            assert checkpoint.damage() == []
            entry = checkpoint.manifest.table("e")
            found.append(
                [checkpoint.read_stored(d, 0, d.n_units).tobytes() for d in entry.datasets]
            )
    assert len(found[0]) == 5
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("before", "after"), [(30, 30), (30, 2), (30, 5000), (30, None), (None, 30)]
)
def test_a_start_from_a_checkpoint_changes_no_bit(tmp_path, before, after):
    def rig_of(n_rows: int | None) -> Rig:
        table = PLAIN if n_rows is None else stored(tmp_path, n_rows)
        return Rig(table, n_workers=2, n_slots=16)

    first = rig_of(before)
    workers = [first.worker(w) for w in range(2)]
    for clock in range(9):
        step(workers, clock)
    path = written(first, tmp_path / "checkpoint", 9)
    later = rig_of(after)
    restore(later.server, later.placement, later.tables, path)
    workers = [later.worker(w) for w in range(2)]
    for clock in range(9, CLOCKS):
        step(workers, clock)
    assert rows_of(later.core) == straight()


def test_three_servers_start_from_the_checkpoint_of_one(tmp_path):
    first = Rig(stored(tmp_path, 30), n_workers=2, n_slots=16)
    workers = [first.worker(w) for w in range(2)]
    for clock in range(9):
        step(workers, clock)
    path = written(first, tmp_path / "checkpoint", 9)
    launches = Launches(stored(tmp_path, 10), n_servers=3, n_workers=2)
    try:
        for server in launches.servers:
            restore(server, launches.placement, launches.tables, path)
        for clock in range(9, CLOCKS):
            step(launches.workers, clock)
        assert rows_of(*(server.core for server in launches.servers)) == straight()
    finally:
        launches.close()
        remove_files(launches.tables)
