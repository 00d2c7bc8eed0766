"""Look-ahead under BSP: the same bits with every transport, number of servers, timing and cut."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playing import Session, workers_with

import mpips
from mpips import ASP, BSP, SSP, Adagrad, DenseTable, EmbeddingTable, Worker
from mpips.checkpoint import list_checkpoints

DIM = 16
N_CLOCKS = 25
SMALL_RINGS = {"slot_kib": 1, "ring_slots": 4}


def batches_of(worker: int) -> list[np.ndarray]:
    """Return batches with equal keys, of which other workers and the next batches have some."""
    random = np.random.default_rng([worker, 7])
    return [random.zipf(1.3, 60) % 300 for _ in range(N_CLOCKS)]


def train(depth: int, delays: int = 0, cuts: bool = False) -> Any:
    """Return a worker's function that returns the bits of all rows that it has pulled."""

    def main(worker: Worker) -> list[bytes]:
        random = np.random.default_rng([worker.index, delays])
        e, w = worker.table("e"), worker.table("w")
        batches = batches_of(worker.index)
        found = []
        loop: Any = batches
        if depth:
            loop = mpips.lookahead(batches, keys=lambda k: {"e": k}, worker=worker, depth=depth)
        for clock, keys in enumerate(loop):
            if delays:
                time.sleep(random.uniform(0.0, 0.003))
            rows = e.pull(keys)
            found.append(rows.tobytes())
            e.push(keys, rows * np.float32(0.1) + np.float32(worker.index + 1))
            w.push(w.pull() + np.float32(1))
            if cuts and clock % 5 == worker.index:
                worker.checkpoint()
            worker.set_cursor({"clock": clock})
            worker.clock()
        return found

    return main


def tables(consistency: Any, **options: Any) -> list[Any]:
    rule = Adagrad(0.1)
    return [
        DenseTable("w", (50,), optimizer=rule, consistency=consistency),
        EmbeddingTable("e", DIM, optimizer=rule, consistency=consistency, **options),
    ]


@pytest.mark.one_of("rings")
@pytest.mark.parametrize("rings", [{}, SMALL_RINGS], ids=["rings", "small-rings"])
def test_bsp_bits_are_those_without(
    session: Session, servers: int, transport: str, rings: dict[str, int]
) -> None:
    options = {"servers": servers, "transport": transport, **rings}
    plain = session(train(0), tables(BSP()), **options)
    for depth, delays in ((1, 0), (4, 1)):
        ahead = session(train(depth, delays), tables(BSP()), **options)
        assert ahead.values == plain.values


def test_bsp_bits_with_codecs_and_cuts(session: Session, transport: str, folder: Path) -> None:
    codecs = {"compression": "bf16", "pull_compression": "int8"}
    plain = session(train(0), tables(BSP(), **codecs), transport=transport)
    found = tables(BSP(), **codecs)
    ahead = session(train(4, delays=1, cuts=True), found, transport=transport, save=folder)
    assert ahead.values == plain.values
    assert len(ahead.statistics["scheduler"]["checkpoints"]) > 0
    assert len(list_checkpoints(folder)) > 0


@pytest.mark.parametrize("consistency", [SSP(2), ASP()], ids=["ssp", "asp"])
def test_rows_have_the_updates_that_the_bound_demands(
    session: Session, transport: str, consistency: Any
) -> None:
    """Worker w adds 1 to column w of every row in each clock, so a row says how many clocks it contains."""
    n_workers, depth = workers_with(1), 3
    keys = np.arange(500)

    def main(worker: Worker) -> list[tuple[int, list[float]]]:
        random = np.random.default_rng(worker.index)
        e, found = worker.table("e"), []
        loop = mpips.lookahead([keys] * 30, keys=lambda k: k, worker=worker, depth=depth)
        for batch in loop:
            time.sleep(random.uniform(0.0, 0.002))
            found.append((worker.now, e.pull(batch).min(axis=0).tolist()))
            update = np.zeros((len(keys), n_workers), np.float32)
            update[:, worker.index] = -1
            e.push(batch, update)
            worker.clock()
        return found

    table = EmbeddingTable("e", n_workers, mpips.SGD(1.0), consistency, init="zeros")
    played = session(main, [table], transport=transport)
    for worker, found in enumerate(played.values):
        for now, contained in found:
            assert contained[worker] >= now - depth
            if isinstance(consistency, SSP):
                assert min(contained) >= now - consistency.bound
