"""The suite `gpu`: copies from and to a CUDA device, and steps of a model there, against plain torch.

Each side is a launch of its own: python -m mpips.bench.gpu plain|mpips|copies full|quick OUT. With `--check`
the suite runs the checks of `gpu_checks` instead, each as a job of its own: on one rank, and on four ranks
with two workers that share a device.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import mpips
from mpips.bench.gpu_checks import CHECKS
from mpips.bench.launching import Options, run_side_by_side
from mpips.bench.measure import Comparison, Findings
from mpips.errors import CapabilityError
from mpips.mpi.mpirun import mpi_environment, mpirun_command

_TIMEOUT_S = 100.0
_WARM_STEPS, _STEPS = 8, 50
_N_RANKS = 4  # scheduler, server, two workers
_MLP = "MLP 784-2048-2048-10, batch 1024, SGD with momentum, BSP"


class DeviceMeasured(msgspec.Struct, kw_only=True):
    """Result of one side.

    Attributes:
        step_s: Seconds of a step; 0: not measured.
        rates: Bytes per second by the name of a copy.
    """

    step_s: float = 0.0
    rates: dict[str, float] = {}


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure the ratios, or run all checks. `nodes` has no effect.

    Raises:
        BenchError: A launch or a check failed.
        CapabilityError: This machine has no CUDA device that torch can use.
    """
    reason = why_no_device()
    if reason:
        raise CapabilityError(f"the suite 'gpu' needs a CUDA device: {reason}")
    return check("cuda") if options.check else _measured(options)


def why_no_device() -> str:
    """Return why torch has no CUDA device here, or "" if it has one."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "" if torch.cuda.is_available() else "torch finds no driver or no device"


def check(
    device: str,
    names: tuple[str, ...] = tuple(CHECKS),
    ranks: tuple[int, ...] = (1, _N_RANKS),
) -> Findings:
    """Run checks on a type of device ("cuda", or "cpu" to test the checks) and on these numbers of ranks.

    Raises:
        BenchError: One of them failed.
    """
    found = Findings()
    for name in names:
        for n in ranks:
            start = time.monotonic()
            program = [sys.executable, "-m", "mpips.bench.gpu_checks", name, device]
            command = [*mpirun_command(n), *program] if n > 1 else program
            run_side_by_side([command], mpi_environment(), _TIMEOUT_S)
            took = time.monotonic() - start
            found.notes.append(f"check {name} on {device}, ranks: {n}: passed in {took:.1f} s")
    return found


def _measured(options: Options) -> Findings:
    copies = {
        name: Comparison(
            name=f"gpu_{name}_vs_pinned",
            what=f"copies {what}, 256 MiB, staging memory registered with CUDA",
            unit="GB/s",
            ours=[],
            baseline=[],
            baseline_name="memory pinned by torch",
        )
        for name, what in (("to_host", "to the host"), ("to_device", "to the device"))
    }
    steps = Comparison(
        name="gpu_step_vs_plain",
        what=f"a step of the {_MLP} on the device, 1 worker and 1 server",
        unit="ms",
        ours=[],
        baseline=[],
        baseline_name="plain torch on the device",
    )
    for _ in range(options.repetitions):
        rates = _side("copies", 1, options.quick).rates
        for name, comparison in copies.items():
            comparison.ours.append(rates[name] / 1e9)
            comparison.baseline.append(rates[f"{name} pinned"] / 1e9)
        steps.ours.append(1e3 * _side("mpips", 3, options.quick).step_s)
        steps.baseline.append(1e3 * _side("plain", 1, options.quick).step_s)
    return Findings(comparisons=[*copies.values(), steps])


def _side(kind: str, n: int, quick: bool) -> DeviceMeasured:
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        out = Path(folder) / "measured.json"
        program = [sys.executable, "-m", "mpips.bench.gpu", kind]
        program += ["quick" if quick else "full", str(out)]
        command = [*mpirun_command(n), *program] if n > 1 else program
        run_side_by_side([command], mpi_environment(), _TIMEOUT_S)
        return msgspec.json.decode(out.read_bytes(), type=DeviceMeasured)


def main(kind: str, size: str, out: str) -> None:
    """Measure one side in this process; the first worker writes the result to `out`.

    Args:
        kind: "plain" and "mpips" train a model on the device, "copies" measures bytes to and from it.
        size: "quick" or "full".
        out: Path of the result.
    """
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
