"""Compare rows of an embedding table by mpips, by a plain two-sided server, and by torch in one process.

Rank 0 is scheduler and server, rank 1 the worker. Each repetition has three parts: a session of mpips on a
table in which all rows exist; the same batches through the two-sided server on the same two ranks; torch on
the worker's core alone. All use the same rows. mpips looks them up by hashed keys, the others index an array.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

import mpips
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank import two_sided
from mpips.bench.rank.ranks import BenchRanks
from mpips.worker.worker import Worker

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

LR = 0.01
_SERVER, _WORKER = 0, 1
_SPREAD = np.int64(-7046029254386353131)  # odd, so that no two row numbers give the same key

# name of a ratio -> (description, measurement of mpips, measurement of the baseline)
_RATIOS = {
    "rows_push_vs_two_sided": ("pushes of rows, SGD", "push", "two-sided push"),
    "rows_push_fresh_vs_two_sided": (
        "pushes of rows, SGD, updates computed anew",
        "push fresh",
        "two-sided push fresh",
    ),
    "rows_pull_vs_two_sided": ("pulls of rows", "pull", "two-sided pull"),
    "rows_both_vs_two_sided": ("push, then pull of the same rows", "both", "two-sided both"),
    "rows_push_vs_index_add": ("pushes of rows, SGD", "push", "index_add"),
    "rows_adagrad_vs_torch": ("pushes of rows, Adagrad", "adagrad", "torch adagrad"),
}


class Sizes(msgspec.Struct, frozen=True):
    """Sizes of the measurement.

    Attributes:
        n_rows: Rows in the table.
        dim: float32 values in a row.
        keys: Keys in a batch, which is one call.
        batches: Number of different batches.
        rounds: Passes over all batches in one measurement.
    """

    n_rows: int = 1_000_000
    dim: int = 64
    keys: int = 10_000
    batches: int = 16
    rounds: int = 2

    @classmethod
    def of(cls, options: Options) -> Sizes:
        """Return the sizes for these options: small ones with `quick`."""
        return cls(n_rows=20_000, keys=500, batches=4, rounds=1) if options.quick else cls()

    @property
    def rows_measured(self) -> int:
        """Return the number of rows in one measurement."""
        return self.keys * self.batches * self.rounds


@dataclass
class Work:
    """The batches, and the rates measured with them.

    Attributes:
        sizes: Sizes of the measurement.
        numbers: For each batch random row numbers without repeats, int64, shape (keys,).
        hashed: The keys of these rows in mpips, int64, shape (keys,).
        updates: For each batch float32, shape (keys, dim).
        out: Receives pulled rows, float32, shape (keys, dim).
        rates: Name of a measurement -> rows per second by repetition.
    """

    sizes: Sizes
    numbers: list[Int64]
    hashed: list[Int64]
    updates: list[Float32]
    out: Float32
    rates: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def make(cls, sizes: Sizes) -> Work:
        """Make the batches; the same ones on every call."""
        random = np.random.default_rng(1)
        numbers = [
            random.choice(sizes.n_rows, sizes.keys, replace=False) for _ in range(sizes.batches)
        ]
        updates = [
            random.standard_normal((sizes.keys, sizes.dim), np.float32)
            for _ in range(sizes.batches)
        ]
        out = np.zeros((sizes.keys, sizes.dim), np.float32)
        return cls(sizes, numbers, [n * _SPREAD for n in numbers], updates, out)

    def measure(
        self,
        name: str,
        keys: Sequence[Int64],
        call: Callable[[Int64, Float32], object],
        settle: Callable[[], object] = lambda: None,
        fresh: bool = False,
    ) -> None:
        """Measure the rate of `call` over all batches, after a warm-up round. Blocks.

        Args:
            name: Key in `rates`.
            keys: One array for each batch.
            call: Takes keys and the update of one batch.
            settle: Waits until all calls are complete.
            fresh: Each update is computed anew before its call. The time of these computations alone is
                subtracted.
        """

        def of_new_update(k: Int64, u: Float32) -> None:
            call(k, np.negative(u, out=u))

        seconds = self._seconds(keys, of_new_update if fresh else call, settle)
        if fresh:
            alone = self._seconds(keys, lambda _, u: np.negative(u, out=u), lambda: None)
            # On a disturbed machine the difference of two times may be negative.
            seconds = max(seconds - alone, seconds / 100)
        self.rates.setdefault(name, []).append(self.sizes.rows_measured / seconds)

    def _seconds(
        self,
        keys: Sequence[Int64],
        call: Callable[[Int64, Float32], object],
        settle: Callable[[], object],
    ) -> float:
        for k, u in zip(keys, self.updates, strict=True):
            call(k, u)
        settle()
        start = time.perf_counter()
        for _ in range(self.sizes.rounds):
            for k, u in zip(keys, self.updates, strict=True):
                call(k, u)
        settle()
        return time.perf_counter() - start


def run(ranks: BenchRanks, options: Options) -> Findings | None:
    """Measure on two ranks; return findings on the worker's rank, None on the other. Collective."""
    sizes = Sizes.of(options)
    work = Work.make(sizes)
    table = np.full((sizes.n_rows, sizes.dim), 0.5, np.float32) if ranks.rank == _SERVER else None
    alone = _Alone(sizes) if ranks.rank == _WORKER else None
    tables = [
        mpips.EmbeddingTable(
            name, sizes.dim, optimizer, init="constant(0.5)", consistency=mpips.ASP()
        )
        for name, optimizer in (("sgd", mpips.SGD(LR)), ("adagrad", mpips.Adagrad(LR)))
    ]
    for _ in range(options.repetitions):
        ranks.session(lambda worker: _measure_mpips(worker, work), tables)
        _measure_two_sided(ranks, work, table)
        if alone is not None:
            alone.measure(work)
        ranks.comm.Barrier()
    return findings(work) if ranks.rank == _WORKER else None


