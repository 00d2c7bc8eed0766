"""Collective operations of workers over MPI: pieces, order, late workers, and cuts while a worker waits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from playing import SIZE, Session, workers_with

from mpips import ASP, SGD, DenseTable, Worker
from mpips.mpi.mail import Mail
from mpips.mpi.tree import WorkerTree, neighbours_of, parent_of

TABLES = [DenseTable("w", (3,), SGD(1.0), ASP())]


def tree_of(comm: Any, piece_bytes: int = 1 << 10, timeout_s: float = 60.0) -> WorkerTree:
    """Return the tree over all ranks, whose workers are numbered against the order of ranks."""
    index = SIZE - 1 - comm.Get_rank()
    ranks = {w: SIZE - 1 - w for w in neighbours_of(index, SIZE)}
    names = [f"worker {w}" for w in range(SIZE)]
    return WorkerTree(
        Mail(comm, ranks, piece_bytes), index, names, timeout_s, lambda: f"reading file {index}"
    )


def index_of(comm: Any) -> int:
    return SIZE - 1 - int(comm.Get_rank())


def joined(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.concatenate([low, high])


def finish(comm: Any, tree: WorkerTree, done: Any) -> None:
    """Poll until this rank is done and all others are: they may need messages through this one."""
    request = None
    while request is None or not request.Test():
        tree.poll()
        if request is None and done() and tree.idle:
            request = comm.Ibarrier()
    tree.poll()


@pytest.mark.parametrize("n_bytes", [0, 1, 2048, 2049, 100_000, 3_000_000])
@pytest.mark.parametrize("everyone", [True, False])
def test_values_of_any_size_are_merged_in_order(
    comm: Any, parallel_assert: Any, n_bytes: int, everyone: bool
) -> None:
    index, tree = index_of(comm), tree_of(comm, piece_bytes=65_536)
    own = np.random.default_rng(index).integers(0, 256, n_bytes, np.uint8)
    operations = [tree.reduce(f"join {i}", own, joined, everyone) for i in range(3)]
    finish(comm, tree, lambda: all(operation.done for operation in operations))
    expected = np.concatenate(
        [np.random.default_rng(w).integers(0, 256, n_bytes, np.uint8) for w in range(SIZE)]
    )
    right = [np.array_equal(operation.result, expected) for operation in operations]
    parallel_assert(comm, all(right) or not (everyone or index == 0))


def test_values_above_the_limit_of_one_message_are_sent_in_pieces(
    comm: Any, parallel_assert: Any
) -> None:
    sizes: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(comm, name)

        def Isend(self, buf: Any, dest: int, tag: int) -> Any:
            sizes.append(len(buf))
            return comm.Isend(buf, dest, tag)

    index = index_of(comm)
    tree = tree_of(Counting(), piece_bytes=1000)
    own = np.zeros(5001 if index == SIZE - 1 else 0, np.uint8)
    operation = tree.reduce("join", own, joined, everyone=False)
    finish(comm, tree, lambda: operation.done)
    path = [SIZE - 1]
    while path[-1]:
        path.append(parent_of(path[-1]))
    sends_pieces = index in path and index != 0
    parallel_assert(comm, sizes.count(1000) == 5 * sends_pieces, str(sizes))
    parallel_assert(comm, sizes.count(1) == sends_pieces, str(sizes))
    parallel_assert(comm, index != 0 or len(operation.result) == 5001)


@pytest.mark.two_ranks
@pytest.mark.mpi(min_size=2)
def test_partners_exchange_values(comm: Any, parallel_assert: Any) -> None:
    index, tree = index_of(comm), tree_of(comm)
    found = []
    for bit in range((SIZE - 1).bit_length()):
        partner = index ^ (1 << bit)
        own = np.full(40_000 + index, index, np.uint8)
        found.append(tree.swap(f"step {bit}", own, partner if partner < SIZE else index))
    finish(comm, tree, lambda: all(operation.done for operation in found))
    partners = [index ^ (1 << bit) for bit in range((SIZE - 1).bit_length())]
    values = [set(operation.result.tolist()) for operation in found]
    parallel_assert(comm, values == [{p} if p < SIZE else set() for p in partners], str(values))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("late", range(SIZE))
def test_every_rank_that_waits_knows_the_late_one(
    comm: Any, parallel_assert: Any, late: int
) -> None:
    index, tree = index_of(comm), tree_of(comm, timeout_s=1.0)
    expected = [(late, f"reading file {late}")]
    request: Any = None
    operation = None
    if index == late:
        request = comm.Ibarrier()
    else:
        operation, tree.waits = tree.reduce("x", np.zeros(0, np.uint8), joined, True), True
    end = time.monotonic() + 20
    # The late rank comes when all others know it.
    while request is None or not request.Test():
        tree.poll()
        if request is None and (tree.late() == expected or time.monotonic() > end):
            request = comm.Ibarrier()
    found = tree.late()
    tree.waits = False
    operation = operation or tree.reduce("x", np.zeros(0, np.uint8), joined, True)
    finish(comm, tree, lambda: operation.done)
    parallel_assert(comm, index == late or found in (expected, []), str(found))


@pytest.mark.two_ranks
def test_a_session_reduces_gathers_and_meets(
    comm: Any, session: Session, parallel_assert: Any, transport: str, servers: int
) -> None:
    def main(worker: Worker) -> list[Any]:
        n, own = worker.n_workers, np.arange(4) * (worker.index + 1)
        # A worker that does not wait continues, and ends its program before the others need its messages.
        first = worker.reduce("to worker 0", own.astype(np.float32), "max", everyone=False)
        found = [worker.reduce("sum", own), worker.reduce("least", own, "min"), first]
        worker.barrier("middle")
        large = worker.reduce(
            "large", np.full(300_000, worker.index), lambda a, b: np.maximum(a, b)
        )
        assert large is not None
        found += [large.min(), len(large), worker.gather("end", bytes([n]), everyone=False)]
        return found

    played = session(main, TABLES, transport=transport, servers=servers)
    n = workers_with(servers)
    for w, (total, least, most, low, length, end) in enumerate(played.values):
        parallel_assert(comm, total.tolist() == [k * n * (n + 1) // 2 for k in range(4)])
        parallel_assert(comm, least.tolist() == [0, 1, 2, 3])
        parallel_assert(comm, (most is None) == (w > 0))
        parallel_assert(comm, w > 0 or most.tolist() == [0, n, 2 * n, 3 * n])
        parallel_assert(comm, (low, length) == (n - 1, 300_000))
        parallel_assert(comm, end == ([bytes([n])] * n if w == 0 else []))


@pytest.mark.mpi(min_size=4)
def test_worker_0_gets_what_passes_through_a_worker_that_computes(
    comm: Any, session: Session, parallel_assert: Any
) -> None:
    """Worker 2 ends its program first; what worker 3 sends goes through it."""

    def main(worker: Worker) -> Any:
        if worker.index == worker.n_workers - 1:
            time.sleep(0.3)
        payload = bytes([worker.index]) * 100_000
        return worker.gather("scores", payload, everyone=False)

    played = session(main, TABLES, servers=1)
    n = workers_with(1)
    parallel_assert(comm, played.values[0] == [bytes([w]) * 100_000 for w in range(n)])
    parallel_assert(comm, played.values[1:] == [[]] * (n - 1))
