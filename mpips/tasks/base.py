"""The interface of a task, and the part of the parameter server that a task uses.

A task defines its tables. In each step it pulls values, computes the gradient of the mean loss over the batch
times `batch.weight`, and pushes the gradient together with the values that it was computed on. The servers
apply the optimizer. Each worker has one instance of the task; the instances share nothing but the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from mpips.data.dataset import Batch
from mpips.data.info import DataInfo
from mpips.data.metrics import Scores
from mpips.data.moments import Moments
from mpips.data.options import Share, Wants
from mpips.data.quotients import Direction, Measured
from mpips.data.rows import Arrays, Purpose, Samples, TaskPart
from mpips.data.text import Agree
from mpips.model.table import Table
from mpips.tasks.proposals import Proposal

Float32: TypeAlias = npt.NDArray[np.float32]
Keys: TypeAlias = npt.NDArray[np.int64]


class DenseHandle(Protocol):
    """The operations of a worker on a dense table."""

    def pull(self) -> Float32:
        """Return a new copy of the table, float32, of its shape. Blocks."""

    def push(self, gradient: Float32, base: Float32 | None = None) -> Any:
        """Send a gradient.

        Args:
            gradient: float32, of the shape of the table.
            base: The values that the gradient was computed on, of the same shape.
        """


class EmbeddingHandle(Protocol):
    """The operations of a worker on an embedding table."""

    def pull(self, keys: Keys) -> Float32:
        """Return the rows of `keys` (int64, shape (n,)), float32, shape (n, dim). Blocks."""

    def push(self, keys: Keys, rows: Float32, base: Float32 | None = None) -> Any:
        """Send gradients of rows.

        Args:
            keys: int64, shape (n,).
            rows: Gradients, float32, shape (n, dim).
            base: The values that the gradients were computed on, shape (n, dim).
        """

    def prefetch(self, keys: Keys) -> Any:
        """Request the rows of keys that will be pulled soon. Returns at once."""

    def initial(self, keys: Keys) -> Float32:
        """Return the initial rows of `keys`, before any update, float32, shape (n, dim)."""


class Worker(Protocol):
    """The part of the worker that a task uses."""

    @property
    def index(self) -> int:
        """Index of this worker, from 0 to n_workers - 1."""

    @property
    def n_workers(self) -> int:
        """Number of workers."""

    def table(self, name: str) -> Any:
        """Return the `DenseHandle` or `EmbeddingHandle` of a table."""


class StepResult(NamedTuple):
    """Result of a step on one batch.

    Attributes:
        loss_sum: Sum of the losses of the samples before the step, in nats.
        n: Number of samples.
    """

    loss_sum: float
    n: int


class Schedule(msgspec.Struct, frozen=True):
    """Length and batches of a job's training.

    Attributes:
        n_epochs: Passes over the data.
        batch_size: Samples per batch and worker.
        n_workers: Number of workers.
        averaged: Names of the tables whose updates are means over the pushes of all workers (BSP with reduce
            "mean"). In other tables each push is an update.
    """

    n_epochs: int
    batch_size: int
    n_workers: int = 1
    averaged: frozenset[str] = frozenset()

    def epochs_per_sample(self, table: str) -> float:
        """Return the weight of a sample's gradient in the sum of all updates of a table over the run.

        A push is the mean of the gradients of a batch, so the weight is
        n_epochs / (batch_size * workers per update).
        """
        workers = self.n_workers if table in self.averaged else 1
        return self.n_epochs / (self.batch_size * workers)


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[options] of a task that has none."""


