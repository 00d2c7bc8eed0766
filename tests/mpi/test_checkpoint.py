"""Checkpoints by several servers: the same file as by one, the same error on all, readable by any number."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from checkpoints import Contents, flip, names
from long_runs import by_day
from playing import SIZE

import mpips
from mpips.checkpoint import CheckpointWriter, find_newest, open_checkpoint
from mpips.checkpoint import folder as folder_module
from mpips.checkpoint import sinks as sinks_module
from mpips.checkpoint import writer as writer_module
from mpips.checkpoint.manifest import STATE
from mpips.checkpoint.steps import Peers
from mpips.checkpoint.structure import load_writer
from mpips.checkpoint.writer import SWITCH

if TYPE_CHECKING:
    from mpi4py import MPI

PARALLEL = load_writer().get_config().mpi
modes = pytest.mark.parametrize(
    "parallel",
    [
        pytest.param(True, marks=pytest.mark.skipif(not PARALLEL, reason="h5py knows no MPI")),
        False,
    ],
    ids=["mpio", "posix"],
)


def assert_same_as_one_server(comm: MPI.Intracomm, contents: Contents, path: Path) -> None:
    """The HDF5 file has the bytes that a single server would have written. Collective."""
    same = True
    if comm.rank == 0:
        with tempfile.TemporaryDirectory() as other:
            alone = contents.write(Path(other)).path
            same = (alone / STATE).read_bytes() == (path / STATE).read_bytes()
    assert comm.bcast(same)


@pytest.mark.two_ranks
@modes
@pytest.mark.parametrize(
    "block_bytes", [64, pytest.param(1000, marks=pytest.mark.on_disk), 8 << 20]
)
def test_any_number_of_servers_writes_the_same_file(
    comm: MPI.Intracomm, folder: Path, parallel: bool, block_bytes: int
) -> None:
    contents = Contents()
    info = contents.write(folder, comm=comm, parallel=parallel, block_bytes=block_bytes)
    assert info.notes == ()
    with open_checkpoint(info.path) as checkpoint:
        checkpoint.verify()
        manifest = checkpoint.manifest
    assert [s.applied for s in manifest.servers] == [(10 + s, 20 + s) for s in range(SIZE)]
    assert sum(shard.rows for shard in manifest.table("users").shards) == 105
    assert [s.server for s in manifest.table("weight").shards] == list(range(SIZE))
    assert_same_as_one_server(comm, contents, info.path)


def ask_for_no_mpi_io(patch: pytest.MonkeyPatch) -> None:
    patch.setenv(SWITCH, "0")


def have_a_wheel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writer_module, "hdf5_kind", lambda: "serial")


def have_no_h5py(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writer_module, "hdf5_kind", lambda: "none")


@pytest.mark.two_ranks
@pytest.mark.skipif(SIZE == 1, reason="needs two servers")
@pytest.mark.parametrize("lack", [ask_for_no_mpi_io, have_a_wheel, have_no_h5py])
def test_one_server_without_mpi_io_lets_all_write_by_system_calls(
    comm: MPI.Intracomm,
    folder: Path,
    lack: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if comm.rank == SIZE - 1:
        lack(monkeypatch)
    monkeypatch.setattr(writer_module, "ParallelSink", io_error)
    contents = Contents()
    info = contents.write(folder, comm=comm, block_bytes=1000)
    assert info.notes == ()
    assert_same_as_one_server(comm, contents, info.path)
    told = everyone_is_told(comm, lambda: contents.write(folder, comm=comm, parallel=True))
    # The environment chooses only where the caller does not.
    wanted = PARALLEL and lack is ask_for_no_mpi_io
    assert ("Input/output error" if wanted else "parallel writing needs h5py with MPI") in told


@pytest.mark.two_ranks
@modes
def test_server_0_opens_the_file_again_only_when_all_servers_have_closed_it(
    comm: MPI.Intracomm, folder: Path, parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS a client sees the data of others only if it opens the file after they have closed it."""
    check, close = writer_module.check_file, sinks_module.Flusher.close
    seen: list[list[str]] = []

    def note_and_close(flusher: sinks_module.Flusher) -> None:
        # Be as late as a server whose disk is slow; server 0 would be done long before.
        time.sleep(0.1 if comm.rank else 0.0)
        close(flusher)
        (folder / f"closed-{comm.rank}").touch()

    def look_and_check(*arguments: Any) -> None:
        seen.append(sorted(path.name for path in folder.glob("closed-*")))
        check(*arguments)

    monkeypatch.setattr(sinks_module.Flusher, "close", note_and_close)
    monkeypatch.setattr(writer_module, "check_file", look_and_check)
    Contents().write(folder, comm=comm, parallel=parallel)
    assert seen == ([[f"closed-{rank}" for rank in range(SIZE)]] if comm.rank == 0 else [])


