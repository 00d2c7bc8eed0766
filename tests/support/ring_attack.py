"""A rig whose worker 0 writes raw bytes into its ring."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from harness import Rig

from mpips import _native

FIELDS = {
    "magic": ("<H", 0),
    "version": ("<B", 2),
    "kind": ("<B", 3),
    "flags": ("<H", 4),
    "codec": ("<H", 6),
    "generation": ("<I", 8),
    "worker": ("<H", 12),
    "table": ("<H", 14),
    "sequence": ("<Q", 16),
    "base_version": ("<Q", 24),
    "clock": ("<Q", 32),
    "offset": ("<Q", 40),
    "count": ("<I", 48),
    "payload_bytes": ("<I", 52),
    "header_checksum": ("<I", 56),
    "payload_checksum": ("<I", 60),
}
FIRST, LAST, CHECKSUM, BASE, STAGED = 1, 2, 4, 8, 16
PUSH_DENSE, PUSH_ROWS, PULL_ROWS, TICK, FINISH = 1, 2, 3, 4, 5


class Attack:
    """A rig whose worker 0 writes bytes. Checksums off unless told: forged records pass them."""

    def __init__(self, *tables, checksums=False, n_workers=2, **options) -> None:
        self.rig = Rig(*tables, n_workers=n_workers, checksums=checksums, **options)
        self.rig.core.set_patience(0.0)
        layout = self.rig.layout
        ring = layout.geometry
        self.n_slots, self.slot_bytes = ring.n_slots, ring.slot_bytes
        self.stride = ring.record_stride
        box = self.rig.region.view(layout.mailbox_offset(0), ring.mailbox_bytes, True)
        self.slots = box[ring.slots_offset :]
        self.stamps = box[ring.stamps_offset :]

    def slot(self, sequence):
        start = sequence % self.n_slots * self.stride
        return self.slots[start : start + self.slot_bytes]

    def stamp(self, sequence, value=None):
        at = sequence % self.n_slots * self.stride
        value = sequence + 1 if value is None else value
        self.stamps[at : at + 8] = np.frombuffer(struct.pack("<Q", value), np.uint8)

    def set(self, number, /, **fields):
        for name, value in fields.items():
            form, at = FIELDS[name]
            struct.pack_into(form, self.slot(number), at, value)

    def forge(self, number, payload=b"", /, **fields):
        """Write a whole record of worker 0, a valid one but for `fields`."""
        slot = self.slot(number)
        slot[:64] = 0
        valid = {
            "magic": 0x504D,
            "version": _native.memory_format,
            "flags": FIRST | LAST,
            "sequence": number,
        }
        self.set(number, **{**valid, "payload_bytes": len(payload), **fields})
        slot[64 : 64 + len(payload)] = np.frombuffer(payload, np.uint8)
        self.stamp(number)

    def drain_for_ever(self):
        for _ in range(100_000):
            self.rig.drain()

    def refused(self, match, table=0):
        before = self.rig.values(table).tobytes()
        with pytest.raises(_native.ProtocolViolation, match=match) as error:
            self.drain_for_ever()
        assert "worker 0" in str(error.value)
        assert self.rig.values(table).tobytes() == before


def dense_bytes(n, value=1.0):
    return np.full(n, value, np.float32).tobytes()
