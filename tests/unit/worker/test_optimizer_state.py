"""States of a table's rule and its number of updates, as a worker reads them from servers."""

from __future__ import annotations

import numpy as np
import pytest
from fake_network import KINDS, remote
from harness import Rig, dense, floats

from mpips import _native
from mpips.errors import ConfigError, StallError
from mpips.model.consistency import ASP, BSP, SSP
from mpips.model.optimizer import SGD, Adagrad, Adam, Momentum
from mpips.model.placement import ShardRange
from mpips.transport import channel as channel_of_a_node
from mpips.worker.shard_reader import ShardReader
from mpips.worker.worker import connection_of

N = 2 * _native.BLOCK_FLOATS + 100


def trained(rule, **options):
    """A table after two updates by its only worker."""
    rig = Rig(dense(N, optimizer=rule, **options))
    worker = rig.worker()
    for step in range(2):
        worker.table("w").push(floats(N, step))
        worker.clock()
    return rig, worker


@pytest.mark.parametrize("codec", [None, "bf16"])
def test_states_come_exactly_and_in_their_order(codec):
    rig, worker = trained(Adam(0.5), pull_compression=codec)
    table, given = worker.table("w"), np.empty(N, np.float32)
    before = rig.core.stats(0)
    for slot in range(2):
        assert table.optimizer_state(slot, given) is given
        assert given.tobytes() == rig.core.dense_state(0, slot).tobytes()
    assert table.optimizer_state(0).tobytes() != given.tobytes()
    assert table.n_updates() == 2
    # Nothing is changed, and the table can be pushed to.
    assert rig.core.stats(0) == before
    table.push(floats(N))
    worker.clock()
    assert table.n_updates() == 3
    rig.core.set_steps_before(0, 70)
    assert table.n_updates() == 73


@pytest.mark.parametrize("slot", [-1, 1])
def test_states_that_the_rule_lacks(slot):
    _, worker = trained(Momentum(0.5))
    with pytest.raises(
        IndexError, match=f"table 'w' has no optimizer state {slot}: its rule momentum has 1"
    ):
        worker.table("w").optimizer_state(slot)
    with pytest.raises(IndexError, match="the rule has no state 1"):
        connection_of(worker).channels[0].read_state(0, 1, np.empty(N, np.float32), 0.0)


@pytest.mark.parametrize(
    ("model", "waits"), [(BSP(), True), (SSP(0), True), (SSP(1), False), (ASP(), False)], ids=str
)
def test_states_are_those_of_the_workers_clock(model, waits):
    rig = Rig(dense(3, optimizer=Momentum(1, momentum=0.5), consistency=model), n_workers=2)
    worker = rig.worker(timeout_s=0.05)
    worker.table("w").push(np.ones(3, np.float32))
    worker.clock()
    reads = (lambda t: t.optimizer_state(0).tolist(), lambda t: t.n_updates())
    for read in reads if waits else ():
        with pytest.raises(StallError, match="server 0 has not brought table 'w' to clock 1"):
            read(worker.table("w"))
    assert rig.writers[1].tick(0)
    found = [read(worker.table("w")) for read in reads]
    scale = 0.5 if model.name == "bsp" else 1
    assert found == [[scale] * 3, 1]
    # The other worker is not needed, and cannot change what this one reads under BSP.
    rig.writers[1].push_dense(0, 1, np.ones(3, np.float32), None, 0)
    rig.drain()
    assert worker.table("w").n_updates() == (1 if model.name == "bsp" else 2)


def test_a_table_that_is_closed_has_no_state_until_the_clock_ends():
    _, worker = trained(Momentum(0.5), consistency=BSP())
    worker.table("w").push(floats(N), closes=True)
    for read in (lambda: worker.table("w").optimizer_state(0), worker.table("w").n_updates):
        with pytest.raises(ConfigError, match="the optimizer state of table 'w' at clock 2, which"):
            read()
    worker.clock()
    assert worker.table("w").n_updates() == 3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_states_of_a_server_on_another_node_are_never_mixed_in_a_block(seed, kind):
    rig = Rig(
        dense(N, optimizer=Adagrad(1, initial_accumulator=0), consistency=ASP()),
        n_workers=2,
        staging_bytes=4 * N + 4096,
    )
    network, channel = remote(rig, seed=seed, drain=False, kind=kind)
    rig.staging[1].view(0, 4 * N, True).view(np.float32)[:] = 1.0
    updates = [0]

    def update():
        if network.rng.random() < 0.25:
            assert rig.writers[1].push_staged(0, 0, 0, None, N)
            updates[0] += rig.drain()

    network.on_piece = update
    out, mixed = np.empty(N, np.float32), 0
    for _ in range(10):
        before = updates[0]
        assert channel.read_updates(0) in range(before, updates[0] + 1)
        before = updates[0]
        while not channel.read_state(0, 0, out, 1.0):
            pass
        for start in range(0, N, _native.BLOCK_FLOATS):
            block = out[start : start + _native.BLOCK_FLOATS]
            assert (block == block[0]).all()
            assert before <= block[0] <= updates[0]
        mixed += len(np.unique(out)) > 1
    assert mixed > 0 or kind == "p2p"  # whose answers are read at one time


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_state_that_is_being_written_is_not_believed(is_remote, monkeypatch):
    monkeypatch.setattr(channel_of_a_node, "_HEAD_TRIES", 100)
    rig = Rig(dense(3, optimizer=Momentum(1)))
    channel = remote(rig, drain=False)[1] if is_remote else rig.channel(0, local=False)
    version = rig.region.view(rig.layout.dense_offsets(0)[0], 16, True).view(np.uint64)
    odd = np.array([7, 2**64 - 1 - 7], np.uint64)
    version[:] = odd
    assert not channel.read_state(0, 0, np.empty(3, np.float32), 0.01)
    version[:] = odd + np.array([1, -1], np.int64).view(np.uint64)
    assert channel.read_state(0, 0, np.empty(3, np.float32), 0.01)
    updates = rig.region.view(rig.layout.updates_offset(0), 16, True).view(np.uint64)
    updates[0] += np.uint64(5)
    with pytest.raises(StallError, match="the head of table 0 stays half written"):
        channel.read_updates(0)
    updates[1] -= np.uint64(5)
    assert channel.read_updates(0) == 5


def test_parts_of_several_servers_are_put_together():
    table = dense(8, optimizer=Momentum(1))
    rigs = [Rig(dense(4, optimizer=Momentum(1))) for _ in range(2)]
    worker = rigs[0].worker()
    own = connection_of(worker)
    own.channels.append(rigs[1].channel(0, local=True))
    for i, rig in enumerate(rigs):
        rig.core.set_dense_state(0, 0, np.full(4, i, np.float32))
        rig.core.set_steps_before(0, 3 + i)
    shards = [ShardRange(1 - i, 4 * i, 4 * i + 4) for i in range(2)]
    reader = ShardReader(own, 0, table, shards)
    out = np.empty(8, np.float32)
    reader.read_state(0, out)
    assert out.tolist() == [1] * 4 + [0] * 4
    assert reader.updates() == 4


@pytest.mark.parametrize("rule", [SGD(1), Momentum(1)])
def test_only_pushes_are_updates(rule):
    rig = Rig(dense(3, optimizer=rule), n_workers=1)
    worker = rig.worker()
    for step in range(4):
        if step % 2:
            worker.table("w").push(np.ones(3, np.float32))
        worker.clock()
    assert worker.table("w").n_updates() == rig.core.steps(0) == 2
