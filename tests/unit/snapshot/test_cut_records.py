"""Cut records: a server holds each ring at its record until the cut is released."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Rig, clock_of, dense, rows

from mpips.errors import ProtocolError
from mpips.model.consistency import ASP, BSP, SSP

BSP_SUM = BSP("sum")


def push(rig: Rig, worker: int, clock: int, value: float) -> None:
    update = np.full(rig.tables[0].n_elements, value, np.float32)
    assert rig.writers[worker].push_dense(0, clock, update, None, 0) == update.size


@pytest.mark.parametrize("consistency", [BSP_SUM, SSP(1), ASP()], ids=["bsp", "ssp", "asp"])
def test_nothing_behind_the_record_is_taken_until_all_rings_stand_at_theirs(consistency):
    rig = Rig(dense(3, consistency=consistency), n_workers=2, n_slots=8)
    rig.core.expect_cut(7)
    clock_of(rig, 0, 0, [1.0])
    assert rig.writers[0].cut(1, 7, 1, b"zero")
    push(rig, 0, 1, 100.0)
    rig.drain()
    assert rig.core.holds_cut()
    assert not rig.core.cut_ready()
    clock_of(rig, 1, 0, [10.0])
    assert rig.writers[1].cut(1, 7, 1, b"one")
    push(rig, 1, 1, 1000.0)
    rig.drain()
    assert rig.core.cut_ready()
    assert rig.values().tolist() == [-11.0] * 3
    assert [rig.core.position_text(w) for w in (0, 1)] == [b"zero", b"one"]
    assert [rig.core.applied(w) for w in (0, 1)] == [2, 2]
    rig.core.release_cut(7)
    for w in (0, 1):
        assert rig.writers[w].tick(1)
    rig.drain()
    assert not rig.core.holds_cut()
    assert not rig.core.cut_ready()
    assert rig.values().tolist() == [-1111.0] * 3


def test_a_finished_worker_is_ready_and_where_all_are_there_is_no_cut():
    rig = Rig(dense(3, consistency=BSP_SUM), n_workers=2, n_slots=8)
    rig.core.expect_cut(1)
    clock_of(rig, 0, 0, [1.0])
    assert rig.writers[0].finish(1)
    clock_of(rig, 1, 0, [2.0])
    rig.drain()
    assert not rig.core.cut_ready()
    assert rig.writers[1].cut(1, 1, 1, b"")
    rig.drain()
    assert rig.core.cut_ready()
    rig.core.release_cut(1)
    rig.core.expect_cut(2)
    assert rig.writers[1].finish(1)
    rig.drain()
    assert not rig.core.cut_ready()


def test_records_of_a_cut_that_was_given_up_hold_nothing_also_if_they_come_later():
    rig = Rig(dense(3), n_workers=2, n_slots=8)
    rig.core.expect_cut(4)
    assert rig.writers[0].cut(0, 4, 0, b"")
    push(rig, 0, 0, 1.0)
    rig.drain()
    assert rig.values().tolist() == [0.0] * 3
    rig.core.release_cut(4)
    assert rig.writers[1].cut(0, 4, 0, b"late")
    push(rig, 1, 0, 2.0)
    rig.drain()
    assert rig.values().tolist() == [-3.0] * 3
    assert rig.core.position_text(1) == b"late"


def test_a_record_of_another_cut_is_not_taken_for_the_one_expected():
    rig = Rig(dense(3), n_workers=2, n_slots=8)
    rig.core.expect_cut(2)
    assert rig.writers[0].cut(0, 1, 0, b"")
    assert rig.writers[1].cut(0, 2, 0, b"")
    rig.drain()
    assert not rig.core.cut_ready()
    rig.core.release_cut(1)
    assert rig.writers[0].cut(0, 2, 0, b"")
    rig.drain()
    assert rig.core.cut_ready()


def test_cut_0_carries_the_position_of_a_worker_and_holds_no_ring():
    rig = Rig(dense(3), n_slots=8)
    assert rig.writers[0].cut(0, 0, 0, b"here")
    push(rig, 0, 0, 1.0)
    rig.drain()
    assert rig.core.position_text(0) == b"here"
    assert rig.values().tolist() == [-1.0] * 3


def test_a_full_ring_behind_the_record_goes_on_after_the_cut():
    rig = Rig(dense(3), n_workers=2, n_slots=4)
    rig.core.expect_cut(1)
    assert rig.writers[0].cut(0, 1, 0, b"")
    for _ in range(3):
        push(rig, 0, 0, 1.0)
    assert not rig.writers[0].tick(0)
    rig.drain()
    assert not rig.writers[0].tick(0)
    assert rig.writers[1].cut(0, 1, 0, b"")
    rig.drain()
    assert rig.core.cut_ready()
    rig.core.release_cut(1)
    rig.drain()
    assert rig.writers[0].tick(0)
    assert rig.values().tolist() == [-3.0] * 3


def test_segments_that_wait_in_their_slots_are_released_by_the_record():
    """The segments of an incomplete push under ASP are in no cut."""
    rig = Rig(rows(1), n_slots=8, slot_bytes=256)
    n = 30  # three records
    keys, update = np.arange(n), np.ones((n, 1), np.float32)
    writer = rig.writers[0]
    part = writer.push_rows(0, 0, keys, update, None, 0)
    assert part == n
    rig.drain()
    assert len(rig.table_rows()) == n
    rig.core.expect_cut(1)
    assert writer.cut(0, 1, 0, b"")
    rig.drain()
    assert rig.core.cut_ready()
    assert len(rig.table_rows()) == n


def test_under_bsp_a_push_is_whole_before_the_record():
    rig = Rig(dense(1000, consistency=BSP_SUM), n_slots=4, slot_bytes=1024)
    update = np.ones(1000, np.float32)
    assert 0 < rig.writers[0].push_dense(0, 0, update, None, 0) < 1000
    rig.drain()
    assert rig.writers[0].cut(0, 1, 0, b"")
    with pytest.raises(ProtocolError, match="before its last push was complete"):
        rig.server.drain()


def test_what_is_too_large_for_a_record_is_refused_with_both_sizes():
    rig = Rig(dense(3), slot_bytes=1024)
    with pytest.raises(ValueError, match="has 961 bytes, but a record has room for 960"):
        rig.writers[0].cut(0, 1, 0, bytes(961))
    assert rig.writers[0].cut(0, 1, 0, bytes(960))


def test_arrays_without_a_copy_show_what_the_server_holds_and_cannot_be_written():
    rig = Rig(dense(100), rows(2))
    rig.writers[0].push_rows(1, 0, np.array([5, 3]), np.ones((2, 2), np.float32), None, 0)
    push(rig, 0, 0, 4.0)
    rig.drain()
    values = rig.core.dense_array(0, 0)
    assert values.tolist() == [-4.0] * 100
    keys, content = rig.core.embedding_arrays(1)
    assert dict(zip(keys.tolist(), content[:, :2].tolist(), strict=True)) == {
        5: [-1.0, -1.0],
        3: [-1.0, -1.0],
    }
    for array in (values, keys, content):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    push(rig, 0, 0, 1.0)
    rig.drain()
    assert values.tolist() == [-5.0] * 100
