"""Every use of a worker and its tables, for objects that must refuse all of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from harness import floats

from mpips.worker.worker import Worker


def uses(worker: Worker, own: np.ndarray) -> list[Callable[[], object]]:
    """Return the uses of a worker with a dense table "w" (8,) and an embedding table "e" of dim 2.

    `own` is an array of 8 from its `allocate`.
    """
    w, e = worker.table("w"), worker.table("e")
    one, key, row = floats(8), np.array([3]), np.ones((1, 2), np.float32)
    return [
        lambda: w.push(one),
        lambda: w.push(own),
        lambda: w.push(one.astype(np.float64)),
        lambda: w.pull(),
        lambda: w.prefetch(),
        lambda: w.push_pull(one),
        lambda: w.view(),
        lambda: e.push(key, row),
        lambda: e.pull(key),
        lambda: e.prefetch(key),
        lambda: e.push_pull(key, row),
        lambda: worker.clock(),
        lambda: worker.allocate((8,)),
        lambda: worker.gather("x", b""),
        lambda: worker.barrier("x"),
        lambda: worker.flush(),
        lambda: worker.checkpoint(),
        lambda: worker.report(0, 0, 0, 0.0),
    ]
