"""ASP and its policies: staleness is exact, is reported to the worker, and is counted on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Rig, dense, floats, push_all, rows

from mpips import _native
from mpips.kernels import reference
from mpips.model.consistency import ASP, SSP, Accept, Compensate, Reject, Scale

Outcome = _native.Outcome


def stale_push(rig, worker, staleness, update, **keywords):
    """Push an update computed on values that lack the last `staleness` updates of the table."""
    handle = worker.table(rig.tables[0].name)
    rig.drain()
    base = rig.core.version(0) - staleness
    rig.writers[worker.index].set_base_version(0, base)
    request = handle.push(*update, **keywords)
    return request.wait()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("model", [ASP, SSP])
def test_staleness_is_the_number_of_updates_since_the_pull(seed, model):
    n = 3
    rig = Rig(dense(4, consistency=model()), n_workers=n)
    workers = [rig.worker(w) for w in range(n)]
    rng = np.random.default_rng(seed)
    version, pulled, histogram = 0, [0] * n, [0] * 65
    greatest = [0] * n
    for _ in range(200):
        w = int(rng.integers(n))
        if rng.random() < 0.3:
            (workers[w].table("w").pull if rng.random() < 0.5 else workers[w].table("w").view)()
            pulled[w] = version
            continue
        result = workers[w].table("w").push(np.ones(4, np.float32)).wait()
        expected = version - pulled[w]
        assert (result.applied, result.staleness) == (1, expected)
        histogram[min(expected, 64)] += 1
        greatest[w] = max(greatest[w], expected)
        version += 1
    stats = rig.core.stats(0)
    assert stats["staleness"] == histogram
    assert sum(histogram) == stats["pushed"] == stats["applied"] == rig.core.version(0) == version
    assert [worker.counters()["max_staleness"] for worker in workers] == greatest
    assert rig.values().tolist() == [-float(version)] * 4


def test_staleness_beyond_the_histogram_is_counted_in_its_last_bin_and_told_exactly():
    rig = Rig(dense(1))
    worker = rig.worker()
    for _ in range(100):
        worker.table("w").push(np.zeros(1, np.float32))
    assert stale_push(rig, worker, 100, [np.ones(1, np.float32)]).staleness == 100
    histogram = rig.core.stats(0)["staleness"]
    assert (len(histogram), sum(histogram), histogram[64]) == (65, 101, 37)


def test_rows_pulled_in_several_records_are_as_old_as_the_first():
    rig = Rig(rows(1), n_workers=2, n_slots=2, slot_bytes=256)
    reader, other = rig.writers[0], rig.worker(1)
    keys, out = np.arange(60, dtype=np.int64), np.empty((60, 1), np.float32)
    done = reader.pull_rows(0, 0, keys, out, 0)
    assert done < 60
    rig.drain()
    assert reader.collect() == 0
    for _ in range(5):
        other.table("e").push(np.array([1]), np.ones((1, 1), np.float32)).wait()
    assert reader.pull_rows(0, 0, keys, out, done) == 60
    rig.drain()
    assert reader.collect() == 0
    assert reader.base_version(0) == 0


def policy_rig(policy, kind):
    make = dense(6) if kind == "dense" else rows(3)
    table = type(make)(
        make.name,
        make.shape if kind == "dense" else make.dim,
        make.optimizer,
        SSP(policy=policy),
    )
    rig = Rig(table)
    worker = rig.worker()
    handle = worker.table(table.name)
    keys = np.array([4, 9])

    def arguments(value):
        update = np.full(6, value, np.float32)
        return [update] if kind == "dense" else [keys, update.reshape(2, 3)]

    def values():
        return handle.pull() if kind == "dense" else handle.pull(keys).reshape(-1)

    return rig, worker, arguments, values


@pytest.mark.parametrize("kind", ["dense", "rows"])
def test_accept_applies_whatever_the_staleness(kind):
    rig, worker, arguments, values = policy_rig(Accept(), kind)
    for staleness in [0, 1, 2, 3]:
        result = stale_push(rig, worker, staleness, arguments(1.0))
        assert (result.applied, result.scaled, result.staleness) == (1, 0, staleness)
    assert (values() == -4.0).all()


@pytest.mark.parametrize("kind", ["dense", "rows"])
def test_scale_divides_by_one_plus_staleness(kind):
    rig, worker, arguments, values = policy_rig(Scale(), kind)
    total = 0.0
    for staleness in [0, 1, 0, 3, 1]:
        result = stale_push(rig, worker, staleness, arguments(8.0))
        total += 8.0 / (1 + staleness)
        assert (result.applied, result.scaled) == (1, int(staleness > 0))
    assert (values() == -total).all()
    assert rig.core.stats(0)["scaled"] == worker.counters()["scaled"] == 3


@pytest.mark.parametrize("kind", ["dense", "rows"])
def test_reject_drops_what_is_too_stale_and_says_so(kind):
    rig, worker, arguments, values = policy_rig(Reject(max_staleness=2), kind)
    for _ in range(4):
        stale_push(rig, worker, 0, arguments(0.0))
    taken = 0
    for staleness in [0, 3, 2, 4, 1]:
        result = stale_push(rig, worker, staleness, arguments(1.0))
        ok = staleness <= 2
        taken += ok
        assert (result.applied, result.rejected) == (int(ok), int(not ok))
        assert result.staleness == staleness
    assert (values() == -float(taken)).all()
    stats, counters = rig.core.stats(0), worker.counters()
    assert (stats["rejected"], stats["pushed"]) == (2, 9) == (counters["rejected"], 9)
    assert stats["applied"] == stats["updates"] == rig.core.version(0) == counters["applied"] == 7
    assert sum(stats["staleness"]) == 9


@pytest.mark.parametrize("kind", ["dense", "rows"])
def test_compensate_is_the_reference_on_the_values_of_that_moment(kind):
    rig, worker, arguments, values = policy_rig(Compensate(lambda_=0.3), kind)
    expected = np.zeros(6, np.float32)
    bases = [expected.copy()]
    for step, staleness in enumerate([0, 1, 2, 0, 3]):
        gradient = (1.0 + step) / 7
        base = bases[step - staleness]
        shaped = base if kind == "dense" else base.reshape(2, 3)
        result = stale_push(rig, worker, staleness, arguments(gradient), base=shaped)
        update = np.full(6, gradient, np.float32)
        if staleness:
            reference.compensate(update, update.copy(), expected, base, 0.3)
        expected -= update
        bases.append(expected.copy())
        assert (result.applied, result.compensated) == (1, int(staleness > 0))
    assert values().tobytes() == expected.tobytes()
    assert rig.core.stats(0)["compensated"] == worker.counters()["compensated"] == 3


def test_compensated_push_larger_than_the_ring_keeps_its_base_in_step():
    n = 3000
    rig = Rig(dense(n, consistency=SSP(policy=Compensate(lambda_=1.0))), n_slots=2)
    update, base = floats(n, 1), floats(n, 2)
    push_all(rig.writers[0], 0, floats(n, 3), rig.drain, base=np.zeros(n, np.float32))
    rig.drain()
    before = rig.values()
    push_all(rig.writers[0], 0, update, rig.drain, base=base)
    rig.drain()
    assert (rig.values() == before - (update + update * update * (before - base))).all()


@pytest.mark.parametrize("kind", ["dense", "rows"])
def test_unfinished_push_changes_nothing_until_its_last_segment(kind):
    n = 1000
    rig = Rig(dense(n) if kind == "dense" else rows(1), n_slots=2)
    writer, keys = rig.writers[0], np.arange(n, dtype=np.int64)
    update, done = np.ones(n, np.float32), 0
    while done < n:
        values = rig.values() if kind == "dense" else np.zeros(rig.core.n_rows(0) + 1)
        assert not values.any()
        assert len(values) in (n, 1)
        if kind == "dense":
            done = writer.push_dense(0, 0, update, None, done)
        else:
            done = writer.push_rows(0, 0, keys, update[:, None], None, done)
        sequence = writer.next_sequence - 1
        rig.drain()
        assert writer.result(sequence)[0] == (Outcome.APPLIED if done == n else Outcome.SEGMENT)
    assert rig.core.stats(0)["pushed"] == writer.counters()["pushed"] == 1
    found = rig.values() if kind == "dense" else np.array(list(rig.table_rows().values()))
    assert (found == -1.0).all()
    assert len(found) == n


def test_pull_of_rows_sees_the_pushes_before_it_and_none_after():
    rig = Rig(rows(2), n_slots=8)
    worker = rig.worker(local=False)
    handle = worker.table("e")
    requests = []
    for _ in range(3):
        requests.append(handle.prefetch(np.array([1])))
        handle.push(np.array([1]), np.ones((1, 2), np.float32))
    rig.drain()
    assert [request.wait()[0].tolist() for request in requests] == [[-k, -k] for k in range(3)]


def test_pull_makes_no_row():
    rig = Rig(rows(2, init="uniform(0.5)"))
    handle = rig.worker().table("e")
    first = handle.pull(np.array([7, 8]))
    assert first.any()
    assert rig.core.n_rows(0) == 0
    handle.push(np.array([8]), np.zeros((1, 2), np.float32)).wait()
    assert rig.core.n_rows(0) == 1
    assert handle.pull(np.array([7, 8])).tobytes() == first.tobytes()
