"""What a task is, and all that it sees of the parameter server.

A task names its tables; in each step it pulls values, computes the gradient of the mean loss over
the batch times `batch.weight`, and pushes it with the values it was computed on. The servers apply
the optimizer. One instance lives in each worker; instances share nothing but the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.metrics import Scores
from mpips.data.moments import Moments
from mpips.data.options import Wants
from mpips.model.table import Table

Float32: TypeAlias = npt.NDArray[np.float32]
Keys: TypeAlias = npt.NDArray[np.int64]


class DenseHandle(Protocol):
    """A dense table as a worker sees it."""

    def pull(self) -> Float32:
        """Return a fresh copy of the table, of its shape; blocks."""

    def push(self, gradient: Float32, base: Float32 | None = None) -> Any:
        """Send a gradient of the table's shape; `base` are the values it was computed on."""


class EmbeddingHandle(Protocol):
    """An embedding table as a worker sees it."""

    def pull(self, keys: Keys) -> Float32:
        """Return the rows of `keys`, int64, shape (n,), as shape (n, dim); blocks."""

    def push(self, keys: Keys, rows: Float32, base: Float32 | None = None) -> Any:
        """Send gradients `rows`, shape (n, dim); `base` are the values they were computed on."""

    def prefetch(self, keys: Keys) -> Any:
        """Announce keys that will be pulled soon; returns at once."""

    def initial(self, keys: Keys) -> Float32:
        """Return the rows of `keys` as they are before their first update, shape (n, dim)."""


class Worker(Protocol):
    """What a task sees of the worker it runs in."""

    @property
    def index(self) -> int:
        """From 0 to n_workers - 1."""

    @property
    def n_workers(self) -> int:
        """Number of workers."""

    def table(self, name: str) -> Any:
        """Return the `DenseHandle` or `EmbeddingHandle` of a table."""


class StepResult(NamedTuple):
    """Sum of the losses of a batch's samples, before the step, in nats; number of samples."""

    loss_sum: float
    n: int


@dataclass(frozen=True)
class Schedule:
    """How a job goes through its data.

    Attributes:
        n_epochs: Passes over the data.
        batch_size: Samples per batch and worker.
        n_workers: Number of workers.
        averaged: Names of the tables whose updates are means over the pushes of all workers (BSP with
            reduce "mean"); in other tables every push is an update.
    """

    n_epochs: int
    batch_size: int
    n_workers: int = 1
    averaged: frozenset[str] = frozenset()

    def epochs_per_sample(self, table: str) -> float:
        """Return how often a sample's gradient is in the sum of all updates of a table, over the run.

        A push is the mean of the gradients of a batch, so this is
        n_epochs / (batch_size * workers per update).
        """
        workers = self.n_workers if table in self.averaged else 1
        return self.n_epochs / (self.batch_size * workers)


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a task that has none."""


class Task(Protocol):
    """A workload. Subclass it to inherit what is not abstract, or offer the same names.

    Attributes:
        name: In configurations.
        Options: A msgspec Struct: the task's own options with their defaults.
        default_epochs: Passes over the data if the job does not say.
        default_batch_size: Samples per batch and worker if the job does not say.
        labels: "classes": labels become 0..k-1 in the order of their values, and `predict` returns
            probabilities. "targets": labels stay the numbers of the file (float64), `predict` returns
            predicted numbers, and the metrics are RMSE and R2.
        optimizer_options: Names of options that go to an optimizer: table ("": all) and the name there.
        metrics: What `mpips.data.metrics.merge` yields for this task's scores.
    """

    name: ClassVar[str]
    Options: ClassVar[type[msgspec.Struct]] = NoOptions
    default_epochs: ClassVar[int] = 10
    default_batch_size: ClassVar[int] = 64
    labels: ClassVar[Wants] = "classes"
    optimizer_options: ClassVar[dict[str, tuple[str, str]]] = {}
    metrics: tuple[str, ...] = ()

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """Check that the data suits the task.

        Args:
            info: The training data, as all workers agreed on it.
            options: An instance of `Options`.
            seed: The job's; tables get their own from it, a task needs it for its own draws only.

        Raises:
            DataError: The task cannot be trained on such data.
        """

    def schedule(self, schedule: Schedule) -> None:
        """Take note of how the job goes through its data; called before the last call of `tables`.

        A class without this method is not asked for its tables twice.
        """

    def tables(self) -> list[Table]:
        """Return the tables, alike on all ranks; a job may replace optimizer and consistency."""
        raise NotImplementedError

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Get ready for the first step; `moments` are those of all workers' samples together."""

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Announce the keys that the step on `batch` will pull, which may be the next but one."""

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull, compute the gradient on `batch` (at least one sample), push; blocks on the pull."""
        raise NotImplementedError

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return probabilities: shape (n,) of class 1, or shape (n, k); pushes nothing.

        With labels = "targets": the predicted numbers, shape (n,).
        """
        raise NotImplementedError

    def logits(self, worker: Worker, batch: Batch) -> Scores | None:
        """Return logits for the metrics, or None (the default): metrics are taken from `predict`.

        Shape (n,), log(p / (1 - p)) of class 1, or shape (n, k), logarithms of the classes'
        probabilities up to a constant per sample. Near 0 and 1 float32 probabilities are all alike;
        logits keep their order.
        """
        return None

    def report(self) -> str:
        """Return what the task did to the features, after `prepare`, for the output at start; "": nothing."""
        return ""