def spread(seed: int) -> dict[str, Any]:
    """Return keys of three kinds: dense from 0, a few far apart, all of 64 bits."""
    random = np.random.default_rng(seed)
    return {
        "users": range(random.integers(0, 300)),
        "linear": random.integers(-(2**63), 2**63 - 1, random.integers(0, 500)).tolist(),
        "empty": [2**63 - 1, -(2**63), 0][: random.integers(0, 4)],
    }


@pytest.mark.sampled
@pytest.mark.parametrize("seed", by_day(range(12), 4))
def test_rows_of_any_keys_come_out_sorted(comm: MPI.Intracomm, folder: Path, seed: int) -> None:
    contents = Contents(seed=seed, keys=spread(seed))
    info = contents.write(folder, comm=comm, block_bytes=[40, 512, 4096][seed % 3])
    assert_same_as_one_server(comm, contents, info.path)


@pytest.mark.two_ranks
@pytest.mark.parametrize("server", sorted({0, SIZE - 1}))
def test_one_server_may_hold_all_rows(comm: MPI.Intracomm, folder: Path, server: int) -> None:
    contents = Contents([mpips.EmbeddingTable("e", 2, mpips.Adam())], 0, {"e": range(-50, 500)})
    shards = contents.shards(0, 1) if comm.rank == server else []
    writer = CheckpointWriter(comm, folder, contents.head(), shards, block_bytes=300)
    for _ in writer.steps():
        pass
    assert_same_as_one_server(comm, contents, writer.info.path)


@pytest.mark.parametrize("readers", [1, 2, 3, 5])
def test_a_restore_onto_any_number_loses_no_row(
    comm: MPI.Intracomm, folder: Path, readers: int
) -> None:
    contents = Contents()
    contents.write(folder, comm=comm)
    found = find_newest(folder, comm)
    assert found.checkpoint is not None
    partitioner = mpips.HashPartition().partitioner(readers)
    # Let each rank act as every SIZE-th of the new servers.
    mine = []
    for server in range(comm.rank, readers, SIZE):
        for block in found.checkpoint.iter_rows("users", partitioner, server, 10):
            assert (partitioner.owners(block.keys) == server).all()
            mine.append(block.arrays)
    everyone = [block for blocks in comm.allgather(mine) for block in blocks]
    expected = contents.columns["users"]
    keys = np.concatenate([block["keys"] for block in everyone])
    order = np.argsort(keys)
    for role, column in expected.items():
        got = np.concatenate([block[role] for block in everyone])
        assert np.array_equal(got[order], column)
    n = len(contents.columns["weight"]["values"])
    cut = [n * s // readers for s in range(readers + 1)]
    for server in range(readers):
        values, state = found.checkpoint.read_dense("weight", cut[server], cut[server + 1])
        part = slice(cut[server], cut[server + 1])
        assert np.array_equal(values, contents.columns["weight"]["values"][part])
        assert np.array_equal(state["v"], contents.columns["weight"]["state/v"][part])
    found.checkpoint.close()


def test_readers_agree_on_what_is_damaged(comm: MPI.Intracomm, folder: Path) -> None:
    Contents(seed=1).write(folder, 100, comm=comm)
    path = Contents(seed=2).write(folder, 200, comm=comm).path
    if comm.rank == 0:
        with open_checkpoint(path) as checkpoint:
            flip(path / STATE, checkpoint.manifest.table("linear").dataset("state/n").offset)
    comm.Barrier()
    found = find_newest(folder, comm)
    assert found.checkpoint is not None
    assert found.checkpoint.manifest.step == 100
    (refusal,) = found.refused
    assert "state/n of table 'linear', rows 0 to " in refusal.reason
    assert len(set(comm.allgather(refusal.reason))) == 1
    found.checkpoint.close()


# Failures.


def everyone_is_told(comm: MPI.Intracomm, work: Callable[[], object]) -> str:
    """Return the error that all ranks get; it must be the same on all. Collective."""
    try:
        work()
        text = ""
    except mpips.CheckpointError as error:
        text = str(error)
    told = comm.allgather(text)
    assert len(set(told)) == 1, told
    assert "\n" not in told[0]
    return told[0]


def io_error(*arguments: Any, **options: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


def break_writing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sinks_module, "write_units", io_error)
    patch.setattr(sinks_module.Flusher, "write", io_error)


def break_opening(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sinks_module.Flusher, "__init__", io_error)


def break_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sinks_module.os, "fsync", io_error)


