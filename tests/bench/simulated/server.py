"""One real server with the rings of many imitated workers, in one process: its time and its memory.

Every worker pushes to a dense table under BSP and ends its clock, as if all were on the server's node. Their
records are written beforehand; only the server's work is measured.
"""

from __future__ import annotations

import time

import numpy as np

from mpips import _native
from mpips.config.options import SessionOptions
from mpips.model.consistency import BSP
from mpips.model.optimizer import SGD
from mpips.model.placement import place
from mpips.model.table import DenseTable, EmbeddingTable, Table
from mpips.server.server import Server
from mpips.transport.region import Regions, new_token

_ELEMENTS = 64  # of the dense table: the work on values is small beside that on records
_CLOCKS = 5
_OPTIONS = SessionOptions()


def measure(n_workers: int) -> dict[str, float]:
    """Return what a number of workers costs one server. Blocks; takes memory for all rings.

    Args:
        n_workers: Number of imitated workers.

    Returns:
        `clock_s`, seconds of processor time for the pushes and ticks of all workers in one clock;
        `tick_s`, for the ticks alone; `idle_s`, for one look at all rings when they are empty;
        `ring_bytes`, shared memory of a worker's ring at a server of a dense table, and `row_ring_bytes`, of
        an embedding table; `journal_bytes`, shared memory of the journal for each worker.
    """
    table = DenseTable("dense", (_ELEMENTS,), SGD(1.0), BSP("sum"))
    placement = place([table], 1, n_workers, _OPTIONS.ring_slots, _OPTIONS.slot_bytes)
    layout = placement.layouts[0]
    # Anonymous memory takes pages where it is used, so ten thousand rings fit into a small machine.
    server = Server(0, [table], placement, Regions(new_token(), shared=False), 0, False, None)
    writers = [
        _native.RingWriter(server.region, layout.mailbox_offset(w), layout.geometry, w, 0, False, 1)
        for w in range(n_workers)
    ]
    update = np.ones(_ELEMENTS, np.float32)
    both: list[float] = []
    ticks: list[float] = []
    for clock in range(2 * _CLOCKS):
        for writer in writers:
            if clock % 2 == 0:
                writer.push_dense(0, clock, update, None, 0)
            writer.tick(clock)
        (ticks if clock % 2 else both).append(_seconds(server))
        if server.core.version(0) != clock + 1:
            raise AssertionError(f"the server has not closed clock {clock}")
    idle = min(_seconds(server) for _ in range(_CLOCKS))
    return {
        "clock_s": min(both),
        "tick_s": min(ticks),
        "idle_s": idle,
        "ring_bytes": float(_ring_bytes(DenseTable("large", (1 << 22,)), n_workers)),
        "row_ring_bytes": float(_ring_bytes(EmbeddingTable("rows", 16), n_workers)),
        "journal_bytes": _native.journal_bytes(layout) / n_workers,
    }


def _seconds(server: Server) -> float:
    start = time.thread_time()
    server.core.drain(0.0, 0)
    return time.thread_time() - start


def _ring_bytes(table: Table, n_workers: int) -> int:
    placement = place([table], 1, n_workers, _OPTIONS.ring_slots, _OPTIONS.slot_bytes)
    return placement.layouts[0].geometry.mailbox_bytes
