"""Forged records that point into a rendezvous buffer are applied in place or refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from harness import dense
from ring_attack import FIRST, LAST, PUSH_DENSE, STAGED, Attack, dense_bytes

from mpips import _native

AREA, ARRIVED = 64, 128  # flags of a record


class AreaAttack(Attack):
    """Worker 0 has a rendezvous buffer: `piece` writes into it, `forge_piece` writes a record for it."""

    def __init__(self, n=70_000, **options) -> None:
        super().__init__(dense(n), remote=[0], remote_staging_bytes=8 * n, **options)
        layout = self.rig.layout
        self.n = n
        self.start = layout.mailbox_offset(0) + layout.geometry.mailbox_bytes
        self.bytes = self.rig.region.view(self.start, layout.area_bytes(0), True)

    def piece(self, offset, n, value=1.0):
        self.bytes[offset : offset + 4 * n] = np.frombuffer(dense_bytes(n, value), np.uint8)

    def payload(self, offset, n, value=1.0):
        checksum = _native.Xxh3()
        checksum.update(dense_bytes(n, value))
        return struct.pack("<QQ", offset, checksum.digest())

    def forge_piece(self, number, offset, done, n, flags, **fields):
        values = {"kind": PUSH_DENSE, "count": n, "offset": done, "flags": flags | AREA, **fields}
        self.forge(number, self.payload(offset, n), **values)


def test_forged_pieces_with_valid_fields_are_applied_in_place():
    attack = AreaAttack()
    attack.piece(64, attack.n)
    attack.forge_piece(0, 64, 0, 50_000, FIRST)
    assert attack.rig.drain() == 1
    assert not attack.rig.values().any()
    attack.forge_piece(1, 64 + 200_000, 50_000, attack.n - 50_000, LAST)
    assert attack.rig.drain() == 1
    assert (attack.rig.values() == -1).all()


def test_piece_that_has_arrived_needs_no_checksum():
    attack = AreaAttack()
    attack.piece(64, attack.n)
    payload = struct.pack("<QQ", 64, 0)
    flags = FIRST | LAST | AREA
    attack.forge(0, payload, kind=PUSH_DENSE, count=attack.n, flags=flags | ARRIVED)
    assert attack.rig.drain() == 1
    assert (attack.rig.values() == -1).all()
    attack.forge(1, payload, kind=PUSH_DENSE, count=attack.n, flags=flags)
    attack.rig.core.set_patience(0.0)
    attack.refused("record 1 is damaged")


def test_record_before_its_piece_waits_for_it_and_is_refused_in_the_end():
    attack = AreaAttack()
    attack.rig.core.set_patience(3600.0)
    attack.piece(0, attack.n - 1)
    attack.forge_piece(0, 0, 0, attack.n, FIRST | LAST)
    assert attack.rig.drain() == 0
    attack.piece(4 * attack.n - 4, 1)
    assert attack.rig.drain() == 1
    assert (attack.rig.values() == -1).all()
    attack.bytes[5] ^= 1
    attack.forge_piece(1, 0, 0, attack.n, FIRST | LAST)
    assert attack.rig.drain() == 0
    attack.rig.core.set_patience(0.0)
    attack.refused("record 1 is damaged")


@pytest.mark.parametrize("offset", [2, 62, 8 * 70_000, 2**64 - 4, 2**63, 2**64 - 4 * 70_000])
def test_piece_outside_the_area_is_refused(offset):
    attack = AreaAttack()
    payload = struct.pack("<QQ", offset, 0)
    attack.piece(0, attack.n)
    checksum = _native.Xxh3()
    end = offset % 2**63 + 4 * attack.n
    if end <= len(attack.bytes):  # misaligned: must be refused although the checksum is right
        checksum.update(attack.bytes[offset:end])
        payload = struct.pack("<QQ", offset, checksum.digest())
    attack.forge(0, payload, kind=PUSH_DENSE, count=attack.n, flags=FIRST | LAST | AREA)
    attack.refused("outside its rendezvous buffer|out of order")


WRONG = {
    "other place": ({"at": 200_064}, {}, "out of order"),
    "from the ring": ({}, {"flags": LAST}, "bytes, expected"),
    "gap": ({"at": 200_004, "done": 50_001, "n": 19_999}, {}, "out of order"),
    "staged": ({}, {"flags": LAST | AREA | STAGED}, "flags that exclude each other"),
    "with base": ({}, {"flags": LAST | AREA | 8}, "flags that exclude each other"),
    "arrived elsewhere": ({}, {"flags": LAST | ARRIVED}, "flags that exclude each other"),
}


@pytest.mark.parametrize(("place", "fields", "match"), WRONG.values(), ids=WRONG.keys())
def test_piece_that_does_not_continue_its_push_is_refused(place, fields, match):
    attack = AreaAttack()
    attack.piece(0, attack.n + 40_000)
    attack.forge_piece(0, 0, 0, 50_000, FIRST)
    where = {"at": 200_000, "done": 50_000, "n": 20_000, **place}
    payload = attack.payload(where["at"], where["n"])
    fields = {"count": where["n"], "offset": where["done"], "flags": LAST | AREA, **fields}
    attack.forge(1, payload, kind=PUSH_DENSE, **fields)
    attack.refused(match)


def test_worker_without_an_area_may_not_point_into_one():
    attack = Attack(dense(8))
    attack.forge(
        0,
        struct.pack("<QQ", 0, 0),
        kind=PUSH_DENSE,
        count=8,
        flags=FIRST | LAST | AREA,
    )
    attack.refused("outside its rendezvous buffer")
