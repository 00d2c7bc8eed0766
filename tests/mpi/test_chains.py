"""Chains that several servers write, with MPI-IO and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from chains import TABLES, History, check
from mpi4py import MPI

from mpips.checkpoint import changes, open_checkpoint
from mpips.checkpoint.structure import hdf5_kind

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
    # One server cannot continue the chain, as after a table has outgrown the memory of its copy.
    last = comm.rank == comm.size - 1
    info = history.write(folder, comm, whole=last)
    assert info.place is not None
    assert info.place.index == 0
    with open_checkpoint(info.path) as checkpoint:
        check(checkpoint, history.written[-1][0], (10**6,))
