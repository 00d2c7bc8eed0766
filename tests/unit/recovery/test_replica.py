"""Replicas: a copy has the bits of its server, and all that was acknowledged when the server is lost."""

from __future__ import annotations

import os
import time

import crash_rig
import numpy as np
import pytest
from crash_life import N_SLOTS, Life_
from crash_loads import loads
from crash_rig import crash
from long_runs import taking_turns
from pair_rig import copied
from simulation.comm import Comm, Room
from simulation.world import World

from mpips import _native
from mpips.config.schema import load_config
from mpips.errors import ConfigError, RegionError, StallError
from mpips.model.consistency import ASP, BSP, Reject
from mpips.model.optimizer import SGD
from mpips.model.placement import place
from mpips.model.table import DenseTable
from mpips.mpi.roles import assign
from mpips.recovery import replica_memory
from mpips.recovery.mirror import Incoming, Outgoing
from mpips.recovery.replica import Partners, check_tables, find_partners
from mpips.recovery.replica_memory import Held
from mpips.recovery.replica_start import Source, choose
from mpips.scheduler.own_worker import OwnWorker
from mpips.training.train import train
from mpips.transport.region import (
    Regions,
    new_token,
    own_segments,
    persistent,
    region_name,
    unlink_job,
)
from mpips.worker.connection import Connection
from mpips.worker.connection_options import ConnectionOptions
from mpips.worker.worker import Worker

LOADS = {name: load for name, load in loads().items() if load.partner}


@pytest.fixture
def token():
    token = persistent(new_token())
    yield token
    unlink_job(token)


@pytest.mark.parametrize("name", LOADS)
def test_copy_has_the_bits_of_its_server(token, name):
    launch = Life_(token, LOADS[name], 0)
    launch.run()
    server = launch.result()
    launch.core = launch.pair.copy.core
    crash_rig.compare(launch.result(), server, "the copy")
    counters = launch.server.core.partner_counters()
    assert counters["records"] == sum(launch.core.applied(w) for w in range(LOADS[name].n_workers))


@pytest.mark.sampled
@pytest.mark.parametrize("name", taking_turns(list(LOADS), 4 if crash_rig.SANITIZED else 2))
def test_server_lost_at_many_points_the_copy_has_all(name):
    _, tried, kills = crash(name, "everywhere", 239)
    assert kills > tried


def test_many_short_lives_each_in_the_copy_of_the_last():
    (launches,) = crash("pair-bsp", "shortly", 700)
    assert launches > 3


def test_damaged_record_is_not_handed_out_and_named(token):
    launch = Life_(token, LOADS["pair-asp"], 0)
    launch.core.set_patience(0.05)
    launch.writers[0].tick(0)
    mailbox = launch.layout.mailbox_offset(0) + launch.layout.geometry.slots_offset
    launch.server.region.view(mailbox, 4, True)[:] = 0  # the magic number
    assert launch.pair.hand_out() == 0  # the record may still be incomplete
    time.sleep(0.06)
    assert launch.core.drain(0.0, 0) == 0
    with pytest.raises(_native.ProtocolViolation, match="record 0 is damaged"):
        launch.pair.hand_out()


def test_nothing_is_consumed_before_the_partner_has_it(token):
    launch = Life_(token, LOADS["pair-asp"], 0)
    update = np.ones(600, np.float32)
    assert launch.writers[0].push_dense(0, 0, update, None, 0) == 600
    assert launch.core.drain(0.0, 0) == 0
    assert launch.pair.hand_out() > 0
    assert launch.core.drain(0.0, 0) == 0  # the records have not arrived yet
    launch.pair.take_in()
    launch.pair.answer()
    assert launch.core.drain(0.0, 0) == 0
    launch.pair.hear()
    assert launch.writers[0].received == launch.core.drain(0.0, 0) == 2


def test_a_copy_that_begins_with_a_full_ring_makes_room_for_the_next_record(token):
    load, update = LOADS["pair-asp"], np.ones(600, np.float32)
    first = Life_(token, load, 0)
    assert first.writers[0].push_dense(0, 0, update, None, 0) == 600
    assert first.writers[0].tick(0)
    assert not first.writers[0].tick(1), "the ring is full"
    # All of it is at the partner, and neither has consumed any: the first launch ends here.
    while first.pair.hand_out():
        first.pair.take_in()
    del first
    second, room = Life_(token, load, 1), Room(World(0), 2)
    outgoing = Outgoing(second.server, Comm(room, 0), 1)
    incoming = Incoming(second.pair.copy, Comm(room, 1), 0)
    assert second.core.drain(0.0, 0) == N_SLOTS
    assert second.writers[0].tick(1)
    for _ in range(1000):
        outgoing.poll()
        incoming.poll()
        second.core.drain(0.0, 0)
    assert second.core.applied(0) == incoming.copy.core.applied(0) == N_SLOTS + 1


