"""Checkpoints while workers push: their content follows exactly from their cursors."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playing import SIZE, Session, counts, workers_with

from mpips import ASP, BSP, SGD, SSP, DenseTable, EmbeddingTable, Worker
from mpips.checkpoint import Manifest, list_checkpoints, open_checkpoint

N = 40_000  # floats; several segments
KEYS = 300
DIM = 3
MOST = 5000  # clocks after which a worker stops if there is no checkpoint

MODELS = {
    "bsp": BSP("sum"),
    "ssp": SSP(2),
    "asp": ASP(),
}


def tables(model: Any) -> list[Any]:
    return [
        DenseTable("w", (N,), SGD(1.0), model),
        EmbeddingTable("e", DIM, SGD(1.0), model, init="zeros"),
    ]


def update(worker: int, clock: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return an update of whole numbers for the dense table, keys, and rows."""
    random = np.random.default_rng([worker, clock])
    keys = np.unique(random.integers(0, KEYS, 50))
    return counts(worker, clock, N), keys, counts(worker, clock, (len(keys), DIM))


def published(folder: Path) -> int:
    return sum(name.startswith("step-") for name in os.listdir(folder))


def push_until(worker: Worker, folder: Path, enough: int, patience: int) -> tuple[int, list[float]]:
    """Push until a number of checkpoints exist, then `patience` more clocks; return clocks and draws."""
    drawn = []
    left = patience
    done = 0
    for clock in range(MOST):
        dense, keys, rows = update(worker.index, clock)
        worker.table("w").push(dense)
        if clock % 3 == 0:
            worker.table("e").pull(np.arange(0, KEYS, 7))
        worker.table("e").push(keys, rows)
        drawn.append(worker.random.random())
        worker.set_cursor({"clock": clock + 1, "drawn": drawn[-1]})
        worker.clock()
        done = clock + 1
        time.sleep(1e-3)  # the pushes are computed again to check them
        if published(folder) >= enough:
            left -= 1
            if left < 0:
                break
    return done, drawn


def check_sums(path: Path) -> Manifest:
    """Check that the tables are the sums over all workers of exactly the pushes before their cursors."""
    dense, rows = np.zeros(N), np.zeros((KEYS, DIM))
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        manifest = checkpoint.manifest
        for worker in manifest.workers:
            for clock in range(worker.cursor.get("clock", 0)):
                whole, keys, part = update(worker.worker, clock)
                dense += whole
                rows[keys] += part
        entry = manifest.table("w").dataset("values")
        assert (checkpoint.read(entry, 0, N).reshape(-1) == -dense).all(), path.name
        table = manifest.table("e")
        keys = checkpoint.read(table.dataset("keys"), 0, table.shape[0])
        values = checkpoint.read(table.dataset("values"), 0, table.shape[0])
        assert (values == -rows[keys]).all(), path.name
        untouched = np.setdiff1d(np.arange(KEYS), keys)
        assert not rows[untouched].any(), path.name
    return manifest


def checkpoints(folder: Path) -> list[Path]:
    return [entry.path for entry in list_checkpoints(folder)]


