"""Replicated tables: workers that sum and apply by themselves give the bits of a server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from reduction_rig import ROUNDS, ReductionRig

from mpips import _native
from mpips.errors import ConfigError, DivergenceError
from mpips.model.optimizer import SGD, Adagrad, Adam, Momentum

SIZES = [1, 1024, 1025, 5003]
RULES = [Adam(0.01), SGD(0.1), Adagrad(0.1), Momentum(0.1)]
ONE_NODE = [[[0]], [[0, 1]], [[0, 1, 2, 3, 4]]]
NODES = [[[0], [1]], [[0, 1], [2, 3]], [[0, 2, 3], [1], [4, 5]]]


def updates(worker: int, clock: int, table: int, n: int) -> list[np.ndarray]:
    """Pushes of a worker in a clock: none, one or several, whose sum depends on the order."""
    random = np.random.default_rng([worker, clock, table])
    count = int(random.choice([0, 1, 1, 1, 2, ROUNDS]))
    scales = 10.0 ** random.integers(-3, 4, (count, n))
    return list((random.standard_normal((count, n)) * scales).astype(np.float32))


def program(rig: ReductionRig, w: int, clocks: int, seed: int) -> Iterator[None]:
    """One worker: it yields where it waits, or where another worker may go on."""
    random = np.random.default_rng([seed, w])
    for clock in range(clocks):
        if clock % 3 == 1:
            for t, rule in enumerate(RULES):
                rig.ends[w].configure(t, replace(rule, lr=rule.lr / (1 + clock)).native())
        for t in random.permutation(len(SIZES)):
            if random.random() < 0.5:
                while not rig.is_ready(w, t):
                    yield
            for update in updates(w, clock, t, SIZES[t]):
                while not rig.is_ready(w, t):
                    yield
                rig.push(w, t, update)
                if random.random() < 0.5:
                    yield
            if random.random() < 0.5:
                rig.close(w, t)
                rig.poll(w)
        rig.tick(w)
        yield
    while not (rig.ends[w].settled and all(rig.is_ready(w, t) for t in range(len(SIZES)))):
        rig.poll(w)
        yield
    rig.finish(w)
    while True:
        rig.poll(w)  # a finished worker still receives for its node
        yield


def expect(rig: ReductionRig, ends: Sequence[int]) -> None:
    """Let the plain tables do all clocks; worker w ends ends[w] clocks."""
    for clock in range(max(ends)):
        there = [w for w, end in enumerate(ends) if end > clock]
        for t, plain in enumerate(rig.plain):
            if clock % 3 == 1:
                plain.rule = replace(RULES[t], lr=RULES[t].lr / (1 + clock))
            plain.apply([updates(w, clock, t, SIZES[t]) for w in there], len(there))


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("nodes", ONE_NODE + NODES, ids=str)
def test_any_order_of_workers_gives_the_bits_of_a_server(
    nodes: list[list[int]], mean: bool
) -> None:
    for seed in range(6):
        rig = ReductionRig(SIZES, RULES, nodes, mean, seed)
        random = np.random.default_rng(seed)
        ends = [int(n) for n in random.integers(3, 8, rig.n_workers)]
        programs = [program(rig, w, ends[w], seed) for w in range(rig.n_workers)]
        for _ in range(200_000):
            next(programs[random.integers(rig.n_workers)])
            last = [w for w in range(rig.n_workers) if ends[w] == max(ends)]
            if all(rig.ends[w].clock == max(ends) and rig.ends[w].settled for w in last):
                break
        else:
            raise AssertionError([end.awaited() for end in rig.ends])
        expect(rig, ends)
        for w in last:
            rig.assert_plain(w)


def test_a_worker_is_at_most_one_clock_ahead_in_a_table_that_is_pushed() -> None:
    rig = ReductionRig([2000], [SGD(1.0)], [[0, 1]])
    update = np.ones(2000, np.float32)
    rig.push(0, 0, update)
    rig.tick(0)
    assert not rig.is_ready(0, 0)
    with pytest.raises(ValueError, match="no room"):
        rig.push(0, 0, update)
    assert rig.ends[0].awaited() == (1, 0, 0, 0, False, False)
    rig.tick(1)
    rig.poll(0)  # its slice is done, that of worker 1 is not
    assert not rig.is_ready(0, 0)
    assert rig.ends[0].awaited() == (1, 0, 0, 1, True, False)
    rig.poll(1)
    assert rig.is_ready(0, 0)
    rig.push(0, 0, update)


def test_values_stay_until_the_reader_has_closed_the_table() -> None:
    rig = ReductionRig([2000], [SGD(1.0)], [[0, 1]])
    before = rig.ends[1].values(0, 0).tobytes()
    rig.push(0, 0, np.ones(2000, np.float32))
    rig.tick(0)
    rig.poll(0)
    assert rig.ends[1].values(0, 0).tobytes() == before
    rig.close(1, 0)
    rig.settle()
    assert rig.ends[1].values(0, 0).tobytes() != before


def test_closed_tables_are_applied_before_the_clock_ends() -> None:
    rig = ReductionRig([8, 8], [SGD(1.0), SGD(1.0)], [[0, 1]])
    for w in (0, 1):
        rig.push(w, 1, np.ones(8, np.float32))
        rig.close(w, 1)
    for w in (0, 1):
        rig.poll(w)
    assert [rig.ends[0].steps(t) for t in (0, 1)] == [0, 1]


def test_a_clock_without_pushes_is_no_update_and_waits_for_nobody_else_s_table() -> None:
    rig = ReductionRig([8], [Adam(1.0)], [[0, 1]])
    for w in (0, 1):
        for _ in range(3):
            rig.tick(w)
    rig.settle()
    rig.assert_plain(0)


def test_other_hyperparameters_are_an_error_that_names_the_worker() -> None:
    rig = ReductionRig([8], [SGD(1.0)], [[0, 1]])
    rig.ends[1].configure(0, SGD(0.5).native())
    for w in (0, 1):
        rig.push(w, 0, np.ones(8, np.float32))
        rig.tick(w)
    with pytest.raises(ConfigError, match=r"workers 0 and 1 .* table 't0' at clock 0"):
        rig.poll(0)


def test_hyperparameters_may_follow_a_push_of_their_clock() -> None:
    rig = ReductionRig([8], [SGD(1.0)], [[0]])
    before = rig.ends[0].values(0, 0).copy()
    rig.push(0, 0, np.ones(8, np.float32))
    rig.ends[0].configure(0, SGD(0.5).native())
    rig.tick(0)
    rig.settle()
    assert (rig.ends[0].values(0, 0) == before - np.float32(0.5)).all()


@pytest.mark.parametrize("n", [1, 16, 1024, 1025, 4096, 100_003])
@pytest.mark.parametrize("m", [1, 2, 3, 7])
def test_slices_cover_a_table_once_in_whole_lines(n: int, m: int) -> None:
    for table in range(4):
        found = sorted(_native.slice_of(n, i, m, table) for i in range(m))
        found = [part for part in found if part[0] < part[1]]
        assert found[0][0] == 0
        assert found[-1][1] == n
        assert all(a[1] == b[0] for a, b in itertools.pairwise(found))
        assert all(start % 16 == 0 for start, _ in found)


def test_shares_of_a_clock_are_those_of_the_workers_that_ended_it() -> None:
    rig = ReductionRig([8], [SGD(1.0)], [[0, 1, 2]])
    assert rig.ends[0].place() == (0, 0)
    for w in (0, 1, 2):
        rig.tick(w)
    rig.settle()
    assert [rig.ends[w].place() for w in (0, 1, 2)] == [(0, 3), (1, 3), (2, 3)]
    rig.finish(1)
    assert [rig.ends[w].place() for w in (0, 2)] == [(0, 3), (2, 3)]  # it ended this clock, too
    for w in (0, 2):
        rig.tick(w)
    rig.settle([0, 2])
    assert [rig.ends[w].place() for w in (0, 2)] == [(0, 2), (1, 2)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=str)
def test_copies_that_differ_are_an_error_that_names_table_and_worker(
    order: tuple[int, int],
) -> None:
    rig = ReductionRig([8], [SGD(1.0)], [[0], [1]])

    def compare(digests: tuple[int, int]) -> None:
        for w in order:
            messages = rig.messages[w]
            assert messages is not None
            messages.compare(0, rig.ends[w].clock, digests[w])
        for _ in range(100):
            for w in order:
                rig.poll(w)

    compare((5, 5))
    for w in (0, 1):
        rig.tick(w)
    rig.settle()
    with pytest.raises(DivergenceError, match=r"'t0' differs .* node of worker \d .* at clock 1"):
        compare((5, 6))
