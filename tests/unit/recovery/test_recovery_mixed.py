"""Tables of several consistency models in one job, and pushes that a launch leaves incomplete."""

from __future__ import annotations

import numpy as np
import pytest
from harness import dense, rows
from recovery_rig import KilledError

from mpips.model.consistency import ASP, BSP, SSP
from mpips.worker.worker import connection_of

CLOCKS = 5
SLOTS = 8
KEYS = np.arange(300, dtype=np.int64)  # eight records, as many as there are slots
MODELS = {"asp": ASP(), "ssp": SSP(2)}


def step(worker):
    """Run one clock of a worker. Rows are pushed first, so that they arrive before other workers tick."""
    table = worker.table("e")
    table.push(KEYS[:1], np.zeros((1, 4), np.float32))
    table.push(KEYS, np.ones((KEYS.size, 4), np.float32))
    worker.table("w").push(np.ones(8, np.float32))
    worker.set_cursor({"step": worker.cursor.get("step", 0) + 1})
    worker.clock()


def to_the_end(launches):
    """Train all workers to the end; return the clock of each, and the distinct values of each table."""
    for clock in range(CLOCKS):
        for worker in launches.workers:
            if worker.cursor.get("step", 0) == clock:
                step(worker)
    for worker in launches.workers:
        connection_of(worker).finish()
    clocks = [worker.now for worker in launches.workers]
    _, values = launches.servers[0].core.embedding_rows(1)
    dense_values = launches.servers[0].core.dense_values(0)
    return clocks, set(dense_values.tolist()), set(values.reshape(-1).tolist())


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_clock_that_closes_while_segments_wait_in_their_slots_is_recovered_as_closed(
    make_launches, model, ahead
):
    n_workers = ahead + 1
    launches = make_launches(
        dense(8, consistency=BSP("sum")),
        rows(consistency=model),
        n_workers=n_workers,
        n_slots=SLOTS,
    )
    close_over_segments(launches, ahead)
    launches.again()
    assert [place.clock for place in launches.places] == [2] * n_workers
    total = -float(CLOCKS * n_workers)
    assert to_the_end(launches) == ([CLOCKS] * n_workers, {total}, {total})


def close_over_segments(launches, ahead):
    """End in a push of each worker that is ahead; then let the last worker close the clock before."""
    for _ in range(2):
        for worker in launches.workers[:ahead]:
            step(worker)
        if launches.workers[-1].now == 0:
            step(launches.workers[-1])
    # Let the first push take a slot, so that the second one does not fit beside it.
    launches.idle = True
    for worker in launches.workers[:ahead]:
        connection_of(worker).ends_when_full = True
        with pytest.raises(KilledError):
            step(worker)
    # Let servers read the segments before the clock closes.
    launches.idle = False
    assert launches.drain() == ahead * SLOTS
    step(launches.workers[-1])
