"""The suite `torch`: steps of prepared torch models, against plain torch and DistributedDataParallel.

Each side is a launch of this module of its own, and the sides take turns: python -m mpips.bench.torch_models
KIND MODEL full|quick OUT [RANK WORKERS]. One torch thread for each process; torch's optimizers are fused
where they can be. Servers share the workers' cores.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

import mpips
from mpips.bench.launching import Options, run_side_by_side
from mpips.bench.measure import Comparison, Findings
from mpips.mpi.mpirun import mpi_environment, mpirun_command
from mpips.testing.errors import BenchError

MPIPS_KINDS = ("mpips", "step", "stream", "replicated")
_TIMEOUT_S, _QUICK_TIMEOUT_S = 300.0, 100.0
_WARM_STEPS, _STEPS = 8, 24
_N_ROWS, _N_IDS = 1_000_000, 20
_N_NGRAM_ROWS, _NGRAM_ROWS_QUICK, _NGRAM_DIM, _SEQUENCES, _LENGTH = 10_000_000, 20_000, 32, 32, 256
_ORDERS = (2, 3)
# Samples of a step; of "ngram" rows.
_BATCHES = {
    "mlp": 128,
    "bag": 1024,
    "ngram": _SEQUENCES * _LENGTH * len(_ORDERS),
    "deep": 128,
    "wide": 128,
}


class TorchSide(msgspec.Struct, frozen=True):
    """One way of training a model.

    Attributes:
        kind: "plain", "ddp", or one of MPIPS_KINDS: "mpips", "step" (`step` pushes all gradients), "stream"
            (two layers in memory), "replicated" (workers hold the parameters).
        model: A key of _BATCHES.
        workers: Number of workers. mpips has a scheduler and a server beside them.
    """

    kind: str
    model: str
    workers: int = 1


class TorchRatio(msgspec.Struct, frozen=True):
    """A comparison of two sides: name, description, unit ("ms" or a rate), and text of the baseline."""

    name: str
    what: str
    unit: str
    ours: TorchSide
    baseline: TorchSide
    baseline_name: str


_MLP = "MLP 784-2048-2048-10, batch 128, Adam, BSP"
_BAG = "EmbeddingBag 1M x 64, mean of 20 ids, batch 1024, Adagrad, BSP"
RATIOS = (
    TorchRatio(
        "torch_step_vs_plain",
        f"a step of the {_MLP}, 1 worker and 1 server",
        "ms",
        TorchSide("mpips", "mlp"),
        TorchSide("plain", "mlp"),
        "plain torch, one process",
    ),
    TorchRatio(
        "torch_step_vs_ddp",
        f"a step of the {_MLP}, 2 workers and 1 server",
        "ms",
        TorchSide("mpips", "mlp", 2),
        TorchSide("ddp", "mlp", 2),
        "DistributedDataParallel over gloo, 2 processes",
    ),
    TorchRatio(
        "torch_replicated_vs_ddp",
        f"a step of the {_MLP}, 2 workers that hold the parameters, and 1 server",
        "ms",
        TorchSide("replicated", "mlp", 2),
        TorchSide("ddp", "mlp", 2),
        "DistributedDataParallel over gloo, 2 processes",
    ),
    TorchRatio(
        "torch_embedding_vs_local",
        f"{_BAG}, 1 worker and 1 server",
        "samples/s",
        TorchSide("mpips", "bag"),
        TorchSide("plain", "bag"),
        "plain torch with sparse gradients, one process",
    ),
    TorchRatio(
        "ngram_vs_torch",
        f"NgramEmbedding of 10M rows of {_NGRAM_DIM}, n-grams of 2 and 3 of {_SEQUENCES} x {_LENGTH} tokens, "
        "Adagrad, BSP, 1 worker and 1 server",
        "rows/s",
        TorchSide("mpips", "ngram"),
        TorchSide("plain", "ngram"),
        "torch.nn.EmbeddingBag with sparse gradients, on keys that are made before, one process",
    ),
    TorchRatio(
        "torch_embedding_vs_ddp",
        f"a step of the {_BAG}, 2 workers and 1 server",
        "ms",
        TorchSide("mpips", "bag", 2),
        TorchSide("ddp", "bag", 2),
        "DistributedDataParallel with sparse gradients over gloo, 2 processes",
    ),
    TorchRatio(
        "overlap",
        "end of backward until servers have all gradients, 12 x Linear(1024), 1 worker and 1 server",
        "ms",
        TorchSide("mpips", "deep"),
        TorchSide("step", "deep"),
        "pushes in step()",
    ),
    TorchRatio(
        "stream_overhead",
        "a step of 12 x Linear(2048), batch 128, SGD, BSP, two layers in memory, 1 worker and 1 server",
        "ms",
        TorchSide("stream", "wide"),
        TorchSide("mpips", "wide"),
        "all layers in memory",
    ),
)


class Measured(msgspec.Struct):
    """Result of one side: median seconds of a step (of `deep`: behind backward), and samples of a step."""

    seconds: float
    samples: int


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure all ratios on this machine. `nodes` has no effect.

    Raises:
        BenchError: torch is missing, or a launch failed.
    """
    if importlib.util.find_spec("torch") is None:
        raise BenchError("the suite 'torch' needs PyTorch: install torch beside mpips")
    found = Findings()
    for ratio in RATIOS:
        comparison = Comparison(
            name=ratio.name,
            what=ratio.what,
            unit=ratio.unit,
            ours=[],
            baseline=[],
            baseline_name=ratio.baseline_name,
        )
        for _ in range(options.repetitions):
            for side, values in (
                (ratio.ours, comparison.ours),
                (ratio.baseline, comparison.baseline),
            ):
                measured = measure(side, options.quick)
                per_second = measured.samples / measured.seconds
                values.append(1e3 * measured.seconds if ratio.unit == "ms" else per_second)
        found.comparisons.append(comparison)
    return found