@pytest.mark.one_of("model")
@pytest.mark.two_ranks
@pytest.mark.parametrize("model", MODELS)
def test_a_cut_holds_exactly_what_stands_before_its_cursors(
    session: Session,
    comm: Any,
    parallel_assert: Any,
    folder: Path,
    transport: str,
    servers: int,
    model: str,
) -> None:
    def main(worker: Worker) -> int:
        # Let workers begin and finish at different times.
        time.sleep(0.02 * worker.index)
        return push_until(worker, folder, 3, 2 + 3 * worker.index)[0]

    played = session(
        main,
        tables(MODELS[model]),
        save=folder,
        every_steps=5,
        transport=transport,
        servers=servers,
        slot_kib=16,
        timeout_s=60.0,
    )
    said = played.statistics["scheduler"]["checkpoints"]
    found = None
    if comm.Get_rank() == 0:
        kept = checkpoints(folder)
        found = [check_sums(path) for path in kept]
        for manifest in found[:-1]:
            cursors = {w.cursor["clock"] for w in manifest.workers}
            clocks = [w.clock for w in manifest.workers]
            assert [w.cursor["clock"] for w in manifest.workers] == clocks
            if model != "asp":
                # The cursor of a worker that has finished is that of its end.
                assert manifest.step % 5 == 0
                assert max(cursors) == manifest.step
        last = found[-1]
        assert [w.cursor["clock"] for w in last.workers] == played.values
    parallel_assert(comm, said["written"] >= 2, str(said))
    parallel_assert(comm, said["failed"] == said["given_up"] == 0, str(said))
    parallel_assert(
        comm, all(row["cuts"]["copies"] >= said["written"] for row in played.statistics["servers"])
    )


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("backup", [1])
def test_with_backup_workers_a_cut_is_made_and_training_goes_on(
    session: Session, comm: Any, parallel_assert: Any, folder: Path, servers: int, backup: int
) -> None:
    """Which pushes count depends on timing; each table counts its clocks."""

    def main(worker: Worker) -> int:
        if worker.index == 0:
            time.sleep(0.05)
        return push_until(worker, folder, 3, 3)[0]

    played = session(
        main,
        tables(BSP("sum", backup=backup)),
        save=folder,
        every_steps=5,
        servers=servers,
        timeout_s=60.0,
    )
    said = played.statistics["scheduler"]["checkpoints"]
    versions = []
    if comm.Get_rank() == 0:
        for path in checkpoints(folder)[:-1]:
            with open_checkpoint(path) as checkpoint:
                checkpoint.verify()
                manifest = checkpoint.manifest
                versions.append((manifest.step, [t.version for t in manifest.tables]))
                assert {s.version for t in manifest.tables for s in t.shards} == {manifest.step}
    parallel_assert(comm, said["written"] >= 2, f"{said} {versions}")


@pytest.mark.one_of("model")
@pytest.mark.parametrize("model", ["ssp", "asp"])
def test_a_checkpoint_asked_for_by_hand_while_others_wait(
    session: Session, comm: Any, parallel_assert: Any, folder: Path, servers: int, model: str
) -> None:
    """Workers that wait for each other, also outside the rings, do not block a cut."""

    def main(worker: Worker) -> int:
        done = 0
        for turn in range(4):
            if worker.index == 0:
                worker.checkpoint()
            for _ in range(4):
                time.sleep(0.001 * worker.index)
                dense, keys, rows = update(worker.index, done)
                worker.table("w").push(dense)
                worker.table("e").push(keys, rows)
                done += 1
                worker.set_cursor({"clock": done})
                worker.clock()
                if model == "asp":
                    worker.keep_pace(2)
            # The pull needs the servers, the barrier needs all workers.
            worker.table("e").pull(np.arange(KEYS))
            worker.barrier(f"turn {turn}")
        return done

    played = session(main, tables(MODELS[model]), save=folder, servers=servers, timeout_s=20.0)
    said = played.statistics["scheduler"]["checkpoints"]
    if comm.Get_rank() == 0:
        for path in checkpoints(folder):
            check_sums(path)
    parallel_assert(comm, said["given_up"] == said["failed"] == 0, str(said))
    parallel_assert(comm, said["written"] + said["skipped"] >= 1, str(said))


