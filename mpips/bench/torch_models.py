"""The suite `torch`: steps of prepared torch models, against plain torch and DistributedDataParallel.

Each side is a launch of `mpips.bench.torch_side` of its own, and the sides take turns. One torch thread for
each process; torch's optimizers are fused where they can be. Servers share the workers' cores.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Findings
from mpips.mpi.mpirun import mpi_environment, mpirun_command
from mpips.testing.errors import BenchError

MPIPS_KINDS = ("mpips", "step", "stream", "replicated")
_TIMEOUT_S, _QUICK_TIMEOUT_S = 300.0, 100.0


class TorchSide(msgspec.Struct, frozen=True):
    """One way of training a model.

    Attributes:
        kind: "plain", "ddp", or one of MPIPS_KINDS: "mpips", "step" (`step` pushes all gradients), "stream"
            (two layers in memory), "replicated" (workers hold the parameters).
        model: Name of a model of `torch_side`.
        workers: Number of workers. mpips has a scheduler and a server beside them.
    """

    kind: str
    model: str
    workers: int = 1


class TorchRatio(msgspec.Struct, frozen=True):
    """A comparison of two sides: name, description, unit ("ms" or "samples/s"), and text of the baseline."""

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
        program = [sys.executable, "-m", "mpips.bench.torch_side", side.kind, side.model]
        program += ["quick" if quick else "full", str(out)]
        if side.kind in MPIPS_KINDS:
            commands = [[*mpirun_command(2 + side.workers), *program]]
        else:
            commands = [[*program, str(rank), str(side.workers)] for rank in range(side.workers)]
        environment = {**mpi_environment(), "OMP_NUM_THREADS": "1"}
        launch_side(commands, environment, _QUICK_TIMEOUT_S if quick else _TIMEOUT_S)
        return msgspec.json.decode(out.read_bytes(), type=Measured)


def launch_side(commands: list[list[str]], environment: dict[str, str], timeout_s: float) -> None:
    """Run commands side by side until all have ended, or one has failed: the others would wait for it."""
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands]
        processes = []
        for command, output in zip(commands, outputs, strict=True):
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
            )
            stack.callback(_end, process)
            processes.append(process)
        deadline = time.monotonic() + timeout_s
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                break
            if time.monotonic() > deadline:
                raise BenchError(
                    f"a side of the suite took longer than {timeout_s:g} s: {' '.join(commands[0])}"
                )
            time.sleep(0.01)
        for process, output in zip(processes, outputs, strict=True):
            if process.poll():
                output.seek(0)
                text = output.read().decode(errors="replace")
                raise BenchError(f"a side of the suite failed:\n{text[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
