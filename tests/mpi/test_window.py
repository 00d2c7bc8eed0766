"""The window between nodes: reads as gets or as requests, and the try that decides between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from playing import SIZE, Session, counts, workers_with

from mpips import BSP, SGD, DenseTable, EmbeddingTable, Worker
from mpips.session import links
from mpips.transport.rma import gets_need_target, make_window

N = 200_000  # values of a table, of several gets
KEYS = np.arange(3000)
LONG = 16 << 10  # bytes

pytestmark = pytest.mark.skipif(SIZE < 2, reason="a server and a worker")


class Counted:
    """A window that counts its long gets."""

    def __init__(self, window: Any) -> None:
        self._window = window
        self.n_long = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._window, name)

    def Get(self, origin: Any, rank: int, target: Any) -> None:
        self.n_long += target[1] > LONG
        self._window.Get(origin, rank, target=target)


@pytest.mark.parametrize("asks", [False, True], ids=["gets", "requests"])
def test_long_reads_are_requests_where_gets_need_the_server(
    session: Session, servers: int, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_workers, windows, make = workers_with(servers), [], links.make_window

    def counted(comm: Any, memory: Any) -> Any:
        windows.append(Counted(make(comm, memory)))
        return windows[-1]

    monkeypatch.setattr(links, "make_window", counted)
    monkeypatch.setattr(links, "gets_need_target", lambda *_: asks)

    def main(worker: Worker) -> tuple[bytes, bytes]:
        dense, rows = worker.table("dense"), worker.table("rows")
        for clock in range(3):
            dense.push(counts(worker.index, clock, N))
            rows.push(KEYS, counts(worker.index, 10 + clock, (len(KEYS), 16)))
            worker.clock()
            found = dense.pull().tobytes(), rows.pull(KEYS).tobytes()
        return found

    summed = BSP(reduce="sum")
    played = session(
        main,
        [
            DenseTable("dense", (N,), SGD(1.0), summed),
            EmbeddingTable("rows", 16, SGD(1.0), summed, init="zeros"),
        ],
        servers=servers,
        transport="rma",
    )
    workers = range(n_workers)
    dense = 0 - sum(counts(w, clock, N) for w in workers for clock in range(3))
    rows = 0 - sum(counts(w, 10 + c, (len(KEYS), 16)) for w in workers for c in range(3))
    expected = dense.tobytes(), rows.tobytes()
    assert all(found == expected for found in played.values or ())
    if "worker" in played.roles[MPI.COMM_WORLD.rank]:
        assert (windows[0].n_long == 0) is asks


def test_all_ranks_find_the_same_about_the_window(comm: MPI.Intracomm) -> None:
    window = make_window(comm, np.zeros(64, np.uint8) if comm.rank == 0 else None)
    assert window is not None
    try:
        found = comm.allgather(gets_need_target(comm, window, 1, 0))
    finally:
        window.Unlock_all()
        window.Free()
    assert len(set(found)) == 1
