"""Tables larger than memory over restarts, checkpoints and several servers: the same rows, to the bit."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path
from resource import RLIMIT_FSIZE
from types import SimpleNamespace

import numpy as np
import pytest

from mpips import _native
from mpips.checkpoint import ManifestHead, open_checkpoint, write_checkpoint
from mpips.errors import CheckpointError, DiskFullError, RecoveryError, RegionError
from mpips.model import storage
from mpips.model.consistency import BSP
from mpips.model.optimizer import Adam
from mpips.model.storage import Storage
from mpips.model.table import EmbeddingTable
from mpips.recovery.restore import restore
from mpips.server.server import Server
from mpips.server.storage_files import remove_files
from mpips.snapshot.copy import ServerCopy, shards_in_place
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
        push(worker, w, clock)
    for worker in workers:
        worker.clock()


def push(worker, w: int, clock: int) -> None:
    rng = np.random.default_rng([clock, w])
    keys = np.unique((1000 * rng.random(60) ** 2).astype(np.int64) * 3 - 900)
    worker.table("e").pull(keys)
    worker.table("e").push(keys, rng.normal(size=(len(keys), 4)).astype(np.float32))


def go_on(launches: Launches) -> None:
    """Do what workers have not done yet, each from its own clock on."""
    begins = [place.clock for place in launches.places]
    for clock in range(min(begins), CLOCKS):
        here = [w for w, begin in enumerate(begins) if begin <= clock]
        for w in here:
            push(launches.workers[w], w, clock)
        for w in here:
            launches.workers[w].clock()


def replace_file(folder: Path, path: str, flags: int) -> None:
    """Let the server find another file behind the descriptor of its file of rows."""
    fds = Path("/proc/self/fd").iterdir()
    (number,) = (int(fd.name) for fd in fds if str(folder) in os.path.realpath(fd))
    other = os.open(path, flags)
    os.dup2(other, number, inheritable=False)
    os.close(other)


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
        assert len(list(tmp_path.iterdir())) == n_servers
        for server in launches.servers:
            server.remove_files()
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


FAILURES = {
    # At the addresses of this file nothing is mapped, and the kernel answers with EIO.
    "EIO": ("/proc/self/mem", os.O_RDWR, "cannot write the file of rows .*: Input/output error"),
    "full": (
        "/dev/full",
        os.O_RDWR,
        "cannot write the file of rows .* No space left on device; free",
    ),
    "unreadable": ("", os.O_WRONLY, "cannot read the file of rows .*: Bad file descriptor"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_disk_that_fails_is_named_and_nothing_is_lost(tmp_path, failure):
    path, flags, message = FAILURES[failure]
    launches = Launches(stored(tmp_path, 20), n_workers=2)
    try:
        for clock in range(6):
            step(launches.workers, clock)
        (own,) = tmp_path.iterdir()
        replace_file(tmp_path, path or str(own), flags)
        with pytest.raises(_native.StorageError, match=f"^table 'e': {message}") as error:
            step(launches.workers, 6)
        assert str(own) in str(error.value)
        assert isinstance(error.value, _native.StorageFull) == (failure == "full")
        del error
        launches.again()
        go_on(launches)
        assert rows_of(launches.servers[0].core) == straight()
    finally:
        launches.close()
        remove_files(launches.tables)


def test_a_disk_that_is_full_at_a_restart_keeps_the_memory_for_the_next_one(tmp_path):
    wide = replace(PLAIN, dim=500)
    table = replace(wide, storage=Storage(str(tmp_path), 20 * wide.row_bytes / 2**20))
    launches = Launches(table, n_workers=1, slot_bytes=1 << 14)
    old, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(RLIMIT_FSIZE)
    try:
        keys, ones = np.arange(1000), np.ones((1000, 500), np.float32)
        worker = launches.workers[0].table("e")
        worker.push(keys, ones)
        launches.workers[0].clock()
        while launches.drain():
            pass
        (path,) = tmp_path.iterdir()
        resource.setrlimit(RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
        worker.push(keys + 1000, ones)
        with pytest.raises(_native.StorageFull):
            launches.workers[0].clock()
        del worker
        with pytest.raises(DiskFullError, match=r"^server 0: table 'e': cannot enlarge the file"):
            launches.again().servers[0].drain()
        resource.setrlimit(RLIMIT_FSIZE, limits)
        launches.again().servers[0].drain()
        assert launches.servers[0].core.embedding_rows(0)[0].size == 2000
    finally:
        resource.setrlimit(RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
        launches.close()
        remove_files(launches.tables)


def test_an_operation_that_finds_a_full_disk_at_a_restart_gives_up_no_memory():
    # A RegionError would let the launch start from a checkpoint.
    def finish() -> None:
        raise _native.StorageFull("table 'e': it is full")

    core = SimpleNamespace(old_staging=list, finish_operation=finish)
    server = SimpleNamespace(core=core, index=3)
    server._named = lambda error: Server._named(server, error)
    with pytest.raises(DiskFullError, match=r"^server 3: table 'e': it is full"):
        Server.finish_recovery(server, None)


def test_a_cut_whose_rows_cannot_be_read_is_no_checkpoint(tmp_path):
    rig = Rig(stored(tmp_path, 30), n_workers=2, n_slots=16)
    workers = [rig.worker(w) for w in range(2)]
    for clock in range(4):
        step(workers, clock)
    (shard,) = ServerCopy(rig.server, rig.placement, rig.tables).copy()
    replace_file(tmp_path, "/proc/self/mem", os.O_RDWR)
    message = r"table 'e': cannot read the file of rows .*: Input/output error"
    with pytest.raises(CheckpointError, match=message):
        shard.values[np.arange(len(shard.keys))]


def test_a_second_process_cannot_use_the_file_and_a_forked_child_does_not_keep_it(tmp_path):
    launches = Launches(stored(tmp_path, 20), n_workers=2)
    table = launches.tables
    step(launches.workers, 0)
    (path,) = tmp_path.iterdir()
    reader, writer = os.pipe()
    is_ready, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.write(ready, b"!")
        os.read(reader, 1)
        os._exit(0)
    try:
        # The child lets go of the file within fork, so until it runs it has the lock.
        os.read(is_ready, 1)
        # Its memory may be in another container: the lock alone protects the file.
        unlink_job(launches.token)
        remove_files(table)
        assert path.exists()
        launches.close()
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_files(table)
            assert path.exists()
        remove_files(table)
        assert not path.exists()
    finally:
        os.write(writer, b"!")
        os.waitpid(child, 0)
        for end in (reader, writer, is_ready, ready):
            os.close(end)
        launches.close()


def test_a_start_on_a_file_in_use_is_refused(tmp_path):
    launches = Launches(stored(tmp_path, 20), n_workers=2)
    try:
        step(launches.workers, 0)
        (path,) = tmp_path.iterdir()
        with path.open("rb") as file:
            launches.servers = launches.workers = launches.channels = launches.regions = None
            gc.collect()
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(
                RegionError, match=r"table 'e': the file of rows .* is used by another"
            ):
                launches.again()
        step(launches.again().workers, 1)
    finally:
        launches.close()
        remove_files(launches.tables)


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
