"""Workloads of the suite `adaptive`: tasks of mpips, a network of PyTorch, and the models of consistency."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from mpips.bench.rank.ranks import BenchRanks
from mpips.bench.rank.workloads import session
from mpips.config.options import SessionOptions
from mpips.config.overrides import apply_overrides
from mpips.config.schema import JobConfig
from mpips.config.sections import DataConfig, TrainConfig
from mpips.config.table_section import TableConfig
from mpips.data.loader import Loader
from mpips.model.table import DenseTable, Table
from mpips.training.epochs import Inputs
from mpips.training.prepare import ready
from mpips.worker.worker import Worker

_BATCH, _SAMPLES = 32, 1500
# Rates of SGD. Servers apply the sum of the gradients of all workers, under each model.
_RATES = {"logistic": 0.05, "deepfm": 0.05, "network": 0.03}
_OPTIONS = {"deepfm": {"hidden": [16], "dim": 4}}
_DENSE = ("weight0", "bias0", "weight1", "bias1", "linear", "number_factor")  # of deepfm
_HIDDEN = 16
# A part of the run that Sync-Switch spends under BSP: the first choice of its search.
_SWITCH_SHARE = 16


Compute = Callable[[], None]  # takes the time in which a worker computes a gradient


class Steps(Protocol):
    """The steps of a worker in one session."""

    def step(self, compute: Compute) -> None:
        """Pull, and push the gradient of the next batch; call `compute` once between both. Blocks."""

    def wait(self) -> None:
        """Pull a table: wait as long as a pull of this clock must. Blocks."""

    def loss(self) -> float:
        """Return the mean loss on all samples of this worker, by values that it pulls. Blocks."""


Work = Callable[[Worker, Steps], Any]


def model_of(name: str, bsp_steps: int) -> dict[str, Any]:
    """Return a model of consistency as options of a table. All apply the sum of what they apply together.

    Args:
        name: A name in FIXED or in ADAPTIVE.
        bsp_steps: Steps of BSP.
    """
    bsp = {"consistency": "bsp", "reduce": "sum"}
    known: dict[str, dict[str, Any]] = {
        "bsp": bsp,
        "asp": {"consistency": "asp"},
        "ssp_auto": {"consistency": "ssp", "bound": "auto"},
        "backup_auto": {**bsp, "backup": "auto"},
        "reject_auto": {"consistency": "asp", "policy": "reject", "max_staleness": "auto"},
        "switch": {
            "consistency": "switch",
            "reduce": "sum",
            "switch_at": max(1, bsp_steps // _SWITCH_SHARE),
        },
        "switch_plateau": {"consistency": "switch", "reduce": "sum", "switch_at": "plateau"},
        "auto": {"consistency": "auto", "reduce": "sum"},
    }
    kind, _, number = name.partition("_")
    if number.isdecimal():
        key = "backup" if kind == "backup" else "bound"
        return (
            {**bsp, key: int(number)}
            if key == "backup"
            else {"consistency": kind, key: int(number)}
        )
    return known[name]


def job_of(name: str, folder: Path, model: str, bsp_steps: int) -> JobConfig:
    """Return the job of a workload under a model of consistency."""
    options = model_of(model, bsp_steps)
    own = {}
    if model == "reject_auto" and name == "deepfm":
        # Servers estimate a threshold only for dense tables.
        own = {table: TableConfig(**options) for table in _DENSE}
        options = model_of("asp", bsp_steps)
    return JobConfig(
        task=name if name != "network" else "",
        data=DataConfig(train=str(data_file(name, folder))) if name != "network" else DataConfig(),
        train=TrainConfig(batch_size=_BATCH),
        cluster=SessionOptions(servers=1, timeout_s=60.0),
        table=TableConfig(**options, optimizer={"name": "sgd", "lr": _RATES[name]}),
        tables=own,
        options=_OPTIONS.get(name, {}),
    )


def session_of(
    ranks: BenchRanks, folder: Path, name: str, model: str, bsp_steps: int, work: Work
) -> Any:
    """Run a session of a workload under a model of consistency. Collective.

    Returns:
        The value of `work` on workers; None elsewhere.
    """
    job = job_of(name, folder, model, bsp_steps)
    if name == "network":
        tables = apply_overrides(TorchNetwork.tables(), job, None)
        return ranks.session(lambda w: work(w, TorchNetwork(w)), tables, servers=1)
    value, _ = session(ranks, job, lambda w, inputs: work(w, TaskSteps(w, inputs)))
    return value


class TaskSteps:
    """The steps of a built-in task with two classes."""

    def __init__(self, worker: Worker, inputs: Inputs) -> None:
        """Prepare the task. Collective over workers."""
        self._worker, self._task = worker, inputs.task
        loader = ready(worker, inputs, 0)
        self._dense = next(t.name for t in inputs.tables if isinstance(t, DenseTable))
        self._batches = iter(loader)
        assert inputs.train is not None
        n, n_workers = inputs.info.n_samples_total, worker.n_workers
        every = Loader(inputs.train, n, n_workers, worker.index, n, 0)
        _, self._all = next(iter(every))

    def step(self, compute: Compute) -> None:
        """Pull, and push the gradient of the next batch; call `compute` once between both. Blocks."""
        _, batch = next(self._batches)
        computing = Computing(self._worker, compute)
        self._task.step(cast(Worker, computing), batch)
        computing.compute()

    def wait(self) -> None:
        """Pull a table: wait as long as a pull of this clock must. Blocks."""
        self._worker.table(self._dense).pull()

    def loss(self) -> float:
        """Return the mean loss on all samples of this worker, by values that it pulls. Blocks."""
        found = np.clip(self._task.predict(self._worker, self._all), 1e-7, 1 - 1e-7)
        return float(-np.log(np.where(self._all.labels == 1, found, 1 - found)).mean())


class Computing:
    """A worker for one step of a task: its first push waits until the gradient is computed."""

    def __init__(self, worker: Any, compute: Compute) -> None:
        """`worker`: The worker, or another value with tables; `compute`: takes the time of a gradient."""
        self._worker, self._compute = worker, compute
        self._is_computed = False

    def __getattr__(self, name: str) -> Any:
        """Return what the worker has."""
        return getattr(self._worker, name)

    def table(self, name: str) -> ComputingTable:
        """Return a table of the worker."""
        return ComputingTable(self._worker.table(name), self.compute)

    def compute(self) -> None:
        """Compute the gradient, once. Blocks."""
        if not self._is_computed:
            self._is_computed = True
            self._compute()


class ComputingTable:
    """A table whose pushes wait until the gradient is computed."""

    def __init__(self, handle: Any, compute: Compute) -> None:
        """`handle`: The table; `compute`: returns when the gradient is computed."""
        self._handle, self._compute = handle, compute

    def __getattr__(self, name: str) -> Any:
        """Return what the table has."""
        return getattr(self._handle, name)

    def push(self, *arguments: Any, **options: Any) -> Any:
        """Push when the gradient is computed. Blocks until then."""
        self._compute()
        return self._handle.push(*arguments, **options)


class TorchNetwork:
    """The steps of a network of PyTorch with one hidden layer, for a function of 8 numbers."""

    def __init__(self, worker: Worker) -> None:
        """Make the network, and this worker's samples."""
        import torch

        torch.set_num_threads(1)
        self._worker, self._torch = worker, torch
        self._model = torch.nn.Sequential(
            torch.nn.Linear(8, _HIDDEN), torch.nn.Tanh(), torch.nn.Linear(_HIDDEN, 1)
        )
        rng = np.random.default_rng(3)
        x = rng.standard_normal((_SAMPLES, 8), np.float32)
        y = np.sin(x[:, :1] * x[:, 1:2]) + np.tanh(x[:, 2:3])
        mine = slice(worker.index, None, worker.n_workers)
        self._x, self._y = torch.from_numpy(x[mine].copy()), torch.from_numpy(y[mine].copy())
        self._draws = np.random.default_rng([17, worker.index])

    @staticmethod
    def tables() -> list[Table]:
        """Return a table for each parameter, in the order of the parameters."""
        shapes = [(_HIDDEN, 8), (_HIDDEN,), (1, _HIDDEN), (1,)]
        return [DenseTable(f"p{i}", shape, init="normal(0.3)") for i, shape in enumerate(shapes)]

    def step(self, compute: Compute) -> None:
        """Pull, and push the gradient of the next batch; call `compute` once between both. Blocks."""
        pulled = self._pull()
        compute()
        at = self._draws.integers(0, len(self._x), _BATCH)
        self._model.zero_grad()
        self._loss(self._x[at], self._y[at]).backward()
        for i, parameter in enumerate(self._model.parameters()):
            assert parameter.grad is not None
            self._worker.table(f"p{i}").push(parameter.grad.numpy(), base=pulled[i])

    def wait(self) -> None:
        """Pull a table: wait as long as a pull of this clock must. Blocks."""
        self._worker.table("p0").pull()

    def loss(self) -> float:
        """Return the mean loss on all samples of this worker, by values that it pulls. Blocks."""
        self._pull()
        with self._torch.no_grad():
            return float(self._loss(self._x, self._y))

    def _loss(self, x: Any, y: Any) -> Any:
        return self._torch.nn.functional.mse_loss(self._model(x), y)

    def _pull(self) -> list[Any]:
        """Set the parameters to the values of the tables; return these."""
        pulled = []
        with self._torch.no_grad():
            for i, parameter in enumerate(self._model.parameters()):
                pulled.append(self._worker.table(f"p{i}").pull())
                parameter.copy_(self._torch.from_numpy(pulled[-1]))
        return pulled


