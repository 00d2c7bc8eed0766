"""The workers of a job before its start-up, as threads of this process: they read data and agree."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mpips.config.schema import JobConfig
from mpips.training.epochs import Inputs
from mpips.training.prepare import prepare


class ThreadRanks:
    """One of several workers; see `mpips.mpi.one_rank.Ranks`."""

    token = "threads"
    local_worker = 0
    n_cores = 1

    def __init__(self, worker: int, barrier: threading.Barrier, board: list[Any]) -> None:
        self.worker: int | None = worker
        self.is_scheduler = worker == 0
        self._barrier = barrier
        self._board = board

    def lengthy(self) -> AbstractContextManager[None]:
        return nullcontext()

    def agree(self, what: str, work: Callable[[], Any], lengthy: bool = False) -> list[Any]:
        assert self.worker is not None
        try:
            self._board[self.worker] = (work(), None)
        except Exception as error:
            self._board[self.worker] = (None, error)
        self._barrier.wait(60)
        rows = list(self._board)
        self._barrier.wait(60)
        for _, error in rows:
            if error is not None:
                raise error
        return [row for row, _ in rows]


def prepared(config: JobConfig, n_workers: int) -> list[Inputs]:
    """Return the inputs of all workers of a job, by worker."""
    barrier, board = threading.Barrier(n_workers), [None] * n_workers
    found: list[Any] = [None] * n_workers

    def work(worker: int) -> None:
        try:
            found[worker] = prepare(ThreadRanks(worker, barrier, board), n_workers, config)
        except Exception as error:
            found[worker] = error

    threads = [threading.Thread(target=work, args=(w,)) for w in range(n_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found