@pytest.mark.mpi(min_size=4)
@pytest.mark.one_of("model")
@pytest.mark.parametrize("model", [SSP(1000), ASP()], ids=["ssp", "asp"])
def test_a_gather_between_push_and_clock_holds_no_cut(
    session: Session,
    comm: Any,
    parallel_assert: Any,
    folder: Path,
    transport: str,
    model: Any,
) -> None:
    """Worker 0 waits for the others in a barrier, and they wait for servers behind their cut records."""

    def step(worker: Worker, done: int) -> None:
        worker.table("e").pull(np.arange(KEYS))
        dense, keys, rows = update(worker.index, done)
        worker.table("w").push(dense)
        worker.table("e").push(keys, rows)
        worker.set_cursor({"clock": done + 1})

    def main(worker: Worker) -> float:
        longest, done = 0.0, 0
        for turn in range(2):
            for left in reversed(range(1 if worker.index == 0 else 40)):
                began = time.monotonic()
                step(worker, done)
                done += 1
                if worker.index == 0:
                    worker.checkpoint()
                    worker.barrier(f"turn {turn}")
                time.sleep(2e-3)
                worker.clock()
                if worker.index and left:
                    longest = max(longest, time.monotonic() - began)
            if worker.index:
                worker.barrier(f"turn {turn}")
        # The requested checkpoint has not been taken yet.
        while done < MOST and not published(folder):
            step(worker, done)
            done += 1
            time.sleep(2e-3)
            worker.clock()
        return longest

    played = session(
        main,
        tables(model),
        save=folder,
        servers=1 + (SIZE > 4),
        transport=transport,
        timeout_s=16.0,
    )
    said = played.statistics["scheduler"]["checkpoints"]
    if comm.Get_rank() == 0:
        for path in checkpoints(folder):
            check_sums(path)
    parallel_assert(comm, said["written"] >= 1, str(said))
    parallel_assert(comm, said["given_up"] == said["failed"] == 0, str(said))
    # Without the change under test, this takes half of timeout_s.
    parallel_assert(comm, max(played.values) < 5.0, str(played.values))


def test_random_stream_and_cursor_go_on_where_they_were(
    session: Session, comm: Any, parallel_assert: Any, folder: Path, servers: int
) -> None:
    def main(worker: Worker) -> list[float]:
        return push_until(worker, folder, 2, 2)[1]

    first = session(main, tables(BSP("sum")), save=folder, every_steps=4, servers=servers)
    path = comm.bcast(str(checkpoints(folder)[0]) if comm.Get_rank() == 0 else None)

    def again(worker: Worker) -> tuple[int, Any, list[float]]:
        assert worker.start is not None
        start = dict(worker.start.cursor or {})
        drawn = [worker.random.random() for _ in range(3)]
        return worker.start.clock, start, drawn

    with open_checkpoint(path) as checkpoint:
        states = checkpoint.manifest.workers
    second = session(again, tables(BSP("sum")), resume=path, servers=servers)
    for worker, (clock, cursor, drawn) in enumerate(second.values):
        at = cursor["clock"]
        assert (clock, at) == (states[worker].clock, states[worker].cursor["clock"])
        assert cursor["drawn"] == first.values[worker][at - 1]
        expected = first.values[worker][at : at + 3]
        assert drawn[: len(expected)] == expected
    parallel_assert(comm, len(second.values) == workers_with(servers))


def test_a_job_that_begins_anew_in_a_folder_keeps_what_it_writes(
    session: Session, comm: Any, parallel_assert: Any, folder: Path
) -> None:
    """New checkpoints remain, although those of earlier jobs in the folder have greater steps."""
    for clocks in (9, 8, 7, 6, 5):

        def main(worker: Worker, n: int = clocks) -> None:
            for _ in range(n):
                worker.clock()

        session(main, tables(ASP()), save=folder, resume="never")
    if comm.Get_rank() == 0:
        steps = [entry.step for entry in list_checkpoints(folder)]
        newest = os.path.basename(os.readlink(folder / "latest"))
        found = (sorted(steps), newest, (folder / newest).is_dir())
    else:
        found = ([5, 6, 7], "step-000000000005", True)
    parallel_assert(comm, found == ([5, 6, 7], "step-000000000005", True), str(found))


@pytest.mark.mpi(min_size=4)
def test_with_another_number_of_workers_nobody_has_the_place_of_another(
    session: Session, comm: Any, parallel_assert: Any, folder: Path
) -> None:
    def main(worker: Worker) -> list[float]:
        return push_until(worker, folder, 2, 0)[1]

    session(main, tables(ASP()), save=folder, every_steps=4, servers=1)
    before = SIZE - 2

    def again(worker: Worker) -> tuple[Any, int, int, float]:
        assert worker.start is not None
        states = worker.start.workers
        return worker.start.cursor, len(states), worker.start.step, worker.random.random()

    second = session(again, tables(ASP()), save=folder, servers=2)
    parallel_assert(comm, len({value[3] for value in second.values}) == before - 1)
    for cursor, n_states, step, _ in second.values:
        assert cursor is None
        assert n_states == before
        assert step > 0
