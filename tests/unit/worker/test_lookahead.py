"""A look-ahead changes no bit under BSP, and keeps the staleness bound under SSP and ASP."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from local_job import run_local

import mpips
from mpips.config.options import SessionOptions
from mpips.errors import ConfigError
from mpips.model.codec import CODECS
from mpips.model.consistency import ASP, BSP, SSP
from mpips.model.optimizer import SGD, Adagrad, Adam
from mpips.model.row_limits import Idle, MaxRows, Probability
from mpips.worker.worker import connection_of
from tests.support.ahead_rig import included, some_order
from tests.support.harness import Rig, dense, rows

DIM = 4
STEPS = 30


def batches_of(worker, n=STEPS, low=0, high=60, size=40, seed=0):
    """Batches with repeated keys, of which the next one and other workers have many."""
    rng = np.random.default_rng((seed, worker))
    return [rng.integers(low, high, size) for _ in range(n)]


def gradient(values):
    return values * np.float32(0.25) + np.float32(1)


def played(table, n_workers, depth, *, gap=1, high=60, pushes=lambda step, worker: True, **options):
    """Let workers train in turns, one thread for all; return everything that they have pulled."""
    rig = Rig(table, n_workers=n_workers, n_slots=64, slot_bytes=1024, **options)
    workers = [rig.worker(w) for w in range(n_workers)]
    loops = []
    for w, worker in enumerate(workers):
        batches = batches_of(w, high=high)
        loops.append(
            mpips.lookahead(batches, keys=lambda keys: keys, worker=worker, depth=depth)
            if depth
            else iter(batches)
        )
    found = []
    for step in range(STEPS):
        for w, (worker, loop) in enumerate(zip(workers, loops, strict=True)):
            keys = next(loop)
            values = worker.table("e").pull(keys)
            found.append(values.copy())
            if pushes(step, w):
                worker.table("e").push(keys, gradient(values))
        if step % gap == gap - 1:
            for worker in workers:
                worker.clock()
    pulled = [int(connection_of(w).figures().pulled_bytes) for w in workers]
    return found, pulled


@pytest.mark.parametrize("n_workers", [1, 2, 3])
@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("rule", [SGD(0.5), Adagrad(0.1), Adam(0.01)], ids=lambda r: r.name)
def test_bsp_pulls_the_same_bits(n_workers, depth, rule):
    table = rows(DIM, optimizer=rule, consistency=BSP(), init="normal(0.1)")
    plain, _ = played(table, n_workers, 0)
    ahead, _ = played(table, n_workers, depth)
    assert [v.tobytes() for v in ahead] == [v.tobytes() for v in plain]


@pytest.mark.parametrize("gap", [2, 3])
def test_bsp_with_several_batches_in_a_clock(gap):
    table = rows(DIM, consistency=BSP(), init="normal(0.1)")
    plain, _ = played(table, 1, 0, gap=gap)
    ahead, _ = played(table, 1, 4, gap=gap)
    assert [v.tobytes() for v in ahead] == [v.tobytes() for v in plain]


@pytest.mark.parametrize("n_workers", [1, 2])
def test_bsp_with_steps_that_push_nothing(n_workers):
    def pushes(step, worker):
        return (step + worker) % 3 == 0

    table = rows(DIM, consistency=BSP(), init="normal(0.1)")
    plain, _ = played(table, n_workers, 0, pushes=pushes)
    ahead, _ = played(table, n_workers, 4, pushes=pushes)
    assert [v.tobytes() for v in ahead] == [v.tobytes() for v in plain]


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize(
    "limits",
    [
        {"evict": Idle(1)},
        {"evict": Idle(3), "admit": Probability(0.5)},
        {"evict": MaxRows(60)},
        {"evict": MaxRows(50, by="lfu")},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_workers", [1, 2])
def test_bsp_with_rows_that_leave_while_a_cache_has_them(n_workers, limits, depth):
    table = rows(DIM, optimizer=Adagrad(0.1), consistency=BSP(), init="normal(0.1)", **limits)

    def pushes(step, worker):
        return step % 8 < 5  # rows leave in the clocks without pushes

    plain, _ = played(table, n_workers, 0, high=200, pushes=pushes)
    ahead, _ = played(table, n_workers, depth, high=200, pushes=pushes)
    assert [v.tobytes() for v in ahead] == [v.tobytes() for v in plain]


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_bsp_with_codecs(codec):
    assert codec in CODECS
    options = {"compression": codec, "pull_compression": codec}
    table = rows(16, consistency=BSP(), init="normal(0.1)", **options)
    plain, _ = played(table, 2, 0)
    ahead, _ = played(table, 2, 4)
    assert [v.tobytes() for v in ahead] == [v.tobytes() for v in plain]


def test_bsp_with_more_rows_than_the_cache_begins_with():
    def run(depth):
        table = rows(DIM, consistency=BSP(), init="normal(0.1)")
        worker = Rig(table, n_slots=64, slot_bytes=4096).worker(timeout_s=10.0)
        batches = batches_of(0, n=25, high=5000, size=1500)
        loop = batches
        if depth:
            loop = mpips.lookahead(
                batches, keys=lambda keys: {"e": keys}, worker=worker, depth=depth
            )
        found = []
        for keys in loop:
            found.append(worker.table("e").pull(keys).tobytes())
            worker.table("e").push(
                keys, gradient(np.frombuffer(found[-1], np.float32).reshape(-1, DIM))
            )
            worker.clock()
        return found

    assert run(2) == run(0)


def test_memory_is_bounded_by_the_announced_batches():
    worker = Rig(rows(DIM, consistency=BSP()), n_slots=64, slot_bytes=4096).worker(timeout_s=10.0)
    table, depth, size = worker.table("e"), 3, 600
    # No key comes twice, so everything that is held longer than needed would stay.
    batches = [np.arange(i * size, (i + 1) * size) for i in range(40)]
    for keys in mpips.lookahead(batches, keys=lambda keys: keys, worker=worker, depth=depth):
        table.push(keys, table.pull(keys))
        worker.clock()
        assert len(table._ahead._cache) <= 2 * (depth + 2) * size
        assert len(table._ahead._cache.rows) <= 3 * (depth + 2) * size


def test_rows_come_before_they_are_pulled():
    worker = Rig(rows(DIM, consistency=BSP()), n_slots=64, slot_bytes=4096).worker(timeout_s=10.0)
    table = worker.table("e")
    batches = [np.arange(i * 50, i * 50 + 60) for i in range(8)]
    for keys in mpips.lookahead(batches, keys=lambda keys: keys, worker=worker, depth=2):
        before = connection_of(worker).channels[0].writer.next_sequence
        table.pull(keys)
        assert connection_of(worker).channels[0].writer.next_sequence == before
        table.push(keys, np.ones((60, DIM), np.float32))
        worker.clock()


@pytest.mark.parametrize("bound", [0, 1, 2, 5])
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_ssp_rows_have_all_updates_that_the_bound_demands(bound, depth):
    found = included(SSP(bound), 3, some_order(bound, bound), depth)
    assert any(bound and (values[:, w] < now).any() for w, now, values in found) == bool(bound)
    for w, now, values in found:
        assert (values >= now - bound).all(), (w, now, values)
        assert (values[:, w] >= now - min(bound, depth)).all()


@pytest.mark.parametrize("depth", [1, 4])
def test_asp_rows_are_as_old_as_the_depth_at_most(depth):
    found = included(ASP(), 1, [0] * 40, depth)
    assert max(now - values.min() for _, now, values in found) == depth


def test_rows_count_their_age_in_clocks_of_the_program_beside_local_tables():
    keys, depth = np.arange(5), 2
    tables = [
        mpips.DenseTable("w", (2,), SGD(1.0), mpips.LocalSGD(6)),
        mpips.EmbeddingTable("e", DIM, SGD(1.0), ASP(), init="zeros"),
    ]

    def main(worker):
        table, ages = worker.table("e"), []
        for now in mpips.lookahead(
            range(20), keys=lambda _: {"e": keys}, worker=worker, depth=depth
        ):
            ages.append(now + table.pull(keys).max())
            table.push(keys, np.ones((5, DIM), np.float32))
            worker.clock()
        return ages

    # Each clock subtracts 1, so the sum is the number of clocks that the rows lack.
    assert max(run_local(main, tables, SessionOptions(timeout_s=20))[0]) == depth


def test_keys_that_were_not_announced_are_pulled():
    worker = Rig(rows(DIM, consistency=BSP()), n_slots=64, slot_bytes=4096).worker(timeout_s=10.0)
    table = worker.table("e")
    for keys in mpips.lookahead([np.arange(10)] * 3, keys=lambda k: k, worker=worker):
        wanted = np.array([3, 77, 3, 5, -8])
        out = np.empty((5, DIM), np.float32)
        assert table.pull(wanted, out) is out
        assert (out == table.pull(np.array([900, 3, 77, 3, 5, -8]))[1:]).all()
        table.push(np.concatenate([keys, wanted]), np.ones((15, DIM), np.float32))
        worker.clock()
    assert (table.pull(np.array([3])) == table.initial(np.array([3])) - 9).all()


def test_a_loop_may_end_early_and_another_begins():
    worker = Rig(rows(DIM, consistency=BSP()), n_slots=64, slot_bytes=4096).worker(timeout_s=10.0)
    table, batches = worker.table("e"), [np.arange(i, i + 30) for i in range(9)]
    for _ in range(3):
        for i, keys in enumerate(mpips.lookahead(batches, keys=lambda k: k, worker=worker)):
            table.push(keys, table.pull(keys))
            worker.clock()
            if i == 2:
                break
        gc.collect()
    # Replies that nobody takes are under way now.
    table.pull(np.arange(30))
    connection_of(worker).finish()


@pytest.mark.parametrize("n_workers", [1, 2])
def test_what_was_pushed_before_a_look_ahead_counts_as_changed(n_workers):
    rig = Rig(rows(DIM, consistency=BSP("sum"), init="zeros"), n_workers=n_workers, n_slots=64)
    worker, *others = (rig.worker(w, timeout_s=10.0) for w in range(n_workers))
    table, keys = worker.table("e"), np.arange(5)
    table.push(keys, np.ones((5, DIM), np.float32))
    for clock, batch in enumerate(mpips.lookahead([keys] * 3, keys=lambda k: k, worker=worker)):
        assert (table.pull(batch) == -min(clock, 1)).all(), clock
        worker.clock()
        for other in others:
            other.clock()


def test_an_error_of_the_loader_ends_the_look_ahead():
    worker = Rig(rows(DIM), n_slots=64, slot_bytes=4096).worker(timeout_s=10.0)

    def broken():
        yield np.arange(3)
        raise OSError("no more data")

    loop = mpips.lookahead(broken(), keys=lambda k: k, worker=worker)
    with pytest.raises(OSError, match="no more data"):
        list(loop)
    assert len(list(mpips.lookahead([np.arange(3)], keys=lambda k: k, worker=worker))) == 1


def test_bad_use_is_refused_in_one_sentence():
    worker = Rig(rows(DIM), rows(DIM, name="f"), dense()).worker(timeout_s=10.0)

    def first(keys, depth=8):
        return next(iter(mpips.lookahead([0, 1], keys=keys, worker=worker, depth=depth)))

    with pytest.raises(ConfigError, match="depth = 0: must be a whole number, 1 or more"):
        first(lambda _: {"e": np.arange(3)}, depth=0)
    with pytest.raises(ConfigError, match=r"depth = 1\.5"):
        first(lambda _: {"e": np.arange(3)}, depth=1.5)
    with pytest.raises(ConfigError, match="table 'w' is a dense table"):
        first(lambda _: {"w": np.arange(3)})
    with pytest.raises(ConfigError, match="no table has the name 'x'"):
        first(lambda _: {"x": np.arange(3)})
    with pytest.raises(ConfigError, match="the job has 2 embedding tables"):
        first(lambda _: np.arange(3))
    with pytest.raises(ValueError, match="table 'e': keys must be whole numbers"):
        first(lambda _: {"e": np.array([0.5])})
    loop = mpips.lookahead([0, 1], keys=lambda _: {"e": np.arange(3)}, worker=worker)
    next(loop)
    with pytest.raises(ConfigError, match="another look-ahead uses table 'e'"):
        first(lambda _: {"e": np.arange(3)})


def test_staleness_counts_from_the_oldest_row():
    table = rows(DIM, consistency=ASP(mpips.Reject(2)))
    rig = Rig(table, n_workers=2, n_slots=64)
    worker, other = rig.worker(0, timeout_s=10.0), rig.worker(1, timeout_s=10.0)
    one, keys = np.ones((3, DIM), np.float32), np.arange(3)
    loop = mpips.lookahead([keys] * 9, keys=lambda k: k, worker=worker, depth=8)
    found = []
    for batch in loop:
        values = worker.table("e").pull(batch)
        other.table("e").push(keys, one).wait()
        found.append(worker.table("e").push(keys, one, base=values).wait().rejected)
        worker.clock()
    assert found[0] == 0
    assert 1 in found
