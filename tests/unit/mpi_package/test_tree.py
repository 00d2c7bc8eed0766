"""Collective operations over the tree of workers, on a network that delivers in random order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest
from crowd import Network, crowd, tree_of
from simulated_time import SimulatedTime

from mpips.errors import ConfigError, StallError
from mpips.mpi.mail import INLINE_BYTES, NOTE_BYTES, PIECE_BYTES, answer, clip, pack
from mpips.mpi.tree import Operation, WorkerTree, children_of, neighbours_of, parent_of
from mpips.worker.collectives import Collectives, frame, join, unframe

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 31, 40]


def joined(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.concatenate([low, high])


def drive(trees: list[WorkerTree], operations: list[Operation], seed: int) -> None:
    """Poll the trees in random order until all operations are done."""
    order = random.Random(seed)
    while not all(operation.done for operation in operations):
        for tree in order.sample(trees, len(trees)):
            tree.poll()


def reduced(
    n: int,
    value: Callable[[int], np.ndarray],
    *,
    everyone: bool = True,
    seed: int = 0,
    network: Network | None = None,
    piece_bytes: int = PIECE_BYTES,
) -> list[np.ndarray | None]:
    network = network or Network(seed)
    trees = [tree_of(network, w, n, piece_bytes=piece_bytes) for w in range(n)]
    operations = [t.reduce("reduce 'x'", value(w), joined, everyone) for w, t in enumerate(trees)]
    drive(trees, operations, seed)
    return [operation.result for operation in operations]


@pytest.mark.parametrize("n", range(1, 41))
def test_every_worker_but_the_root_has_one_parent_among_its_neighbours(n: int) -> None:
    for w in range(1, n):
        assert w in children_of(parent_of(w), n)
    assert sum(len(children_of(w, n)) for w in range(n)) == n - 1
    for w in range(n):
        near = neighbours_of(w, n)
        assert set(children_of(w, n)) <= set(near)
        assert w == 0 or parent_of(w) in near
        assert len(near) <= (n - 1).bit_length()
        assert all(w in neighbours_of(other, n) for other in near)


@pytest.mark.parametrize("n", SIZES)
def test_parts_are_merged_in_the_order_of_workers_whatever_the_delivery(n: int) -> None:
    for seed in range(5):
        for everyone in (True, False):
            found = reduced(n, lambda w: np.full(w % 3, w, np.uint8), everyone=everyone, seed=seed)
            expected = [w for w in range(n) for _ in range(w % 3)]
            receivers = range(n) if everyone else range(1)
            assert all(found[w].tolist() == expected for w in receivers)  # type: ignore[union-attr]


def test_the_shape_of_the_combination_depends_on_the_number_of_workers_only() -> None:
    def text(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.frombuffer(b"(" + low.tobytes() + high.tobytes() + b")", np.uint8)

    found = set()
    for seed in range(20):
        network = Network(seed, most_delay=9)
        trees = [tree_of(network, w, 7) for w in range(7)]
        operations = [
            t.reduce("x", np.frombuffer(str(w).encode(), np.uint8), text, False)
            for w, t in enumerate(trees)
        ]
        drive(trees, operations, seed)
        assert operations[0].result is not None
        found.add(operations[0].result.tobytes())
    assert found == {b"(((01)(23))((45)6))"}


@pytest.mark.parametrize("n_bytes", [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 3000, 4096, 10_001])
def test_values_of_any_size_go_in_pieces_of_bounded_size(n_bytes: int) -> None:
    network = Network(1)
    value = np.random.default_rng(0).integers(0, 256, n_bytes, np.uint8)
    found = reduced(5, lambda w: value if w == 3 else value[:0], network=network, piece_bytes=1024)
    assert all((part == value).all() and len(part) == n_bytes for part in found)  # type: ignore[arg-type, union-attr]
    assert max(t.largest for t in network.traffic.values()) <= NOTE_BYTES
    if n_bytes > INLINE_BYTES:
        # Worker 3 sends to worker 2, which sends to worker 0; the result goes to four workers.
        pieces = -(-n_bytes // 1024)
        assert sum(t.sent for t in network.traffic.values()) == 2 * 4 + 6 * pieces
    # 10 GiB are pieces, too, each below the greatest count of MPI.
    assert PIECE_BYTES < 2**31
    assert -(-(10 << 30) // PIECE_BYTES) == 160


def test_no_rank_has_more_than_logarithmically_many_messages_or_bytes() -> None:
    d = 10_000
    for n in (2, 4, 8, 16, 32, 40):
        network = Network(n)
        trees = [tree_of(network, w, n) for w in range(n)]
        operations = [
            t.reduce("sum", np.full(d, w, np.uint8), np.maximum, True) for w, t in enumerate(trees)
        ]
        drive(trees, operations, 0)
        depth = (n - 1).bit_length()
        for traffic in network.traffic.values():
            assert len(traffic.partners) <= depth
            assert traffic.sent <= 2 * depth
            assert traffic.received <= 2 * depth
            assert traffic.sent_bytes <= depth * (d + NOTE_BYTES)
            assert traffic.received_bytes <= depth * (d + NOTE_BYTES)
        # Each other worker sends one value and receives one.
        assert sum(t.sent_bytes for t in network.traffic.values()) <= 2 * (n - 1) * (d + NOTE_BYTES)


def test_operations_without_a_result_for_a_worker_go_on_behind_later_calls() -> None:
    """Each worker calls all operations before any of them is complete."""
    n = 13
    for seed in range(10):
        network = Network(seed, most_delay=7)
        trees = [tree_of(network, w, n, piece_bytes=512) for w in range(n)]
        order = random.Random(seed)
        calls = [[f"gather {i}" for i in range(4)] for _ in range(n)]
        found: list[list[Operation]] = [[] for _ in range(n)]
        while any(calls) or not all(tree.idle for tree in trees):
            w = order.randrange(n)
            if calls[w] and order.random() < 0.3:
                call = calls[w].pop(0)
                value = np.full(1 + 1000 * len(calls[w]), w, np.uint8)
                found[w].append(trees[w].reduce(call, value, joined, everyone=False))
            trees[w].poll()
        for i, operation in enumerate(found[0]):
            expected = np.repeat(np.arange(n), 1 + 1000 * (3 - i))
            assert operation.result is not None
            assert (operation.result == expected).all()
        assert not any(network.queues.values())
        assert not any(network.posted.values())


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_partners_swap_values_between_other_operations(n: int) -> None:
    def work(mine: Collectives) -> list[int]:
        found = []
        mine.gather("before", b"x", everyone=False)
        for bit in range((n - 1).bit_length()):
            partner = mine.index ^ (1 << bit)
            partner = partner if partner < n else mine.index
            array = np.full((2, 300 * mine.index), mine.index)
            other = mine.swap(f"step {bit}", array, partner)
            assert other.shape == ((2, 300 * partner) if partner != mine.index else (0,))
            found.append(int(other.max(initial=-1)))
        mine.barrier("after")
        return found

    found = crowd(n, work)
    for w in range(n):
        partners = [w ^ (1 << bit) for bit in range((n - 1).bit_length())]
        assert found[w] == [p if 0 < p < n else -1 for p in partners]


@pytest.mark.parametrize("n", [1, 2, 3, 6, 11])
def test_gather_returns_payloads_by_worker_to_those_that_wait(n: int) -> None:
    def work(mine: Collectives) -> tuple[list[bytes], list[bytes]]:
        payload = bytes([mine.index]) * (mine.index * 1000)
        return mine.gather("a", payload, True), mine.gather("b", payload, False)

    payloads = [bytes([w]) * (w * 1000) for w in range(n)]
    found = crowd(n, work)
    assert all(everyone == payloads for everyone, _ in found)
    assert [first for _, first in found] == [payloads] + [[]] * (n - 1)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_reduce_adds_arrays_and_applies_functions(n: int) -> None:
    def work(mine: Collectives) -> list[np.ndarray | None]:
        own = np.array([[mine.index, 1], [2, -mine.index]])
        return [
            mine.reduce("sum", own, "sum", True),
            mine.reduce("min", own.astype(np.float32), "min", True),
            mine.reduce("max", own, "max", False),
            mine.reduce("joined", np.arange(mine.index), lambda a, b: np.concatenate([a, b]), True),
        ]

    total = n * (n - 1) // 2
    for w, (added, least, most, joined) in enumerate(crowd(n, work)):
        assert added.tolist() == [[total, n], [2 * n, -total]]
        assert least.dtype == np.float32
        assert least.tolist() == [[0, 1], [2, 1 - n]]
        assert (most.tolist() == [[n - 1, 1], [2, 0]]) if w == 0 else most is None
        assert joined.tolist() == [k for other in range(n) for k in range(other)]
        added[:] = 0  # the result belongs to the caller


def test_reduce_refuses_what_it_cannot_add() -> None:
    with pytest.raises(ConfigError, match=r"combine = 'mean'.*one of sum, min, max or a function"):
        crowd(1, lambda mine: mine.reduce("x", np.zeros(2), "mean"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="array of <U1"):
        crowd(1, lambda mine: mine.reduce("x", np.array(["a"])))


@pytest.mark.parametrize("odd", range(5))
def test_different_calls_are_one_clear_error(odd: int) -> None:
    def work(mine: Collectives) -> None:
        if mine.index == odd:
            mine.gather("scores", b"", True)
        mine.barrier("end of turn")

    with pytest.raises(ConfigError) as error:
        crowd(5, work, timeout_s=20.0)
    text = str(error.value)
    assert "barrier 'end of turn'" in text
    assert "gather 'scores'" in text
    assert f"worker {odd} is at" in text
    assert "must call the same gathers, reductions and barriers in the same order" in text


def test_arrays_of_different_shape_are_refused_by_name() -> None:
    def work(mine: Collectives) -> None:
        mine.reduce("sizes", np.zeros(2 + mine.index))

    with pytest.raises(ConfigError, match=r"shape \(2,\).*shape \(3,\)|shape \(3,\).*shape \(2,\)"):
        crowd(2, work, timeout_s=20.0)


@pytest.mark.parametrize("odd", [0, 3])
def test_a_program_that_ends_without_a_call_of_the_others_is_an_error_at_once(odd: int) -> None:
    def work(mine: Collectives) -> None:
        if mine.index != odd:
            mine.barrier("last")

    began = time.monotonic()
    with pytest.raises(
        ConfigError, match=rf"worker {odd} is at the end of its program|worker {odd}.*past"
    ):
        crowd(6, work, timeout_s=600.0)
    assert time.monotonic() - began < 300


@pytest.mark.parametrize("n", [2, 5, 8, 13])
@pytest.mark.parametrize("everyone", [True, False])
def test_all_that_wait_know_the_late_worker_and_its_activity(n: int, everyone: bool) -> None:
    """The late worker polls, as it does in a wait of another kind."""
    for late in {0, 1, n // 2, n - 1} - (set() if everyone else {0}):
        network = Network(late, most_delay=1)
        trees = [
            tree_of(network, w, n, timeout_s=0.4, doing=lambda: "waiting for server 1 at clock 9")
            for w in range(n)
        ]
        operations = {}
        for w, tree in enumerate(trees):
            if w != late:
                operations[w] = tree.reduce("barrier 'x'", np.zeros(0, np.uint8), joined, everyone)
                tree.waits = everyone or w == 0
        waiting = [w for w in operations if trees[w].waits]
        end = time.monotonic() + 20
        expected = [(late, "waiting for server 1 at clock 9")]
        while any(trees[w].late() != expected for w in waiting) and time.monotonic() < end:
            for tree in trees:
                tree.poll()
            time.sleep(0.001)
        assert [trees[w].late() for w in waiting] == [expected] * len(waiting)
        for tree in trees:
            tree.waits = False
        operations[late] = trees[late].reduce(
            "barrier 'x'", np.zeros(0, np.uint8), joined, everyone
        )
        drive(trees, [operations[w] for w in range(n)], 0)


def test_a_worker_that_answers_nothing_is_named_with_its_silence() -> None:
    def work(mine: Collectives) -> None:
        if mine.index == 5:
            time.sleep(2.5)  # computes, and calls nothing
        mine.barrier("warm")

    with pytest.raises(StallError) as error:
        crowd(8, work, timeout_s=1.0)
    text = str(error.value)
    assert "not all workers have come to barrier 'warm'; late: worker 5: no answer for" in text
    assert text.count("worker ") == 1


def test_a_job_of_one_worker_sends_nothing() -> None:
    network = Network()

    def work(mine: Collectives) -> tuple[list[bytes], list[int]]:
        mine.barrier("a")
        total = mine.reduce("b", np.arange(3))
        assert total is not None
        assert len(mine.swap("c", np.arange(3), 0)) == 0
        return mine.gather("d", b"x", False), total.tolist()

    assert crowd(1, work, network) == [([b"x"], [0, 1, 2])]
    assert not network.traffic


def test_notes_have_a_bounded_size() -> None:
    long = answer(1 << 60, [(1 << 30, "ä" * 10_000)] * 100)
    assert len(pack(long)) <= NOTE_BYTES
    assert len(clip("ä" * 10_000).encode()) <= 480
    with pytest.raises(ValueError, match="exceeds"):
        pack(type(long)(0, [(0, "x" * NOTE_BYTES)]))


def test_payloads_of_any_length_are_framed() -> None:
    parts = [b"", b"abc", b"x" * 300]
    whole = join(join(frame(parts[:1]), frame(parts[1:2])), frame(parts[2:]))
    assert unframe(whole) == parts


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let simulated seconds pass for all trees."""
    return SimulatedTime(monkeypatch).pass_by


