"""The suites of `mpips bench` by name."""

from __future__ import annotations

import importlib
from typing import Any

from mpips.bench.launching import Options
from mpips.bench.measure import Findings

# name -> (module of mpips.bench, what it measures). Each module has `run(options, nodes) -> Findings`.
SUITES: dict[str, tuple[str, str]] = {
    "kernels": ("kernels", "optimizers and the row map in one process"),
    "push": ("dense", "dense pushes of 4 KiB to 64 MiB on a node"),
    "pull": ("dense", "dense pulls of 4 KiB to 64 MiB on a node"),
    "embedding": ("embedding", "rows pushed and pulled on a node"),
    "transport": ("transport", "pushes and pulls between nodes"),
    "train": ("train", "whole training steps; idle and oversubscribed ranks"),
    "checkpoint": ("checkpoint", "checkpoints written by two servers, and read back"),
    "recovery": (
        "recovery",
        "processes killed under mpips run: how soon it is back, and if all counts",
    ),
    "plan": ("plan", "steps as mpips plan predicts them beside steps as they are"),
    "scale": ("scale", "messages, memory and scheduler work from 1 to 32 ranks"),
}
ALL = ("kernels", "push", "pull", "embedding", "transport", "train", "checkpoint")


def run_suite(name: str, options: Options, nodes: int) -> Findings:
    """Run one suite.

    Args:
        name: A key of SUITES, or "all".
        options: Repetitions and sizes.
        nodes: 0 or 1: this machine as it is; 2: network namespaces, for suites between nodes.
    """
    found = Findings()
    for suite in ALL if name == "all" else (name,):
        module: Any = importlib.import_module(f"mpips.bench.{SUITES[suite][0]}")
        found.add(module.run(suite, options, nodes))
    return found
