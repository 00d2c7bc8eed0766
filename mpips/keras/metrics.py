"""Metrics of an epoch over all workers: their states are summed, as TensorFlow does with mirrored metrics.

A state of a Keras metric defines how states of replicas are combined: "sum" (totals, counts, confusion
matrices) or "none". At the end of an epoch each worker pushes its states to a table of BSP, whose values
become the sums, in a clock of its own; all workers pull them. So the logs of the epoch, and what callbacks
such as EarlyStopping decide by them, are equal on all workers. A worker that repeats the clock after a
restart pushes the same, and one that is past it pulls the same: the values change only when all workers have
ended the next epoch.

Keras makes the states of compiled metrics when it sees the first batch of labels, and a table is declared
before. An evaluation, a prediction or the fit of another model may have started the job by then. So the table
has room for more states than there are, and the states are taken at the beginning of each fit.

The table also has the sum of the digests of the batches that each worker has read. A worker that has read
other batches than the others finds that the sum is not its own digest times the number of workers. Digests
are so small that float32 adds up those of all workers exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpips.errors import ConfigError
from mpips.keras.values import array_of
from mpips.model.consistency import BSP
from mpips.model.python_rule import PythonRule, replace_values
from mpips.model.table import DenseTable
from mpips.worker.dense import DenseHandle
from mpips.worker.worker import Worker

Float32 = NDArray[np.float32]

MOST_IN_CURSOR = 16  # numbers
ROOM = 4096  # numbers that a table has room for beyond those known at the start; an AUC has 800
_EXACT = 1 << 24  # float32 has all integers up to it


class MetricSums:
    """The states of a model's metrics and their table."""

    def __init__(self, name: str, variables: Sequence[Any]) -> None:
        """Take the variables of all metrics that are known.

        Args:
            name: Name of the table.
            variables: As in `take`.
        """
        self.name = name
        self._variables: list[Any] = []
        self._n = 0
        self._room = sum(int(np.prod(v.shape)) for v in variables) + ROOM
        self.take(variables)
        self._handle: DenseHandle | None = None
        self._n_workers = 1

    def take(self, variables: Sequence[Any]) -> None:
        """Take the variables of all metrics.

        Args:
            variables: Keras variables; those that are not summed stay with each worker.

        Raises:
            ConfigError: The table has no room for them.
        """
        self._variables = [v for v in variables if v.aggregation == "sum"]
        self._n = sum(int(np.prod(v.shape)) for v in self._variables)
        if self._n > self._room:
            raise ConfigError(
                f"the metrics {self.name!r} have {self._n} states, and the job started before they were "
                f"made, with room for {self._room}: start it with a fit of this model, or use metrics with "
                "fewer states (AUC: num_thresholds)"
            )

    def table(self) -> DenseTable:
        """Return the table to declare."""
        return DenseTable(
            self.name,
            (self._room + 1,),
            optimizer=PythonRule(replace_values),
            consistency=BSP(reduce="sum"),
            check_finite=False,
        )

    def open(self, worker: Worker, n_workers: int) -> None:
        """Take the table's handle at the start of the job."""
        self._handle = worker.table(self.name)
        self._n_workers = n_workers

    def values(self) -> list[float]:
        """Return this worker's states for a cursor; none if they are too many or not finite."""
        if self._n > MOST_IN_CURSOR:
            return []
        found = self._states()
        return [float(x) for x in found] if np.isfinite(found).all() else []

    def set_values(self, values: Sequence[float]) -> None:
        """Set this worker's states, as `values` returned them."""
        if len(values) == self._n:
            self._assign(np.array(values, np.float32))

    def push(self, digest: int) -> None:
        """Push this worker's states and the digest of its batches, 0 or more."""
        assert self._handle is not None
        values = np.zeros(self._room + 1, np.float32)
        values[: self._n] = self._states()
        values[-1] = self._small(digest)
        self._handle.push(values)

    def pull(self, digest: int | None) -> None:
        """Set the states to the sums over all workers. Blocks until all have pushed theirs.

        Args:
            digest: That of this worker's batches; None: it has read only a part of them, after a restart.

        Raises:
            ConfigError: Another worker has read other batches.
        """
        assert self._handle is not None
        sums = self._handle.pull()
        if digest is not None and int(sums[-1]) != self._small(digest) * self._n_workers:
            raise ConfigError(
                "the workers have read different batches in this epoch, but each computes only its share of "
                "a batch: let x, y and the order be the same on all workers, also those of a generator; a "
                "loader that shuffles by a generator of its own needs a fixed seed"
            )
        self._assign(sums[: self._n])

    def _small(self, digest: int) -> int:
        """Return a digest of which the sum over all workers is exact in float32."""
        return digest % (_EXACT // self._n_workers)

    def _states(self) -> Float32:
        parts = [np.asarray(array_of(v), np.float32).reshape(-1) for v in self._variables]
        return np.concatenate([*parts, np.empty(0, np.float32)])

    def _assign(self, values: Float32) -> None:
        at = 0
        for v in self._variables:
            n = int(np.prod(v.shape))
            v.assign(values[at : at + n].reshape(v.shape))
            at += n
