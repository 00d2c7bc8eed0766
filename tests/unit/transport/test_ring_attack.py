"""Raw bytes in a mailbox: whatever they are, only complete and fresh records change values."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from harness import dense, rows
from ring_attack import (
    BASE,
    FINISH,
    FIRST,
    LAST,
    PULL_ROWS,
    PUSH_DENSE,
    PUSH_ROWS,
    STAGED,
    TICK,
    Attack,
    dense_bytes,
)

from mpips.model.consistency import ASP, BSP


def test_forged_record_with_valid_fields_is_applied():
    attack = Attack(dense(8))
    attack.forge(0, dense_bytes(8), kind=PUSH_DENSE, count=8)
    assert attack.rig.drain() == 1
    assert (attack.rig.values() == -1.0).all()


def test_repeated_record_is_applied_once():
    attack = Attack(dense(8), checksums=True)
    writer, drain = attack.rig.writers[0], attack.rig.drain
    for round_ in range(10):
        sequence = writer.next_sequence
        writer.push_dense(0, 0, np.ones(8, np.float32), None, 0)
        record = attack.slot(sequence).copy()
        drain()
        # Write the same record and stamp again, and the record also into the slot that is read next.
        attack.slot(sequence)[:] = record
        attack.stamp(sequence)
        attack.slot(sequence + 1)[:] = record
        drain()
        assert (attack.rig.values() == -(round_ + 1.0)).all()


def test_repeated_record_under_a_fresh_stamp_is_refused():
    attack = Attack(dense(8), checksums=True)
    attack.rig.writers[0].push_dense(0, 0, np.ones(8, np.float32), None, 0)
    attack.rig.drain()
    attack.slot(1)[:] = attack.slot(0)
    attack.stamp(1)
    attack.refused("number 0 of worker 0 where number 1")


def test_payload_without_a_stamp_is_not_seen():
    attack = Attack(dense(8))
    attack.forge(0, dense_bytes(8), kind=PUSH_DENSE, count=8)
    attack.stamp(0, 0)
    assert attack.rig.drain() == 0
    assert not attack.rig.values().any()


def test_stamp_without_a_record_is_waited_for_then_refused():
    attack = Attack(dense(8), checksums=True)
    attack.rig.core.set_patience(3600.0)
    attack.stamp(0)
    assert attack.rig.drain() == 0
    assert attack.rig.core.counters()["retries"] > 0
    attack.rig.core.set_patience(0.0)
    attack.refused("record 0 is damaged")


@pytest.mark.parametrize("part", ["header", "payload"])
def test_record_that_arrives_behind_its_stamp_is_applied_once_whole(part):
    attack = Attack(dense(8), checksums=True)
    attack.rig.core.set_patience(3600.0)
    attack.rig.writers[0].push_dense(0, 0, np.ones(8, np.float32), None, 0)
    late = slice(0, 64) if part == "header" else slice(80, 96)
    held = attack.slot(0)[late].copy()
    attack.slot(0)[late] = 0
    assert attack.rig.drain() == 0
    attack.slot(0)[late] = held
    assert attack.rig.drain() == 1
    assert (attack.rig.values() == -1.0).all()


@pytest.mark.parametrize("bit", [0, 2, 7])
@pytest.mark.parametrize("at", range(96))
def test_any_damaged_bit_of_a_checked_record_is_refused(at, bit):
    attack = Attack(dense(8), checksums=True)
    attack.rig.writers[0].push_dense(0, 0, np.ones(8, np.float32), None, 0)
    attack.slot(0)[at] ^= 1 << bit
    attack.refused("record 0 is damaged")


@pytest.mark.parametrize("stamp", [2, 3, 2**40, 2**64 - 1])
def test_stamp_from_the_future_is_a_gap(stamp):
    attack = Attack(dense(8))
    attack.forge(0, dense_bytes(8), kind=PUSH_DENSE, count=8)
    attack.stamp(0, stamp)
    attack.refused("gap.*where record 0 was expected")


def test_stamp_of_two_rounds_ago_is_a_gap():
    attack = Attack(dense(8))
    writer = attack.rig.writers[0]
    for _ in range(2 * attack.n_slots):
        writer.push_dense(0, 0, np.zeros(8, np.float32), None, 0)
        attack.rig.drain()
    attack.stamp(2 * attack.n_slots, 1)
    attack.refused("gap")


FORGED = {
    "generation": ({"generation": 7}, "generation 7, this job is generation 0"),
    "format": ({"version": 99}, "a record of format version 99"),
    "worker": ({"worker": 1}, "of worker 1 where"),
    "sequence": ({"sequence": 4}, "a record with number 4"),
    "kind 0": ({"kind": 0}, "unknown kind 0"),
    "kind 200": ({"kind": 200}, "unknown kind 200"),
    "table": ({"table": 9}, "table 9, of which this server"),
    "rows to dense": ({"kind": PUSH_ROWS}, "wrong kind"),
    "dense to rows": ({"table": 1}, "wrong kind"),
    "pull of dense": ({"kind": PULL_ROWS}, "a pull of rows from table 0"),
    "pull of nothing": ({"kind": PULL_ROWS, "table": 9}, "a pull of rows from table 9"),
    "pull sizes": ({"kind": PULL_ROWS, "table": 1}, "sizes do not agree"),
    "longer than a slot": ({"payload_bytes": 961}, "record 0 is damaged"),
    "count too great": ({"count": 9}, "payload has 32 bytes, expected 36"),
    "count wraps": ({"count": 2**30 + 8}, "payload has 32 bytes"),
    "base missing": ({"flags": FIRST | LAST | BASE}, "payload has 32 bytes, expected 64"),
    "part as whole": ({"count": 4, "payload_bytes": 16}, "not the length"),
    "end missing": ({"flags": FIRST}, "not the length"),
    "end only": ({"flags": LAST}, "out of order"),
    "middle only": ({"flags": 0}, "out of order"),
    "offset": ({"offset": 4}, "out of order"),
}


@pytest.mark.parametrize("model", [ASP(), BSP("sum")], ids=["asp", "bsp"])
@pytest.mark.parametrize(("fields", "match"), FORGED.values(), ids=FORGED.keys())
def test_forged_field_is_refused(fields, match, model):
    attack = Attack(dense(8, consistency=model), rows(4, consistency=model))
    attack.forge(0, dense_bytes(8), **{"kind": PUSH_DENSE, "count": 8, **fields})
    attack.refused(match)


@pytest.mark.parametrize("offset", [2, 1 << 20, (1 << 20) - 28, 2**64 - 4, 2**63])
def test_staged_offset_outside_staging_is_refused(offset):
    attack = Attack(dense(8))
    payload = struct.pack("<QQ", offset, 2**64 - 1)
    attack.forge(0, payload, kind=PUSH_DENSE, count=8, flags=FIRST | LAST | STAGED)
    attack.refused("outside its staging")


@pytest.mark.parametrize(("count", "flags"), [(4, FIRST | LAST), (8, FIRST), (8, LAST)])
def test_staged_push_of_a_part_is_refused(count, flags):
    attack = Attack(dense(8))
    payload = struct.pack("<QQ", 0, 2**64 - 1)
    attack.forge(0, payload, kind=PUSH_DENSE, count=count, flags=flags | STAGED)
    attack.refused("not the length|out of order")


SECOND = {
    "gap in offset": ({"offset": 6, "count": 2}, "out of order"),
    "repeated offset": ({"offset": 0, "count": 4}, "out of order"),
    "beyond the end": ({"offset": 4, "count": 8}, "beyond the end"),
    "end too early": ({"offset": 4, "count": 2}, "not the length"),
    "other table": ({"offset": 4, "count": 4, "table": 1}, "out of order"),
    "other clock": ({"offset": 4, "count": 4, "clock": 1}, "out of order"),
    "base only here": ({"offset": 4, "count": 4, "flags": LAST | BASE}, "out of order"),
}


@pytest.mark.parametrize("model", [ASP(), BSP("sum")], ids=["asp", "bsp"])
@pytest.mark.parametrize(("fields", "match"), SECOND.values(), ids=SECOND.keys())
def test_segment_that_does_not_continue_its_push_is_refused(fields, match, model):
    attack = Attack(dense(8, "a", consistency=model), dense(8, "b", consistency=model))
    attack.forge(0, dense_bytes(4), kind=PUSH_DENSE, count=4, flags=FIRST)
    parts = 2 if fields.get("flags", 0) & BASE else 1
    fields = {"kind": PUSH_DENSE, "flags": LAST, **fields}
    attack.forge(1, dense_bytes(parts * fields["count"]), **fields)
    attack.refused(match)
    assert not attack.rig.values(1).any()


def test_row_segments_of_two_tables_are_refused():
    attack = Attack(rows(1, "a"), rows(1, "b"), dense(8))
    part = struct.pack("<qf", 5, 1.0)
    attack.forge(0, part, kind=PUSH_ROWS, count=1, flags=FIRST)
    attack.forge(1, part, kind=PUSH_ROWS, count=1, flags=LAST, offset=1, table=1)
    attack.refused("out of order", table=2)
    assert attack.rig.table_rows(0) == attack.rig.table_rows(1) == {}


@pytest.mark.parametrize("kind", [PUSH_DENSE, TICK, FINISH])
def test_bsp_push_cut_short_by_another_record_is_refused(kind):
    # Under BSP its first segments are in the sum already; under ASP they are dropped.
    attack = Attack(dense(8, consistency=BSP("sum")))
    attack.forge(0, dense_bytes(4), kind=PUSH_DENSE, count=4, flags=FIRST)
    whole = {"count": 8} if kind == PUSH_DENSE else {}
    attack.forge(1, dense_bytes(8) if whole else b"", kind=kind, **whole)
    attack.refused("before its last push was complete")


def test_asp_push_cut_short_by_another_is_forgotten():
    attack = Attack(dense(8))
    attack.forge(0, dense_bytes(4, 64.0), kind=PUSH_DENSE, count=4, flags=FIRST)
    attack.forge(1, dense_bytes(8), kind=PUSH_DENSE, count=8)
    assert attack.rig.drain() == 2
    assert (attack.rig.values() == -1.0).all()


@pytest.mark.parametrize("model", [ASP(), BSP("sum")], ids=["asp", "bsp"])
def test_record_after_finish_is_refused(model):
    attack = Attack(dense(8, consistency=model))
    attack.forge(0, kind=FINISH)
    attack.forge(1, dense_bytes(8), kind=PUSH_DENSE, count=8)
    attack.refused("after it had finished")


def test_clock_that_runs_backwards_is_refused():
    attack = Attack(dense(8))
    attack.forge(0, kind=TICK, clock=4)
    attack.forge(1, kind=TICK, clock=2)
    attack.refused("clock 2 after it had ended clock 4")


def test_random_bytes_never_change_values():
    rng = np.random.default_rng(5)
    for _ in range(300):
        attack = Attack(dense(8), rows(4))
        junk = rng.integers(0, 256, attack.slot_bytes).astype(np.uint8)
        attack.slot(0)[:] = junk
        n_valid = int(rng.integers(0, 64))
        attack.forge(0, junk[64:96].tobytes(), kind=PUSH_DENSE, count=8)
        attack.slot(0)[n_valid:64] = junk[n_valid:64]
        attack.refused("worker 0")
