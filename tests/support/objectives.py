"""The objectives of all tasks, written out sample by sample in float64, and a worker to record pushes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from mpips.data import Batch, DataInfo, DenseData, Moments, SparseBatch, SparseData
from mpips.model.table import DenseTable, Table
from mpips.tasks import Task
from mpips.training.preflight import task_options

Array: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = dict[str, Any]

N_FEATURES = 6


def make_task(task: type[Task], data: DataInfo, options: dict[str, Any], seed: int) -> Task:
    """A task as a job makes it."""
    return task(data, task_options(task, options), seed)


class FakeDense:
    def __init__(self, table: DenseTable, generator: np.random.Generator) -> None:
        self.values = generator.normal(0, 0.5, table.shape).astype(np.float32)
        self.gradient: Array | None = None

    def pull(self) -> Array:
        return self.values.copy()

    def push(self, gradient: Array, base: Array | None = None) -> None:
        assert self.gradient is None
        assert gradient.dtype == np.float32
        assert gradient.shape == self.values.shape
        assert base is not None
        np.testing.assert_array_equal(base, self.values)
        self.gradient = gradient


class FakeEmbedding:
    """Rows of keys -1 to N_FEATURES - 1."""

    def __init__(self, dim: int, generator: np.random.Generator) -> None:
        self.values = generator.normal(0, 0.5, (N_FEATURES + 1, dim)).astype(np.float32)
        self.gradient: Array | None = None
        self.announced: list[int] | None = None
        self.pulled: list[int] = []

    def initial(self, keys: Array) -> Array:
        return np.full((len(keys), self.values.shape[1]), np.float32(99))

    def prefetch(self, keys: Array) -> None:
        self.announced = keys.tolist()

    def pull(self, keys: Array) -> Array:
        assert keys.dtype == np.int64
        assert len(set(keys.tolist())) == len(keys)
        self.pulled = keys.tolist()
        return self.values[keys + 1]

    def push(self, keys: Array, rows: Array, base: Array | None = None) -> None:
        assert self.gradient is None
        assert keys.tolist() == self.pulled
        assert rows.dtype == np.float32
        assert base is not None
        np.testing.assert_array_equal(base, self.values[keys + 1])
        self.gradient = np.zeros_like(self.values)
        self.gradient[keys + 1] = rows


class FakeWorker:
    index = 0
    n_workers = 1

    def __init__(self, tables: list[Table]) -> None:
        generator = np.random.default_rng(2)
        self.tables: dict[str, Any] = {
            table.name: FakeDense(table, generator)
            if isinstance(table, DenseTable)
            else FakeEmbedding(table.dim, generator)
            for table in tables
        }

    def table(self, name: str) -> Any:
        return self.tables[name]

    def values(self) -> Values:
        return {name: t.values.astype(np.float64) for name, t in self.tables.items()}


def info(kind: str = "sparse", n_classes: int = 2, n_features: int = N_FEATURES) -> DataInfo:
    labels = tuple(float(label) for label in range(n_classes))
    return DataInfo(40, 40, n_features, labels, kind)  # type: ignore[arg-type]


def sparse_data(n_classes: int = 2, empty: tuple[int, ...] = (3, 17)) -> SparseData:
    """Forty samples, those in `empty` empty; feature 1 is in all others, feature 5 in none."""
    generator = np.random.default_rng(4)
    x = generator.normal(1, 2, (40, N_FEATURES)) * (generator.random((40, N_FEATURES)) < 0.5)
    x[:, 1] = generator.normal(5, 1, 40)
    x[:, 5] = 0
    x[list(empty)] = 0
    rows, keys = np.nonzero(x)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=40))))
    labels = generator.integers(0, n_classes, 40)
    return SparseData(indptr, keys, x[rows, keys].astype(np.float32), labels, N_FEATURES)


def dense_of(data: SparseData) -> DenseData:
    return DenseData(data.take(np.arange(40)).densify(N_FEATURES), data.labels)


def scaled(batch: Batch, factor: int) -> Batch:
    """Multiply the features, so that they lie far outside the training data's."""
    if isinstance(batch, SparseBatch):
        return replace(batch, values=batch.values * np.float32(factor))
    return replace(batch, x=batch.x * np.float32(factor))