def test_copy_refuses_what_is_not_next(token):
    launch = Life_(token, LOADS["pair-asp"], 0)
    launch.writers[0].tick(0)
    launch.pair.hand_out()
    batch, n_bytes = launch.pair.batches[0]
    launch.pair.take_in()
    with pytest.raises(_native.ProtocolViolation, match="sent record 0 of worker 0 where number 1"):
        launch.pair.copy.core.accept(batch, n_bytes)
    with pytest.raises(_native.ProtocolViolation, match="half a record"):
        launch.pair.copy.core.accept(batch, 60)
    batch[:4] = 0
    with pytest.raises(_native.ProtocolViolation, match="bytes that are not a record"):
        launch.pair.copy.core.accept(batch, n_bytes)


def test_answers_that_cannot_be_are_refused(token):
    launch = Life_(token, LOADS["pair-asp"], 0)
    words = launch.pair.words()
    words[0] = (1, 0)
    with pytest.raises(_native.ProtocolViolation, match="1 records have arrived"):
        launch.server.core.take_partner_words(words)


# The waits of a worker before it ticks.


class Writer:
    """A ring at a server whose partner receives one record at each poll."""

    def __init__(self, server, log, stuck=False):
        self.server, self.log, self.stuck = server, log, stuck
        self.next_sequence, self.applied, self.received = 3, 1, 0

    def cut(self, clock, number, described, payload):
        self.next_sequence += 1
        return True

    def is_ahead_of(self, clock):
        return False

    def tick(self, clock, own_us):
        self.log.append(("tick", self.server))
        return True


class Channel:
    """The part of a channel that a tick uses."""

    orders = None

    def __init__(self, layout, server, log, stuck=False):
        self.layout = layout
        self.writer = self.counting_writer = Writer(server, log, stuck)

    def send(self):
        pass

    publish = send

    def wait_received(self, count, max_s):
        if not self.writer.stuck:
            self.writer.received += 1
        there = self.writer.received >= count
        self.writer.log += [("there", self.writer.server, count)] if there else []
        return there

    def begin_fence(self):
        self.writer.log.append(("fence", self.writer.server))

    def wait_fence(self, max_s):
        self.writer.log.append(("fenced", self.writer.server))
        return True

    def clocks(self):
        return [0]

    def turn(self):
        return 0


def ticking(log, stuck, waits=True):
    """A worker of two servers, each the other's partner."""
    placement = place([], 2, 1, 4, 1024)
    channels = [
        Channel(layout, server, log, stuck and server == 1)
        for server, layout in enumerate(placement.layouts)
    ]
    partners = Partners({0: 1, 1: 0}, waits)
    control = OwnWorker()
    start = ConnectionOptions(writes_position=True, partners=partners)
    connection = Connection(0, ["worker 0"], [], channels, control, None, 0.05, start)
    return Worker(connection, [], placement)


def test_worker_ticks_nowhere_before_all_partners_have_its_pushes():
    log = []
    ticking(log, stuck=False).clock()
    # The cut record with its cursor counts as well.
    assert log == [("there", 0, 4), ("there", 1, 4), ("tick", 0), ("tick", 1)]


def test_partner_that_takes_nothing_is_named():
    log = []
    message = (
        "server 1 has taken 1 of 4 records; it waits for its partner, server 0, which has 0 of 4"
    )
    with pytest.raises(StallError, match=message):
        ticking(log, stuck=True).clock()
    assert log == [("there", 0, 4)]


def test_without_bsp_nobody_waits_for_partners_but_for_servers():
    log = []
    ticking(log, stuck=True, waits=False).clock()
    confirmed = [("fence", 0), ("fence", 1), ("fenced", 0), ("fenced", 1)]
    assert log == [*confirmed, ("tick", 0), ("tick", 1)]


# Sets of segments.


def filled(token, name, size=3 << 20):
    """Make a set with a full segment and a sparse one; return the content of the full one."""
    regions = Regions(token, shared=True)
    content = np.random.default_rng(1).integers(0, 256, size, np.uint8)
    regions.create(name, size).view(0, size, True)[:] = content
    regions.create(f"{name}-journal", 4096)
    sparse = regions.create_sparse(f"{name}-t0-buffers", 1 << 30)
    sparse.commit(1 << 29, 4096)
    sparse.view(1 << 29, 3, True)[:] = (1, 2, 3)
    return content


def test_moved_set_has_the_same_bytes_and_holes(token):
    content = filled(token, "s0")
    copied(token, "s0", "r0g5")
    regions = Regions(token, shared=True)
    assert (regions.reopen("r0g5").view(0, content.size, False) == content).all()
    sparse = regions.reopen("r0g5-t0-buffers")
    assert sparse.view((1 << 29), 4, False).tolist() == [1, 2, 3, 0]
    paths = dict(own_segments(token))
    assert paths["r0g5-t0-buffers"].stat().st_blocks * 512 < 1 << 16
    assert paths["r0g5"].stat().st_mode & 0o777 == 0o600


def test_set_in_use_is_not_moved_from_its_node(token):
    content = filled(token, "s0")
    regions = Regions(token, shared=True)
    memory = regions.reopen("s0")
    assert memory.n_bytes == content.size
    with pytest.raises(RegionError, match="a running process uses it"):
        copied(token, "s0", "s1", alone=True)
    del memory, regions
    copied(token, "s0", "s1", alone=True)


