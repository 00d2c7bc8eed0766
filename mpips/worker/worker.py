"""The worker as programs see it: tables to push to and pull from, a clock, and what a task needs besides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint.position import WorkerStart
from mpips.errors import ConfigError
from mpips.model.placement import Placement
from mpips.model.table import DenseTable, Table
from mpips.mpi.messages import Evaluated
from mpips.worker.connection import Connection
from mpips.worker.dense import DenseHandle
from mpips.worker.embedding import EmbeddingHandle

Float32 = NDArray[np.float32]


def connection_of(worker: Worker) -> Connection:
    """Return a worker's connection: for the parts of mpips that look behind it, and for benchmarks."""
    return worker._connection


class Worker:
    """One worker of a job. Not thread-safe.

    Attributes:
        index: 0 .. n_workers-1.
        n_workers: Number of workers.
        now: The worker's clock: the number of times it has called `clock`.
    """

    def __init__(
        self, connection: Connection, tables: Sequence[Table], placement: Placement
    ) -> None:
        """`connection`: belongs to the worker from here on."""
        self.index = connection.index
        self.n_workers = connection.n_workers
        self._connection = connection
        self._handles: dict[str, DenseHandle | EmbeddingHandle] = {}
        for i, table in enumerate(tables):
            if isinstance(table, DenseTable):
                shards = placement.dense[table.name]
                self._handles[table.name] = DenseHandle(connection, i, table, shards)
            else:
                self._handles[table.name] = EmbeddingHandle(
                    connection, i, table, placement.partitioners[table.name]
                )

    @property
    def now(self) -> int:
        """The worker's clock."""
        return self._connection.now

    def table(self, name: str) -> Any:
        """The handle of a table: DenseHandle or EmbeddingHandle.

        Raises:
            ConfigError: No table has this name; lists those there are.
        """
        if name not in self._handles:
            raise ConfigError(f"no table {name!r}; there are {', '.join(self._handles)}")
        return self._handles[name]

    def clock(self) -> None:
        """Say to every server that this worker's part of the current clock is complete.

        Returns at once unless a ring is full. Under BSP the next pull waits for everybody's clock.
        With backup workers the clock may advance by more than one: it skips clocks that were closed
        without this worker.

        Raises:
            StallError: A server has not taken records for the job's timeout.
        """
        self._connection.clock()

    @property
    def seed(self) -> int:
        """The job's seed."""
        return self._connection.position.seed

    @property
    def start(self) -> WorkerStart | None:
        """What the checkpoint says that the job started from; None: it started from nothing."""
        return self._connection.position.start

    @property
    def random(self) -> np.random.Generator:
        """This worker's random stream: of the job's seed and the worker, or as it was at the cut.

        Its state goes into every checkpoint; with as many workers as before it comes back.
        """
        return self._connection.position.random

    @property
    def cursor(self) -> Mapping[str, Any]:
        """What was last given to `set_cursor`, in this launch or in the one that it started from."""
        return self._connection.position.cursor

    def set_cursor(self, cursor: Mapping[str, Any]) -> None:
        """Say where this worker goes on after the `clock()` to come; goes into checkpoints.

        Call it before each `clock()`: a checkpoint holds the last one before the clock at which it was
        made. After a restart it is in `start.cursor`.

        Args:
            cursor: Numbers, text, lists and dicts; a few hundred bytes (it must fit into a record).
        """
        if not isinstance(cursor, Mapping):
            raise TypeError(
                f"cursor must be a dict of numbers, text, lists and dicts, not {cursor!r}"
            )
        self._connection.position.set_cursor(cursor)

    def checkpoint(self) -> None:
        """Ask for a checkpoint at the next clock that all workers agree on; returns at once.

        One worker is enough. Without a folder for checkpoints, and while one is being written, nothing
        happens but that it is counted.
        """
        self._connection.snapshot.ask(self.now)

    def keep_pace(self, bound: int) -> None:
        """Wait until no worker at work is more than `bound` clocks behind this one. Blocks.

        For ASP, where pulls do not wait: a worker that is far ahead has trained on its own share of the
        data more often than the others on theirs. Under SSP and BSP pulls see to it.

        Raises:
            StallError: Names who is behind, if that lasts for the job's timeout.
        """
        self._connection.keep_pace(bound)

    def allocate(self, shape: int | Sequence[int]) -> Float32:
        """A float32 array that servers read in place when it is pushed, or that goes to them uncopied.

        Lives as long as the job. After a push the array must not be changed until the request's `wait`
        has returned: servers of this node read it where it is, and to those of other nodes it travels
        while `push` has returned already.

        Raises:
            ConfigError: The shape is none, or the staging region is full; names the option that enlarges it.
            RegionError: /dev/shm is too small for it.
        """
        lengths: list[Any] = list(shape) if isinstance(shape, tuple | list) else [shape]
        if not all(isinstance(n, int | np.integer) and n is not True and n >= 0 for n in lengths):
            raise ConfigError(f"allocate: shape {shape!r} must hold whole numbers of 0 or more")
        count = math.prod(map(int, lengths))
        staging = self._connection.staging
        if staging is None:
            return np.zeros(shape, np.float32)
        offset = self._connection.reserve_staging(count * 4, 1.0)
        if offset is None:
            raise ConfigError(
                f"the staging region holds {staging.n_bytes >> 20} MiB and is full; raise staging_mib"
            )
        raw = staging.view(offset, count * 4, True)
        return raw.view(np.float32).reshape(shape)

    def gather(self, name: str, payload: bytes, everyone: bool = True) -> list[bytes]:
        """All workers' payloads by worker index. Collective over workers; blocks.

        Args:
            name: Unique in the run, the same on all workers.
            everyone: False: only worker 0 gets the payloads and waits; others get [] at once.

        Raises:
            StallError: Somebody did not come within the job's timeout.
        """
        return self._connection.gather(name, payload, everyone)

    def flush(self) -> None:
        """Wait until every server has consumed everything that this worker has sent."""
        self._connection.flush()

    def barrier(self, name: str) -> None:
        """Wait until all workers have come here. Collective over workers; blocks."""
        self.gather(name, b"")

    def report(self, epoch: int, step: int, samples: int, loss_sum: float) -> None:
        """Tell the scheduler of progress, for `mpips top` and metrics.jsonl; it does not wait.

        Args:
            epoch: Under way, from 0.
            step: Of this worker.
            samples: Number of samples since the last report.
            loss_sum: Sum of their losses.
        """
        self._connection.report(epoch, step, samples, loss_sum)

    def report_metrics(self, epochs: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Tell the scheduler of an evaluation, for metrics.jsonl and the terminal; it does not wait.

        Args:
            epochs: Number of epochs that are done.
            steps: Of the run.
            metrics: By name.
        """
        self._connection.control.tell(Evaluated(epochs, steps, dict(metrics)))

    def counters(self) -> dict[str, int]:
        """Pushes of this worker by what became of them, summed over servers."""
        return self._connection.counters()