CHOICES = ([0, 3, 5, 6, 20, 8, 39], [7], [3], [3, 17], list(range(40)))


def log_sum_exp(z: Array) -> float:
    return float(z.max() + math.log(sum(math.exp(v - z.max()) for v in z)))


def standardised(batch: Batch, moments: Moments) -> Array:
    x = batch.densify(N_FEATURES) if isinstance(batch, SparseBatch) else batch.x
    mean, scale = moments.standardise()
    return np.clip((x - mean) * scale, -10, 10)


def layered_logits(batch: Batch, moments: Moments, values: Values) -> Array:
    names = sorted(name for name in values if name.startswith("weight"))
    h = standardised(batch, moments)
    for i, name in enumerate(names):
        h = h @ values[name] + values[name.replace("weight", "bias")]
        h = np.maximum(h, 0) if i < len(names) - 1 else h
    return h


def layered_losses(batch: Batch, moments: Moments, values: Values) -> list[float]:
    logits = layered_logits(batch, moments, values)
    return [log_sum_exp(z) - z[label] for z, label in zip(logits, batch.labels, strict=True)]


def layered_penalty(batch: Batch, moments: Moments, values: Values, task: Task) -> float:
    weights = [v for name, v in values.items() if name.startswith("weight")]
    return 0.05 / 2 * sum(float((w * w).sum()) for w in weights)


def pairwise_logits(batch: Batch, moments: Moments, values: Values) -> Array:
    """Bias, linear terms, and, if there are factors, every pair spelt out."""
    assert isinstance(batch, SparseBatch)
    shift, scale = moments.standardise_present()
    logits = np.full(batch.n, values["weight"][0, 0])
    for i in range(batch.n):
        entries = range(batch.indptr[i], batch.indptr[i + 1])
        keys = [int(batch.keys[e]) for e in entries]
        x = [(batch.values[e] - shift[k]) * scale[k] for e, k in zip(entries, keys, strict=True)]
        x = [min(max(v, -10), 10) for v in x]
        logits[i] += sum(values["weight"][k + 1, 0] * v for k, v in zip(keys, x, strict=True))
        if "factor" in values:
            for a in range(len(keys)):
                for b in range(a):
                    product = values["factor"][keys[a] + 1] @ values["factor"][keys[b] + 1]
                    logits[i] += product * x[a] * x[b]
    return logits


def pairwise_losses(batch: Batch, moments: Moments, values: Values) -> list[float]:
    logits = pairwise_logits(batch, moments, values)
    ends = [np.array([0.0, z]) for z in logits]
    return [log_sum_exp(z) - z[label] for z, label in zip(ends, batch.labels, strict=True)]


def pairwise_penalty(batch: Batch, moments: Moments, values: Values, task: Task) -> float:
    assert isinstance(batch, SparseBatch)
    total = 0.0
    for key in batch.keys:
        total += 3.0 / 2 * values["weight"][key + 1, 0] ** 2 / moments.present[key]
        if "factor" in values:
            row = values["factor"][key + 1]
            total += 7.0 / 2 * float(row @ row) / moments.present[key]
    return total / batch.n


LAYERED = (layered_losses, layered_penalty)
PAIRWISE = (pairwise_losses, pairwise_penalty)
CASES = [
    ("softmax", {"l2": 0.05}, "dense", 3, LAYERED),
    ("softmax", {"l2": 0.05}, "sparse", 2, LAYERED),
    ("mlp", {"l2": 0.05, "hidden": [5]}, "dense", 2, LAYERED),
    ("mlp", {"l2": 0.05, "hidden": [5, 4]}, "sparse", 3, LAYERED),
    ("mlp", {"l2": 0.05, "hidden": []}, "dense", 3, LAYERED),
    ("logistic", {"prior": 3.0}, "sparse", 2, PAIRWISE),
    ("fm", {"prior": 3.0, "factor_prior": 7.0, "dim": 3}, "sparse", 2, PAIRWISE),
]


def numeric_gradient(objective: Callable[[Values], float], values: Values, name: str) -> Array:
    gradient = np.zeros_like(values[name])
    for place in np.ndindex(gradient.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = {**values, name: values[name].copy()}
            moved[name][place] += step
            ends.append(objective(moved))
        gradient[place] = (ends[0] - ends[1]) / 2e-6
    return gradient
