"""The handles that a worker's program uses: push_pull, prefetch, staged pushes, views, rules in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from playing import Session, counts, workers_with

import mpips
from mpips import ASP, BSP, SSP, ConfigError, DenseTable, EmbeddingTable, PythonRule, Worker

UNIT = mpips.SGD(lr=1.0)
MODELS = [BSP(reduce="sum"), SSP(bound=1), ASP()]
names = ["bsp", "ssp", "asp"]


@pytest.mark.one_of("model")
@pytest.mark.parametrize("model", MODELS, ids=names)
def test_push_pull_gives_values_that_hold_the_push(
    session: Session, transport: str, model: Any
) -> None:
    n = workers_with(1)

    def main(worker: Worker) -> list[tuple[list[float], list[float]]]:
        w, e = worker.table("w"), worker.table("e")
        mine = np.zeros(n, np.float32)
        mine[worker.index] = -1.0
        keys = np.arange(n)
        return [
            (w.push_pull(mine).tolist(), e.push_pull(keys, mine[:, None])[:, 0].tolist())
            for _ in range(5)
        ]

    tables = [
        DenseTable("w", (n,), optimizer=UNIT, consistency=model),
        EmbeddingTable("e", 1, optimizer=UNIT, consistency=model),
    ]
    played = session(main, tables, transport=transport)
    for worker, steps in enumerate(played.values):
        for step, (dense, rows) in enumerate(steps):
            if isinstance(model, BSP):
                # The dense call ends the clock before the rows' call does.
                assert dense == rows == [step + 1.0] * n
            assert dense[worker] == rows[worker] == step + 1.0


def test_prefetched_rows_are_those_that_a_pull_would_give(session: Session, transport: str) -> None:
    def main(worker: Worker) -> bool:
        e = worker.table("e")
        random = np.random.default_rng(worker.index)
        same = True
        for clock in range(6):
            keys = random.integers(0, 60, size=50)
            ahead = e.prefetch(keys)
            first, second = e.pull(keys), e.pull(keys)
            same &= np.array_equal(ahead.wait(), second) and np.array_equal(first, second)
            out = np.empty((50, 7), np.float32)
            same &= e.pull(keys, out) is out and np.array_equal(out, second)
            e.push(keys, counts(worker.index, clock, (50, 7)))
            worker.clock()
        return same

    table = EmbeddingTable("e", 7, optimizer=UNIT, consistency=BSP(reduce="sum"), init="normal(1)")
    played = session(main, [table], transport=transport, slot_kib=1, ring_slots=3)
    assert all(played.values)


@pytest.mark.one_of("model")
@pytest.mark.parametrize("model", MODELS, ids=names)
def test_repeated_keys_reach_every_server_once_and_come_back_to_every_place(
    session: Session, transport: str, servers: int, model: Any
) -> None:
    """Rows are summed while they are written into slots, and distributed from the reply slots."""
    n, dim = 150, 5

    def main(worker: Worker) -> bool:
        e = worker.table("e")
        keys = np.random.default_rng(7).integers(-40, 40, n) * 1_000_003
        mine = np.full((n, dim), -float(1 << worker.index), np.float32)
        repeats = np.array([np.count_nonzero(keys == key) for key in keys])
        out = np.full((n, dim), np.nan, np.float32)
        same = True
        for step in range(4):
            same &= e.push_pull(keys, mine, out) is out
            # Each worker's pushes count in separate bits; its own pushes are all there.
            own = out[:, 0].astype(int) // repeats
            same &= bool((out == out[:, :1]).all() and (out[:, 0] == own * repeats).all())
            if worker.n_workers == 1:
                same &= own.tolist() == [step + 1] * n
        worker.flush()
        worker.barrier("all pushed")
        total = 4.0 * ((1 << worker.n_workers) - 1)
        return same and np.array_equal(e.pull(keys), np.outer(repeats * total, np.ones(dim)))

    table = EmbeddingTable(
        "e", dim, optimizer=UNIT, consistency=BSP("sum") if isinstance(model, BSP) else model
    )
    played = session(main, [table], transport=transport, servers=servers, slot_kib=1, ring_slots=3)
    assert all(played.values)


def test_a_push_after_a_prefetch_is_seen_by_the_next_pull(session: Session, transport: str) -> None:
    def main(worker: Worker) -> list[float]:
        e, seen = worker.table("e"), []
        for _ in range(4):
            e.prefetch([worker.index])
            e.push([worker.index], np.full((1, 1), -1.0, np.float32))
            seen.append(float(e.pull([worker.index])[0, 0]))
        return seen

    table = EmbeddingTable("e", 1, optimizer=UNIT, consistency=ASP())
    played = session(main, [table], transport=transport)
    assert played.values == [[1.0, 2.0, 3.0, 4.0]] * len(played.values)


@pytest.mark.parametrize("model", MODELS, ids=names)
def test_staged_and_copied_pushes_give_the_same_values(
    session: Session, transport: str, servers: int, model: Any
) -> None:
    shape = (30, 50)

    def main(worker: Worker, staged: bool) -> list[float]:
        handle = worker.table("w")
        update = worker.allocate(shape) if staged else np.empty(shape, np.float32)
        request = None
        for clock in range(5):
            if request is not None:
                request.wait()
            update[...] = counts(worker.index, clock, shape)
            request = handle.push(update)
            worker.clock()
        worker.flush()
        worker.barrier("all pushed")
        return handle.pull().reshape(-1).tolist()

    table = DenseTable("w", shape, optimizer=UNIT, consistency=model)
    options = {"transport": transport, "servers": servers, "slot_kib": 1, "ring_slots": 4}
    n = workers_with(servers)
    expected = -sum(counts(w, c, shape) for w in range(n) for c in range(5))
    for staged in (False, True):
        played = session(lambda worker, s=staged: main(worker, s), [table], **options)
        assert played.values == [expected.reshape(-1).tolist()] * n


def test_a_full_staging_region_says_which_option_enlarges_it(session: Session) -> None:
    def main(worker: Worker) -> str:
        worker.allocate(200_000)
        with pytest.raises(ConfigError) as caught:
            worker.allocate(200_000)
        return str(caught.value)

    played = session(main, [DenseTable("w", (1,))], staging_mib=1)
    assert all("staging_mib" in text for text in played.values)


def test_a_view_shows_the_servers_values_without_a_copy(session: Session, servers: int) -> None:
    """Whole tensors on one server each; under BSP they stay while nobody calls clock."""

    def main(worker: Worker) -> list[tuple[float, bool]]:
        seen = []
        for clock in range(4):
            for name in ("a", "b", "c"):
                view = worker.table(name).view()
                same = np.array_equal(view, worker.table(name).pull())
                seen.append((float(view[1, 1]), same and not view.flags.writeable))
                worker.table(name).push(np.full((3, 4), -1.0, np.float32))
            worker.barrier(f"looked {clock}")
            worker.clock()
        return seen

    tables = [
        DenseTable(name, (3, 4), optimizer=UNIT, consistency=BSP(reduce="sum"), partition="layer")
        for name in ("a", "b", "c")
    ]
    played = session(main, tables, servers=servers)
    n = workers_with(servers)
    assert played.values == [[(float(n * clock), True) for clock in range(4) for _ in "abc"]] * n


@pytest.mark.mpi(min_size=5)
def test_a_tensor_on_several_servers_is_viewed_in_parts(session: Session) -> None:
    def main(worker: Worker) -> tuple[str, list[tuple[int, int]], bool]:
        handle = worker.table("w")
        with pytest.raises(ConfigError) as caught:
            handle.view()
        parts = handle.views()
        whole = np.concatenate([values for _, _, values in parts])
        ranges = [(start, stop) for start, stop, _ in parts]
        return str(caught.value), ranges, np.array_equal(whole, handle.pull())

    init = np.arange(1000, dtype=np.float32)
    played = session(main, [DenseTable("w", (1000,), init=init)], servers=2)
    for text, ranges, same in played.values:
        assert "lies on 2 servers" in text
        assert ranges[0][0] == 0
        assert ranges[0][1] == ranges[1][0]
        assert ranges[1][1] == 1000
        assert same


@pytest.mark.mpi(min_size=2)
def test_another_nodes_values_cannot_be_viewed(session: Session, remote: str) -> None:
    def main(worker: Worker) -> str:
        with pytest.raises(ConfigError) as caught:
            worker.table("w").view()
        return str(caught.value)

    played = session(main, [DenseTable("w", (3,))], transport=remote, servers=1)
    assert all("use pull()" in text for text in played.values)


def count_and_sum(values: Any, state: Any, gradient: Any, step: int) -> None:
    """Apply a rule whose effect shows the step, the state and the gradient separately."""
    state[0][:] += gradient
    values[:] = 1000.0 * step + state[0]


@pytest.mark.parametrize("model", MODELS, ids=names)
def test_a_rule_in_python_runs_on_every_server(
    session: Session, transport: str, servers: int, model: Any
) -> None:
    def main(worker: Worker) -> tuple[list[float], list[float]]:
        w, e = worker.table("w"), worker.table("e")
        for _ in range(3):
            w.push(np.full(40, 2.0, np.float32))
            e.push(np.arange(10), np.full((10, 2), 2.0, np.float32))
            worker.clock()
        worker.flush()
        worker.barrier("all pushed")
        return w.pull().tolist(), e.pull(np.arange(10)).reshape(-1).tolist()

    rule = PythonRule(count_and_sum, n_state=1)
    tables = [
        DenseTable("w", (40,), optimizer=rule, consistency=model),
        EmbeddingTable("e", 2, optimizer=rule, consistency=model),
    ]
    played = session(main, tables, transport=transport, servers=servers)
    n = workers_with(servers)
    steps = 3 if isinstance(model, BSP) else 3 * n
    value = 1000.0 * steps + 6.0 * n
    assert played.values == [([value] * 40, [value] * 20)] * n


def test_a_refused_push_sends_nothing_and_says_why(session: Session, transport: str) -> None:
    def main(worker: Worker) -> list[str]:
        w, e = worker.table("w"), worker.table("e")
        bad = np.array([0.0, np.nan, 0.0], np.float32)
        calls = [
            (ValueError, lambda: w.push(bad)),
            (ValueError, lambda: w.push(np.zeros(4, np.float32))),
            (ValueError, lambda: e.push([1, 2], np.zeros((3, 2), np.float32))),
            (ValueError, lambda: e.push([1.5], np.zeros((1, 2), np.float32))),
            (ValueError, lambda: w.pull(np.zeros(3))),
            (KeyError, lambda: e.pull([100])),
            (KeyError, lambda: e.push([-1], np.zeros((1, 2), np.float32))),
            (ConfigError, lambda: worker.table("v")),
        ]
        texts = []
        for kind, call in calls:
            with pytest.raises(kind) as caught:
                call()
            texts.append(str(caught.value))
        return texts

    tables = [
        DenseTable("w", (3,)),
        EmbeddingTable("e", 2, partition=mpips.RangePartition(0, 100)),
    ]
    played = session(main, tables, transport=transport)
    assert played.server_total("w", "pushed") == played.server_total("e", "pushed") == 0
    parts = ("contains nan at position 1 of 3", "(4,), expected (3,)", "(3, 2), expected (2, 2)")
    parts += ("whole numbers", "float32", "100", "-1", "w, e")
    for texts in played.values:
        assert len(texts) == len(parts)
        assert all(part in text for text, part in zip(texts, parts, strict=True))


def test_long_pushes_are_cut_to_the_greatest_norm(session: Session, transport: str) -> None:
    def main(worker: Worker) -> list[float]:
        handle = worker.table("w")
        handle.push(np.array([-30.0, -40.0], np.float32))
        worker.clock()
        handle.push(np.array([-3.0, -4.0], np.float32))
        worker.clock()
        return handle.pull().tolist()

    table = DenseTable("w", (2,), optimizer=UNIT, consistency=BSP("mean"), clip_norm=5.0)
    played = session(main, [table], transport=transport)
    assert played.values == [[6.0, 8.0]] * len(played.values)


def test_a_result_asked_for_too_late_is_called_unknown(session: Session, transport: str) -> None:
    """After thousands of pushes the request of the first one gives no result."""

    def main(worker: Worker) -> list[tuple[int, int]]:
        handle = worker.table("w")
        requests = [handle.push(np.zeros(1, np.float32)) for _ in range(4200)]
        results = [requests[k].wait() for k in (0, 2000, 4199)]
        return [(result.applied, result.unknown) for result in results]

    table = DenseTable("w", (1,), consistency=ASP())
    played = session(main, [table], transport=transport)
    assert played.values == [[(0, 1), (1, 0), (1, 0)]] * len(played.values)
