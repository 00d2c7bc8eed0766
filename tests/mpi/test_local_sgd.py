"""LocalSGD and DiLoCo with several workers: the algorithms of the papers, exactly, on every transport."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_sgd import Simulation, gradient
from playing import SIZE, Session, workers_with

from mpips import SGD, Adam, DenseTable, DiLoCo, Nesterov, Worker
from mpips.checkpoint import list_checkpoints, open_checkpoint
from mpips.model.served import fragments_of

SIZES = (700, 40, 300, 9)
SERVERS = 2 if SIZE > 3 else 1
# (options of the simulation, numbers of servers): mixing is exact for one or two workers only.
CASES: list[tuple[dict[str, Any], int, str]] = [
    ({"steps": 4, "lr": 0.5, "momentum": 0.5}, SERVERS, "auto"),
    ({"steps": 4, "lr": 0.5}, 1, "rma"),
    ({"steps": 7, "fragments": 3}, 1, "p2p"),
    ({"steps": 8, "fragments": 2, "delay": 3, "mix": 0.5, "lr": 0.5}, SERVERS, "rma"),
    ({"steps": 6, "delay": 5, "mix": 0.25}, SERVERS, "p2p"),
]
MOST = 5000  # clocks after which worker 0 stops if there is no checkpoint


@pytest.mark.parametrize(("options", "n_servers", "way"), CASES)
def test_values_of_all_workers_are_those_of_the_algorithm(
    session: Session, options: dict[str, Any], n_servers: int, way: str
) -> None:
    given = dict(options)
    outer = Nesterov(given.pop("lr", 1.0), given.pop("momentum", 0.0))
    tables = [
        DenseTable(f"w{i}", (n,), SGD(1.0), DiLoCo(outer=outer, **given))
        for i, n in enumerate(SIZES)
    ]
    placed = fragments_of(dict(enumerate(tables)))
    n_workers, n_steps = workers_with(n_servers), 3 * options["steps"]
    simulated = Simulation(n_workers, SIZES, [placed[i] for i in range(len(SIZES))], **options)
    expected, outer_values = simulated.run(n_steps)

    def main(worker: Worker) -> dict[str, Any]:
        handles = [worker.table(t.name) for t in tables]
        own = []
        for step in range(n_steps):
            own.append([handle.pull() for handle in handles])
            for i, handle in enumerate(handles):
                handle.push(gradient(worker.index, step, i, SIZES[i]))
            worker.clock()
        assert worker.now == n_steps
        with worker.averaged():
            outer = [handle.pull() for handle in handles]
        worker.synchronize()
        return {"own": own, "outer": outer, "last": [handle.pull() for handle in handles]}

    way = way if SIZE > 1 else "auto"
    played = session(main, tables, servers=n_servers, transport=way, slot_kib=1, ring_slots=4)
    first = played.values[0]
    for step in range(n_steps):
        for i in range(len(SIZES)):
            assert np.array_equal(first["own"][step][i], expected[step][i]), (step, i)
    for value in played.values[1:]:
        for a, b in zip(first["last"], value["last"], strict=True):
            assert np.array_equal(a, b)
    if not options.get("delay"):
        for value in played.values:
            assert all(
                np.array_equal(a, b) for a, b in zip(value["outer"], outer_values, strict=True)
            )


def test_workers_with_other_steps_end_without_waiting(session: Session) -> None:
    """A worker that ends its program early takes part in no later outer step."""

    def main(worker: Worker) -> float:
        table = worker.table("w")
        for _ in range(7 if worker.index else 10):
            table.push(np.ones(64))
            worker.clock()
        return float(table.pull()[0])

    played = session(main, [DenseTable("w", (64,), SGD(1.0), DiLoCo(4, SGD(1.0)))], servers=1)
    # The second outer step has 4 steps of worker 0 and 3 of each other one.
    n = len(played.values)
    assert played.values[0] == pytest.approx(-4 - (4 + 3 * (n - 1)) / n - 2, rel=1e-6)
    assert played.values[1:] == pytest.approx([-7.0] * (n - 1))


def test_checkpoints_go_on_after_a_worker_has_finished(
    session: Session, comm: Any, parallel_assert: Any, folder: Path
) -> None:
    """Each of them contains the file that a finished worker has written once, at its end."""

    def main(worker: Worker) -> int:
        table, done = worker.table("w"), 0

        def step() -> None:
            nonlocal done
            table.push(np.ones(64))
            worker.clock()
            done += 1

        for _ in range(7):
            step()
        if worker.index:
            return done
        # The third outer step ends when all other workers have finished.
        while done < 13:
            step()
        for enough in (1, 2):
            while len(list_checkpoints(folder)) < enough and done < MOST:
                # A request while a checkpoint is being written has no effect.
                if done % 16 == 0:
                    worker.checkpoint()
                step()
                time.sleep(1e-3)  # for a server on the same core
        return done

    played = session(
        main,
        [DenseTable("w", (64,), Adam(0.1), DiLoCo(4, SGD(1.0)))],
        servers=1,
        save=folder,
        timeout_s=60.0,
    )
    said = played.statistics["scheduler"]["checkpoints"]
    parallel_assert(comm, said["written"] >= 2 and not said["failed"], str(said))
    last = played.statistics["servers"][0]["checkpoint"]
    parallel_assert(comm, "path" in last, str(last))
    if comm.Get_rank() == 0:
        found = [entry.path for entry in list_checkpoints(folder)]
        for path in found:
            with open_checkpoint(path) as checkpoint:
                checkpoint.verify()
                workers = checkpoint.manifest.workers
                assert [w.clock for w in workers[1:]] == played.values[1:]
                assert [file.name for w in workers for file in w.files] == [
                    f"worker-{w:05d}.image" for w in range(len(workers))
                ]
        assert len(found) >= 3
        assert list(folder.glob(".worker*")) == []
