"""Arrays from one worker to another over MPI: all pairs, large and small pieces, and cuts meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playing import SIZE, Session, workers_with

from mpips import BSP, SGD, ConfigError, DenseTable, Worker
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.mpi.array_mail import ArrayMail
from mpips.worker.worker import connection_of

TABLES = [DenseTable("w", (3,), SGD(1.0), BSP(reduce="sum"))]
LENGTHS = (0, 1, 500, 3_000, 300_000)


def value(source: int, to: int, step: int, length: int) -> np.ndarray:
    return np.arange(length, dtype=np.float32) + (100 * source + 10 * to + step)


def all_pairs(worker: Worker) -> int:
    """Exchange arrays with all other workers in each of four clocks; return the number received."""
    others = [w for w in range(worker.n_workers) if w != worker.index]
    n_received, out = 0, np.empty(LENGTHS[-1], np.float32)
    for step in range(4):
        for other in others:
            for tag, length in enumerate(LENGTHS):
                worker.send(value(worker.index, other, step, length), to=other, tag=tag)
        for other in reversed(others):
            for tag in reversed(range(len(LENGTHS))):
                expected = value(other, worker.index, step, LENGTHS[tag])
                found = worker.recv(out[: LENGTHS[tag]], source=other, tag=tag)
                assert np.array_equal(found, expected)
                n_received += 1
        worker.table("w").push(np.ones(3, np.float32))
        worker.clock()
    return n_received


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("pieces", ["large", "small"])
def test_all_pairs_exchange_arrays_of_all_sizes(
    comm: Any,
    session: Session,
    parallel_assert: Any,
    monkeypatch: pytest.MonkeyPatch,
    pieces: str,
) -> None:
    def main(worker: Worker) -> int:
        # Both ends take the size of a piece from the sender's head, so one worker may differ.
        mail: Any = connection_of(worker).messages._mail
        assert isinstance(mail, ArrayMail)
        if pieces == "small" and worker.index % 2 == 0:
            mail._is_far = lambda other: True
        return all_pairs(worker)

    played = session(main, TABLES, servers=1)
    n = workers_with(1)
    expected = [4 * len(LENGTHS) * (n - 1)] * n
    parallel_assert(comm, played.values == expected, str(played.values))
    # Nothing of this job is left: the next one receives its own arrays only.
    again = session(all_pairs, TABLES, servers=1)
    parallel_assert(comm, again.values == expected, str(again.values))


@pytest.mark.two_ranks
@pytest.mark.skipif(SIZE > 2, reason="a job with one worker")
def test_a_job_with_one_worker_refuses_messages(
    comm: Any, session: Session, parallel_assert: Any
) -> None:
    def main(worker: Worker) -> str:
        try:
            worker.send([1.0], to=1)
        except ConfigError as error:
            return str(error)
        return ""

    played = session(main, TABLES)
    parallel_assert(comm, "the job has one worker" in played.values[0], str(played.values))


@pytest.mark.mpi(min_size=4)
def test_checkpoints_are_written_while_workers_wait_for_an_array(
    comm: Any, session: Session, parallel_assert: Any, folder: Path
) -> None:
    """All workers wait for the last one, at every step; every checkpoint contains whole exchanges."""

    def main(worker: Worker) -> tuple[int, int]:
        w, last, n_sent = worker.table("w"), worker.n_workers - 1, 0
        for step in range(20_000):
            if worker.index == last:
                time.sleep(0.002)
                is_end = len(list_checkpoints(folder)) > 1
                for other in range(last):
                    worker.send(np.full(5000, -1 if is_end else step), to=other)
            else:
                found = worker.recv(source=last)[0]
                assert found in (-1, step)
                is_end = found == -1
            n_sent += 1
            w.push(np.full(3, -1, np.float32))
            worker.set_cursor({"step": step + 1})
            worker.clock()
            if is_end:
                break
        return n_sent, len(list_checkpoints(folder))

    played = session(main, TABLES, servers=1, save=folder, every_steps=5)
    parallel_assert(comm, len({n for n, _ in played.values}) == 1, str(played.values))
    # These were written before the end of the programs.
    parallel_assert(comm, played.values[-1][1] > 1, str(played.values))
    if comm.Get_rank() == 0:
        for entry in list_checkpoints(folder):
            with open_checkpoint(entry.path) as checkpoint:
                manifest = checkpoint.manifest
                steps = {worker.cursor["step"] for worker in manifest.workers}
                assert steps == {manifest.step}, (entry.path, steps)