def measure(side: TorchSide, quick: bool) -> Measured:
    """Launch one side and return its result. Blocks.

    Raises:
        BenchError: It failed, or took longer than 300 s.
    """
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        out = Path(folder) / "measured.json"
        program = [sys.executable, "-m", "mpips.bench.torch_models", side.kind, side.model]
        program += ["quick" if quick else "full", str(out)]
        if side.kind in MPIPS_KINDS:
            commands = [[*mpirun_command(2 + side.workers), *program]]
        else:
            commands = [[*program, str(rank), str(side.workers)] for rank in range(side.workers)]
        environment = {**mpi_environment(), "OMP_NUM_THREADS": "1"}
        run_side_by_side(commands, environment, _QUICK_TIMEOUT_S if quick else _TIMEOUT_S)
        return msgspec.json.decode(out.read_bytes(), type=Measured)


def main(kind: str, model: str, size: str, out: str, rank: int = 0, workers: int = 1) -> None:
    """Train in this process, and write the result. Imports nothing of torch before `mpips.init`.

    Args:
        kind: As of TorchSide.
        model: A key of _BATCHES.
        size: "quick" or "full".
        out: Path to which the first worker writes the result.
        rank: With "ddp" the number of this process.
        workers: With "ddp" the number of processes.
    """
    quick = size == "quick"
    if kind in MPIPS_KINDS:
        mpips.init(servers=1, verbose=False)
        rank, workers = mpips.rank(), mpips.world_size()
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    sample, made, loss_of = _model(model, quick, kind)
    optimizer = _optimizer(model, made, kind)
    trained: Any = made
    after: Callable[[], None] = lambda: None  # noqa: E731 - replaced below
    if kind == "ddp":
        import torch.distributed as dist

        dist.init_process_group(
            "gloo",
            init_method=f"file://{out}.store",
            rank=rank,
            world_size=workers,
            timeout=timedelta(seconds=60),
        )
        trained = torch.nn.parallel.DistributedDataParallel(made)
    elif kind in MPIPS_KINDS:
        from mpips.session.init import current
        from mpips.torch import prepare
        from mpips.worker.worker import connection_of

        trained, optimizer = prepare(
            made,
            optimizer,
            overlap=False if kind == "step" else None,
            stream=2 if kind == "stream" else None,
            placement="replicated" if kind == "replicated" else "servers",
        )
        torch.set_num_threads(1)

        def after() -> None:
            worker = current("the benchmark").worker
            assert worker is not None
            connection_of(worker).flush()

    def step(x: Any) -> tuple[float, float, float]:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss_of(trained(x)).backward()
        middle = time.perf_counter()
        optimizer.step()
        if model == "deep":
            after()
        return start, middle, time.perf_counter()

    inputs = [sample() for _ in range(8)]
    steps = [step(inputs[i % 8]) for i in range(_WARM_STEPS + (2 if quick else _STEPS))]
    steps = steps[_WARM_STEPS:]
    if model == "deep":
        seconds = statistics.median(end - middle for _, middle, end in steps)
    else:
        # From step to step: values that come later are waited for in the next one.
        starts = [start for start, _, _ in steps]
        seconds = (starts[-1] - starts[0]) / (len(starts) - 1)
    if rank == 0:
        Path(out).write_bytes(msgspec.json.encode(Measured(seconds, _BATCHES[model])))
    if kind == "ddp":
        _end_together(out, rank, workers)


