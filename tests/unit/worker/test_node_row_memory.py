"""The memory in which look-aheads of a node find rows: claims, stamps, whole rows, full sets."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpips import _native
from mpips.transport.region import Regions, new_token, unlink_job

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]

LINE = 64
STRIDE = 6
LONG = 4096
ALL = (0, 2**62)
ABSENT, COPIED, CLAIMED = 0, 1, 2
FORK = multiprocessing.get_context("fork")


def ends(n_workers: int, n_slots: int, stride: int = STRIDE) -> list[_native.NodeRows]:
    n_bytes = n_slots * (LINE + 4 * stride)
    memory = _native.SharedMemory.anonymous(n_bytes, 0)
    return [_native.NodeRows(memory, n_bytes, stride, w, n_workers) for w in range(n_workers)]


def some_rows(keys: Int64, stamp: int, dim: int = 3) -> Float32:
    """Return rows that differ in every key and stamp."""
    return (keys[:, None] * 10.0 + np.arange(dim) + 1000.0 * stamp).astype(np.float32)


def look(end: _native.NodeRows, keys: Int64, usable: tuple[int, int] = ALL, **options: Any) -> Any:
    given = {"dim": 3, "clock": 5, "claims_from": 5, "claims": True, "table": 1, **options}
    return end.look(keys=keys, usable=usable, **given)


def publish(end: _native.NodeRows, keys: Int64, stamp: int, table: int = 1) -> None:
    end.publish(table, stamp, keys, some_rows(keys, stamp), keys + 100 * stamp)


def test_one_worker_claims_a_row_and_the_others_find_it() -> None:
    first, second = ends(2, 64)
    assert first.n_slots == 64
    keys = np.array([7, -3, 2**62])
    assert look(first, keys)[0].tolist() == [ABSENT] * 3
    # A claim binds the others only, for its clock; a look may leave claims as they are.
    assert look(first, keys)[0].tolist() == [ABSENT] * 3
    assert look(second, keys)[0].tolist() == [CLAIMED] * 3
    assert look(second, keys, claims_from=6, claims=False)[0].tolist() == [ABSENT] * 3
    assert look(second, keys, table=2)[0].tolist() == [ABSENT] * 3
    publish(first, keys[:2], 5)
    states, found, stamps, versions = look(second, keys)
    assert states.tolist() == [COPIED, COPIED, CLAIMED]
    np.testing.assert_array_equal(found[:2], some_rows(keys[:2], 5))
    assert stamps[:2].tolist() == [5, 5]
    assert versions[:2].tolist() == [507, 497]
    assert look(second, keys[:2], table=2, claims=False)[0].tolist() == [ABSENT, ABSENT]


def test_stamps_decide_what_may_be_used() -> None:
    first, second = ends(2, 64)
    keys = np.array([7])
    publish(first, keys, 4)
    for usable, state in (((4, 4), COPIED), ((5, 9), ABSENT), ((0, 3), ABSENT), ((-3, 9), COPIED)):
        assert look(second, keys, usable, claims=False)[0][0] == state
    # An older row does not replace it, and a newer one does.
    publish(second, keys, 3)
    assert look(first, keys)[2][0] == 4
    publish(second, keys, 6)
    assert look(first, keys)[2][0] == 6


def test_a_row_that_is_claimed_and_not_written_is_not_there() -> None:
    """Early workers may use rows of clocks before the first one."""
    first, second = ends(2, 64)
    keys = np.array([7])
    look(first, keys, (-3, 9), clock=0, claims_from=0)
    assert look(second, keys, (-3, 9), clock=0, claims_from=0)[0][0] == CLAIMED
    publish(first, keys, 0)
    assert look(second, keys, (-3, 9), clock=0, claims_from=0)[0][0] == COPIED


def test_a_claim_of_a_clock_after_the_usable_ones_is_not_trusted() -> None:
    first, second = ends(2, 64)
    keys = np.array([7])
    look(first, keys, (6, 6), clock=6, claims_from=6)
    assert look(second, keys, (5, 6), claims=False)[0][0] == CLAIMED
    assert look(second, keys, (5, 5))[0][0] == ABSENT


def test_nobody_waits_for_a_slot_whose_writer_has_died() -> None:
    n_bytes = 4 * (LINE + 4 * STRIDE)  # one set of four slots
    memory = _native.SharedMemory.anonymous(n_bytes, 0)
    first, second = (_native.NodeRows(memory, n_bytes, STRIDE, w, 2) for w in range(2))
    keys = np.array([7])
    look(first, keys)
    assert look(second, keys)[0][0] == CLAIMED
    # Odd version words: the slots are being written.
    memory.view(0, 4 * LINE, True)[::LINE] |= 1
    assert look(second, keys)[0][0] == ABSENT


def test_a_stale_row_can_be_claimed_again_by_one() -> None:
    first, second, third = ends(3, 64)
    keys = np.array([7])
    publish(first, keys, 2)
    assert look(second, keys, (4, 9))[0][0] == ABSENT
    assert look(third, keys, (4, 9))[0][0] == CLAIMED
    assert look(third, keys, (1, 9))[0][0] == COPIED
    # Its claim of clock 5 is too old for a worker at clock 8.
    assert look(third, keys, (8, 9), clock=8, claims_from=7)[0][0] == ABSENT
    assert look(second, keys, (8, 9), clock=8, claims_from=7)[0][0] == CLAIMED


def test_of_more_rows_than_slots_the_newest_stay() -> None:
    (end,) = ends(1, 64)
    for stamp in range(20):
        publish(end, np.arange(16) + 16 * stamp, stamp)
    found = [look(end, np.arange(16) + 16 * s, claims=False)[0] == COPIED for s in range(20)]
    held = [int(states.sum()) for states in found]
    assert held[19] >= 12
    assert sum(held) > 40
    assert sum(held[:10]) == 0
    for stamp in range(20):
        keys = (np.arange(16) + 16 * stamp)[found[stamp]]
        np.testing.assert_array_equal(look(end, keys)[1], some_rows(keys, stamp))


def test_memory_for_no_row_holds_none() -> None:
    (end,) = ends(1, 3)
    assert end.n_slots == 0
    publish(end, np.array([1]), 1)
    assert look(end, np.array([1]))[0].tolist() == [ABSENT]


def test_bad_arguments_are_refused() -> None:
    first, _ = ends(2, 8)
    with pytest.raises(ValueError, match="rows of length 7, expected 1 to 6"):
        look(first, np.array([1]), dim=7)
    with pytest.raises(ValueError, match="below 0"):
        look(first, np.array([1]), claims_from=-1)
    with pytest.raises(ValueError, match="versions"):
        first.publish(1, 1, np.array([1]), np.ones((1, 3), np.float32), np.array([1, 2]))
    with pytest.raises(ValueError, match="a stamp below 0"):
        first.publish(1, -1, np.array([1]), np.ones((1, 3), np.float32), np.array([1]))
    memory = _native.SharedMemory.anonymous(4096, 0)
    for n_bytes, stride, worker in ((1 << 30, 1, 0), (4096, 0, 0), (4096, 1, 2)):
        with pytest.raises(ValueError, match="do not fit"):
            _native.NodeRows(memory, n_bytes, stride, worker, 2)


def _write_and_read(end: _native.NodeRows, worker: int, counts: Any, together: Any) -> None:
    """Publish and read rows of few slots; count rows of others, and rows that nobody has written so."""
    random = np.random.default_rng(worker)
    others = wrong = 0
    for turn in range(3000):
        # On a loaded machine one process could otherwise end before another has begun.
        if turn % 100 == 0:
            together.wait(60)
        keys = np.unique(random.integers(0, 6, 3))
        stamp = 4 * turn + worker
        if random.random() < 0.5:
            end.publish(1, stamp, keys, some_rows(keys, stamp, LONG), keys + 100 * stamp)
        states, found, stamps, versions = look(end, keys, dim=LONG, clock=turn, claims_from=turn)
        for i in np.flatnonzero(states == COPIED):
            others += stamps[i] % 4 != worker
            expected = some_rows(keys[i : i + 1], int(stamps[i]), LONG)[0]
            wrong += not np.array_equal(found[i], expected)
            wrong += versions[i] != keys[i] + 100 * stamps[i]
    counts.put((others, wrong))


@pytest.fixture
def shared() -> Iterator[_native.SharedMemory]:
    """Yield memory that forked processes share."""
    token = new_token()
    yield Regions(token, shared=True).create("held", 8 * (LINE + 4 * LONG))
    unlink_job(token)


def test_processes_that_write_the_same_slots_read_whole_rows(shared: _native.SharedMemory) -> None:
    """Rows are so long that their copies overlap in time."""
    counts, together = FORK.SimpleQueue(), FORK.Barrier(4)
    made = [_native.NodeRows(shared, 8 * (LINE + 4 * LONG), LONG, w, 4) for w in range(4)]
    started = [
        FORK.Process(target=_write_and_read, args=(end, w, counts, together))
        for w, end in enumerate(made)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0] * 4
    found = [counts.get() for _ in started]
    assert all(others > 100 for others, _ in found)
    assert [wrong for _, wrong in found] == [0] * 4
