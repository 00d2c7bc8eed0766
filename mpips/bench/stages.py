"""The suite `stages`: a torch model divided between workers: memory, steps between nodes, a wide layer.

stage_memory             parameters of a worker with four stages, beside those of the model
stages_vs_bubble_bound   steps of four stages on four imitated nodes with links of 1 Gb/s, beside the bound
one_stage_cost           a step of a model in one stage, beside that of a plainly prepared one
wide_softmax_step        a step of a softmax over a million classes, divided between two workers, beside that
                         of the whole layer in one process without mpips
wide_softmax_memory      memory that a worker needs for it at most, beside that of this process

The bound is that of a pipeline without messages and servers. Stages with t_s seconds for a micro-batch,
forward and backward, need at least sum(t_s) + (m - 1) max(t_s) seconds for m micro-batches. Where fewer cores
than stages compute, they also need at least m sum(t_s) / cores; the longer time counts. A process without
mpips measures t_s, in turn with the steps. All processes have one thread of torch.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mpips.bench.launching import Options, launch_on_nodes, run_side_by_side
from mpips.bench.measure import Comparison, Findings
from mpips.bench.network import why_no_links
from mpips.errors import CapabilityError
from mpips.mpi.mpirun import mpi_environment, mpirun_command
from mpips.testing.errors import BenchError
from mpips.testing.nodes import Nodes

STAGES = 4
SOFTMAX_WORKERS = 2
RATE = 1e9  # bits per second
BOUND = "stages_vs_bubble_bound"
_TIMEOUT_S, _QUICK_TIMEOUT_S = 300.0, 100.0
_PROGRAM = [sys.executable, "-m", "mpips.bench.rank.staged"]


class StagedSide(msgspec.Struct, frozen=True):
    """The result of one process of a side.

    Attributes:
        seconds: Seconds of a step; 0 of a side that makes none.
        n_bytes: Bytes of the parameters in this process; of a softmax all that it needs at most.
        n_bytes_model: Bytes of those of the whole model.
        micro_batches: Micro-batches of a step.
        times: Seconds of each stage for a micro-batch, forward and backward, where it is measured.
    """

    seconds: float
    n_bytes: int
    n_bytes_model: int
    micro_batches: int = 1
    times: tuple[float, ...] = ()


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure on this machine, and between imitated nodes if it can imitate them.

    Args:
        suite: "stages".
        options: Repetitions and sizes.
        nodes: 1: no nodes; otherwise four imitated ones, if this machine can imitate them.

    Raises:
        BenchError: torch is missing, or a launch failed.
        CapabilityError: `nodes` is 2 and this machine cannot imitate nodes or limit links.
    """
    if importlib.util.find_spec("torch") is None:
        raise BenchError("the suite 'stages' needs PyTorch: install torch beside mpips")
    found = Findings()
    reason = "--nodes 1" if nodes == 1 else why_no_links()
    if nodes == 2 and reason:
        raise CapabilityError(f"--nodes 2: {reason}")
    found.add(_memory(options))
    found.add(_one_stage(options))
    found.add(_wide_softmax(options))
    if reason:
        found.skipped[BOUND] = reason
    else:
        found.add(_between_nodes(options))
    return found


def bubble_bound(times: Sequence[float], n_micro: int, n_cores: int) -> float:
    """Return the least seconds of a step of `n_micro` micro-batches; see the module.

    Args:
        times: Seconds of each stage for a micro-batch, forward and backward.
        n_micro: Number of micro-batches.
        n_cores: Cores on which the stages compute.
    """
    pipeline = sum(times) + (n_micro - 1) * max(times)
    return max(pipeline, n_micro * sum(times) / n_cores)


def _memory(options: Options) -> Findings:
    sides = _on_ranks("staged", STAGES, options)
    comparison = Comparison(
        name="stage_memory",
        what=f"parameters of the largest of {STAGES} stages",
        unit="MiB",
        ours=[max(side.n_bytes for side in sides) / 2**20],
        baseline=[sides[0].n_bytes_model / 2**20],
        baseline_name="the model",
    )
    return Findings(comparisons=[comparison])


