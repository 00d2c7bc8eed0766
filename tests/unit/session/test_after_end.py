"""After the end of a job in this process: its memory is free at once, and uses of the worker are refused."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import dense, floats, rows
from local_job import run_local
from worker_uses import uses

import mpips
from mpips.config.options import SessionOptions
from mpips.errors import EndedError
from mpips.worker.worker import connection_of

TABLES = [dense(8), rows(2)]
ROWS = 1 << 40  # bytes; the addresses of the rows of one embedding table


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def addresses() -> int:
    """Return the bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def train(worker: Any) -> Any:
    assert addresses() > 2 * ROWS
    worker.table("w").push(floats(8))
    worker.table("e").push(np.array([3]), np.ones((1, 2), np.float32))
    worker.clock()
    return worker.table("w").pull()


def fail(worker: Any) -> None:
    train(worker)
    raise ZeroDivisionError


@pytest.mark.parametrize("save", [False, True])
@pytest.mark.parametrize("main", [train, fail])
def test_a_job_frees_its_tables_when_it_ends(main, save, tmp_path, no_garbage_collector):
    before = addresses()
    for i in range(3):
        folder = tmp_path / str(i) if save else None
        try:
            mpips.run(main, list(TABLES), verbose=False, save=folder)
        except ZeroDivisionError:
            assert main is fail
    assert addresses() - before < ROWS


def test_every_use_after_the_end_is_refused(no_garbage_collector):
    before = addresses()

    def main(worker: Any) -> Any:
        own = worker.allocate((8,))
        own[:] = 5
        train(worker)
        return worker, own, worker.table("e").prefetch(np.array([3]))

    (worker, own, request), _ = run_local(main, list(TABLES), SessionOptions())
    assert addresses() - before < ROWS
    for use in [*uses(worker, own), request.wait]:
        with pytest.raises(
            EndedError, match=r"^worker 0 or one of its tables was used after the end"
        ):
            use()
    assert worker.now == 1
    assert own.tolist() == [5.0] * 8


@pytest.mark.parametrize(
    "table",
    [
        dense(8, consistency=mpips.LocalSGD(2)),
        dense(8, consistency=mpips.BSP(), placement="replicated"),
        dense(8, consistency=mpips.BSP(), compression=mpips.TopK(0.5)),
    ],
    ids=["local", "replicated", "feedback"],
)
@pytest.mark.parametrize("save", [False, True])
def test_a_job_frees_the_parts_of_its_tables(table, save, tmp_path, no_garbage_collector):
    found = []

    def main(worker: Any) -> None:
        (part,) = connection_of(worker).parts
        found.append(weakref.ref(part))
        worker.table("w").push(floats(8))
        worker.clock()

    mpips.run(main, [table], verbose=False, save=tmp_path / "c" if save else None)
    assert [part() for part in found] == [None]
