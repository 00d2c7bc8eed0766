"""Producers and readers on different ranks: each sample counts once, and readers see only whole ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from playing import Session, workers_with

from mpips import StreamTable, Worker

PUSHED = 120
SHAPE = (37, 11)


def value(producer: int, number: int) -> int:
    return 1000 * producer + number


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("keep", ["reservoir", "newest"])
def test_readers_learn_while_producers_push(session: Session, keep: Any, servers: int) -> None:
    n_workers = workers_with(servers)
    if n_workers < 2:
        pytest.skip("one worker is producer or reader")
    stream = StreamTable(
        "s",
        {"x": SHAPE, "n": ((), "int32")},
        32 * (n_workers - 1),
        producers=n_workers - 1,
        keep=keep,
        held_out=0.1,
    )

    def main(worker: Worker) -> tuple[int, int, int]:
        if worker.index > 0:
            producer = stream.producer(worker, worker.index - 1)
            for i in range(PUSHED):
                x = np.full(SHAPE, value(producer.number, i), np.float32)
                producer.push({"x": x, "n": i}, wait=i % 3 > 0)
                worker.clock()
            producer.close()
            return 0, 0, 0
        reader, batches = stream.reader(worker), 0
        for batch in reader.batches(8, min_seen=10):
            batches += 1
            expected = 1000 * batch.producers + batch.numbers
            np.testing.assert_array_equal(batch["n"], batch.numbers)
            np.testing.assert_array_equal(
                batch["x"], np.broadcast_to(expected[:, None, None], (8, *SHAPE))
            )
            worker.clock()
        counts = reader.counts()
        assert counts.held == stream.slots.n_train * stream.producers
        assert counts.ended == stream.producers
        return batches, counts.produced, counts.dropped

    played = session(main, stream.tables, servers=servers)
    batches, produced, dropped = played.values[0]
    assert batches > 0
    assert (produced, dropped) == (PUSHED * stream.producers, 0)
