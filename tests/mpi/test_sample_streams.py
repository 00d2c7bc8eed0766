"""Producers and readers on different ranks: each sample counts once, and readers see only whole ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playing import Session, workers_with

from mpips import DenseTable, StreamTable, Worker

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

    def agreed(worker: Worker) -> tuple[int, float, float]:
        found = stream.reader(worker).agreed_moments(min_seen=10)
        return found.n, float(found.mean["x"]), float(found.std["x"])

    def main(worker: Worker) -> tuple[Any, ...]:
        if worker.index > 0:
            producer = stream.producer(worker, worker.index - 1)
            for i in range(PUSHED):
                x = np.full(SHAPE, value(producer.number, i), np.float32)
                producer.push({"x": x, "n": i}, wait=i % 3 > 0)
                worker.clock()
            producer.close()
            return agreed(worker)
        reader, batches = stream.reader(worker), 0
        moments = agreed(worker)
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
        assert reader.moments().n == PUSHED * stream.producers - sum(
            stream.slots.is_held_out(p, i) for p in range(stream.producers) for i in range(PUSHED)
        )
        return batches, counts.produced, counts.dropped, moments

    played = session(main, stream.tables, servers=servers)
    batches, produced, dropped, moments = played.values[0]
    assert all(played.values[i] == moments for i in range(1, n_workers))
    assert batches > 0
    assert (produced, dropped) == (PUSHED * stream.producers, 0)


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("pushes", [False, True])
def test_checkpoints_go_on_while_a_reader_waits_for_samples(
    session: Session, comm: Any, parallel_assert: Any, folder: Path, pushes: bool
) -> None:
    """Producers are held at their cut records, so a reader that did not take part would get no sample."""
    n_workers = workers_with(1)
    stream = StreamTable("s", {"x": (5,)}, 64 * n_workers, producers=n_workers - 1)
    asked = DenseTable("asked", (3,), consistency="asp")

    def main(worker: Worker) -> int:
        if worker.index > 0:
            producer = stream.producer(worker, worker.index - 1)
            for i in range(PUSHED):
                producer.push({"x": np.full(5, i)})
                worker.clock()
            producer.close()
            return 0
        if pushes:
            worker.table("asked").push(np.ones(3, np.float32))
        wait = stream.reader(worker).batches(4, min_seen=PUSHED * stream.producers, patience_s=20.0)
        return len(next(wait))

    played = session(main, [*stream.tables, asked], servers=1, save=folder, every_steps=10)
    said = played.statistics["scheduler"]["checkpoints"]
    parallel_assert(comm, played.values[0] == 4, str(played.values))
    parallel_assert(comm, said["failed"] == 0, str(said))
    if not pushes:
        parallel_assert(comm, said["given_up"] == 0, str(said))
        parallel_assert(comm, said["written"] >= 1, str(said))
