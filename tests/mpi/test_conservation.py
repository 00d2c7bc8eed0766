"""Every push of every worker counts exactly once, with every size, transport and timing."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from playing import Session, counts, workers_with

import mpips
from mpips import ASP, BSP, SSP, DenseTable, EmbeddingTable, Worker
from mpips.model.consistency import Consistency

UNIT = mpips.SGD(lr=1.0)
N_CLOCKS = 5
N_KEYS = 500
N_LARGE = 5000  # 20 KB: five times a ring of 4 records of 1 KiB
SHAPE = (N_LARGE // 50, 50)
ROWS = {"rows": 3, "wide": 60, "coded rows": 60}  # embedding tables and their dimensions
AUTO = mpips.Auto("bf16", "fp16")  # by measured speeds; none in shared memory
SPARSE = mpips.TopK(0.1)
MODELS = {"bsp": BSP(reduce="sum"), "ssp": SSP(bound=2), "asp": ASP()}


def tables(model: Consistency) -> list[Any]:
    return [
        DenseTable("scalar", (), optimizer=UNIT, consistency=model),
        DenseTable("large", SHAPE, optimizer=UNIT, consistency=model),
        EmbeddingTable("rows", 3, optimizer=UNIT, consistency=model),
        EmbeddingTable("wide", 60, optimizer=UNIT, consistency=model),
        # Small whole numbers are exact in these codecs.
        DenseTable("coded", SHAPE, optimizer=UNIT, consistency=model, compression="fp16"),
        # What arrives and what is left are whole numbers, too.
        DenseTable("sparse", SHAPE, optimizer=UNIT, consistency=model, compression=SPARSE),
        EmbeddingTable("coded rows", 60, optimizer=UNIT, consistency=model, compression=AUTO),
    ]


def pushes_of(worker: int, clock: int) -> list[tuple[str, np.ndarray | None, np.ndarray]]:
    """Return the pushes of a worker in a clock, in order: (table, keys, update)."""
    random = np.random.default_rng([worker, clock, 9])
    pushes: list[tuple[str, np.ndarray | None, np.ndarray]] = []
    for turn in range(random.integers(0, 4)):
        seed = 100 * clock + turn
        pushes.append(("scalar", None, counts(worker, seed, ())))
        if random.random() < 0.5:
            pushes.append(("large", None, counts(worker, seed, SHAPE)))
        if random.random() < 0.5:
            pushes.append(("coded", None, counts(worker, seed, SHAPE)))
        if random.random() < 0.5:
            pushes.append(("sparse", None, counts(worker, seed, SHAPE)))
        for name, dim in ROWS.items():
            n = int(random.choice([0, 1, 30, 400]))
            keys = random.integers(0, N_KEYS, size=n)
            pushes.append((name, keys, counts(worker, seed, (n, dim))))
    return pushes


def main(worker: Worker) -> dict[str, np.ndarray]:
    random = np.random.default_rng([worker.index, 1])
    for clock in range(N_CLOCKS):
        for name, keys, update in pushes_of(worker.index, clock):
            if random.random() < 0.3:
                time.sleep(random.uniform(0.0, 0.002))
            arguments = (update,) if keys is None else (keys, update)
            worker.table(name).push(*arguments)
            update[...] = np.nan  # reused: push has copied it when it returns
        worker.clock()
    worker.flush()
    worker.barrier("all pushed")
    keys = np.arange(N_KEYS)
    found = {
        name: worker.table(name).pull(*([keys] if name in ROWS else []))
        for name in ("scalar", "large", "coded", "sparse", *ROWS)
    }
    rest = worker.table("sparse").residual()
    parts = worker.gather("residuals", rest.tobytes())
    assert np.count_nonzero(rest) > 0
    found["sparse"] -= sum(np.frombuffer(part, np.float32).reshape(SHAPE) for part in parts)
    return found


def expected(n_workers: int) -> dict[str, np.ndarray]:
    total = {
        "scalar": np.zeros((), np.float32),
        "large": np.zeros(SHAPE, np.float32),
        "coded": np.zeros(SHAPE, np.float32),
        "sparse": np.zeros(SHAPE, np.float32),
        **{name: np.zeros((N_KEYS, dim), np.float32) for name, dim in ROWS.items()},
    }
    for worker in range(n_workers):
        for clock in range(N_CLOCKS):
            for name, keys, update in pushes_of(worker, clock):
                if keys is None:
                    total[name] -= update
                else:
                    np.subtract.at(total[name], keys, update)
    return total


@pytest.mark.one_of("model")
@pytest.mark.two_ranks
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_push_counts_exactly_once(
    session: Session, transport: str, servers: int, model: Consistency
) -> None:
    played = session(
        main, tables(model), transport=transport, servers=servers, slot_kib=1, ring_slots=4
    )
    n_workers = workers_with(servers)
    wanted = expected(n_workers)
    assert len(played.values) == n_workers
    for values in played.values:
        for name, array in wanted.items():
            assert np.array_equal(values[name], array), name
    totals = dict.fromkeys(("pushed", "applied", "rejected", "late"), 0)
    for name in wanted:
        for what in totals:
            totals[what] += played.server_total(name, what)
        assert played.server_total(name, "applied") == played.server_total(name, "pushed")
    assert totals == {what: played.worker_total(what) for what in totals}
    pushed = [p for w in range(n_workers) for c in range(N_CLOCKS) for p in pushes_of(w, c)]
    scalars = sum(name == "scalar" for name, _, _ in pushed)
    larges = sum(name == "large" for name, _, _ in pushed)
    assert played.server_total("scalar", "pushed") == scalars
    assert played.server_total("large", "pushed") == larges * servers


@pytest.mark.parametrize("model", [ASP(), SSP(bound=1)], ids=["asp", "ssp"])
def test_rejected_and_applied_pushes_add_up_to_the_values(
    session: Session, transport: str, model: Any
) -> None:
    """Each accepted push adds 1, each rejected one nothing; the workers know which were accepted."""
    model = type(model)(policy=mpips.Reject(max_staleness=0))

    def worker_main(worker: Worker) -> tuple[int, float]:
        handle, taken = worker.table("w"), 0
        for _ in range(30):
            handle.pull()
            requests = [handle.push(np.full(4, -1.0, np.float32)) for _ in range(2)]
            taken += sum(request.wait().applied for request in requests)
            worker.clock()
        worker.barrier("all pushed")
        return taken, float(handle.pull()[0])

    table = DenseTable("w", (4,), optimizer=UNIT, consistency=model)
    played = session(worker_main, [table], transport=transport, servers=1)
    taken = sum(value[0] for value in played.values)
    n = len(played.values)
    assert all(final == taken for _, final in played.values)
    assert played.server_total("w", "applied") == played.worker_total("applied") == taken
    assert played.server_total("w", "rejected") == played.worker_total("rejected") == 60 * n - taken
    # The second push of a step has at least not seen the first.
    assert played.server_total("w", "rejected") >= 30 * n
    assert taken >= 1
