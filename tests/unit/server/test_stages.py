"""Tables of a stage at a server: sums, order, bounds and published clocks of the stage's workers alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from harness import Rig, dense, rows
from journal_rig import Rig as JournalRig

from mpips import _native
from mpips.model.consistency import ASP, BSP, SSP, Reject
from mpips.model.optimizer import SGD
from mpips.model.table import Table
from mpips.transport.region import unlink_job

FINISHED = 2**64 - 1
KEYS = np.arange(3, dtype=np.int64)


def tables(model: Any, n_stages: int) -> list[Table]:
    """A dense table and one of rows for each stage, and a dense one of all workers."""
    found: list[Table] = []
    for stage in range(n_stages):
        found.append(dense(3, name=f"w{stage}", consistency=model, stage=stage))
        found.append(rows(2, name=f"e{stage}", consistency=model, stage=stage))
    return [*found, dense(3, name="all", consistency=model)]


def push(rig: Any, worker: int, table: int, clock: int, value: float, closes: bool = False) -> None:
    """Push the same number for each element."""
    writer = rig.writers[worker]
    writer.set_closing(closes)
    if table % 2 and table != len(rig.tables) - 1:
        update = np.full((3, 2), value, np.float32)
        assert writer.push_rows(table, clock, KEYS, update, None, 0) == 3
    else:
        assert writer.push_dense(table, clock, np.full(3, value, np.float32), None, 0) == 3
    writer.set_closing(False)


def found_in(core: Any, table: int, is_rows: bool) -> set[float]:
    """Return the different values of a table, which has pushes."""
    values = core.embedding_rows(table)[1] if is_rows else core.dense_values(table)
    return set(values.reshape(-1).tolist())


@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("n_stages", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_clock_has_the_mean_of_the_workers_of_the_stage(
    n_stages: int, reduce: Any, seed: int
) -> None:
    rng, n = random.Random(seed), 6
    rig = Rig(*tables(BSP(reduce), n_stages), n_workers=n, n_slots=64)
    ends = [rng.randrange(1, 5) for _ in range(n)]
    sums = np.zeros(len(rig.tables))
    everyone = len(rig.tables) - 1
    for clock in range(max(ends)):
        working = [w for w in range(n) if clock < ends[w]]
        for w in rng.sample(working, len(working)):
            mine = [2 * (w % n_stages), 2 * (w % n_stages) + 1, everyone]
            for table in mine:
                push(rig, w, table, clock, 60.0 * (1 + w))
            assert rig.writers[w].tick(clock)
            if clock + 1 == ends[w]:
                assert rig.writers[w].finish(ends[w])
            if rng.random() < 0.5:
                rig.drain()
        rig.drain()
        for table in range(len(rig.tables)):
            members = [w for w in working if table == everyone or w % n_stages == table // 2]
            if members:
                pushed = sum(60.0 * (1 + w) for w in members)
                sums[table] -= pushed / (len(members) if reduce == "mean" else 1)
                is_rows = table % 2 == 1 and table != everyone
                found = list(found_in(rig.core, table, is_rows))
                assert found == pytest.approx([sums[table]], rel=1e-6)
    assert all(rig.core.finished(w) for w in range(n))


def test_a_stage_closes_its_tables_while_other_workers_have_sent_nothing() -> None:
    rig = Rig(*tables(BSP(), 2), n_workers=4, n_slots=16)
    # Table w1 is that of workers 1 and 3: worker 3 waits for worker 1, and not for worker 2.
    push(rig, 3, 2, 0, 8.0, closes=True)
    rig.drain()
    assert (rig.core.applied(3), rig.core.version(2)) == (0, 0)
    push(rig, 1, 2, 0, 4.0, closes=True)
    rig.drain()
    assert (rig.core.applied(3), rig.core.version(2)) == (1, 1)
    assert set(rig.values(2).tolist()) == {-6.0}
    assert [rig.core.clock(w) for w in range(4)] == [0] * 4
    # The tables of the other stage, and those of all workers, wait for their own.
    push(rig, 0, 0, 0, 4.0, closes=True)
    push(rig, 1, 4, 0, 1.0, closes=True)
    rig.drain()
    assert (rig.core.version(0), rig.core.version(4), rig.core.applied(1)) == (0, 0, 1)
    # Behind the last worker of stage 0 comes one of stage 1, which has no part in the table.
    push(rig, 2, 0, 0, 2.0, closes=True)
    rig.drain()
    assert (rig.core.version(0), rig.core.applied(2)) == (1, 1)
    assert set(rig.values(0).tolist()) == {-3.0}
    for w in range(4):
        assert rig.writers[w].tick(0)
    rig.drain()
    assert [rig.core.version(t) for t in range(5)] == [1] * 5
    assert set(rig.values(0).tolist()) == {-3.0}
    assert set(rig.values(2).tolist()) == {-6.0}
    assert set(rig.values(4).tolist()) == {-0.25}


def test_the_sum_of_a_stage_has_the_order_of_its_workers() -> None:
    # (2^24 + 1) + 1 is 2^24 in float32, 1 + 1 + 2^24 is 2^24 + 2.
    numbers = [2.0**24, 1.0, 1.0]
    for order in ((5, 3, 1), (1, 3, 5), (3, 5, 1)):
        rig = Rig(dense(3, consistency=BSP("sum"), stage=1), n_workers=6, n_slots=16)
        for w in order:
            push(rig, w, 0, 0, numbers[w // 2])
            rig.drain()
        for w in (5, 4, 3, 2, 1, 0):
            assert rig.writers[w].tick(0)
            rig.drain()
        assert rig.values().tolist() == [-(2.0**24)] * 3


@pytest.mark.parametrize("seed", range(6))
def test_ssp_counts_the_clocks_of_the_workers_of_the_stage(seed: int) -> None:
    n, n_stages, bound = 4, 2, 1
    model = SSP(bound)
    rig = Rig(*tables(model, n_stages), n_workers=n, n_slots=64)
    workers = [rig.worker(w) for w in range(n)]
    rng = np.random.default_rng(seed)
    clocks = [0] * n
    waiting: dict[int, list[tuple[Any, Any]]] = {}
    n_answered = n_held = 0
    for _ in range(150):
        rig.drain()
        for w, requests in list(waiting.items()):
            for request, members in requests:
                is_allowed = clocks[w] - min(clocks[v] for v in members) <= bound
                assert request.test() == is_allowed
                n_answered += is_allowed
                n_held += not is_allowed
            if all(request.test() for request, _ in requests):
                del waiting[w]
        w = int(rng.integers(n))
        if w in waiting:
            continue
        if rng.random() < 0.6:
            workers[w].clock()
            clocks[w] += 1
            continue
        stage, mine = w % n_stages, range(w % n_stages, n, n_stages)
        waiting[w] = [
            (workers[w].table(f"w{stage}").prefetch(), mine),
            (workers[w].table(f"e{stage}").prefetch(KEYS), mine),
            (workers[w].table("all").prefetch(), range(n)),
        ]
    assert n_answered > 20
    assert n_held > 20


def lowest(server: Any, layout: Any, table: int) -> int:
    """Return the lowest clock that a server publishes with a table."""
    return int(_native.read_head(server.region, layout.head_offset(table))[1])


@pytest.mark.parametrize("model", [ASP(), SSP(2), BSP()], ids=str)
@pytest.mark.parametrize("n_stages", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_each_table_publishes_the_lowest_clock_of_its_workers(
    model: Any, n_stages: int, seed: int, request: Any
) -> None:
    rng, n = random.Random(seed), 6
    rig = JournalRig(*tables(model, n_stages), n_workers=n, n_slots=32)
    request.addfinalizer(lambda: unlink_job(rig.token))
    done, clocks, generation = set[int](), [0] * n, 0

    def check() -> None:
        at = [FINISHED if rig.core.finished(w) else rig.core.clock(w) for w in range(n)]
        for table in range(len(rig.tables)):
            step = 1 if table == len(rig.tables) - 1 else n_stages
            first = 0 if step == 1 else table // 2
            assert lowest(rig.server, rig.layout, table) == min(at[first::step])

    while len(done) < n:
        w = rng.choice([w for w in range(n) if w not in done])
        if clocks[w] < 4 and rng.random() < 0.9:
            assert rig.writers[w].tick(clocks[w])
            clocks[w] += 1
        else:
            assert rig.writers[w].finish(clocks[w])
            done.add(w)
        if rng.random() < 0.4:
            rig.core.drain(0.0, 200)
            check()
        if rng.random() < 0.1:
            rig.core.drain(0.0, 200)
            generation += 1
            rig.again(generation)
            check()
    rig.core.drain(0.0, 200)
    check()
    assert lowest(rig.server, rig.layout, 0) == FINISHED


@pytest.mark.parametrize("what", ["push_dense", "push_rows", "pull_rows", "configure"])
def test_a_record_of_another_stage_is_a_violation(what: str) -> None:
    rig = Rig(*tables(BSP(), 2), n_workers=2, n_slots=16)
    writer = rig.writers[0]
    if what == "push_dense":
        push(rig, 0, 2, 0, 1.0)
    elif what == "push_rows":
        push(rig, 0, 3, 0, 1.0)
    elif what == "configure":
        assert writer.configure(2, 0, 0, SGD(0.5).native())
    else:
        plan, out = _native.KeyPlan(), np.empty((3, 2), np.float32)
        plan.build(KEYS, _native.Partitioner.hash(1))
        assert writer.pull_planned(3, 0, plan, 0, out, 0, None) == 3
    with pytest.raises(_native.ProtocolViolation, match="which belongs to stage 1"):
        rig.drain()


def test_the_server_refuses_stages_that_do_not_fit() -> None:
    core = Rig(dense(3, consistency=BSP()), n_workers=4).core
    for stage, n_stages in ((2, 2), (0, 3), (0, 0)):
        with pytest.raises(ValueError, match=f"^stage {stage} of {n_stages} with 4 workers"):
            core.set_stage(0, stage, n_stages)
    for model in (BSP(backup=1), SSP("auto"), ASP(Reject("auto"))):
        with pytest.raises(ValueError, match="a model of all workers"):
            Rig(dense(3, consistency=model), n_workers=4).core.set_stage(0, 1, 2)
