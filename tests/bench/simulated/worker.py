"""The memory that a worker takes for servers on other nodes: a private copy of its ring at each of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mpips import _native
from mpips.config.options import SessionOptions
from mpips.model.placement import place
from mpips.model.table import DenseTable

_RECORDS = 100  # sent to each server: small pushes that use every slot of the ring
_LEAST_SERVERS = 100
_OPTIONS = SessionOptions()


def measure(n_workers: int, n_servers: int) -> dict[str, float]:
    """Return what remote servers cost a worker. Blocks.

    Args:
        n_workers: Number of workers of the job, which determines the size of a ring.
        n_servers: Number of servers on other nodes.

    Returns:
        `mirror_bytes`, resident memory of the worker for each server after small pushes have used all slots;
        before the first push it is next to nothing.
    """
    # A large table, so that slots are large, and small pushes to it.
    table = DenseTable("dense", (1 << 22,))
    placement = place([table], 1, n_workers, _OPTIONS.ring_slots, _OPTIONS.slot_bytes)
    geometry = placement.layouts[0].geometry
    # Resident memory grows in steps, which few servers would not average out.
    n = max(n_servers, _LEAST_SERVERS)
    before = _resident()
    mirrors = [
        _native.SharedMemory.anonymous(geometry.mailbox_bytes, 0, huge=False) for _ in range(n)
    ]
    writers = [_native.RingWriter(m, 0, geometry, 0, 0, True, 1) for m in mirrors]
    update = np.ones(8, np.float32)
    for mirror, writer in zip(mirrors, writers, strict=True):
        applied = mirror.view(0, 16, True).view(np.uint64)
        for sent in range(1, _RECORDS + 1):
            writer.push_dense(0, 0, update, None, 0)
            # Acknowledge as the server does: the number of records and its complement.
            applied[0], applied[1] = sent, ~np.uint64(sent)
    return {"mirror_bytes": (_resident() - before) / n}


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
