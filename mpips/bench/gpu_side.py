"""One side of the suite `gpu`: python -m mpips.bench.gpu_side plain|mpips|copies full|quick OUT.

"plain" and "mpips" train a model on the device, "copies" measures bytes to and from it. The first worker
writes the result to OUT. `measured` takes a device, to test the sides themselves without one.
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
    if kind != "plain":
        mpips.init(servers=1, verbose=False)
    import torch

    found = measured(kind, size == "quick", torch.device("cuda:0"))
    if kind == "plain" or mpips.rank() == 0:
        Path(out).write_bytes(msgspec.json.encode(found))


def measured(kind: str, quick: bool, device: Any) -> DeviceMeasured:
    """Measure one side on a device, for which mpips.torch.device has an implementation of copies."""
    if kind == "copies":
        rates = _copies(device, 1 << 20 if quick else 1 << 28, 3 if quick else 20)
        return DeviceMeasured(rates=rates)
    return DeviceMeasured(step_s=_step_seconds(kind, quick, device))


def _wait(device: Any) -> None:
    """Wait for all kernels and copies of a device."""
    import torch

    cuda: Any = torch.cuda
    if device.type == "cuda":
        cuda.synchronize(device)


def _step_seconds(kind: str, quick: bool, device: Any) -> float:
    """Return the mean seconds of a step of an MLP on the device."""
    import torch
    from torch import nn

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
            _wait(device)
            start = time.perf_counter()
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
    _wait(device)
    return (time.perf_counter() - start) / n_steps


def _copies(device: Any, n_bytes: int, calls: int) -> dict[str, float]:
    """Return rates of copies with staging memory, and with memory that torch has pinned."""
    import torch

    from mpips.session.init import current
    from mpips.torch import prepare
    from mpips.torch.device import COPIES, place_of

    smallest = torch.nn.Linear(1, 1)  # a job has a table
    prepare(smallest, torch.optim.SGD(smallest.parameters(), 0.0))
    worker = current("the benchmark").start()
    copies = COPIES[device.type](device, place_of(mpips.rank()))
    staging = torch.from_numpy(worker.allocate(n_bytes // 4))
    copies.register(staging)
    pinned = torch.empty(n_bytes // 4, pin_memory=device.type == "cuda")
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
        _wait(device)
        start = time.perf_counter()
        for _ in range(calls):
            work()
        _wait(device)
        rates[name] = n_bytes * calls / (time.perf_counter() - start)
    copies.close()
    return rates


if __name__ == "__main__":
    main(*sys.argv[1:])
