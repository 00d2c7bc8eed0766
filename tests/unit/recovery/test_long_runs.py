"""Sequences, clocks, versions and steps just below a limit of their width; see docs/design/limits.md."""

from __future__ import annotations

import harness
import numpy as np
import pytest
from fake_network import KINDS, Network, Question
from harness import dense, make_writer, rows
from journal_rig import Rig

from mpips import _native
from mpips.model.consistency import ASP, BSP, SSP, Reject, Scale
from mpips.model.optimizer import Adam
from mpips.scheduler.own_worker import OwnWorker
from mpips.transport.channel import LocalChannel
from mpips.transport.region import unlink_job
from mpips.transport.remote import RemoteChannel
from mpips.worker.connection import Connection
from mpips.worker.worker import Worker

KEYS = np.array([3, -5, 2**62, 8], np.int64)
ROWS = np.ones((4, 4), np.float32)
# Result words have 24 bits of a sequence, hints 32; 31, 53 and 63 bits end signed words and doubles.
LIMITS = [2**24, 2**31, 2**32, 2**53, 2**63]
MODELS = {"asp": ASP(), "ssp": SSP(bound=1), "bsp": BSP("sum")}
LONG = 3 * 4096  # elements of a push that publishes hints while it is copied


@pytest.fixture
def make_rig():
    rigs = []

    def make(*tables, **options):
        rigs.append(Rig(*tables, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.leave()
        unlink_job(rig.token)


def push(writer, clock, n=8, value=1.0):
    assert writer.push_dense(0, clock, np.full(n, value, np.float32), None, 0) == n


def worker_of(rig, channel):
    """Worker 0 of a rig over a channel."""
    staging = _native.SharedMemory.anonymous(4096, 0)
    connection = Connection(0, ["worker 0"], rig.tables, [channel], OwnWorker(), staging, 60.0)
    return Worker(connection, rig.tables, rig.placement)


@pytest.mark.parametrize("limit", LIMITS)
def test_records_of_all_kinds_go_past_every_width_of_a_sequence(make_rig, limit):
    rig = make_rig(dense(8, "a"), rows(4, "e"))
    rig.stand_at(sequence=limit - 5)
    assert rig.again()["sequence"] == limit - 5
    writer, out = rig.writer, np.empty((4, 4), np.float32)
    for i in range(4):
        push(writer, 0)
        assert writer.push_rows(1, 0, KEYS, ROWS, None, 0) == 4
        assert writer.pull_rows(1, 0, KEYS, out, 0) == 4
        assert rig.drain() == 3
        assert writer.collect() == 0
        assert (out == -(i + 1)).all()
        # Each record has its own result word, also while the low bits are 0.
        assert writer.applied == rig.core.applied(0) == limit - 5 + 3 * (i + 1)
    assert writer.credits == 4
    assert (rig.core.dense_values(0) == -4).all()
    counters = writer.counters()
    assert (counters["pushed"], counters["applied"]) == (8, 8)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_worker_goes_past_every_width_with_long_and_short_pushes(make_rig, limit):
    rig = make_rig(dense(LONG, "a"), rows(4, "e"), slot_bytes=LONG * 4 + 64)
    rig.stand_at(sequence=limit - 5)
    rig.again()
    channel = LocalChannel(rig.server.region, rig.layout, rig.writer, 1, rig.server.drain)
    worker = worker_of(rig, channel)
    for i in range(4):
        result = worker.table("a").push(np.ones(LONG, np.float32)).wait()
        assert (result.applied, result.unknown, result.staleness) == (1, 0, i)
        assert worker.table("e").push(KEYS, ROWS).wait().applied == 1
        assert (worker.table("e").pull(KEYS) == -(i + 1)).all()
    assert (worker.table("a").pull() == -4).all()
    assert rig.core.applied(0) > limit


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", LIMITS)
def test_a_worker_on_another_node_goes_past_every_width(make_rig, limit, kind):
    rig = make_rig(dense(600, "a"), rows(4, "e"), n_slots=3)
    rig.stand_at(sequence=limit - 7)
    rig.again()
    rig.region = rig.server.region
    network = Network(rig, seed=limit % 1000, kind=kind)

    def make(mirror):
        writer = _native.RingWriter(mirror, 0, rig.layout.geometry, 0, 1, True, 2)
        writer.resume(limit - 7, limit - 7, 0, False, 0, 0, [], False)
        return writer

    question = Question(network, rig.layout, 0)
    worker = worker_of(rig, RemoteChannel(network, question, rig.layout, 0, 1, make, True))
    for i in range(5):
        assert worker.table("a").push(np.ones(600, np.float32)).wait().applied == 1
        worker.table("e").push(KEYS, ROWS)
        assert (worker.table("e").pull(KEYS) == -(i + 1)).all()
    assert (worker.table("a").pull() == -5).all()
    assert rig.core.applied(0) > limit


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_restart_at_a_width_applies_every_record_once(make_rig, model, limit):
    rig = make_rig(dense(8, "a", consistency=model), n_slots=16)
    start = limit - 3
    rig.stand_at(sequence=start, clock=start, version=start)
    rig.again()
    # Two records are consumed when the server is lost, eight are in the ring; the limit lies between them.
    for i in range(5):
        push(rig.writer, start + i, value=2.0**i)
        assert rig.writer.tick(start + i)
        if i == 0:
            assert rig.drain() == 2
    (at,) = rig.repeat(2)
    assert (at["sequence"], at["clock"]) == (start + 10, start + 5)
    # The worker repeats its last clock, which counts already, and goes on.
    for clock in (start + 4, start + 5):
        push(rig.writer, clock, value=16.0 if clock == start + 4 else 32.0)
        assert rig.writer.tick(clock)
    rig.drain()
    assert (rig.core.dense_values(0) == -(2.0**6 - 1)).all()
    assert rig.core.clock(0) == rig.core.version(0) == start + 6
    assert rig.core.applied(0) == start + 12


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("model", [SSP(bound=1), BSP("sum")], ids=["ssp", "bsp"])
def test_clocks_of_two_workers_go_past_every_width(make_rig, model, limit):
    rig = make_rig(dense(8, "a", consistency=model), rows(4, "e", consistency=model), n_workers=2)
    rig.stand_at(clock=limit - 2, version=limit - 2)
    rig.again()
    first, second = rig.writers
    out = np.empty((4, 4), np.float32)
    for clock in range(limit - 2, limit + 2):
        push(first, clock)
        assert first.tick(clock)
        rig.drain()
        # A pull of the next clock waits under BSP, and one of the clock after it under SSP.
        assert first.pull_rows(1, clock + (model.name == "ssp") + 1, KEYS, out, 0) == 4
        rig.drain()
        assert first.collect() == 1
        push(second, clock)
        assert second.tick(clock)
        rig.drain()
        assert first.collect() == 0
        assert [rig.core.clock(w) for w in (0, 1)] == [clock + 1] * 2
        assert not rig.core.finished(0)
    assert (rig.core.dense_values(0) == -8).all()
    version, least = _native.read_head(rig.server.region, rig.layout.head_offset(0))
    assert least == limit + 2
    assert version == rig.core.version(0)


@pytest.mark.parametrize("limit", LIMITS)
def test_staleness_at_every_width_of_a_version_is_exact(make_rig, limit):
    rig = make_rig(dense(8, "a", consistency=ASP(policy=Scale())))
    rig.stand_at(version=limit - 1)
    rig.again()
    for behind, share in ((0, 1.0), (1, 0.5), (3, 0.25)):
        version = rig.core.version(0)
        rig.writer.name_base(0, version - behind)
        push(rig.writer, 0)
        before = rig.core.dense_values(0)
        rig.drain()
        assert (rig.core.dense_values(0) == before - share).all()
        word = rig.writer.result(rig.writer.applied - 1)
        assert word[1] == behind
        assert rig.core.version(0) == version + 1


@pytest.mark.parametrize("staleness", [2**32 - 1, 2**32, 2**40])
def test_a_staleness_above_32_bits_is_reported_as_the_largest_and_not_as_its_low_bits(
    make_rig, staleness
):
    rig = make_rig(dense(8, "a", consistency=ASP(policy=Reject(2**32 - 1))))
    rig.stand_at(version=staleness)
    rig.again()
    push(rig.writer, 0)
    rig.drain()
    assert rig.writer.applied == 1
    assert rig.writer.counters()["max_staleness"] == 2**32 - 1
    assert rig.core.stats(0)["rejected"] == (staleness > 2**32 - 1)


@pytest.mark.parametrize("limit", [2**31, 2**32, 2**53])
def test_adam_counts_steps_past_every_width(make_rig, limit):
    # The correction has long been 1, so each update is that of plain moments.
    rig = make_rig(dense(8, "a", optimizer=Adam(lr=0.5, eps=1.0)))
    rig.core.set_steps_before(0, limit - 3)
    w, m, v = (np.zeros(8, np.float32) for _ in range(3))
    f = np.float32
    for i in range(6):
        push(rig.writer, 0, value=2.0)
        rig.drain()
        m = f(0.9) * m + f(1.0 - 0.9) * f(2)
        v = f(0.999) * v + f(1.0 - 0.999) * f(4)
        w = w - f(0.5) * m / (np.sqrt(v) + f(1))
        assert rig.core.steps(0) == limit - 3 + i + 1
    np.testing.assert_allclose(rig.core.dense_values(0), w, rtol=1e-6)


@pytest.mark.parametrize("generation", [2**31, 2**32 - 1])
def test_the_last_generation_takes_over(make_rig, generation):
    rig = make_rig(dense(8, "a"))
    push(rig.writer, 0)
    rig.again(generation)
    push(rig.writer, 0)
    rig.drain()
    assert (rig.core.dense_values(0) == -2).all()


def test_a_generation_beyond_32_bits_is_refused_and_not_cut():
    memory = _native.SharedMemory.anonymous(1 << 20, 0)
    rig_layout = _native.Layout(1, 1, _native.RingGeometry(4, 1024, False), [(0, 8, 0, None)])
    with pytest.raises(TypeError, match="incompatible"):
        make_writer(memory, rig_layout, 0, 1, generation=2**32)


@pytest.mark.parametrize("limit", [2**31, 2**32, 2**53, 2**63])
def test_numbers_of_cuts_go_past_every_width(make_rig, limit):
    rig = make_rig(dense(8, "a"))
    for number in range(limit - 2, limit + 2):
        rig.core.expect_cut(number)
        assert rig.writer.cut(0, number, 0, b"text")
        push(rig.writer, 0)
        assert rig.drain() == 0
        assert rig.core.cut_ready()
        rig.core.release_cut(number)
        assert rig.drain() == 2
        # A cut record up to this number holds no ring any more.
        assert rig.writer.cut(0, number, 0, b"text")
        assert rig.drain() == 1


@pytest.mark.parametrize("limit", LIMITS)
def test_a_copy_on_another_node_takes_records_past_every_width(make_rig, limit):
    rig = make_rig(dense(8, "a"), n_slots=4)
    rig.stand_at(sequence=limit - 3)
    rig.again()
    rig.server.core.begin_partnership()
    batch, words = np.zeros(4096, np.uint8), np.zeros((1, 2), np.uint64)
    for i in range(6):
        push(rig.writer, 0)
        assert rig.core.outgoing(batch) > 0
        # Nothing is acknowledged before the partner has it.
        assert rig.drain() == 0
        words[:] = limit - 3 + i + 1, limit - 3 + i
        rig.core.take_partner_words(words)
        assert rig.drain() == 1
        assert rig.writer.received == rig.writer.applied == limit - 3 + i + 1


@pytest.mark.parametrize("journal", [False, True])
def test_the_count_of_a_rows_updates_stays_at_its_end_and_does_not_begin_again(make_rig, journal):
    tables = [rows(4, "e", optimizer=Adam(lr=0.5))]
    rig = make_rig(*tables) if journal else harness.Rig(*tables)
    # One row has no space left to count, the other is long past the last change of its correction.
    content = np.zeros((2, 13), np.float32)
    content[:, 12:].view(np.uint32)[:, 0] = 2**32 - 3, 10**6
    rig.core.load_rows(0, np.array([1, 2], np.int64), content)
    writer = rig.writers[0]
    for i in range(6):
        update = np.full((2, 4), 2.0, np.float32)
        assert writer.push_rows(0, 0, np.array([1, 2], np.int64), update, None, 0) == 2
        rig.drain()
        found = rig.core.embedding_content(0)[1]
        counts = np.ascontiguousarray(found[:, 12]).view(np.uint32).tolist()
        assert counts == [min(2**32 - 2 + i, 2**32 - 1), 10**6 + i + 1]
        # Equal bits: the rate is that of a long run for both.
        assert found[0, :12].tobytes() == found[1, :12].tobytes()
