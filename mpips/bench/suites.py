"""The suites of `mpips bench` by name, and where those are that only developers of mpips run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from mpips.bench.launching import Options
from mpips.bench.measure import BARS, Bars, Findings

# name -> (module, description). Each module has `run(suite, options, nodes) -> Findings`.
Suites = Mapping[str, tuple[str, str]]
SUITES: Suites = {
    "kernels": ("mpips.bench.kernels", "optimizers and memory in one process"),
    "push": ("mpips.bench.node", "dense pushes of 4 KiB to 64 MiB on a node"),
    "pull": ("mpips.bench.node", "dense pulls of 4 KiB to 64 MiB on a node"),
    "embedding": ("mpips.bench.node", "pushes and pulls of rows on a node"),
    "limits": (
        "mpips.bench.row_limits",
        "embedding tables whose rows come and go: costs, memory, hit rates",
    ),
    "transport": ("mpips.bench.transport", "pushes and pulls between nodes"),
    "checkpoint": (
        "mpips.bench.checkpoint",
        "checkpoints written by two servers, and verified",
    ),
    "insitu": (
        "mpips.bench.insitu",
        "samples of a simulation: pushes, a solver that pushes, many producers and one reader",
    ),
    "recovery": (
        "mpips.bench.recovery",
        "a kill under mpips run: time to the next step; costs of journal, record and replicas",
    ),
    "elastic": (
        "mpips.bench.elastic",
        "pauses when ranks die or mpips scale changes their number; steps while ranks are killed",
    ),
    "adaptive": (
        "mpips.bench.adaptive",
        "time to a loss with uneven workers: consistency that adapts, and all fixed models",
    ),
    "network": (
        "mpips.bench.network",
        "codecs, and steps over links of 10, 1 and 0.1 Gb/s between two nodes",
    ),
    "plan": ("mpips.bench.plan", "seconds per step: prediction of mpips plan and measurement"),
    "torch": (
        "mpips.bench.torch_models",
        "steps of PyTorch models; plain torch and DistributedDataParallel",
    ),
    "stages": (
        "mpips.bench.stages",
        "a PyTorch model divided between four workers: parameters, and steps over links of 1 Gb/s",
    ),
    "gpu": (
        "mpips.bench.gpu",
        "copies and steps with parameters on a CUDA device; plain torch there",
    ),
}
ALL = ("kernels", "push", "pull", "embedding", "limits", "transport", "checkpoint")

# Suites of earlier versions that are in tests/bench of the repository now.
MOVED = (
    *("train", "data", "logistic", "diloco", "placement", "word2vec", "monitor", "scale"),
    "soak",
)


def run_suite(
    name: str, options: Options, nodes: int, suites: Suites = SUITES, bars: Bars = BARS
) -> Findings:
    """Run one suite.

    Args:
        name: A key of `suites`, or "all" (the suites in ALL).
        options: Repetitions and sizes.
        nodes: 1: this machine only; 2: two imitated nodes (network namespaces); 0: the suite decides.
        suites: The suites by name.
        bars: The bars of their ratios.
    """
    found = Findings()
    for suite in ALL if name == "all" else (name,):
        module: Any = importlib.import_module(suites[suite][0])
        found.add(module.run(suite, options, nodes))
    found.judge(bars)
    return found
