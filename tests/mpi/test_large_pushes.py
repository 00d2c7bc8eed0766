"""Dense updates that are large enough for a remote server's rendezvous buffer: correct by every path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from playing import Session, counts, noise, workers_with

import mpips
from mpips import ASP, BSP, SSP, DenseTable, Worker

N = 1_000_003  # floats; with three servers, still several segments for each
UNIT = mpips.SGD(lr=1.0)
MODELS = [BSP(reduce="sum"), SSP(bound=1), ASP()]
names = ["bsp", "ssp", "asp"]


@pytest.mark.one_of("model")
@pytest.mark.parametrize("staging_mib", [0, 7, 64])
@pytest.mark.parametrize("model", MODELS, ids=names)
def test_sums_are_exact_with_and_without_areas_from_any_memory(
    session: Session, transport: str, servers: int, model: Any, staging_mib: int
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
    played = session(
        main, [table], transport=transport, servers=servers, remote_staging_mib=staging_mib
    )
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

    def run(**options: Any) -> list[bytes]:
        table = DenseTable("w", (N,), optimizer=mpips.Adam(0.01), consistency=BSP())
        return session(main, [table], **options).values

    one = run(transport=transport, remote_staging_mib=0)
    other = run(transport=transport)
    assert set(one) == set(other)
    assert len(set(other)) == 1
