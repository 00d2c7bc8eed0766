"""The suite `gpu`: copies from and to a CUDA device, and steps of a model there, against plain torch.

With `--check` the suite runs the checks of `gpu_checks` instead, each as a job of its own: on one rank, and
on four ranks with two workers that share a device.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from mpips.bench.gpu_checks import CHECKS
from mpips.bench.gpu_side import DeviceMeasured
from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.bench.torch_models import launch_side
from mpips.errors import CapabilityError
from mpips.mpi.mpirun import mpi_environment, mpirun_command

_TIMEOUT_S = 100.0
_N_RANKS = 4  # scheduler, server, two workers
_MLP = "MLP 784-2048-2048-10, batch 1024, SGD with momentum, BSP"


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
            launch_side([command], mpi_environment(), _TIMEOUT_S)
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
        program = [sys.executable, "-m", "mpips.bench.gpu_side", kind]
        program += ["quick" if quick else "full", str(out)]
        command = [*mpirun_command(n), *program] if n > 1 else program
        launch_side([command], mpi_environment(), _TIMEOUT_S)
        return msgspec.json.decode(out.read_bytes(), type=DeviceMeasured)
