"""Replicated tables: the bits of the same tables on servers, on every transport, and in checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from playing import SIZE, Session, noise, workers_with

import mpips
from mpips import BSP, Adam, DenseTable, Replicated, Worker
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.errors import RegionError
from mpips.worker.replicated import start as replicated

if TYPE_CHECKING:
    from mpi4py import MPI

RULE = Adam(0.01)
SHAPES = {"weight": (70, 130), "bias": (130,), "one": (1,)}
CLOCKS = 12
SERVERS = 2 if SIZE > 3 else 1
SERVED, COPIED = "served-", "copied-"  # prefixes of tables on servers, and of replicated ones


def both(*, swapped: bool = False, check_every: int = 0) -> list[DenseTable]:
    """Each table twice, on servers and replicated; `swapped`: the other way round."""
    kept: list[Any] = ["servers", Replicated(check_every)]
    if swapped:
        kept.reverse()
    return [
        DenseTable(
            prefix + name,
            shape,
            optimizer=RULE,
            init=noise(99, 0, int(np.prod(shape))).reshape(shape),
            placement=where,
        )
        for prefix, where in zip((SERVED, COPIED), kept, strict=True)
        for name, shape in SHAPES.items()
    ]


def step(worker: Worker, clock: int) -> None:
    """One clock: each table gets none, one or several pushes; the rate changes."""
    for k, (name, shape) in enumerate(SHAPES.items()):
        handles = [worker.table(prefix + name) for prefix in (SERVED, COPIED)]
        if clock % 4 == 2:
            for handle in handles:
                handle.set_optimizer(replace(RULE, lr=RULE.lr / clock))
        n_pushes = (clock + worker.index + k) % 4
        for i in range(n_pushes):
            update = noise(worker.index, 10 * clock + i, int(np.prod(shape))).reshape(shape)
            for handle in handles:
                handle.push(update, closes=i == n_pushes - 1 and clock % 2 == 0)
    worker.clock()


def differences(worker: Worker) -> list[str]:
    """Return the tables whose two copies differ for this worker."""
    pulled = [[worker.table(p + name).pull() for p in (SERVED, COPIED)] for name in SHAPES]
    return [name for name, (a, b) in zip(SHAPES, pulled, strict=True) if a.tobytes() != b.tobytes()]


def test_replicated_tables_have_the_bits_of_tables_on_servers(
    session: Session, transport: str
) -> None:
    servers = SERVERS

    def main(worker: Worker) -> list[Any]:
        found: list[Any] = []
        # Workers end at different clocks.
        for clock in range(CLOCKS - 2 * worker.index):
            step(worker, clock)
            if clock % 3:
                found += differences(worker)
        found += differences(worker)
        return found

    tables = both(check_every=3)
    played = session(main, tables, servers=servers, transport=transport, staging_mib=1)
    assert played.values == [[]] * workers_with(servers)
    n_pushes = sum(
        (clock + w + k) % 4
        for w in range(workers_with(servers))
        for clock in range(CLOCKS - 2 * w)
        for k in range(len(SHAPES))
    )
    copied = sum(played.server_total(COPIED + name, "pushed") for name in SHAPES)
    assert (played.worker_total("pushed"), copied) >= (2 * n_pushes, 0)


@pytest.mark.mpi(min_size=5)
def test_a_worker_that_cannot_share_memory_is_a_node_of_its_own(
    session: Session, comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attach(token: str, part: str, writable: int) -> Any:
        if comm.rank == comm.size - 1:
            raise RegionError("a /dev/shm of its own")
        return shared(token, part, writable)

    shared = replicated.attach
    monkeypatch.setattr(replicated, "attach", attach)

    def main(worker: Worker) -> list[Any]:
        for clock in range(CLOCKS - worker.index):
            step(worker, clock)
        return differences(worker)

    played = session(main, both(check_every=2), servers=1)
    assert played.values == [[]] * workers_with(1)


@pytest.mark.mpi(min_size=4)
def test_copies_are_compared_beside_pulls_behind_pushes_of_rows(session: Session) -> None:
    """A server takes rows of worker 1 after the tick of worker 0, which then waits for no other worker."""

    def main(worker: Worker) -> float:
        dense, pushed, pulled = (worker.table(name) for name in "dab")
        for clock in range(CLOCKS):
            dense.push(np.ones(8, np.float32))
            pushed.push(np.arange(5), np.ones((5, 2), np.float32))
            assert (pulled.pull(np.arange(5)) == 0).all(), clock
            worker.clock()
        return float(dense.pull()[0] + pushed.pull(np.arange(5)).sum())

    rule = mpips.SGD(1.0)
    tables = [
        DenseTable("d", (8,), rule, init="zeros", placement=Replicated(check_every=3)),
        mpips.EmbeddingTable("a", 2, rule, init="zeros"),
        mpips.EmbeddingTable("b", 2, rule, init="zeros"),
    ]
    played = session(main, tables, servers=1, transport="p2p", timeout_s=20.0)
    assert played.values == [-11.0 * CLOCKS] * workers_with(1)


def assert_equal_copies(paths: Sequence[Path]) -> None:
    for path in paths:
        with open_checkpoint(path) as checkpoint:
            for name, shape in SHAPES.items():
                n = int(np.prod(shape))
                (a, sa), (b, sb) = (checkpoint.read_dense(p + name, 0, n) for p in (SERVED, COPIED))
                assert a.tobytes() == b.tobytes(), (path, name)
                assert {k: v.tobytes() for k, v in sa.items()} == {
                    k: v.tobytes() for k, v in sb.items()
                }
                entries = [checkpoint.manifest.table(p + name) for p in (SERVED, COPIED)]
                assert entries[0].version == entries[1].version


def test_checkpoints_have_the_version_of_their_cut_and_jobs_continue_from_them(
    session: Session, folder: Path, comm: MPI.Intracomm
) -> None:
    servers = SERVERS

    def main(worker: Worker) -> list[str]:
        first = worker.start.step if worker.start is not None else 0
        for clock in range(first, first + CLOCKS - worker.index):
            worker.set_cursor({"clock": clock})
            step(worker, clock)
        return differences(worker)

    options: Any = {"servers": servers, "save": folder, "every_steps": 5}
    played = session(main, both(), **options)
    assert played.values == [[]] * workers_with(servers)
    # Tables that were on servers are replicated now, and the other way round.
    played = session(main, both(swapped=True), **options)
    assert played.values == [[]] * workers_with(servers)
    comm.Barrier()
    if comm.rank == 0:
        found = list_checkpoints(folder)
        assert [entry.step for entry in found][-1] == 2 * CLOCKS
        assert_equal_copies([entry.path for entry in found])


def test_sums_are_not_divided_with_reduce_sum(session: Session) -> None:
    def main(worker: Worker) -> float:
        table = worker.table("w")
        table.push(np.ones(3, np.float32))
        worker.clock()
        return float(table.pull()[0])

    tables = [DenseTable("w", (3,), "sgd", consistency=BSP("sum"), placement="replicated")]
    played = session(main, tables, servers=1)
    n = workers_with(1)
    assert played.values == [float(np.float32(-0.01) * np.float32(n))] * n