def _measure_mpips(worker: Worker, work: Work) -> None:
    """Make all measurements of mpips in one session. Called by the worker."""
    sgd, adagrad = worker.table("sgd"), worker.table("adagrad")
    for handle in (sgd, adagrad):
        _make_rows(handle, work.sizes)
    work.measure("push", work.hashed, sgd.push, worker.flush)
    work.measure("push fresh", work.hashed, sgd.push, worker.flush, fresh=True)
    work.measure("pull", work.hashed, lambda k, _: sgd.pull(k, work.out))
    work.measure("both", work.hashed, lambda k, u: sgd.push_pull(k, u, work.out))
    work.measure("adagrad", work.hashed, adagrad.push, worker.flush)


def _make_rows(handle: Any, sizes: Sizes) -> None:
    """Push zeros to every row, so that all rows of the table exist."""
    nothing = np.zeros((sizes.keys, sizes.dim), np.float32)
    for part in np.split(np.arange(sizes.n_rows) * _SPREAD, sizes.n_rows // sizes.keys):
        handle.push(part, nothing)


def _measure_two_sided(ranks: BenchRanks, work: Work, table: Float32 | None) -> None:
    """Make the measurements of the two-sided server. Collective."""
    if table is not None:
        two_sided.RowServer(ranks.comm, _WORKER, table, work.sizes.keys).serve(LR)
        return
    client = two_sided.RowClient(ranks.comm, _SERVER)

    def both(keys: Int64, update: Float32) -> Float32:
        client.push(keys, update)
        return client.pull(keys, work.out)

    work.measure("two-sided push", work.numbers, client.push, client.settle)
    work.measure("two-sided push fresh", work.numbers, client.push, client.settle, fresh=True)
    work.measure("two-sided pull", work.numbers, lambda k, _: client.pull(k, work.out))
    work.measure("two-sided both", work.numbers, both)
    client.stop()


class _Alone:
    """A table in this process, updated by one thread: by torch, or by NumPy where torch is not installed."""

    def __init__(self, sizes: Sizes) -> None:
        values = np.full((sizes.n_rows, sizes.dim), 0.5, np.float32)
        self.values = values
        try:
            torch: Any = importlib.import_module("torch")
        except ImportError:
            self.torch: Any = None
            return
        torch.set_num_threads(1)
        torch.sparse.check_sparse_tensor_invariants.disable()
        self.torch = torch
        self.table = torch.from_numpy(values)
        self.weight = torch.nn.Parameter(self.table.clone())
        self.optimizer = torch.optim.Adagrad([self.weight], lr=LR)

    def measure(self, work: Work) -> None:
        """Make all measurements of one repetition."""
        if self.torch is None:
            work.measure("index_add", work.numbers, self._subtract_at)
            return
        work.measure("index_add", work.numbers, self._index_add)
        work.measure("torch adagrad", work.numbers, self._adagrad)

    def _subtract_at(self, keys: Int64, update: Float32) -> None:
        np.subtract.at(self.values, keys, np.float32(LR) * update)

    def _index_add(self, keys: Int64, update: Float32) -> None:
        from_numpy = self.torch.from_numpy
        self.table.index_add_(0, from_numpy(keys), from_numpy(update), alpha=-LR)

    def _adagrad(self, keys: Int64, update: Float32) -> None:
        from_numpy = self.torch.from_numpy
        indices = from_numpy(keys)[None]
        self.weight.grad = self.torch.sparse_coo_tensor(
            indices, from_numpy(update), self.weight.shape
        )
        self.optimizer.step()


def findings(work: Work) -> Findings:
    """Return the ratios; those that were not measured are skipped with the reason."""
    found = Findings()
    names = {"index_add": "torch index_add_"}
    if "torch adagrad" not in work.rates:
        names["index_add"] = "numpy.subtract.at"
    for name, (what, ours, baseline) in _RATIOS.items():
        if baseline not in work.rates:
            found.skipped[name] = "torch is not installed: pip install torch"
            continue
        found.comparisons.append(
            Comparison(
                name=name,
                what=f"{what}; {work.sizes.keys} of {work.sizes.n_rows} rows of {work.sizes.dim}",
                unit="rows/s",
                ours=work.rates[ours],
                baseline=work.rates[baseline],
                baseline_name=names.get(baseline, baseline),
            )
        )
    return found
