"""One side of the suite `gpu`: python -m mpips.bench.gpu_side plain|mpips|copies full|quick OUT.

"plain" and "mpips" train a model on the device, "copies" measures bytes to and from it. The first worker
writes the result to OUT.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import mpips

_WARM_STEPS, _STEPS = 8, 50


class DeviceMeasured(msgspec.Struct, kw_only=True):
    """Result of one side.

    Attributes:
        step_s: Seconds of a step; 0: not measured.
        rates: Bytes per second by the name of a copy.
    """

    step_s: float = 0.0
    rates: dict[str, float] = {}


def main(kind: str, size: str, out: str) -> None:
    """Measure, and write the result."""
    quick = size == "quick"
    if kind != "plain":
        mpips.init(servers=1, verbose=False)
    import torch

    cuda: Any = torch.cuda
    if kind == "copies":
        found = DeviceMeasured(rates=_copies(1 << 20 if quick else 1 << 28, 3 if quick else 20))
    else:
        found = DeviceMeasured(step_s=_step_seconds(kind, quick))
    cuda.synchronize()
    if kind == "plain" or mpips.rank() == 0:
        Path(out).write_bytes(msgspec.json.encode(found))


def _step_seconds(kind: str, quick: bool) -> float:
    """Return the mean seconds of a step of an MLP on the device."""
    import torch
    from torch import nn

    cuda: Any = torch.cuda
    device = torch.device("cuda:0")
    hidden = 64 if quick else 2048
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.Linear(784, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    ).to(device)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if kind == "mpips":
        from mpips.torch import prepare

        model, optimizer = prepare(model, optimizer)
    x = torch.randn(1024, 784, device=device)
    labels = torch.randint(0, 10, (1024,), device=device)
    n_steps = 3 if quick else _STEPS
    start = 0.0
    for step in range(_WARM_STEPS + n_steps):
        if step == _WARM_STEPS:
            cuda.synchronize()
            start = time.perf_counter()
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
    cuda.synchronize()
    return (time.perf_counter() - start) / n_steps


def _copies(n_bytes: int, calls: int) -> dict[str, float]:
    """Return rates of copies with staging memory, and with memory that torch has pinned."""
    import torch

    from mpips.session.init import current
    from mpips.torch.device import CudaCopies, place_of

    cuda: Any = torch.cuda
    device = torch.device("cuda:0")
    worker = current("the benchmark").start()
    copies = CudaCopies(device, place_of(mpips.rank()))
    staging = torch.from_numpy(worker.allocate(n_bytes // 4))
    copies.register(staging)
    pinned = torch.empty(n_bytes // 4, pin_memory=True)
    on_device = torch.zeros(n_bytes // 4, device=device)
    works: dict[str, Callable[[], object]] = {
        "to_host": lambda: copies.to_host(on_device, staging).wait(),
        "to_host pinned": lambda: pinned.copy_(on_device),
        "to_device": lambda: copies.to_device(staging, on_device).wait(),
        "to_device pinned": lambda: on_device.copy_(pinned, non_blocking=True),
    }
    rates = {}
    for name, work in works.items():
        work()
        cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        cuda.synchronize()
        rates[name] = n_bytes * calls / (time.perf_counter() - start)
    copies.close()
    return rates


if __name__ == "__main__":
    main(*sys.argv[1:])