class Task(Protocol):
    """A workload. Subclass it to inherit the methods that are not abstract, or define the same names.

    Attributes:
        name: Name of the task in configurations.
        Options: A msgspec Struct: the options of the task with their defaults.
        default_epochs: Passes over the data if the job sets none.
        default_batch_size: Samples per batch and worker if the job sets none.
        labels: "classes": labels become 0..k-1 in the order of their values, and `predict` returns
            probabilities. "targets": labels are the numbers of the file (float64), `predict` returns
            predicted numbers, and the metrics are RMSE and R2. "none": there are no labels, and all metrics
            are in `own_metrics`.
        takes_several: A job can name several columns of labels (data.label), each 0 or 1. `DataInfo.wants` is
            "several" then, `DataInfo.label_names` has their names, labels of a batch have shape (n, k), and
            `predict` and `logits` return arrays of this shape.
        optimizer_options: For each option that sets a value of an optimizer: the table ("": all tables) and
            the name of the value.
        metrics: Names of the metrics that an evaluation always computes: those that
            `mpips.data.metrics.merge` returns for the scores of this task, and any of `own_metrics`. Early
            stopping watches the first of `own_metrics` among them if a job names none.
        own_metrics: Metrics that `measure` returns, each with its better values. A job can ask for those that
            are not in `metrics` by their names (train.metrics).
        pushes_changes: Pushes are old values minus new ones, which the task has computed itself with learning
            rates of its own. A job can then change neither optimizers nor rates.
        prediction_options: Names of the options that `mpips predict --set` and `mpips.load` can change, since
            the training does not depend on them.
        uses_weights: `step` multiplies losses and gradients by `batch.weights`, unless that is None. A job
            can set data.weight and data.class_weight only then.
    """

    name: ClassVar[str]
    Options: ClassVar[type[msgspec.Struct]] = NoOptions
    default_epochs: ClassVar[int] = 10
    default_batch_size: ClassVar[int] = 64
    labels: ClassVar[Wants] = "classes"
    labels_option: ClassVar[str] = ""
    takes_several: ClassVar[bool] = False
    optimizer_options: ClassVar[dict[str, tuple[str, str]]] = {}
    metrics: tuple[str, ...] = ()
    own_metrics: ClassVar[Mapping[str, Direction]] = {}
    pushes_changes: ClassVar[bool] = False
    prediction_options: ClassVar[tuple[str, ...]] = ()
    uses_weights: ClassVar[bool] = False

    def __init__(self, info: DataInfo, options: Any, seed: int) -> None:
        """Check that the data suits the task.

        Args:
            info: Description of the training data, equal on all workers.
            options: An instance of `Options`.
            seed: Seed of the job. mpips derives the seeds of tables from it; a task needs it only for random
                numbers of its own.

        Raises:
            DataError: The task cannot be trained on such data.
        """

    def schedule(self, schedule: Schedule) -> None:
        """Receive length and batches of the training; called before the last call of `tables`.

        Which tables average pushes depends on the tables, so `tables` is called before and after this method.
        For a class without this method `tables` is called once.
        """

    def suitable_batch_size(self, n_workers: int, n_epochs: int) -> int:
        """Return the samples per batch and worker if the job sets none.

        Args:
            n_workers: Number of workers.
            n_epochs: Passes over the data.
        """
        return self.default_batch_size

    def tables(self) -> list[Table]:
        """Return the tables, equal on all ranks. A job can replace optimizer and consistency."""
        raise NotImplementedError

    def receive(self, arrays: Arrays) -> None:
        """Receive the arrays that `read` returned with the training data, or that a checkpoint contains.

        Called on workers and on loaded models, once and before `prepare`. Ranks that are not workers have
        only the sizes (`DataInfo.size`).
        """

    def prepare(self, worker: Worker, moments: Moments) -> None:
        """Prepare for the first step; `moments` are those of the samples of all workers together."""

    def begin_step(self, epoch: int, step: int, n_steps: int) -> None:
        """Receive the place of the next step: step `step` of `n_steps` in `epoch`, both numbered from 0.

        Called before each step with samples. A task needs it for random numbers and rates that a restart
        repeats. A task that applies a learning rate itself has it as `current_rate`, which is shown.
        """

    def prefetch(self, worker: Worker, batch: Batch) -> None:
        """Prefetch the rows that the step on `batch` will pull. It can be the step after the next one."""

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Pull, compute the gradient on `batch` (at least one sample), and push. Blocks in the pull."""
        raise NotImplementedError

    def predict(self, worker: Worker, batch: Batch) -> Float32:
        """Return predictions for the samples of `batch`. Pushes nothing.

        Returns:
            Probabilities of class 1, shape (n,), or of all classes, shape (n, k). With labels = "targets" the
            predicted numbers, shape (n,).
        """
        raise NotImplementedError

    def logits(self, worker: Worker, batch: Batch) -> Scores | None:
        """Return logits for the metrics; None (the default): the metrics are computed from `predict`.

        float32 probabilities near 0 and 1 are equal; logits preserve the order of the samples.

        Returns:
            log(p / (1 - p)) of class 1, shape (n,), or logarithms of the probabilities of the classes up to a
            constant per sample, shape (n, k).
        """
        return None

    def measure(self, worker: Worker, batch: Any) -> Measured:
        """Return numerator and denominator of each of `own_metrics` for a batch of the test data.

        Both are added over all samples of all workers, and divided at the end. With an array of a value for
        each sample the sums are exact, and the metric has the same bits for any number of workers. Pushes
        nothing.
        """
        return {}

    def columns(self, worker: Worker, batch: Any) -> dict[str, Any] | None:
        """Return the columns that `mpips predict` writes for a batch, by name; None: those of `predict`.

        Only for a task that reads its files itself. The columns are arrays of equal length, which need not be
        that of the batch.
        """
        return None

    def describe_model(self) -> str:
        """Return a text about the model, for the output at start and the summary; "": none."""
        return ""

    def proposals(self) -> list[Proposal]:
        """Return the few options that `mpips sweep --auto` varies, those that matter most first."""
        return []

    def report(self) -> str:
        """Return a line on the scaling of the features, for the output at start; "": none."""
        return ""


class ReadsData(Protocol):
    """The class of a task that reads its files itself, because they are not samples with features.

    Define `read` as a class method of the task. Options of the section [data] that belong to the readers of
    mpips are then refused. See `mpips.data.rows` for types of samples.
    """

    @classmethod
    def read(
        cls, path: str, options: Any, share: Share, like: Arrays | None, purpose: Purpose
    ) -> TaskPart:
        """Read one worker's share of a file. Not collective; blocks.

        Args:
            path: A file, or a pattern of several (`mpips.data.files_of` lists them).
            options: The task's options, an instance of `Options`.
            share: The samples of this worker, by their numbers in the file (`Share.numbers`).
            like: The arrays of the training data; None: this is the training data.
            purpose: "train"; "test": samples to evaluate; "predict": samples that may lack what is predicted.

        Raises:
            DataError: The file cannot be read; names file, line, what was found and what is accepted.
        """


class ReadsParts(Protocol):
    """The class of a task that reads a file to be predicted in parts, so that memory holds one of them.

    Such a task reads its files itself (`ReadsData`) and also defines `read_parts` as a class method. Without
    it, `read` is called with the purpose "predict".
    """

    @classmethod
    def read_parts(
        cls, path: str, options: Any, like: Arrays, say: Callable[[str], None]
    ) -> Iterator[Samples]:
        """Yield the samples of a file that is predicted, in order. Not collective; reads while iterated over.

        Args:
            path: A file, or a pattern of several.
            options: The task's options.
            like: The arrays of the training data.
            say: Called with sentences for the user, such as how many names are unknown.

        Yields:
            `mpips.data.rows.PART` samples; the last part may have fewer. So predictions do not depend on the
            size of the file: a product of matrices has other last bits for other numbers of rows.

        Raises:
            DataError: The file cannot be read; names file and line.
        """


class LearnsData(Protocol):
    """The class of a task that must know something of the whole training data before it can read a share.

    Such a task reads its files itself (`ReadsData`) and also defines `learn` as a class method.
    """

    @classmethod
    def learn(
        cls, path: str, options: Any, worker: int | None, n_workers: int, agree: Agree
    ) -> Arrays:
        """Look at the training data, each worker at a part of it. Collective over the ranks; blocks.

        Args:
            path: A file, or a pattern of several.
            options: The task's options.
            worker: Index of this worker; None on ranks that are not workers.
            n_workers: Number of workers.
            agree: Calls a function on all ranks and returns all results, which msgpack can encode.

        Returns:
            Arrays, equal on all workers: `read` receives them as `like`, and returns them with the training
            data. {} on ranks that are not workers.

        Raises:
            DataError: A file cannot be read. Raise it within `agree`, or alike on all workers.
        """


class Chooses(Protocol):
    """The class of a task that chooses values by the training data where a job leaves them out.

    Define `choose` as a class method of the task. A run chooses once: checkpoints contain the values, and a
    job that starts from one has them again, whatever its files contain by then. Values that a job sets win.
    """

    @classmethod
    def choose(cls, info: DataInfo, options: Any) -> dict[str, Any]:
        """Return the chosen values by their dotted names. Local; called on one rank.

        The constructor of the task receives them as `DataInfo.chosen`, {} in a job that started with a
        version of the task without this method. "train.epochs" and "train.batch_size" (of one worker) replace
        `default_epochs` and `suitable_batch_size`.

        Args:
            info: Description of the whole training data.
            options: The task's options.

        Returns:
            Numbers, booleans or texts, which JSON can contain.
        """


def labels_of(task: type[Task], options: msgspec.Struct) -> Wants:
    """Return how a task uses labels with these options."""
    option = getattr(task, "labels_option", "")
    found: Wants = getattr(options, option) if option else getattr(task, "labels", "classes")
    return found


def description_of(task: Task) -> str:
    """Return the task's text about the model that it trains; "" for a task without one."""
    return task.describe_model() if hasattr(task, "describe_model") else ""


def reader_of(task: type[Task]) -> type[ReadsData] | None:
    """Return the class of a task that reads its files itself; None for other tasks."""
    found: Any = task
    return found if callable(getattr(found, "read", None)) else None
