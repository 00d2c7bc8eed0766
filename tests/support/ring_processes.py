"""What runs in the other processes of test_ring.py, and what they push."""

from __future__ import annotations

import random

import numpy as np
from harness import attached_writer, dense, rows

from mpips import _native
from mpips.model.placement import place
from mpips.transport.region import attach

N_SLOTS, SLOT_BYTES = 4, 1024
TABLES = [dense(3000, "a"), dense(40, "b"), rows(3, "e")]
KEYS = 50


def pushes_of(worker, seed, count):
    """What a worker pushes, as (table, update): random tables and sizes, known to both sides."""
    rng = np.random.default_rng([worker, seed])
    for _ in range(count):
        table = int(rng.integers(3))
        n = TABLES[table].n_elements if table < 2 else 3 * KEYS
        yield table, rng.integers(-3, 4, n).astype(np.float32)


def write(writer, table, update, wait):
    """Push one update, whole."""
    done, total = 0, update.size if table < 2 else KEYS
    while True:
        if table < 2:
            done = writer.push_dense(table, 0, update, None, done)
        else:
            keys, values = np.arange(KEYS, dtype=np.int64), update.reshape(KEYS, 3)
            done = writer.push_rows(2, 0, keys, values, None, done)
        if done == total:
            return writer.next_sequence
        while not writer.wait_credit(wait, True):
            pass


def worker_process(token, n_workers, worker, seed, count, started):
    """Push `count` times (None: for ever), then finish."""
    _, writer = attached_writer(token, TABLES, n_workers, N_SLOTS, SLOT_BYTES, worker)
    delays = random.Random(seed)
    if started is not None:
        started.send(1)
    for table, update in pushes_of(worker, seed, 10**9 if count is None else count):
        if delays.random() < 0.1:
            writer.wait_applied(writer.next_sequence + 1, 1e-4, True)
        write(writer, table, update, 1.0)
    while not writer.finish(0):
        writer.wait_credit(1.0, True)


def read_blocks(token, blocks, codec, ready, stop):
    """Copy the table until told to stop; send the number of copies, or what was torn."""
    table = [dense(blocks * _native.BLOCK_FLOATS, pull_compression=codec)]
    layout = place(table, 1, 1, N_SLOTS, SLOT_BYTES).layouts[0]
    memory = attach(token, "s0", layout.tables_offset)
    out = np.empty(blocks * _native.BLOCK_FLOATS, np.float32)
    copies, changed = 0, 0
    ready.send("ready")
    while not stop.is_set() or changed == 0:
        if not _native.copy_dense(memory, layout, 0, out, 1.0, True):
            continue
        block = out.reshape(blocks, -1)
        if not (block == block[:, :1]).all():
            ready.send("torn")
            return
        copies += 1
        changed += len(set(block[:, 0].tolist())) > 1
    ready.send((copies, changed))
