"""Look-aheads of two workers of a node with a server there and one elsewhere. No arguments.

Each worker prints one line of JSON: its name, and for each consistency model the digests of what it has
pulled without a look-ahead, with one, and with one that shares rows, the bytes of the last two, how many rows
it has found that the other one has read, and the size of the memory in which it looks in each of the three.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

import mpips
from mpips.worker.node_rows.rows import Looked, NodeRows
from mpips.worker.worker import connection_of

N_STEPS, N_KEYS, DIM = 25, 200, 4


def batches_of(worker: int) -> list[np.ndarray]:
    """Return batches of which other workers and other steps have many keys."""
    random = np.random.default_rng(worker)
    return [random.zipf(1.2, 300) % N_KEYS for _ in range(N_STEPS)]


def train(depth: int, bound: int | None) -> Callable[[mpips.Worker], tuple[str, str, int, int]]:
    """Return a worker's function: it returns its name, the digest of its pulls, and two numbers of bytes.

    These are the bytes of the pulls, and those of the memory for rows of other workers.

    `bound`: of SSP, which each pull must keep; None: BSP.
    """

    def main(worker: mpips.Worker) -> tuple[str, str, int, int]:
        table, digest = worker.table("e"), hashlib.sha256()
        loop = batches = batches_of(worker.index)
        if depth:
            loop = mpips.lookahead(batches, keys=lambda keys: keys, worker=worker, depth=depth)
        for keys in loop:
            rows = table.pull(keys)
            digest.update(rows.tobytes())
            if bound is None:
                table.push(keys, rows * np.float32(0.1) + np.float32(worker.index + 1))
            else:
                # Column w counts the clocks of worker w: it pushes all rows in each.
                assert (rows[:, : worker.n_workers] >= worker.now - bound).all()
                update = np.zeros((N_KEYS, DIM), np.float32)
                update[:, worker.index] = -1
                table.push(np.arange(N_KEYS), update)
            worker.clock()
        pulled = int(connection_of(worker).figures().pulled_bytes)
        part = connection_of(worker).node_rows
        size = part.memory.n_bytes if part is not None else 0
        return f"worker {worker.index}", digest.hexdigest(), pulled, size

    return main


def session(
    consistency: mpips.BSP | mpips.SSP, depth: int, mib: int
) -> tuple[str, str, int, int] | None:
    """Return what the worker of this rank returns; None on other ranks."""
    table = mpips.EmbeddingTable("e", DIM, mpips.SGD(1.0), consistency, init="zeros")
    bound = consistency.bound if isinstance(consistency, mpips.SSP) else None
    outcome = mpips.run(
        train(depth, bound),
        [table],
        servers=2,
        verbose=False,
        timeout_s=20.0,
        # Rings, 1 MiB of staging memory for each worker, and that many MiB for rows of each.
        node_buffers_mib=3 + 2 * mib,
        ring_slots=8,
        slot_kib=4,
        staging_mib=1,
    )
    return outcome.value


def count_copies(look: Callable[..., Looked]) -> Callable[..., Looked]:
    """Return `look` of NodeRows with a count of the rows that it finds."""

    def counting(*arguments: Any, **options: Any) -> Looked:
        global n_copied
        looked = look(*arguments, **options)
        n_copied += len(looked.stamps)
        return looked

    return counting


n_copied = 0
NodeRows.look = count_copies(NodeRows.look)
found = {}
for consistency in (mpips.BSP(), mpips.SSP(3)):
    value = [session(consistency, depth, mib) for depth, mib in ((0, 0), (4, 0), (4, 1))]
    if value[0] is not None:
        name = value[0][0]
        digests, n_bytes = [digest for _, digest, *_ in value], [n for *_, n, _ in value[1:]]
        found[consistency.name] = digests, n_bytes, n_copied, [size for *_, size in value]
        n_copied = 0
if found:
    print(json.dumps([name, found]), flush=True)
