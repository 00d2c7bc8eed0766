"""Waits of replicated tables: bounded, with the name of the late worker; cuts that are given up; forks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Rig, dense

from mpips import _native
from mpips.errors import ForkError, StallError
from mpips.model.consistency import BSP
from mpips.model.table import replicated_tables
from mpips.mpi.messages import Abandon, Waits
from mpips.scheduler.own_worker import OwnWorker
from mpips.worker.connection import Connection
from mpips.worker.replicated.memory import make_memory, make_reduction, node_layout
from mpips.worker.replicated.part import ReplicatedPart
from mpips.worker.start import MadeParts
from mpips.worker.worker import Worker, connection_of

ONES = np.ones(3000, np.float32)


class Scheduler(OwnWorker):
    """It keeps what the worker sends."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []

    def tell(self, message: Any) -> None:
        self.sent.append(message)


class Pair:
    """Two workers of one server, with a replicated table "w", in one process.

    `receivers`: workers of another node, with the worker that receives their updates.
    """

    def __init__(self, timeout_s: float = 0.2, receivers: dict[int, int] | None = None) -> None:
        receivers = receivers or {}
        n_workers = 2 + len(receivers)
        table = dense(3000, consistency=BSP(), placement="replicated")
        self.rig = rig = Rig(table, n_workers=n_workers)
        found = replicated_tables(rig.tables)
        layout = node_layout(found, n_workers)
        memory = make_memory(rig.regions, "r0", layout)
        self.workers, self.ends = [], []
        for w in (0, 1):
            reduction = make_reduction(found, memory, layout, w, [0, 1], [0], True)
            self.ends.append(reduction)
            shards = [rig.placement.dense["w"]]
            connection = Connection(
                w,
                [f"worker {i} (rank {i + 1})" for i in range(n_workers)],
                rig.tables,
                [rig.channel(w, local=True)],
                Scheduler(),
                rig.staging[w],
                timeout_s,
                made=MadeParts(
                    ReplicatedPart(found, shards, memory, layout, reduction, receivers=receivers)
                ),
            )
            self.workers.append(Worker(connection, rig.tables, rig.placement))

    def __iter__(self) -> Any:
        return iter(self.workers)


def test_a_late_worker_is_named_with_its_clock() -> None:
    pair = Pair()
    first, _ = pair
    first.table("w").push(ONES)
    first.clock()
    late = (
        r"worker 1 \(rank 2\) has not closed clock 0 of the replicated table 'w'; it is at clock 0"
    )
    for use in (
        first.table("w").pull,
        lambda: first.table("w").push(ONES),
        lambda: first.table("w").prefetch().wait(),
        connection_of(first).finish,
    ):
        with pytest.raises(StallError, match=late + r", this worker is at 1 \(waited 0.2 s\)"):
            use()
    # Worker 1 ends its clock and stops. Worker 0 does its own slice, and waits for the other one.
    pair.ends[1].tick()
    late = r"worker 1 \(rank 2\) has not applied its part of clock 0 of .* it is at clock 1"
    with pytest.raises(StallError, match=late):
        first.table("w").pull()
    pair.ends[1].advance()
    assert (first.table("w").pull() == -0.5).all()


def test_a_worker_that_does_not_receive_is_named_with_the_sender() -> None:
    # Worker 2 is on another node and may have ended its clock: worker 1 has not taken its message.
    pair = Pair(receivers={2: 1})
    first, second = pair
    for worker in pair:
        worker.table("w").push(ONES)
        worker.clock()
    late = (
        r"worker 1 \(rank 2\) has not received from another node, or worker 2 \(rank 3\) there has not "
        r"closed, clock 0 of the replicated table 'w'; the newest clock received is 0, this worker is at 1"
    )
    with pytest.raises(StallError, match=late):
        first.table("w").pull()
    # Worker 1 receives by itself: it knows that worker 2 has sent nothing.
    with pytest.raises(
        StallError, match=r"worker 2 \(rank 3\) has not closed clock 0 of .* it is at"
    ):
        second.table("w").pull()


def test_a_cut_waits_for_other_workers_until_it_is_given_up() -> None:
    first, second = Pair(timeout_s=20)
    first.table("w").push(ONES)
    first.clock()
    connection = connection_of(first)
    control: Any = connection.control
    assert connection.replicated is not None
    polls = 0

    def poll() -> None:
        nonlocal polls
        polls += 1
        if control.sent:
            control.cut.take(Abandon(7), 1)

    control.poll = poll
    before = connection.channels[0].writer.next_sequence
    assert not connection.replicated.before_cut(7)
    assert control.sent == [Waits(7, "behind")]
    assert connection.channels[0].writer.next_sequence == before
    # The next one can be done, and has the values of its clock on the server.
    second.clock()
    for worker in (second, first, second):
        connection_of(worker).poll()
    for worker in (first, second):
        replicated = connection_of(worker).replicated
        assert replicated is not None
        assert replicated.before_cut(8)
        worker.flush()


def test_shares_of_all_workers_make_the_table_on_the_server() -> None:
    pair = Pair(timeout_s=20)
    for worker in pair:
        worker.table("w").push(np.arange(3000, dtype=np.float32))
        worker.clock()
    for _ in range(2):
        for worker in pair:
            connection_of(worker).poll()
    for worker in pair:
        connection_of(worker).finish()
    assert (pair.rig.values() == -np.arange(3000)).all()
    assert pair.rig.core.steps(0) == 1


def test_a_forked_child_is_refused() -> None:
    first, _ = Pair()
    connection_of(first).disown()
    for use in (first.table("w").pull, lambda: first.table("w").push(ONES), first.table("w").view):
        with pytest.raises(ForkError):
            use()


def test_values_beyond_a_shard_are_refused() -> None:
    for slot, offset in ((1, 0), (0, 1), (0, 1 << 63)):
        rig = Rig(dense(8, consistency=BSP()))
        rig.writers[0].store(0, 0, slot, 3, offset, np.ones(8, np.float32), 0)
        with pytest.raises(_native.ProtocolViolation, match="values of table 0 that lie outside"):
            rig.drain()
    rig = Rig(dense(8, consistency=BSP()))
    rig.writers[0].store(0, 0, 0, 3, 4, np.ones(4, np.float32), 0)
    rig.drain()
    assert rig.values().tolist() == [0.0] * 4 + [1.0] * 4
    assert rig.core.steps(0) == 3
