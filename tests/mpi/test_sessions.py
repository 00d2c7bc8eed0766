"""Sessions: roles, transports, errors on every rank, gather, and resources that remain."""

from __future__ import annotations

import gc
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from playing import SIZE, Session, workers_with
from worker_uses import uses

import mpips
from mpips import (
    ASP,
    ConfigError,
    DenseTable,
    EmbeddingTable,
    MpipsError,
    TransportError,
    Worker,
)
from mpips.errors import EndedError
from mpips.mpi.cluster import Cluster
from mpips.worker.worker import connection_of

if TYPE_CHECKING:
    from mpi4py import MPI

several_ranks = pytest.mark.mpi(min_size=2)
several_workers = pytest.mark.mpi(min_size=5)


@pytest.fixture
def shared_memory(comm: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return the names in /dev/shm of this test's sessions; other jobs of this user may be running."""
    mark = comm.bcast(secrets.token_hex(8))
    monkeypatch.setattr("mpips.mpi.cluster.new_token", lambda: mark + secrets.token_hex(8))

    def names() -> list[str]:
        return sorted(path.name for path in Path("/dev/shm").glob(f"mpips-*-{mark}*"))

    return names


def held() -> tuple[int, int, int]:
    """Return the threads, open files and mapped regions of this process.

    It does not collect garbage: the end of a session leaves no cycle of references with its memory.
    """
    regions = Path("/proc/self/maps").read_text().count("/dev/shm/mpips-")
    return threading.active_count(), len(os.listdir("/proc/self/fd")), regions


def index_of(worker: Worker) -> int:
    return worker.index


@pytest.mark.two_ranks
def test_every_rank_has_the_role_that_the_number_of_servers_gives(
    session: Session, servers: int
) -> None:
    played = session(index_of, [DenseTable("w", (3,))], servers=servers)
    n_workers = workers_with(servers)
    assert played.values == list(range(n_workers))
    if SIZE == 1:
        assert played.roles == ["scheduler + server 0 + worker 0"]
    elif SIZE == 2:
        assert played.roles == ["scheduler + server 0", "worker 0"]
    else:
        assert played.roles == [
            "scheduler",
            *(f"server {s}" for s in range(servers)),
            *(f"worker {w}" for w in range(n_workers)),
        ]
    assert len(played.statistics["servers"]) == servers
    assert [row["worker"] for row in played.statistics["workers"]] == list(range(n_workers))


@pytest.mark.two_ranks
def test_every_rank_has_the_totals_and_its_own_statistics(comm: MPI.Intracomm) -> None:
    def main(worker: Worker) -> None:
        worker.table("w").push(np.ones(3, np.float32))
        worker.flush()

    outcome = mpips.run(main, [DenseTable("w", (3,))], comm=comm, verbose=False)
    found, rows = outcome.statistics, comm.allgather((outcome.role, outcome.statistics))
    whole = next(statistics for role, statistics in rows if role.endswith("worker 0"))
    totals = found["totals"]
    assert totals["workers"]["number"] == len(whole["workers"])
    assert totals["servers"]["number"] == len(whole["servers"])
    pushed = [row["pushes"]["pushed"] for row in whole["workers"]]
    assert totals["workers"]["pushes"]["pushed"] == sum(pushed) >= len(pushed)
    applied = [row["tables"]["w"]["applied"] for row in whole["servers"]]
    assert totals["servers"]["tables"]["w"]["applied"] == sum(applied) > 0
    assert all(statistics["totals"] == totals for _, statistics in rows)
    assert all(statistics["scheduler"] == whole["scheduler"] for _, statistics in rows)
    if outcome.is_first_worker or "scheduler" in outcome.role:
        assert found == whole
    else:
        role, _, index = outcome.role.partition(" ")
        assert found["own"] == whole[f"{role}s"][int(index)]
        assert found.keys() == {"totals", "scheduler", "own"}


@pytest.mark.two_ranks
def test_the_transport_asked_for_is_the_one_reported(
    session: Session, transport: str, servers: int
) -> None:
    def main(worker: Worker) -> list[str]:
        return [channel.name for channel in connection_of(worker).channels]

    played = session(main, [DenseTable("w", (3,))], transport=transport, servers=servers)
    assert played.transports == {transport: servers * workers_with(servers)}
    assert played.values == [[transport] * servers] * workers_with(servers)


def test_auto_takes_shared_memory_on_one_node(session: Session) -> None:
    played = session(index_of, [DenseTable("w", (3,))])
    assert played.transports.keys() == {"local" if SIZE == 1 else "shm"}


def broken_options(comm: Any) -> list[tuple[type[MpipsError], str, list[Any], dict[str, Any]]]:
    rank = comm.Get_rank()
    one = [DenseTable("w", (3,))]
    different = [DenseTable("w", (3 + rank,))]
    renamed = [DenseTable("w" if rank == 0 else "v", (3,))]
    wide = [EmbeddingTable("e", 3 if rank == 0 else 4096)]
    cases: list[tuple[type[MpipsError], str, list[Any], dict[str, Any]]] = [
        (ConfigError, "servers = 64 is too many for", one, {"servers": 64}),
        (ConfigError, "unknown option 'server'", one, {"server": 1}),
        (ConfigError, "at least one table", [], {}),
        (
            ConfigError,
            "does not fit into a ring slot, slot_kib = 1",
            [EmbeddingTable("e", 999)],
            {"slot_kib": 1},
        ),
    ]
    if SIZE == 1:
        return [*cases, (ConfigError, "'shm' needs several ranks", one, {"transport": "shm"})]
    return [
        *cases,
        (ConfigError, "'local' needs a job of 1 rank", one, {"transport": "local"}),
        (ConfigError, "other tables or options than rank 0", different, {}),
        (ConfigError, "other tables or options than rank 0", renamed, {}),
        (ConfigError, "other tables or options than rank 0", one, {"seed": rank}),
        # Only some ranks fail to place their tables; all ranks must get the reason.
        (ConfigError, "other tables or options than rank 0", wide, {"slot_kib": 1}),
    ]


@pytest.mark.two_ranks
def test_a_configuration_error_is_raised_on_every_rank_and_the_next_session_works(
    comm: Any, session: Session, shared_memory: Callable[[], list[str]]
) -> None:
    for kind, text, tables, options in broken_options(comm):
        with pytest.raises(kind) as caught:
            mpips.run(index_of, tables, comm=comm, verbose=False, timeout_s=30, **options)
        assert text in str(caught.value)
        assert len(set(comm.allgather(str(caught.value)))) == 1
        assert session(index_of, [DenseTable("w", (3,))]).values[0] == 0
    assert shared_memory() == []


def test_failed_sessions_leave_no_thread_file_or_memory(comm: Any) -> None:
    def fail(times: int) -> tuple[int, int, int]:
        for _ in range(times):
            for kind, _, tables, options in broken_options(comm):
                with pytest.raises(kind):
                    mpips.run(index_of, tables, comm=comm, verbose=False, **options)
        comm.Barrier()
        return held()

    fail(1)
    before = fail(1)
    assert comm.allgather(fail(4)) == comm.allgather(before)


def test_fifty_sessions_leave_no_thread_file_or_memory(
    comm: Any, session: Session, shared_memory: Callable[[], list[str]]
) -> None:
    tables = [
        DenseTable("w", (3,)),
        EmbeddingTable("e", 2),
        DenseTable("r", (3,), placement="replicated"),
    ]

    def main(worker: Worker) -> float:
        assert SIZE == 1 or shared_memory()
        worker.table("w").push(np.ones(3, np.float32))
        worker.table("r").push(np.ones(3, np.float32))
        worker.table("e").push(np.arange(5), np.ones((5, 2), np.float32))
        worker.clock()
        return float(worker.table("w").pull()[0] + worker.table("e").pull(np.arange(2))[0, 0])

    def repeat(times: int) -> tuple[int, int, int]:
        values = {session(main, tables).values[0] for _ in range(times)}
        assert len(values) == 1
        comm.Barrier()
        return held()

    before = comm.allgather(repeat(3))
    assert comm.allgather(repeat(50)) == before
    assert all(regions == 0 for _, _, regions in before)
    assert shared_memory() == []


@several_ranks
def test_a_worker_is_refused_after_the_end_of_its_job(session: Session) -> None:
    mine: list[tuple[Worker, np.ndarray]] = []

    def main(worker: Worker) -> None:
        worker.table("w").push(np.ones(8, np.float32))
        worker.table("e").push(np.array([3]), np.ones((1, 2), np.float32))
        mine.append((worker, worker.allocate((8,))))

    session(main, [DenseTable("w", (8,)), EmbeddingTable("e", 2)])
    for worker, own in mine:
        own[:] = 5
        for use in uses(worker, own):
            with pytest.raises(EndedError, match=f"^worker {worker.index} or one of its tables"):
                use()


@pytest.mark.two_ranks
@several_ranks
def test_a_connection_that_fails_late_leaves_no_thread_file_or_memory(
    comm: Any, monkeypatch: pytest.MonkeyPatch, shared_memory: Callable[[], list[str]]
) -> None:
    """Regions, window and communicators exist when a worker cannot connect."""

    def unreachable(*arguments: Any) -> None:
        raise TransportError("no way to the server")

    def fail(times: int) -> tuple[int, int, int]:
        for _ in range(times):
            with pytest.raises(TransportError, match="no way to the server"):
                mpips.run(index_of, [DenseTable("w", (3,))], comm=comm, verbose=False)
        comm.Barrier()
        gc.collect()  # an error refers to the frames that it went through
        return held()

    monkeypatch.setattr("mpips.transport.connect.Connector.connect", unreachable)
    before = comm.allgather(fail(1))
    assert comm.allgather(fail(4)) == before
    assert all(regions == 0 for _, _, regions in before)
    assert shared_memory() == []


@pytest.mark.two_ranks
@several_ranks
def test_every_communicator_of_a_session_is_freed(comm: Any, session: Session) -> None:
    """An attribute of COMM_WORLD is copied with each duplicate and deleted with it."""
    from mpi4py import MPI

    alive: list[int] = []

    def copied(duplicated: Any, keyval: int, value: Any) -> Any:
        alive.append(1)
        return value

    def deleted(freed: Any, keyval: int, value: Any) -> None:
        alive.pop()

    keyval = MPI.Comm.Create_keyval(copied, deleted)
    comm.Set_attr(keyval, 1)

    def main(worker: Worker) -> int:
        return len(alive)

    try:
        assert session(main, [DenseTable("w", (3,))]).values[0] >= 3
        assert not alive
        for kind, _, tables, options in broken_options(comm):
            with pytest.raises(kind):
                mpips.run(index_of, tables, comm=comm, verbose=False, **options)
            assert not alive
    finally:
        alive.append(1)
        comm.Delete_attr(keyval)
        MPI.Comm.Free_keyval(keyval)


@pytest.mark.two_ranks
def test_gather_gives_every_workers_payload_in_order(session: Session, transport: str) -> None:
    def main(worker: Worker) -> list[bytes]:
        everyone = worker.gather("all", bytes([worker.index]) * worker.index)
        first = worker.gather("first", str(worker.index).encode(), everyone=False)
        large = worker.gather("large", bytes([worker.index]) * 200_000)
        return [*everyone, *first, *(part[-1:] for part in large)]

    played = session(main, [DenseTable("w", (3,))], transport=transport)
    ws = range(len(played.values))
    everyone = [bytes([w]) * w for w in ws]
    first = [str(w).encode() for w in ws]
    ends = [bytes([w]) for w in ws]
    assert played.values[0] == everyone + first + ends
    assert all(value == everyone + ends for value in played.values[1:])


@pytest.mark.several_workers
def test_after_a_barrier_all_flushed_pushes_are_there(session: Session, transport: str) -> None:
    def main(worker: Worker) -> list[float]:
        handle = worker.table("w")
        seen = []
        for turn in range(5):
            handle.push(np.full(1, -1.0, np.float32))
            worker.flush()
            worker.barrier(f"pushed {turn}")
            seen.append(float(handle.pull()[0]))
            worker.barrier(f"pulled {turn}")
        return seen

    table = DenseTable("w", (1,), optimizer=mpips.SGD(lr=1.0), consistency=ASP())
    played = session(main, [table], transport=transport)
    n = len(played.values)
    assert played.values == [[n * (turn + 1.0) for turn in range(5)]] * n


def cluster_of(comm: Any, check: Callable[[Cluster], None]) -> None:
    cluster = Cluster(comm, None, 30.0)
    try:
        check(cluster)
    finally:
        cluster.close()


@several_ranks
@pytest.mark.parametrize("error", [ConfigError("bad"), ValueError("bad"), MemoryError("bad")])
def test_an_error_of_one_rank_at_start_up_is_raised_on_all(comm: Any, error: Exception) -> None:
    def work() -> int:
        if comm.Get_rank() == comm.Get_size() - 1:
            raise error
        return 1

    def check(cluster: Cluster) -> None:
        with pytest.raises(MpipsError, match=r"worker .*bad") as caught:
            cluster.agree("testing", work)
        assert isinstance(caught.value, ConfigError) == isinstance(error, ConfigError)
        assert cluster.agree("testing again", lambda: 7) == [7] * SIZE

    cluster_of(comm, check)
