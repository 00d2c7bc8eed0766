"""Dense updates that are large enough for a remote server's rendezvous buffer: correct by every path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from playing import SIZE, Session, counts, noise, workers_with

import mpips
from mpips import ASP, BSP, SSP, DenseTable, Worker
from mpips.config.options import SessionOptions
from mpips.mpi.roles import alone, assign
from mpips.worker.buffers import JobBuffers

N = 1_000_003  # floats; with three servers, still several segments for each
UNIT = mpips.SGD(lr=1.0)
MODELS = [BSP(reduce="sum"), SSP(bound=1), ASP()]
names = ["bsp", "ssp", "asp"]


def with_areas(table: DenseTable, servers: int, mib: int) -> dict[str, Any]:
    """Return options with so many MiB for the rendezvous buffers of each server; with 0 there are none."""
    stated = {"ring_slots": 32, "slot_kib": 128, "staging_mib": 64}
    roles = assign([0] * SIZE, ["node"], servers) if SIZE > 1 else alone("node")
    buffers = JobBuffers([table], [table], SessionOptions(**stated), roles, ((), ()))
    return {**stated, "node_buffers_mib": buffers.least()[0] + servers * mib}


@pytest.mark.one_of("model")
@pytest.mark.parametrize("area_mib", [0, 7, 64])
@pytest.mark.parametrize("model", MODELS, ids=names)
def test_sums_are_exact_with_and_without_areas_from_any_memory(
    session: Session, transport: str, servers: int, model: Any, area_mib: int
) -> None:
    """Ordinary memory may be reused when push returns, memory of `allocate` after `wait`."""

    def main(worker: Worker) -> np.ndarray:
        w = worker.table("w")
        own = worker.allocate(N)
        for clock in range(3):
            update = counts(worker.index, clock, N)
            own[:] = 2 * update
            first, second = w.push(update), w.push(own)
            update[:] = np.nan
            worker.clock()
            second.wait()
            assert first.test()
        worker.flush()
        worker.barrier("all pushed")
        return w.pull()

    table = DenseTable("w", (N,), optimizer=UNIT, consistency=model)
    options = with_areas(table, servers, area_mib)
    played = session(main, [table], transport=transport, servers=servers, **options)
    workers = range(workers_with(servers))
    total = -3 * sum(counts(w, clock, N) for w in workers for clock in range(3))
    assert all((values == total).all() for values in played.values)
    assert played.server_total("w", "pushed") == 6 * len(workers) * servers
    assert played.worker_total("pushed") == 6 * len(workers) * servers


def test_bsp_has_the_same_bits_with_and_without_areas(session: Session, transport: str) -> None:
    def main(worker: Worker) -> bytes:
        w = worker.table("w")
        for clock in range(3):
            w.push(noise(worker.index, clock, N))
            worker.clock()
        values: bytes = w.pull().tobytes()
        return values

    table = DenseTable("w", (N,), optimizer=mpips.Adam(0.01), consistency=BSP())

    def run(**options: Any) -> list[bytes]:
        return session(main, [table], **options).values

    one = run(transport=transport, servers=1, **with_areas(table, 1, 0))
    other = run(transport=transport, servers=1)
    assert set(one) == set(other)
    assert len(set(other)) == 1
