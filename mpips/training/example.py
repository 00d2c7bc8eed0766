"""The example in a checkpoint: a few samples of the training data, and what the task predicts for them.

Worker 0 sends the samples to server 0 before its first clock, in the form in which the task takes them
(`mpips.snapshot.attachments`). When all data of a checkpoint is in its file, server 0 predicts the samples
from the values in this very file, and puts the predictions into the manifest. Only then the checkpoint gets
its name. `mpips.load` predicts the samples again. A difference shows that the task or a library computes
differently than when the model was trained.

The cost per checkpoint is bounded: at most `SAMPLES` samples with `_MOST_ENTRIES` entries, whose rows are
searched for in the file, or `_MOST_NUMBERS` numbers, and dense tables of at most `_MOST_BYTES`. If the dense
tables are larger, or `predict` raises an error or returns other values when it is called again, the manifest
has the reason instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.checkpoint import Checkpoint
from mpips.checkpoint.record import mpips_version
from mpips.data import Batch, DataInfo, Dataset, DenseBatch, Moments, SparseBatch
from mpips.data.stream import StreamedData
from mpips.errors import CheckpointError
from mpips.model.initial_rows import initial_rows
from mpips.model.table import EmbeddingTable, Table
from mpips.tasks import Task

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
Keys: TypeAlias = npt.NDArray[np.int64]
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

SAMPLES = 5
TOLERANCE = 1e-5  # greatest difference of a prediction, as a part of its size where that is above 1
_MOST_NUMBERS = 1 << 16  # features of all samples of dense data
_MOST_ENTRIES = 1 << 12  # entries of all samples of sparse data
_MOST_BYTES = 256 << 20  # bytes of all dense tables that are read for a prediction
_MOST_PREDICTIONS = 1 << 12  # numbers in the manifest


def names_of(info: DataInfo) -> tuple[str, ...]:
    """Return the names of the arrays that `arrays_of` returns; () for data of a form that has no example."""
    if info.kind == "dense":
        return ("example/x",)
    if info.kind != "sparse":
        return ()
    names = ("example/indptr", "example/keys", "example/values")
    return (*names, "example/fields") if info.n_fields else names


def arrays_of(data: Dataset | StreamedData, info: DataInfo) -> dict[str, npt.NDArray[Any]]:
    """Return the first samples of a worker's share, if it has any, as arrays by their path in the file."""
    names = names_of(info)
    if not names:
        return {}
    n = min(SAMPLES, data.n)
    if info.kind == "dense":
        n = min(n, _MOST_NUMBERS // max(info.n_features, 1))
    batch = data.take(np.arange(n))
    if isinstance(batch, DenseBatch):
        return {"example/x": batch.x}
    n = int(np.searchsorted(batch.indptr, _MOST_ENTRIES, side="right")) - 1
    batch = data.take(np.arange(n))
    assert isinstance(batch, SparseBatch)
    parts = (batch.indptr, batch.keys, batch.values, batch.fields)
    return {name: array for name, array in zip(names, parts, strict=False) if array is not None}


def batch_of(arrays: Arrays, info: DataInfo) -> Batch:
    """Return the samples that `arrays_of` returned as arrays, with labels of 0."""
    if info.kind == "dense":
        x = arrays["example/x"]
        return DenseBatch(x, np.zeros(len(x), np.int64))
    indptr = arrays["example/indptr"]
    return SparseBatch(
        indptr,
        arrays["example/keys"],
        arrays["example/values"],
        np.zeros(len(indptr) - 1, np.int64),
        fields=arrays.get("example/fields"),
    )


class ExampleMaker:
    """Predicts the example of each checkpoint of a job; see `mpips.checkpoint.reader.Example`."""

    def __init__(self, source: Callable[[], tuple[Task, DataInfo]], seed: int) -> None:
        """Make nothing yet.

        Args:
            source: Makes a task of its own, and returns it with the description of the training data. Called
                before the first prediction.
            seed: Seed of the job.
        """
        self._source = source
        self._seed = seed
        self._made: tuple[Task, DataInfo] | None = None

    def __call__(self, checkpoint: Checkpoint, arrays: Arrays) -> dict[str, Any]:
        """Return the predictions, or the reason for their absence."""
        n_bytes = sum(
            4 * math.prod(t.shape) for t in checkpoint.manifest.tables if t.kind == "dense"
        )
        if n_bytes > _MOST_BYTES:
            return {"absent": f"its dense tables have more than {_MOST_BYTES >> 20} MiB"}
        # A task is code of the user, which may raise anything. The checkpoint is good all the same.
        try:
            first, second = (self._predicted(checkpoint, arrays) for _ in range(2))
        except (Exception, SystemExit) as error:
            return {"absent": f"predict raised {type(error).__name__}: {error}"[:200]}
        if first.shape != second.shape or difference(first, second) is not None:
            return {"absent": "predict returned other values when it was called again"}
        return {"predictions": to_plain(first)}

    def _predicted(self, checkpoint: Checkpoint, arrays: Arrays) -> Float64:
        if self._made is None:
            task, info = self._source()
            tables = TablesInFile(checkpoint, task.tables(), self._seed)
            task.prepare(tables, Moments.from_arrays(arrays))
            self._made = task, info
        task, info = self._made
        tables = TablesInFile(checkpoint, task.tables(), self._seed)
        return predicted(task, tables, batch_of(arrays, info))


def predicted(task: Task, tables: TablesInFile, batch: Batch) -> Float64:
    """Return what a task predicts, float64, shape (samples, outputs): as many of both as a manifest has."""
    if not batch.n:
        return np.zeros((0, 1))
    found = np.asarray(task.predict(tables, batch), np.float64).reshape(batch.n, -1)
    n = max(_MOST_PREDICTIONS // max(found.shape[1], 1), 1)
    return found[:n, :_MOST_PREDICTIONS]


def to_plain(predictions: Float64) -> list[list[float | None]]:
    """Return predictions as values of JSON: nine digits, which float32 needs; None: no finite number."""
    return [
        [float(f"{value:.9g}") if math.isfinite(value) else None for value in row]
        for row in predictions.tolist()
    ]


def difference(expected: Float64, got: Float64) -> tuple[int, int] | None:
    """Return sample and output of the first prediction that differs by more than TOLERANCE; None: none.

    Two numbers that are not finite do not differ.
    """
    finite = np.isfinite(expected) & np.isfinite(got)
    with np.errstate(invalid="ignore"):
        apart = np.abs(expected - got) > TOLERANCE * np.maximum(np.abs(expected), 1)
    differs = np.where(finite, apart, np.isfinite(expected) != np.isfinite(got))
    places = np.argwhere(differs)
    return (int(places[0, 0]), int(places[0, 1])) if len(places) else None


def check_example(
    checkpoint: Checkpoint, task: Task, info: DataInfo, seed: int, arrays: Arrays
) -> None:
    """Predict the example of a checkpoint again, if it has one. Blocks for reading its dense tables.

    Args:
        checkpoint: The checkpoint.
        task: Its task, prepared.
        info: Description of the training data.
        seed: Seed of the job.
        arrays: The arrays beside the tables.

    Raises:
        CheckpointError: A prediction differs from that in the manifest.
    """
    rows = checkpoint.manifest.example.get("predictions")
    if not rows:
        return
    expected = np.array([[math.nan if value is None else value for value in row] for row in rows])
    tables = TablesInFile(checkpoint, task.tables(), seed)
    got = predicted(task, tables, batch_of(arrays, info))
    if got.shape != expected.shape:
        raise CheckpointError(
            f"{checkpoint.path}: the task predicts an array of shape {got.shape} for its example, and "
            f"{expected.shape} when it was trained {_versions(checkpoint)}"
        )
    place = difference(expected, got)
    if place is not None:
        sample, output = place
        many = f", output {output}" if expected.shape[1] > 1 else ""
        raise CheckpointError(
            f"{checkpoint.path}: the prediction of sample {sample} of its example{many} is {got[place]:.7g}, "
            f"and was {expected[place]:.7g} when it was trained {_versions(checkpoint)}"
        )


def _versions(checkpoint: Checkpoint) -> str:
    """Return the versions there and here, and the way out."""
    there = checkpoint.manifest.versions
    return (
        f"(mpips {there.get('mpips', '?')}, numpy {there.get('numpy', '?')}; here {mpips_version()}, "
        f"{np.__version__}): the task or a library computes differently; use the versions of the training, "
        "or mpips.load(path, check=False)"
    )


class _DenseInFile:
    """A dense table as a task that predicts sees it."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self._checkpoint = checkpoint
        self._name = name

    def pull(self) -> Float32:
        """Read the table, float32, of its shape."""
        shape = self._checkpoint.manifest.table(self._name).shape
        values, _ = self._checkpoint.read_dense(self._name)
        return values.reshape(shape)


class RowsInFile:
    """An embedding table as a task that predicts sees it: rows are searched for in the file."""

    def __init__(self, checkpoint: Checkpoint, table: EmbeddingTable, seed: int) -> None:
        self._checkpoint = checkpoint
        self._table = table
        self._seed = seed

    def pull(self, keys: Keys) -> Float32:
        """Return the rows of `keys` (int64, shape (n,)), float32, shape (n, dim)."""
        keys = self._table.stored_keys(np.ascontiguousarray(keys, np.int64))
        rows = initial_rows(self._table, self._seed, keys)
        found, values = self._checkpoint.find_rows(self._table.name, keys)
        rows[found] = values
        return rows

    def initial(self, keys: Keys) -> Float32:
        """Return the initial rows of `keys`, float32, shape (n, dim)."""
        stored = self._table.stored_keys(np.ascontiguousarray(keys, np.int64))
        return initial_rows(self._table, self._seed, stored)

    def prefetch(self, keys: Keys) -> None:
        """Do nothing."""


class TablesInFile:
    """The tables of a checkpoint as the worker of a task that predicts few samples; nothing stays in memory.

    Attributes:
        index: 0, the index of the only worker.
        n_workers: 1.
    """

    index = 0
    n_workers = 1

    def __init__(self, checkpoint: Checkpoint, tables: Sequence[Table], seed: int) -> None:
        """Read nothing yet; `tables`: those of the task, `seed`: that of the job."""
        self._checkpoint = checkpoint
        self._tables = {table.name: table for table in tables}
        self._seed = seed

    def table(self, name: str) -> _DenseInFile | RowsInFile:
        """Return a table."""
        table = self._tables[name]
        if isinstance(table, EmbeddingTable):
            table = self._checkpoint.manifest.table(name).stored(table)
            return RowsInFile(self._checkpoint, table, self._seed)
        return _DenseInFile(self._checkpoint, name)