def _end_together(out: str, rank: int, workers: int) -> None:
    """End this process when all of the group have come here.

    The group is not destroyed: its file store goes away with the first process that does it, and another
    one may then wait without end. A process that ends earlier would break connections of the others.
    """
    Path(f"{out}.{rank}").touch()
    deadline = time.monotonic() + 60
    while not all(Path(f"{out}.{r}").exists() for r in range(workers)):
        if time.monotonic() > deadline:
            sys.exit(
                f"a process of the group has not come to its end within 60 s; this one is {rank}"
            )
        time.sleep(0.01)
    os._exit(0)


def _model(
    name: str, quick: bool, kind: str
) -> tuple[Callable[[], Any], Any, Callable[[Any], Any]]:
    """Return a function that draws a batch, the model, and the loss of its output."""
    import torch
    from torch import nn

    batch = _BATCHES[name]
    if name == "bag":
        n_rows = 10_000 if quick else _N_ROWS
        if kind in MPIPS_KINDS:
            from mpips.torch import EmbeddingBag

            bag: Any = EmbeddingBag(
                64, mode="mean", optimizer=mpips.Adagrad(0.05), init="uniform(0.1)"
            )
        else:
            bag = nn.EmbeddingBag(n_rows, 64, mode="mean", sparse=True)
        return (
            lambda: torch.randint(0, n_rows, (batch, _N_IDS)),
            nn.Sequential(bag, nn.Linear(64, 1)),
            lambda output: output.square().mean(),
        )
    if name == "ngram":
        return _ngrams(quick, kind)
    if name == "mlp":
        hidden = 64 if quick else 2048
        layers: list[Any] = [nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden)]
        layers += [nn.ReLU(), nn.Linear(hidden, 10)]
        labels = torch.randint(0, 10, (batch,))
        return (
            lambda: torch.randn(batch, 784),
            nn.Sequential(*layers),
            lambda output: nn.functional.cross_entropy(output, labels),
        )
    width = 32 if quick else 2048 if name == "wide" else 1024
    return (
        lambda: torch.randn(batch, width),
        nn.Sequential(*[nn.Linear(width, width) for _ in range(12)]),
        lambda output: output.square().mean(),
    )


def _ngrams(quick: bool, kind: str) -> tuple[Callable[[], Any], Any, Callable[[Any], Any]]:
    """Return what `_model` returns, for tables in which all rows exist."""
    import numpy as np
    import torch
    from torch import nn

    from mpips.model.consistency import BSP
    from mpips.model.ngrams import NgramHash

    n_rows = _NGRAM_ROWS_QUICK if quick else _N_NGRAM_ROWS
    rows, tokens = n_rows // len(_ORDERS), _SEQUENCES * _LENGTH

    def sample() -> torch.Tensor:
        return torch.randint(0, 2**40, (_SEQUENCES, _LENGTH))

    def loss_of(output: Any) -> Any:
        return output.square().mean()

    if kind in MPIPS_KINDS:
        from mpips.torch import NgramEmbedding
        from mpips.torch.row_state import LoadedRows

        memory = NgramEmbedding(
            _ORDERS, rows=rows, dim=_NGRAM_DIM, optimizer=mpips.Adagrad(0.05), init="zeros"
        )
        values = np.zeros((n_rows, _NGRAM_DIM), np.float32)
        memory.load(LoadedRows(np.arange(n_rows), values, memory.table("0", BSP()), 0))
        return sample, nn.Sequential(memory, nn.Linear(_NGRAM_DIM, 1)), loss_of
    bag = nn.EmbeddingBag(
        n_rows, _NGRAM_DIM, mode="sum", sparse=True, _weight=torch.zeros(n_rows, _NGRAM_DIM)
    )
    hashes = NgramHash(_ORDERS, 1, rows)
    return (
        lambda: torch.from_numpy(hashes.keys(sample().numpy()).reshape(tokens, len(_ORDERS))),
        nn.Sequential(bag, nn.Linear(_NGRAM_DIM, 1)),
        loss_of,
    )


def _optimizer(name: str, model: Any, kind: str) -> Any:
    import torch

    if name in ("bag", "ngram"):
        return torch.optim.Adagrad(model.parameters(), lr=0.05)
    if name == "mlp":
        return torch.optim.Adam(model.parameters(), fused=kind in ("plain", "ddp"))
    return torch.optim.SGD(model.parameters(), lr=1e-3)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0], words[1], words[2], words[3], *map(int, words[4:6]))