def test_missing_set_is_an_error_on_both_sides(token):
    with pytest.raises(RegionError, match="s7: it is not there"):
        copied(token, "s7", "r7g0")


def test_only_marked_sets_count(token):
    filled(token, "s0")
    filled(token, "r12g3")
    assert replica_memory.held(token) == []
    replica_memory.mark(token, "s0", 3)
    replica_memory.mark(token, "r12g3", 4)
    assert replica_memory.held(token) == [Held(12, 4, "r12g3"), Held(0, 3, "s0")]
    replica_memory.remove(token, "s0")
    assert replica_memory.held(token) == [Held(12, 4, "r12g3")]
    replica_memory.link(token, "r12g3", "s12")
    replica_memory.mark(token, "s12", 5)
    replica_memory.remove_all_but(token, {"s12"})
    assert replica_memory.held(token) == [Held(12, 5, "s12")]
    left = {part for part, _ in own_segments(token)}
    assert left == {"s12", "s12-journal", "s12-t0-buffers", "s12-mark"}


def test_files_of_another_user_are_neither_taken_nor_in_the_way(token):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    filled(token, "s0")
    replica_memory.mark(token, "s0", 3)
    foreign = [
        foreign_file(region_name(token, part), "9")
        for part in ("s1", "s1-journal", "s1-mark", "s0-mark.new", "s0-extra", "r0g4", "r0g4-mark")
    ]
    try:
        assert replica_memory.held(token) == [Held(0, 3, "s0")]
        replica_memory.mark(token, "s0", 4)
        replica_memory.link(token, "s0", "s1")
        replica_memory.mark(token, "s1", 4)
        assert replica_memory.held(token) == [Held(0, 4, "s0"), Held(1, 4, "s1")]
        copied(token, "s1", "r0g4")
        replica_memory.remove_all_but(token, {"s1"})
        assert {part for part, _ in own_segments(token)} == {
            "s1",
            "s1-journal",
            "s1-t0-buffers",
            "s1-mark",
        }
        unlink_job(token)
        assert all(path.read_text() == "9" for path in foreign)
    finally:
        for path in foreign:
            path.unlink()


def foreign_file(name, text):
    """Make a file of another user in /dev/shm that all users may read and write."""
    path = replica_memory.SHM / name
    path.write_text(text)
    path.chmod(0o666)
    os.chown(path, 65534, 65534)
    return path


# The memory in which a launch continues. Node a: ranks 0 (scheduler), 1; node b: ranks 2, 3; servers 1 and 2.
TWO_NODES = assign([0, 0, 1, 1], ["a", "b"], 2)


def chosen(on_a, on_b, since=3):
    return choose([on_a, on_a, on_b, on_b], TWO_NODES, since)


def test_own_memory_is_better_than_a_copy_and_near_better_than_far():
    own0, own1, copy0 = Held(0, 3, "s0"), Held(1, 3, "s1"), Held(0, 3, "r0g3")
    assert chosen([own0], [own1, copy0]) == [Source(0, own0), Source(2, own1)]
    assert chosen([], [own1, copy0]) == [Source(2, copy0), Source(2, own1)]
    assert chosen([own1], [own0, copy0]) == [Source(2, own0), Source(0, own1)]
    assert chosen([own1, copy0], [copy0]) == [Source(0, copy0), Source(0, own1)]


def test_memory_of_an_earlier_launch_is_never_taken():
    stale, copy = Held(0, 2, "s0"), Held(0, 4, "r0g4")
    own = Held(1, 3, "s1")
    assert chosen([stale], [own, copy]) == [Source(2, copy), Source(2, own)]
    assert "memory of server 0 is gone" in chosen([stale], [own])


def test_partner_is_the_next_server_on_another_node():
    assert find_partners([0, 0, 1, 1]) == {0: 2, 1: 2, 2: 0, 3: 0}
    assert find_partners([0, 1, 2]) == {0: 1, 1: 2, 2: 0}
    assert find_partners([0, 0]) == {}


def test_tables_that_a_copy_may_judge_otherwise_are_refused():
    for model, text in (
        (BSP(backup=1), "backup = 1: .*; use backup = 0"),
        (ASP(Reject(3)), "policy = 'reject'"),
    ):
        with pytest.raises(ConfigError, match=f"table 'w' with {text}"):
            check_tables([DenseTable("w", (4,), SGD(1.0), model)])
    check_tables([DenseTable("w", (4,), SGD(1.0), model) for model in (BSP(), ASP())])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"partner": True, "warm": False},
            "redundancy.partner = true needs redundancy.warm = true",
        ),
        ({"partner": True}, "start the job with `mpips run`"),
    ],
)
def test_what_cannot_be_is_refused_before_mpi_starts(settings, message):
    values = [("task", "mlp"), ("data.train", "digits")]
    values += [(f"redundancy.{name}", value) for name, value in settings.items()]
    with pytest.raises(ConfigError, match=message):
        train(load_config(None, values))