def barriers(trees: list[WorkerTree], workers: list[int]) -> None:
    for w in workers:
        trees[w].waits = True
        trees[w].reduce("barrier 'x'", np.zeros(0, np.uint8), joined, True)


def test_a_neighbour_that_stops_after_an_answer_is_named_itself(
    passed: Callable[[float], None],
) -> None:
    # Worker 0 hears of worker 3 from worker 2. Then worker 2 stops, and worker 3 comes.
    network = Network(0, 0)
    trees = [tree_of(network, w, 4, timeout_s=64.0, doing=lambda: "computing") for w in range(4)]
    barriers(trees, [0, 1, 2])
    for _ in range(30):
        passed(1.0)
        for tree in trees:
            tree.poll()
    assert trees[0].late() == [(3, "computing")]
    barriers(trees, [3])
    for _ in range(20):
        passed(1.0)
        for w in (0, 1, 3):
            trees[w].poll()
    (first, text), *_ = trees[0].late()
    assert first == 2
    assert text.startswith("no answer for ")


def test_a_worker_that_stops_before_it_has_received_a_long_value_is_named(
    passed: Callable[[float], None],
) -> None:
    network = Network(0, 0)
    trees = [tree_of(network, w, 2, timeout_s=64.0, doing=lambda: "computing") for w in range(2)]
    trees[1].reduce("sum 'x'", np.zeros(0, np.uint8), lambda low, high: low, True)
    long = trees[0].reduce("sum 'x'", np.zeros(10_000, np.uint8), lambda low, high: low, True)
    trees[0].waits = True
    for _ in range(60):
        passed(1.0)
        trees[0].poll()
    assert not long.done
    assert trees[0].late() == [(1, "does not receive a value")]
