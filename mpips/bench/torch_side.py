"""One side of the suite `torch`: python -m mpips.bench.torch_side KIND MODEL full|quick OUT [RANK WORKERS].

KIND: "plain" torch in one process, "ddp", "mpips", "step" (mpips, where `step` pushes all gradients), or
"stream" (mpips, with two layers in memory), or "replicated" (mpips with replicated parameters). The first
worker writes the result to OUT. Nothing of torch is imported before `mpips.init`.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

import mpips
from mpips.bench.torch_models import MPIPS_KINDS, Measured

_WARM_STEPS, _STEPS = 8, 24
_N_ROWS, _N_IDS = 1_000_000, 20
_BATCHES = {"mlp": 128, "bag": 1024, "deep": 128, "wide": 128}


def main(kind: str, model: str, size: str, out: str, rank: int = 0, workers: int = 1) -> None:
    """Train, and write the result."""
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


def _optimizer(name: str, model: Any, kind: str) -> Any:
    import torch

    if name == "bag":
        return torch.optim.Adagrad(model.parameters(), lr=0.05)
    if name == "mlp":
        return torch.optim.Adam(model.parameters(), fused=kind in ("plain", "ddp"))
    return torch.optim.SGD(model.parameters(), lr=1e-3)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0], words[1], words[2], words[3], *map(int, words[4:6]))
