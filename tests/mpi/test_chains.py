"""Chains of checkpoints that several servers write, with MPI-IO and without."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chains import TABLES, History, check
from mpi4py import MPI

from mpips.checkpoint import changes, list_checkpoints, open_checkpoint, sinks, writer
from mpips.checkpoint.structure import hdf5_kind
from mpips.errors import DiskFullError, StallError

SOME = [TABLES[0], TABLES[2]]


@pytest.mark.parametrize("parallel", [True, False])
def test_servers_write_chains_together(
    comm: MPI.Intracomm, folder: Path, parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parallel and (comm.size == 1 or hdf5_kind() != "parallel"):
        pytest.skip("needs several servers, and h5py with MPI")
    monkeypatch.setattr(changes, "MOST_CHANGED", 10)
    history = History(comm.size, SOME)
    options = {"parallel": parallel, "block_bytes": 6000}
    history.write(folder, comm, **options)
    for _ in range(2):
        history.evolve()
        history.write(folder, comm, **options)
    places = [info.place for _, info in history.written]
    assert [place.index for place in places if place is not None] == [0, 1, 2]
    assert comm.allgather(places) == [places] * comm.size
    if comm.rank == 0:
        for columns, info in history.written:
            with open_checkpoint(info.path) as checkpoint:
                assert checkpoint.damage() == []
                check(checkpoint, columns)


def test_servers_whose_places_differ_write_whole_tables(comm: MPI.Intracomm, folder: Path) -> None:
    history = History(1, SOME)
    history.write(folder, comm)
    history.evolve()
    # One server has no increment, as after a table has outgrown the memory of its copy.
    last = comm.rank == comm.size - 1
    info = history.write(folder, comm, whole=last)
    assert info.place is not None
    assert info.place.index == 0
    with open_checkpoint(info.path) as checkpoint:
        check(checkpoint, history.written[-1][0], (10**6,))


def a_chain_of_two(comm: MPI.Intracomm, folder: Path, **options: Any) -> History:
    """Write a base and a link, and change the tables again."""
    history = History(comm.size, SOME)
    for _ in range(2):
        history.write(folder, comm, **options)
        history.evolve()
    return history


def check_all(comm: MPI.Intracomm, folder: Path, history: History) -> None:
    """Check that the folder has the checkpoints of a history, and nothing of those that failed."""
    comm.Barrier()
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".writing")) == []
    paths = [info.path for _, info in history.written]
    assert [entry.path for entry in list_checkpoints(folder)] == paths
    for columns, info in history.written:
        with open_checkpoint(info.path) as checkpoint:
            assert checkpoint.damage() == []
            check(checkpoint, columns, (10**6,))


def full(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("parallel", [True, False])
def test_a_disk_that_is_full_for_one_server_leaves_the_chain_as_it_was(
    comm: MPI.Intracomm, folder: Path, parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parallel and (comm.size == 1 or hdf5_kind() != "parallel"):
        pytest.skip("needs several servers, and h5py with MPI")
    options = {"parallel": parallel, "block_bytes": 6000}
    history = a_chain_of_two(comm, folder, **options)
    # Every server has a part of a table in which much has changed.
    history.evolve(0.3)
    with monkeypatch.context() as patch:
        if comm.rank == comm.size - 1:
            patch.setattr(sinks, "write_units", full)
            patch.setattr(sinks.Flusher, "write", full)
        with pytest.raises(DiskFullError, match=os.strerror(errno.ENOSPC)):
            history.write(folder, comm, **options)
    check_all(comm, folder, history)
    # Servers have compared with a copy that is in no checkpoint, so they write whole tables.
    history.write(folder, comm, whole=True, **options)
    history.evolve()
    history.write(folder, comm, **options)
    places = [info.place.index for _, info in history.written if info.place is not None]
    assert places == [0, 1, 0, 1]
    check_all(comm, folder, history)


class KilledError(BaseException):
    """The end of a server's part, in place of the end of its process."""


@pytest.mark.parametrize("point", [1, 4])
def test_a_server_that_ends_while_a_link_is_written_leaves_the_chain_as_it_was(
    comm: MPI.Intracomm, folder: Path, point: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size == 1:
        pytest.skip("needs several servers")
    options = {"parallel": False, "block_bytes": 6000}
    history = a_chain_of_two(comm, folder, **options)
    passed = np.zeros(1, int)

    def killed(name: str) -> None:
        passed[0] += name == "block-written"
        if passed[0] == point:
            raise KilledError

    is_killed = comm.rank == comm.size - 1
    # The communicator of the failed attempt is not used again, as in a new launch.
    with monkeypatch.context() as patch:
        if is_killed:
            patch.setattr(writer._native, "fault_point", killed)
        with pytest.raises(KilledError if is_killed else StallError):
            history.write(folder, comm.Dup(), timeout_s=1.0, **options)
    check_all(comm, folder, history)
    history.write(folder, comm, whole=True, **options)
    check_all(comm, folder, history)