def break_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sinks_module, "_FLUSH_BYTES", 1)
    patch.setattr(sinks_module.os, "fdatasync", io_error)


def break_folder(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folder_module, "make_temporary", io_error)


def break_publishing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(folder_module, "publish", io_error)


def break_manifest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("mpips.checkpoint.writer.write_manifest", io_error)


@pytest.mark.two_ranks
@modes
@pytest.mark.parametrize("server", sorted({0, SIZE - 1}))
@pytest.mark.parametrize(
    "harm",
    [
        break_opening,
        break_writing,
        pytest.param(break_sync, marks=pytest.mark.on_disk),
        break_flush,
        break_folder,
        break_manifest,
        break_publishing,
    ],
    ids=lambda harm: harm.__name__,
)
def test_a_failure_of_one_server_is_one_error_on_all(
    comm: MPI.Intracomm,
    folder: Path,
    parallel: bool,
    server: int,
    harm: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Contents(seed=1).write(folder, 100, comm=comm)
    with monkeypatch.context() as patch:
        if comm.rank == server:
            harm(patch)
        told = everyone_is_told(
            comm,
            lambda: Contents(seed=2).write(
                folder, 200, comm=comm, parallel=parallel, block_bytes=500
            ),
        )
    # Some calls are made on server 0 only.
    only_first = harm in (break_folder, break_manifest, break_publishing)
    if server == 0 or not only_first:
        assert "step 200 was not written" in told
        assert "Input/output error" in told
        assert f"server {server}: " in told or SIZE == 1
        assert names(folder) == ["step-000000000100"]
        told = everyone_is_told(comm, lambda: Contents(seed=3).write(folder, 300, comm=comm))
    assert told == ""
    found = find_newest(folder, comm)
    assert found.checkpoint is not None
    found.checkpoint.close()


@pytest.mark.on_disk
@pytest.mark.skipif(not PARALLEL or SIZE == 1, reason="needs two servers and h5py with MPI")
@pytest.mark.parametrize("server", sorted({0, SIZE - 1}))
def test_a_write_that_the_system_refuses_below_mpi_io(
    comm: MPI.Intracomm, folder: Path, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real error inside HDF5: the file may not grow beyond a limit on one server."""
    Contents(seed=1).write(folder, 100, comm=comm)
    large = Contents([mpips.DenseTable("w", (1 << 18,)), mpips.DenseTable("v", (1 << 18,))])
    write = sinks_module.write_units

    def limited(*arguments: Any) -> None:
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, old[1]))
        try:
            write(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)

    with monkeypatch.context() as patch:
        if comm.rank == server:
            patch.setattr(sinks_module, "write_units", limited)
        told = everyone_is_told(
            comm, lambda: large.write(folder, 200, comm=comm, block_bytes=100_000)
        )
    assert f"step 200 was not written to {folder}: server {server}: " in told
    comm.Barrier()
    assert names(folder) == ["step-000000000100"]
    assert everyone_is_told(comm, lambda: large.write(folder, 300, comm=comm)) == ""
    found = find_newest(folder, comm)
    assert found.checkpoint is not None
    assert found.checkpoint.manifest.step == 300
    found.checkpoint.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
@modes
def test_a_full_disk_is_named_on_all_servers(
    comm: MPI.Intracomm, folder: Path, parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    failed = subprocess.run(mount, capture_output=True).returncode if comm.rank == 0 else 0
    if comm.bcast(failed):
        pytest.skip("this container may not mount")
    try:
        Contents(seed=1).write(folder, 100, comm=comm)
        large = Contents([mpips.DenseTable("w", (1 << 19,))])
        told = everyone_is_told(comm, lambda: large.write(folder, 200, comm=comm))
        assert "2,097,152 bytes are needed" in told
        # Skip the early check, as if another program had filled the disk since.
        monkeypatch.setattr(CheckpointWriter, "_check_space", lambda self, n_bytes: None)
        for block_bytes in (4096, 100_000, 8 << 20):
            told = everyone_is_told(
                comm,
                lambda size=block_bytes: large.write(
                    folder, 200, comm=comm, parallel=parallel, block_bytes=size
                ),
            )
            assert "No space left on device" in told
            assert names(folder) == ["step-000000000100"]
            comm.Barrier()
        assert find_newest(folder, comm).checkpoint is not None
    finally:
        comm.Barrier()
        if comm.rank == 0:
            subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(SIZE == 1, reason="needs two servers")
@modes
def test_a_key_that_two_servers_hold(comm: MPI.Intracomm, folder: Path, parallel: bool) -> None:
    contents = Contents([mpips.EmbeddingTable("e", 1)], 0, {"e": range(100)})
    shards = contents.shards(0, 1) if comm.rank in (0, SIZE - 1) else []
    writer = CheckpointWriter(
        comm, folder, contents.head(), shards, parallel=parallel, block_bytes=60
    )
    told = everyone_is_told(comm, lambda: [*writer.steps()])
    assert "table 'e': key " in told
    assert "occurs twice" in told
    assert names(folder) == []


@pytest.mark.skipif(SIZE == 1, reason="needs two servers")
def test_servers_of_different_launches(comm: MPI.Intracomm, folder: Path) -> None:
    told = everyone_is_told(
        comm, lambda: Contents().write(folder, 100, generation=comm.rank, comm=comm)
    )
    assert "servers do not write the same checkpoint" in told


@pytest.mark.skipif(SIZE == 1, reason="needs two servers")
def test_a_gap_between_servers(comm: MPI.Intracomm, folder: Path) -> None:
    contents = Contents([mpips.DenseTable("w", (100,))])
    shards = contents.shards(comm.rank, SIZE) if comm.rank else []
    writer = CheckpointWriter(comm, folder, contents.head(), shards)
    told = everyone_is_told(comm, lambda: [*writer.steps()])
    assert "elements 0 to " in told
    assert "are missing" in told


def test_a_server_goes_on_with_other_work_between_steps(comm: MPI.Intracomm, folder: Path) -> None:
    """Servers at different paces: none waits inside a step for work of another between steps."""
    contents = Contents()
    writer = CheckpointWriter(
        comm, folder, contents.head(), contents.shards(comm.rank, SIZE), block_bytes=300
    )
    served = 0
    for _ in writer.steps():
        # Let the last server do much work between its steps.
        for _ in range(100 if comm.rank == SIZE - 1 else 1):
            served += 1
    assert served > 20
    assert_same_as_one_server(comm, contents, writer.info.path)


@pytest.mark.skipif(SIZE == 1, reason="needs two servers")
def test_no_server_ever_holds_more_than_a_block_of_foreign_rows(
    comm: MPI.Intracomm, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    redistribute = Peers.redistribute

    def count(self: Peers, data: np.ndarray, *counts: Any) -> Any:
        result = yield from redistribute(self, data, *counts)
        received.append(result.nbytes if data.ndim > 1 else 0)
        return result

    monkeypatch.setattr(Peers, "redistribute", count)
    contents = Contents([mpips.EmbeddingTable("e", 16)], 0, {"e": range(-5000, 5000)})
    block_bytes = 10_000
    info = contents.write(folder, comm=comm, block_bytes=block_bytes)
    assert 0 < max(received) <= block_bytes
    assert sum(received) == pytest.approx(10_000 * 64 / SIZE, rel=0.01)
    assert_same_as_one_server(comm, contents, info.path)
