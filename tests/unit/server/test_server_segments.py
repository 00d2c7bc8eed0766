"""Pushes of rows in several records change nothing until all records are there."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Rig, floats, in_threads, make_writer, rows

from mpips import _native
from mpips.model.consistency import ASP, BSP, SSP, Compensate, Reject, Scale
from mpips.model.optimizer import SGD, Adagrad, Adam, PythonRule

Outcome = _native.Outcome
PER_RECORD = 9  # rows of 24 floats in a record of 1024 bytes


def pushed(writer, n, value=1.0, dim=24, first_key=0, clock=0):
    """Write one push of n rows as far as it fits; return the number of rows written."""
    update = np.full((n, dim), value, np.float32)
    keys = np.arange(first_key, first_key + n, dtype=np.int64)
    return writer.push_rows(0, clock, keys, update, None, 0)


def outcomes(writer, end):
    return [writer.result(q)[0] for q in range(end)]


def column(rig):
    """Return the first value of every row, by key; all values of a row must be equal."""
    table = rig.table_rows()
    assert all(len(set(row)) == 1 for row in table.values())
    return {key: row[0] for key, row in table.items()}


@pytest.mark.parametrize("checksums", [True, False])
def test_segments_that_fit_stay_in_their_slots_until_the_last(checksums):
    # The ring has room for the push only after the pushes before it are consumed.
    rig = Rig(rows(24), n_slots=4, checksums=checksums)
    writer, n = rig.writers[0], 4 * PER_RECORD
    keys, update = np.arange(n, dtype=np.int64), floats(n * 24).reshape(n, 24)
    assert pushed(writer, 1, 0.0) == 1
    done = writer.push_rows(0, 0, keys, update, None, 0)
    assert done == 3 * PER_RECORD
    assert rig.drain() == 4
    assert writer.applied == 1
    assert writer.credits == 1
    assert rig.core.n_rows(0) == 1
    assert writer.push_rows(0, 0, keys, update, None, done) == n
    assert rig.drain() == 1
    assert (writer.applied, writer.credits) == (5, 4)
    assert outcomes(writer, 5) == [Outcome.APPLIED, *[Outcome.SEGMENT] * 3, Outcome.APPLIED]
    assert rig.table_rows() == dict(zip(keys.tolist(), (-update).tolist(), strict=True))
    assert rig.core.stats(0)["updates"] == 2


@pytest.mark.parametrize("n_records", [2, 4, 5, 8, 9, 23])
@pytest.mark.parametrize("n_slots", [2, 4, 8])
def test_pushes_smaller_and_larger_than_the_ring_give_the_same_rows(n_records, n_slots):
    rig = Rig(rows(24), n_slots=n_slots)
    handle = rig.worker().table("e")
    n = n_records * PER_RECORD - 4
    keys = np.random.default_rng(n_records).permutation(n) * 1_000_003
    updates = [floats(n * 24, step).reshape(n, 24) for step in range(3)]
    for update in updates:
        assert handle.push(keys, update).wait().applied == 1
    out = np.empty((n, 24), np.float32)
    assert handle.pull(keys, out) is out
    assert (out == -sum(updates)).all()
    assert rig.core.version(0) == 3


@pytest.mark.parametrize("what", ["tick", "finish", "pull", "another push", "the same push again"])
def test_what_follows_an_unfinished_push_is_not_held_up_by_it(what):
    rig = Rig(rows(24), n_slots=6)
    writer, n = rig.writers[0], 8 * PER_RECORD
    assert pushed(writer, 2 * PER_RECORD, 0.0) == 2 * PER_RECORD
    rig.drain()
    # Six records are needed, but a pull that is not collected occupies one slot.
    out = np.empty((1, 24), np.float32)
    assert writer.pull_rows(0, 0, np.array([0]), out, 0) == 1
    n = 6 * PER_RECORD
    assert pushed(writer, n, 3.0) == 5 * PER_RECORD
    rig.drain()
    assert writer.applied == 3
    assert writer.collect() == 0
    assert writer.credits == 1
    if what == "tick":
        assert writer.tick(0)
    elif what == "finish":
        assert writer.finish(0)
    elif what == "pull":
        assert writer.pull_rows(0, 0, np.array([0]), out, 0) == 1
    elif what == "another push":
        assert pushed(writer, 1, 5.0, first_key=100) == 1
    else:
        assert pushed(writer, n, 5.0) == PER_RECORD
    rig.drain()
    assert writer.collect() == 0
    again = what == "the same push again"
    assert writer.applied == writer.next_sequence - again
    assert outcomes(writer, 8)[3:] == [Outcome.SEGMENT] * 5
    zeros = dict.fromkeys(range(2 * PER_RECORD), 0.0)
    assert column(rig) == (zeros | {100: -5.0} if what == "another push" else zeros)
    if again:
        keys, update = np.arange(n, dtype=np.int64), np.full((n, 24), 5, np.float32)
        assert writer.push_rows(0, 0, keys, update, None, PER_RECORD) == n
        rig.drain()
        assert column(rig) == dict.fromkeys(range(n), -5.0)


def test_a_push_goes_on_after_a_pull_in_its_middle():
    rig = Rig(rows(24), n_slots=8)
    writer, n = rig.writers[0], 6 * PER_RECORD
    keys, update = np.arange(n, dtype=np.int64), floats(n * 24).reshape(n, 24)
    out = np.empty((1, 24), np.float32)
    # Uncollected pulls leave two slots for the first part of the push.
    for _ in range(6):
        assert writer.pull_rows(0, 0, np.array([0]), out, 0) == 1
    done = writer.push_rows(0, 0, keys, update, None, 0)
    assert done == 2 * PER_RECORD
    rig.drain()
    assert writer.collect() == 0
    assert writer.pull_rows(0, 0, np.array([1]), out, 0) == 1
    rig.drain()
    assert writer.collect() == 0
    assert (out == 0).all()
    assert writer.push_rows(0, 0, keys, update, None, done) == n
    rig.drain()
    assert rig.table_rows() == dict(zip(keys.tolist(), (-update).tolist(), strict=True))


def test_a_ring_full_of_segments_without_an_end_is_emptied():
    """A worker marks a push as one that fits although it does not: the server must not wait for a slot."""
    rig = Rig(rows(24), n_slots=4, checksums=False)
    writer, n = rig.writers[0], 7 * PER_RECORD
    keys, update = np.arange(n, dtype=np.int64), floats(n * 24).reshape(n, 24)
    done = writer.push_rows(0, 0, keys, update, None, 0)
    assert done == 4 * PER_RECORD
    slots = rig.layout.mailbox_offset(0) + rig.layout.geometry.slots_offset
    for slot in range(4):
        at = slots + slot * rig.layout.geometry.record_stride + 4
        flags = rig.region.view(at, 2, True).view(np.uint16)
        flags |= 32
    rig.drain()
    assert writer.applied == 4
    assert rig.core.n_rows(0) == 0
    assert writer.push_rows(0, 0, keys, update, None, done) == n
    rig.drain()
    assert rig.table_rows() == dict(zip(keys.tolist(), (-update).tolist(), strict=True))


@pytest.mark.parametrize("n_slots", [3, 8, 32])
def test_interleaved_pushes_of_several_workers_are_each_applied_once(n_slots):
    n_workers, steps, n = 3, 20, 7 * PER_RECORD
    rig = Rig(rows(24), n_workers=n_workers, n_slots=n_slots)
    keys = [np.random.default_rng(w).permutation(2 * n)[:n] for w in range(n_workers)]

    def work(worker, w):
        handle = worker.table("e")
        for step in range(steps):
            handle.push(keys[w], floats(n * 24, [w, step]).reshape(n, 24))
        worker.flush()

    workers = [rig.worker(w, local=False) for w in range(n_workers)]
    with rig.serving():
        in_threads([lambda w=w: work(workers[w], w) for w in range(n_workers)])
    expected = np.zeros((2 * n, 24), np.float32)
    for w in range(n_workers):
        for step in range(steps):
            expected[keys[w]] -= floats(n * 24, [w, step]).reshape(n, 24)
    found = np.zeros_like(expected)
    for key, row in rig.table_rows().items():
        found[key] = row
    assert (found == expected).all()
    stats = rig.core.stats(0)
    assert stats["pushed"] == stats["applied"] == stats["updates"] == n_workers * steps


@pytest.mark.parametrize("model", [BSP("sum"), SSP(), ASP()], ids=["bsp", "ssp", "asp"])
@pytest.mark.parametrize("n_slots", [3, 32])
@pytest.mark.parametrize("optimizer", [SGD(0.5), Adagrad(0.1), Adam(0.1)], ids=lambda o: o.name)
def test_repeated_keys_are_summed_in_order_whatever_the_ring(model, n_slots, optimizer):
    """The bits are those of one record of sums; the order of summation matters for these values."""
    n, dim = 400, 24
    random = np.random.default_rng(5)
    keys = random.integers(0, 90, n) * 77_777
    update = (random.normal(size=(n, dim)) * 10.0 ** random.integers(-4, 5, (n, 1))).astype(
        np.float32
    )
    unique = np.array(list(dict.fromkeys(keys.tolist())))
    sums = np.zeros((len(unique), dim), np.float32)
    for u, key in enumerate(unique):
        first, *others = update[keys == key]
        sums[u] = first
        for other in others:
            sums[u] += other
    results = []
    for slots, k, values in ((n_slots, keys, update), (2, unique, sums)):
        slot_bytes = 1024 if k is keys else 65536
        table = rows(dim, optimizer=optimizer, consistency=model, init="uniform(0.5)")
        rig = Rig(table, n_slots=slots, slot_bytes=slot_bytes)
        worker = rig.worker()
        for _ in range(3):
            worker.table("e").push(k, values)
            worker.clock()
        worker.flush()
        out = np.full((n, dim), np.nan, np.float32)
        results.append(worker.table("e").pull(keys, out).tobytes())
    assert results[0] == results[1]


def test_push_pull_and_prefetch_of_repeated_keys_fill_every_place():
    rig = Rig(rows(24), n_slots=3)
    worker = rig.worker()
    handle = worker.table("e")
    keys = np.tile(np.arange(60), 3)
    out = np.empty((180, 24), np.float32)
    assert handle.push_pull(keys, np.ones((180, 24), np.float32), out) is out
    assert (out == -3.0).all()
    ahead = handle.prefetch(keys)
    assert (handle.pull(keys, out) == -3.0).all()
    assert (ahead.wait() == -3.0).all()
    # An array that is not contiguous is filled as well.
    wide = np.zeros((180, 48), np.float32)
    assert (handle.pull(keys, wide[:, ::2]) == -3.0).all()
    assert (wide[:, 1::2] == 0.0).all()
    with pytest.raises(ValueError, match=r"shape \(180, 24\)"):
        handle.push_pull(keys, np.ones((180, 24), np.float32), out[1:])


def test_dropped_prefetches_do_not_disturb_later_pulls():
    """The plan of a dropped pull is not used again before its replies have arrived."""
    rig = Rig(rows(24), n_slots=4)
    worker = rig.worker(local=False)
    handle = worker.table("e")
    n = 200
    with rig.serving():
        for step in range(30):
            keys = np.random.default_rng(step).integers(0, 50, n)
            handle.prefetch(keys[::-1].copy())
            handle.push(np.arange(50), np.full((50, 24), -1.0, np.float32))
            assert (handle.pull(keys) == step + 1).all()


def test_an_element_that_is_not_finite_sends_none_of_the_records():
    rig = Rig(rows(24), n_slots=4)
    handle = rig.worker().table("e")
    update = np.ones((60, 24), np.float32)
    update[59, 23] = np.inf
    with pytest.raises(ValueError, match="inf at position 1439 of 1440; nothing was sent"):
        handle.push(np.arange(60), update)
    assert rig.writers[0].next_sequence == 0


@pytest.mark.parametrize("policy", [Scale(), Reject(0), Compensate(0.5)], ids=lambda p: p.name)
@pytest.mark.parametrize("n_slots", [3, 16])
def test_a_stale_push_in_several_records_is_judged_once_as_a_whole(policy, n_slots):
    n = 8 * PER_RECORD
    rig = Rig(rows(24, consistency=ASP(policy)), n_workers=2, n_slots=n_slots)
    one, other = (rig.worker(w).table("e") for w in range(2))
    keys = np.arange(n)
    base = one.pull(keys)
    other.push(keys, np.full((n, 24), 2.0, np.float32), base).wait()
    result = one.push(keys, np.ones((n, 24), np.float32), base).wait()
    assert result.staleness == 1
    kind = {"scale": "scaled", "reject": "rejected", "compensate": "compensated"}[policy.name]
    assert getattr(result, kind) == rig.core.stats(0)[kind] == 1
    value = {"scaled": -2.5, "rejected": -2.0, "compensated": -2.0}[kind]
    assert column(rig) == dict.fromkeys(range(n), value)


def test_a_rule_in_python_sees_all_rows_of_a_push_at_once():
    seen = []

    def rule(values, state, gradient, step):
        seen.append(len(values))
        values -= gradient

    rig = Rig(rows(24, optimizer=PythonRule(rule)), n_slots=16)
    n = 8 * PER_RECORD
    rig.worker().table("e").push(np.arange(n), np.ones((n, 24), np.float32)).wait()
    assert seen == [n * 24]
    assert column(rig) == dict.fromkeys(range(n), -1.0)


def test_rows_that_another_worker_makes_meanwhile_are_found():
    """The server looks rows up for an incomplete push, another worker makes them, the push is applied."""
    rig = Rig(rows(24, init="constant(1)"), n_workers=2, n_slots=6)
    slow, n = rig.writers[0], 6 * PER_RECORD
    keys, update = np.arange(n, dtype=np.int64), np.ones((n, 24), np.float32)
    out = np.empty((1, 24), np.float32)
    assert slow.pull_rows(0, 0, np.array([0]), out, 0) == 1
    done = slow.push_rows(0, 0, keys, update, None, 0)
    assert done == 5 * PER_RECORD
    rig.drain()
    assert slow.collect() == 0
    rig.worker(1).table("e").push(keys[::-1].copy(), update).wait()
    assert slow.push_rows(0, 0, keys, update, None, done) == n
    rig.drain()
    assert column(rig) == dict.fromkeys(range(n), -1.0)
    assert rig.core.n_rows(0) == n


def test_planned_groups_that_do_not_fit_their_plan_are_refused():
    rig = Rig(rows(24))
    writer = make_writer(rig.region, rig.layout, 0, 1)
    plan = _native.KeyPlan()
    plan.build(np.array([3, 4]), _native.Partitioner.hash(1))
    good = np.zeros((2, 24), np.float32)
    with pytest.raises(IndexError, match="no such server"):
        writer.push_planned(0, 0, plan, 1, good, None, 0, None, 0)
    with pytest.raises(ValueError, match="keys of the batch"):
        writer.push_planned(0, 0, plan, 0, good[:1], None, 0, None, 0)
    with pytest.raises(ValueError, match="base must have the shape"):
        writer.push_planned(0, 0, plan, 0, good, good[:1], 0, None, 0)
    with pytest.raises(ValueError, match="keys of the batch"):
        writer.pull_planned(0, 0, plan, 0, good[0], 0, None)