def _one_stage(options: Options) -> Findings:
    comparison = Comparison(
        name="one_stage_cost",
        what="a step of the MLP 784-2048-2048-10, batch 128, Adam, in one stage, 1 worker and 1 server",
        unit="ms",
        ours=[],
        baseline=[],
        baseline_name="prepare without stages",
    )
    for _ in range(options.repetitions):
        for kind, values in (("one", comparison.ours), ("plain", comparison.baseline)):
            values.append(1e3 * _on_ranks(kind, 1, options)[0].seconds)
    return Findings(comparisons=[comparison])


def _wide_softmax(options: Options) -> Findings:
    layer = "a softmax over 1,000,000 classes of 64 features, SGD, 64 samples in all"
    baseline = "torch.nn.Linear and cross_entropy in one process"
    step = Comparison(
        name="wide_softmax_step",
        what=f"a step of {layer}, {SOFTMAX_WORKERS} workers and 1 server",
        unit="ms",
        ours=[],
        baseline=[],
        baseline_name=baseline,
    )
    memory = Comparison(
        name="wide_softmax_memory",
        what=f"memory of the larger of {SOFTMAX_WORKERS} workers of {layer}",
        unit="MiB",
        ours=[],
        baseline=[],
        baseline_name=baseline,
    )
    for _ in range(options.repetitions):
        alone = _sides(lambda command, env: _alone(command, env, options), "whole", options)[0]
        sides = _on_ranks("softmax", SOFTMAX_WORKERS, options)
        step.baseline.append(1e3 * alone.seconds)
        step.ours.append(1e3 * max(side.seconds for side in sides))
        memory.baseline.append(alone.n_bytes / 2**20)
        memory.ours.append(max(side.n_bytes for side in sides) / 2**20)
    return Findings(comparisons=[step, memory])


def _between_nodes(options: Options) -> Findings:
    ours, bounds, n_cores = [], [], min(STAGES, len(os.sched_getaffinity(0)))
    for _ in range(options.repetitions):
        alone = _sides(lambda command, env: _alone(command, env, options), "times", options)[0]
        bounds.append(1 / bubble_bound(alone.times, alone.micro_batches, n_cores))
        side = _sides(lambda command, env: _on_nodes(command, env, options), "staged", options)[0]
        ours.append(1 / side.seconds)
    comparison = Comparison(
        name=BOUND,
        what=f"steps of {STAGES} stages of 2 x Linear(512), 1F1B, on {STAGES} nodes with links of 1 Gb/s",
        unit="steps/s",
        ours=ours,
        baseline=bounds,
        baseline_name=f"the bound by the times of the stages on {n_cores} cores",
    )
    return Findings(comparisons=[comparison])


_Launch = Callable[[list[str], dict[str, str]], None]


def _on_ranks(kind: str, n_workers: int, options: Options) -> list[StagedSide]:
    def launch(command: list[str], env: dict[str, str]) -> None:
        run_side_by_side([[*mpirun_command(2 + n_workers), *command]], env, _timeout_s(options))

    return _sides(launch, kind, options)


def _on_nodes(command: list[str], env: dict[str, str], options: Options) -> None:
    """Run a scheduler, a server and a worker on the first node, and a worker on each other one.

    A server on each node would have the tables of its worker's stage. But all nodes share the cores of this
    machine, and each server that remote workers use takes a third of a core to make progress in MPI.
    """
    with Nodes(STAGES) as imitated:
        imitated.limit(RATE)
        ranks = (3, *[1] * (STAGES - 1))
        launch_on_nodes(command, imitated, ranks, env, _timeout_s(options))


def _alone(command: list[str], env: dict[str, str], options: Options) -> None:
    run_side_by_side([command], env, _timeout_s(options))


def _sides(launch: _Launch, kind: str, options: Options) -> list[StagedSide]:
    """Launch one side, and return the results of its workers, by index. Blocks.

    Raises:
        BenchError: It failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        command = [*_PROGRAM, kind, "quick" if options.quick else "full", folder]
        launch(command, {**mpi_environment(), "OMP_NUM_THREADS": "1"})
        paths = sorted(Path(folder).glob("*.json"), key=lambda path: int(path.stem))
        found = [msgspec.json.decode(path.read_bytes(), type=StagedSide) for path in paths]
    if not found:
        raise BenchError(f"the side {kind!r} of the suite 'stages' has left no result")
    return found


def _timeout_s(options: Options) -> float:
    return _QUICK_TIMEOUT_S if options.quick else _TIMEOUT_S
