"""Look-aheads in one process: memory in which they share rows, and pulls that say what they contain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from harness import Rig, rows
from numpy.typing import NDArray

import mpips
from mpips import _native
from mpips.worker.node_rows.part import NodeRowsPart

Float32 = NDArray[np.float32]

_LINE = 64  # bytes of a slot beside its row
_STEPS = 40
_KEYS = np.arange(6)


def held_parts(
    n_workers: int, n_slots: int, stride: int, remote: frozenset[int] = frozenset({0})
) -> list[NodeRowsPart]:
    """Return each worker's end of memory for so many rows; `remote`: servers on other nodes."""
    n_bytes = n_slots * (_LINE + 4 * stride)
    memory = _native.SharedMemory.anonymous(n_bytes, 0)
    return [
        NodeRowsPart(
            _native.NodeRows(memory, n_bytes, stride, w, n_workers), memory, n_bytes, remote
        )
        for w in range(n_workers)
    ]


def some_order(bound: int | None, seed: int) -> list[int]:
    """Return an order in which three workers may make steps under SSP with this bound; None: under ASP."""
    random = np.random.default_rng(seed)
    clocks, order = [0, 0, 0], []
    while len(order) < 100:
        w = int(random.integers(3))
        if bound is None or clocks[w] - min(clocks) <= bound:  # others would wait
            order.append(w)
            clocks[w] += 1
    return [w for i, w in enumerate(order) if order[:i].count(w) < _STEPS]


def included(
    consistency: Any,
    n_workers: int,
    order: Sequence[int],
    depth: int,
    held: Sequence[NodeRowsPart] | None = None,
) -> list[tuple[int, int, Float32]]:
    """Let worker w add 1 to column w of each row in each clock; return (worker, clock, rows) of each pull.

    A row then says how many clocks of each worker it contains. `held`: where the workers share rows.
    """
    table = rows(n_workers, consistency=consistency, init="zeros")
    rig = Rig(table, n_workers=n_workers, n_slots=64)
    workers = [
        rig.worker(w, timeout_s=10.0, node_rows=held[w] if held else None) for w in range(n_workers)
    ]
    loops = [
        mpips.lookahead([_KEYS] * _STEPS, keys=lambda k: k, worker=w, depth=depth) for w in workers
    ]
    found = []
    for w in order:
        keys = next(loops[w])
        found.append((w, workers[w].now, workers[w].table("e").pull(keys).copy()))
        update = np.zeros((len(_KEYS), n_workers), np.float32)
        update[:, w] = -1
        workers[w].table("e").push(keys, update)
        workers[w].clock()
    return found
