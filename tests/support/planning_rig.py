"""Plans of jobs on made-up nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpips.config.schema import JobConfig, load_config
from mpips.plan.planning import Hardware, Plan, make_plan, read_inputs
from mpips.plan.predict import FIGURES, Costs

DEFAULTS = Costs({name: default for name, (_, _, default) in FIGURES.items()}, tuple(FIGURES), "")
BIG = Hardware(cores=4, memory=1 << 40, shm=1 << 39)


def job(task: str, path: Path | str, *overrides: tuple[str, Any]) -> JobConfig:
    """Configure a task on a file."""
    return load_config(None, [("task", task), ("data.train", str(path)), *overrides])


def planned(config: JobConfig, n: int, per_node: int = 0, **changes: Any) -> Plan:
    """Plan a job of `n` ranks; `changes` go to `make_plan`."""
    settings = {"n_steps": 4, "program": 1 << 20, "rows": {}, "with_range": False} | changes
    hardware = settings.pop("hardware", BIG)
    inputs = read_inputs(config, n)
    return make_plan(config, inputs, n, per_node or n, hardware, DEFAULTS, **settings)
