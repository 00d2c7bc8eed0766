"""Tables under LocalSGD and DiLoCo: synchronize, images of outer steps, and files of cuts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from local_job import run_local

import mpips
from mpips import DenseTable, DiLoCo, LocalSGD, Worker, _native
from mpips.checkpoint.worker_image import LOCAL
from mpips.config.options import SessionOptions
from mpips.model.optimizer import SGD, Momentum, Nesterov
from mpips.worker.image.files import ImageFiles
from mpips.worker.image.memory import ImageHalves
from mpips.worker.local.state import LocalHead, LocalState, image_of, load, local_image_bytes
from mpips.worker.worker import connection_of

N = 70


def table(consistency: Any, rule: Any = None) -> DenseTable:
    return DenseTable("w", (N,), rule or SGD(1.0), consistency)


def play(main: Callable[[Worker], Any], *tables: DenseTable) -> Any:
    return run_local(main, list(tables), SessionOptions(timeout_s=20))[0]


def go(worker: Worker, steps: int = 1) -> None:
    for _ in range(steps):
        worker.table("w").push(np.ones(N))
        worker.clock()


def test_synchronize_at_an_outer_step_sends_nothing_again() -> None:
    def main(worker: Worker) -> None:
        go(worker, 3)
        outer, connection = worker.table("w").pull(), connection_of(worker)
        ticks = connection.now
        worker.synchronize()
        # Another outer step would move the values by the momentum, without any difference.
        assert np.array_equal(worker.table("w").pull(), outer)
        assert connection.now == ticks

    play(main, table(DiLoCo(3, outer=Nesterov(1.0, 0.5))))


def test_a_period_begins_at_synchronize() -> None:
    def main(worker: Worker) -> None:
        connection = connection_of(worker)
        go(worker, 2)
        worker.synchronize()
        assert connection.now == 1
        go(worker, 2)
        assert connection.now == 1, "the third step of a period is the outer one"
        go(worker)
        assert connection.now == 2

    play(main, table(LocalSGD(3)))


def test_synchronize_takes_the_values_that_are_coming_first() -> None:
    def main(worker: Worker) -> float:
        go(worker, 4)  # own -4, 4 is pushed; servers: -4
        go(worker)  # own -5, and the servers' values are due after one more step
        worker.synchronize()  # own -5 / 2 - 4 / 2 = -4.5; 0.5 is pushed
        return float(worker.table("w").pull()[0])

    assert play(main, table(DiLoCo(4, SGD(1.0), delay=2, mix=0.5))) == -4.5


def test_new_hyperparameters_end_with_the_job(tmp_path: Path) -> None:
    def main(worker: Worker) -> None:
        handle = worker.table("w")
        if changes:
            handle.set_optimizer(SGD(16.0))
        before = handle.pull()[0]
        go(worker)
        seen.append(before - handle.pull()[0])

    seen: list[float] = []
    changes = True
    mpips.run(main, [table(LocalSGD(4))], save=tmp_path / "c", verbose=False)
    changes = False
    mpips.run(main, [table(LocalSGD(4))], save=tmp_path / "c", verbose=False)
    assert seen == [16.0, 1.0]


def test_files_of_cuts_that_no_checkpoint_took_are_removed(tmp_path: Path) -> None:
    def main(worker: Worker) -> None:
        go(worker)
        local = connection_of(worker).local
        assert local is not None
        files = ImageFiles(tmp_path, 0, [local])
        for number in range(1, 6):
            found = files.write(number)
            names = {path.name for path in tmp_path.iterdir()}
            assert found.name in names
            assert len(names) <= 2
        # The file for an exchange lies there, and the one before it stays for its checkpoint.
        (tmp_path / "exchange").mkdir()
        found = files.write(6, str(tmp_path / "exchange"))
        assert [path.name for path in (tmp_path / "exchange").iterdir()] == [found.name]
        assert len([path for path in tmp_path.iterdir() if path.is_file()]) == 1

    play(main, table(LocalSGD(4)))


def test_a_repeated_outer_step_ends_with_the_image_of_the_first_time() -> None:
    """Servers may have had newer values the second time, so that other values were computed."""
    tables = [table(LocalSGD(4), Momentum(1.0, 0.5))]
    n_bytes = local_image_bytes(tables)
    memory = ImageHalves(_native.SharedMemory.anonymous(64 + 2 * n_bytes, 0), 0, n_bytes)

    def main(worker: Worker) -> None:
        go(worker, 3)
        local = connection_of(worker).local
        local.part = dataclasses.replace(local.part, memory=memory)
        first = LocalState.of(tables[0])
        first.values[:], first.states[0][:], first.updates = 7.0, 2.0, 9
        memory.write(1, image_of(LocalHead(steps=3, period=3), [first]))
        local.store(1)
        assert worker.table("w").pull().tolist() == [7.0] * N
        go(worker)
        assert worker.table("w").pull()[0] == 7 - (1 + 0.5 * 2)
        # There is no image of the next clock yet: this one is written.
        local.store(2)
        again = LocalState.of(tables[0])
        assert load(memory.read(2)[LOCAL], [again], True).steps == local.steps
        assert again.updates == 10
        assert memory.holds(1)

    play(main, *tables)
