"""Checks of parameters on a device, with values that are exact: python -m mpips.bench.gpu_checks NAME DEVICE.

Each check is a script on all ranks of a launch. Gradients are whole numbers that do not depend on the values,
and rates are powers of 2, so sums are exact in any order: values must equal those of plain torch on the CPU.
Matrices are multiplied before each backward pass, so kernels are still queued when hooks request copies.
DEVICE: "cuda", or "cpu" to test the checks themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import mpips
from mpips.testing.errors import BenchError

_SIZES = (1, 7, 1024, 100_000, 1 << 21)
_STEPS = 6
_RATE = 2.0**-3


def _factors(worker: int, step: int, dtype: Any) -> list[Any]:
    """Return the gradients of one worker in a step: whole numbers from -4 to 4, on the CPU."""
    import torch

    return [((torch.arange(n) * 7 + 3 * worker + 5 * step) % 9 - 4).to(dtype) for n in _SIZES]


def _loss(model: Any, factors: list[Any], device: Any) -> Any:
    import torch

    load = torch.ones(2048 if device.type == "cuda" else 8, device=device)
    load = load.outer(load)
    for _ in range(8):
        load = (load @ load) / len(load)
    # The load is 1 in each place, and 0 times it orders the loss behind its kernels.
    first = sum((p * f.to(device)).float().sum() for p, f in zip(model, factors, strict=True))
    return first + 0 * load.sum()


def _trained(
    device: Any, dtype: Any = None, clip: float = 0.0, scale: bool = False, **options: Any
) -> None:
    """Train a list of parameters on the device and compare it with a float32 copy on the CPU."""
    import torch

    from mpips.torch import prepare, steps

    dtype = dtype or torch.float32
    rank, workers = mpips.rank(), mpips.world_size()
    model = torch.nn.ParameterList([torch.zeros(n, dtype=dtype) for n in _SIZES])
    wanted = torch.nn.ParameterList([torch.zeros(n) for n in _SIZES])
    rule: dict[str, Any] = {"lr": _RATE, "momentum": 0.5}
    prepared, optimizer = prepare(
        model, torch.optim.SGD(model.parameters(), **rule), device=device, **options
    )
    plain = torch.optim.SGD(wanted.parameters(), **rule)
    scaler: Any = torch.amp.GradScaler(device.type, init_scale=2.0**4, enabled=scale)
    steps()  # starts the job: a list has no forward pass
    for step in range(_STEPS):
        optimizer.zero_grad()
        list(prepared.parameters())  # pulls, as a forward pass does
        loss = _loss(prepared, _factors(rank, step, dtype), device)
        # A step that overflows is skipped by all workers.
        overflows = scale and step == 2
        scaler.scale(loss * float("inf") if overflows else loss).backward()
        scaler.unscale_(optimizer)
        if clip:
            torch.nn.utils.clip_grad_value_(prepared.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        if overflows:
            continue
        for number, p in enumerate(wanted):
            gradients = [_factors(w, step, torch.float32)[number] for w in range(workers)]
            gradients = [g.clamp(-clip, clip) if clip else g for g in gradients]
            p.grad = torch.stack(gradients).sum(0) / workers
        plain.step()
    for found, expected in zip(prepared.parameters(), wanted, strict=True):
        _equal(f"a parameter of {len(expected)} elements", found, expected.to(dtype))
        if found.device.type != device.type:
            raise BenchError(f"a parameter is on {found.device}: must be on {device}")


def _equal(what: str, found: Any, expected: Any) -> None:
    found, expected = found.detach().cpu(), expected.detach().cpu()
    wrong = int((found != expected).sum())
    if wrong:
        raise BenchError(f"{what}: {wrong} of {found.numel()} values differ from those of the CPU")


def _rows(device: Any) -> None:
    """Train rows of an embedding whose ids are on the device."""
    import torch

    from mpips.torch import Embedding, prepare

    model = torch.nn.Sequential(Embedding(4, optimizer=mpips.SGD(_RATE), init="normal(1)"))
    prepared, optimizer = prepare(model)
    ids = torch.tensor([[5, -3, 2**60], [5, 5, 7]], device=device)
    with torch.no_grad():
        wanted = prepared(ids).clone()
    counts = torch.tensor([[3, 1, 1], [3, 3, 1]], device=device)
    for _ in range(_STEPS):
        prepared(ids).sum().backward()
        optimizer.step()
        wanted -= _RATE * counts[..., None]
    with torch.no_grad():
        _equal("rows", prepared(ids), wanted)
        if prepared(ids).device.type != device.type:
            raise BenchError(f"rows are on {prepared(ids).device}: must be on {device}")


def _statistics(device: Any) -> None:
    """Train batch normalisation: its running statistics are those of torch on the same device."""
    import torch

    from mpips.torch import prepare

    plain = torch.nn.BatchNorm1d(8).to(device)
    model, optimizer = torch.nn.BatchNorm1d(8), None
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    prepared, optimizer = prepare(model, optimizer, device=device)
    for step in range(_STEPS):
        x = torch.arange(80.0, device=device).view(10, 8) % (3 + step)
        prepared(x).sum().backward()
        plain(x)
        optimizer.step()
    for name, value in plain.named_buffers():
        _equal(name, dict(prepared.named_buffers())[name], value)


def _bfloat16(device: Any) -> None:
    import torch

    _trained(device, torch.bfloat16, overlap=True)


CHECKS: dict[str, Callable[[Any], None]] = {
    "overlap": lambda device: _trained(device, overlap=True),
    "observed": _trained,
    "in_step": lambda device: _trained(device, overlap=False),
    "clipping": lambda device: _trained(device, clip=2.0),
    "scaler": lambda device: _trained(device, scale=True),
    "bfloat16": _bfloat16,
    "rows": _rows,
    "statistics": _statistics,
}


def main(name: str, where: str) -> None:
    """Run one check as a script on this rank."""
    mpips.init(servers=1, verbose=False)
    import torch

    from mpips.torch import device as own_device

    CHECKS[name](own_device() if where == "cuda" else torch.device(where))


if __name__ == "__main__":
    main(*sys.argv[1:])