def data_file(name: str, folder: Path) -> Path:
    """Return the CSV file of a task's samples, which the first call writes; the network needs none."""
    path = folder / f"{name}.csv"
    if path.exists() or name == "network":
        return path
    rng = np.random.default_rng(1)
    x = rng.standard_normal((_SAMPLES, 20))
    columns = [f"x{i}" for i in range(x.shape[1])]
    score = x @ rng.standard_normal(x.shape[1]) + rng.standard_normal(_SAMPLES)
    words = np.zeros((_SAMPLES, 0), str)
    if name == "deepfm":
        # Half of what decides on a sample is in the pairs of two words.
        picks = rng.integers(0, 12, (_SAMPLES, 3))
        pairs = rng.standard_normal((12, 12))
        score = score[:] / 4 + 2 * pairs[picks[:, 0], picks[:, 1]]
        x, columns = x[:, :3], columns[:3]
        words = np.char.add("w", picks.astype(str))
        columns += ["a", "b", "c"]
    lines = [",".join([*columns, "y"])]
    for numbers, own, label in zip(x, words, score > 0, strict=True):
        lines.append(",".join([*(f"{v:.5f}" for v in numbers), *own, str(int(label))]))
    written = path.with_suffix(".new")
    written.write_text("\n".join(lines) + "\n")
    written.replace(path)
    return path
