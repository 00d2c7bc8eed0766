"""Pulls of rows by workers in groups: those of a node read rows for each other, each at its own clock."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ahead_rig import held_parts
from harness import Rig, rows
from numpy.typing import NDArray

from mpips import _native
from mpips.model.consistency import BSP
from mpips.model.optimizer import SGD
from mpips.worker.groups import row_group
from mpips.worker.groups.row_group import RowGroup
from mpips.worker.node_rows.part import NodeRowsPart
from mpips.worker.worker import connection_of

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

DIM = 3
CLOCKS = 12
ALL = np.arange(400)
WEIGHTS = (1 + np.arange(DIM) + DIM * (ALL[:, None] % 11)).astype(np.float32)


class Members:
    """Workers of one group on a node; the only server is on another one."""

    def __init__(
        self, n_workers: int, n_slots: int | None, remote: frozenset[int] = frozenset({0})
    ) -> None:
        table = rows(DIM, consistency=BSP(reduce="sum"), optimizer=SGD(1.0), init="zeros")
        self.rig = Rig(table, n_workers=n_workers, n_slots=64)
        self.parts: list[NodeRowsPart | None] = [None] * n_workers
        if n_slots is not None:
            self.parts = [*held_parts(n_workers, n_slots, DIM, remote)]
        self.workers = [
            self.rig.worker(
                w, local=n_workers == 1 or n_slots is None, timeout_s=10.0, node_rows=part
            )
            for w, part in enumerate(self.parts)
        ]
        group: Any = SimpleNamespace(sums_rows=lambda index: False)
        self.handles: list[Any] = [worker.table("e") for worker in self.workers]
        self.ends = [RowGroup(group, h._access(), lambda plan, rows: 1 / 0) for h in self.handles]  # type: ignore[arg-type, return-value]

    def pull(self, worker: int, keys: Int64) -> Float32 | None:
        return self.ends[worker].pull(self.handles[worker]._planned(keys), None)

    def pulled_bytes(self) -> int:
        return sum(int(connection_of(w).figures().pulled_bytes) for w in self.workers)


def keys_of(worker: int, clock: int) -> Int64:
    return np.random.default_rng([worker, clock]).integers(0, len(ALL), size=300)


def play(n_workers: int, n_slots: int) -> int:
    """Let workers in threads pull, check, push and tick; return the bytes that came from the server."""
    members = Members(n_workers, n_slots)
    wrong: list[str] = []
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            members.rig.core.drain(0.001, 200)

    def work(w: int) -> None:
        for clock in range(CLOCKS):
            keys = keys_of(w, clock)
            found = members.pull(w, keys)
            # Each worker subtracts (w + 1) * weight from each row in each clock.
            expected = -clock * sum(range(1, n_workers + 1)) * WEIGHTS[keys]
            if found is None or not np.array_equal(found, expected):
                wrong.append(f"worker {w} at clock {clock}: {found}")
            members.handles[w].push(ALL, (w + 1) * WEIGHTS)
            members.workers[w].clock()

    threads = [threading.Thread(target=work, args=(w,)) for w in range(n_workers)]
    server = threading.Thread(target=serve)
    for thread in (server, *threads):
        thread.start()
    for thread in threads:
        thread.join(60)
    stop.set()
    server.join(60)
    assert not wrong
    return members.pulled_bytes()


@pytest.mark.parametrize("n_workers", [2, 3])
def test_no_worker_gets_a_row_of_another_clock(n_workers: int) -> None:
    alone = sum(
        4 * DIM * len(np.unique(keys_of(w, c))) for w in range(n_workers) for c in range(CLOCKS)
    )
    # Of 400 keys each worker needs 211 in a clock; two of them together need 311, three 363.
    assert play(n_workers, 4096) < (0.9 if n_workers == 2 else 0.75) * alone
    # With little memory most rows find no place.
    assert play(n_workers, 64) <= alone + 64 * CLOCKS * n_workers


def served(members: Members, worker: int, keys: Int64) -> Float32:
    """Pull with a server that drains meanwhile."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(members.pull(worker, keys)))
    thread.start()
    while thread.is_alive():
        members.rig.core.drain(0.001, 200)
        thread.join(0.0)
    (rows_there,) = found
    assert isinstance(rows_there, np.ndarray)
    return rows_there


def test_rows_that_never_come_are_read_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker has claimed them and has stopped, or its pull has ended with an error."""
    monkeypatch.setattr(row_group, "_PATIENCE_S", 0.05)
    members = Members(2, 1024)
    keys = np.arange(20)
    other = members.parts[1]
    assert other is not None
    other.rows.look(0, keys[:8], DIM, (0, 0), 0, 0, True)
    before = members.pulled_bytes()
    assert (served(members, 0, keys) == 0).all()
    assert members.pulled_bytes() - before == 4 * DIM * len(keys)
    # They are there for the other one now.
    assert (served(members, 1, keys) == 0).all()
    assert members.pulled_bytes() - before == 4 * DIM * len(keys)


def test_rows_of_another_clock_are_not_used() -> None:
    members = Members(2, 1024)
    keys, other = np.arange(12), members.parts[1]
    assert other is not None
    wrong = np.full((4, DIM), 7, np.float32)
    for worker in members.workers:
        worker.clock()
    for stamp in (0, 2):
        other.rows.publish(0, stamp, keys[2 * stamp : 2 * stamp + 4], wrong, np.zeros(4, np.int64))
    right = np.full((4, DIM), 5, np.float32)
    other.rows.publish(0, 1, keys[8:], right, np.zeros(4, np.int64))
    found = served(members, 0, keys)
    assert (found[:8] == 0).all()
    assert (found[8:] == 5).all()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_pull_that_ended_with_an_error_can_be_repeated(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    members, keys = Members(2, 1024), np.arange(9)
    access = members.ends[0]._access
    fetch = access.fetch

    def fail(*_: Any) -> Any:
        raise error("interrupted")

    monkeypatch.setattr(access, "fetch", fail)
    with pytest.raises(error, match="interrupted"):
        members.pull(0, keys)
    monkeypatch.setattr(access, "fetch", fetch)
    assert (served(members, 0, keys) == 0).all()


def test_a_worker_that_repeats_a_clock_pulls_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(2, 1024)
    connection = connection_of(members.workers[0])
    ahead = SimpleNamespace(writer=SimpleNamespace(is_ahead_of=lambda clock: clock == 0))
    monkeypatch.setattr(connection, "channels", [ahead])
    assert members.pull(0, np.arange(5)) is None


@pytest.mark.parametrize("n_slots", [None, 1024])
def test_rows_of_servers_on_this_node_are_not_shared(n_slots: int | None) -> None:
    """Nor are others where the node has no memory for them."""
    members = Members(2, n_slots, frozenset())
    assert members.pull(0, np.arange(5)) is None


def test_rows_of_several_servers_have_their_places() -> None:
    """Keys of servers on this node are read beside those that others have read."""
    members = Members(1, 1024)
    plan = _native.KeyPlan()
    plan.build(np.arange(40), _native.Partitioner.hash(3))
    ends: Any = SimpleNamespace(connection=SimpleNamespace(channels=[None] * 3), index=0)
    part = members.parts[0]
    assert part is not None
    node = row_group.NodeRows(
        NodeRowsPart(part.rows, part.memory, part.n_bytes, frozenset({0, 2})), ends
    )
    owners = [_native.Partitioner.hash(3).owner(int(key)) for key in plan.unique_keys]
    assert node.remote(plan).tolist() == [owner != 1 for owner in owners]
