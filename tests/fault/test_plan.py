"""What `mpips plan` counts is what a job over several ranks then does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import launcher
import numpy as np
import pytest

from mpips.config.schema import load_config
from mpips.plan.needs import steps_per_epoch
from mpips.plan.planning import Hardware, Plan, make_plan, read_inputs
from mpips.plan.predict import FIGURES, Costs

PROGRAM = Path(__file__).parent / "programs" / "planned.py"
LEAVING = 2  # records with which a worker takes its leave of a server
COSTS = Costs({name: value for name, (_, _, value) in FIGURES.items()}, tuple(FIGURES), "")


def ran(n: int, *arguments: object) -> dict[str, Any]:
    """Statistics of a job on `n` ranks."""
    argv = [sys.executable, str(PROGRAM), *map(str, arguments)]
    with launcher.launch(n, argv, timeout=90.0) as run:
        assert run.wait() == 0, run.tail()
        found: dict[str, Any] = json.loads(run.stdout().strip().splitlines()[-1])
        return found


def planned(n: int, task: str, data: str, batch: int, servers: int, *width: int) -> Plan:
    overrides: list[tuple[str, Any]] = [
        ("task", task),
        ("data.train", data),
        ("train.batch_size", batch),
        ("cluster.servers", servers),
    ]
    if width:
        overrides.append(("options.hidden", list(width)))
    config = load_config(None, overrides)
    inputs = read_inputs(config, n)
    hardware = Hardware(2, 1 << 40, 1 << 40)
    n_steps = steps_per_epoch(inputs.info.n_samples_total, n - 1 - servers, batch)
    settings: dict[str, Any] = {"program": 0, "rows": {}, "with_range": False}
    return make_plan(config, inputs, n, n, hardware, COSTS, n_steps=n_steps, **settings)


def test_rows_and_records_of_every_server_are_as_planned(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    path = tmp_path / "a.svm"
    rows = [sorted(rng.choice(3000, 12, replace=False) + 1) for _ in range(400)]
    path.write_text(
        "".join(f"{i % 2} {' '.join(f'{k}:1' for k in keys)}\n" for i, keys in enumerate(rows))
    )
    plan = planned(4, "fm", str(path), 50, 2)
    served = ran(4, "fm", path, 50, 2)["servers"]
    assert plan.rehearsal is not None
    assert len(plan.rehearsal.steps) == 8 == plan.steps_per_epoch
    for i, server in enumerate(served):
        for name, table in server["tables"].items():
            assert plan.needs.rows[name].per_server[i] == table["rows"] > 1000
        assert plan.rehearsal.records[i] + LEAVING == server["counters"]["records"]


@pytest.mark.parametrize("width", [pytest.param(128, marks=pytest.mark.long), 3000])
def test_records_of_dense_tables_are_as_planned(width: int) -> None:
    """With 3000 the weights of a layer are 768 KB: such updates go by way of staging memory."""
    plan = planned(6, "mlp", "digits", 32, 2, width)
    served = ran(6, "mlp", "digits", 32, 2, width)["servers"]
    assert plan.rehearsal is not None
    for i, server in enumerate(served):
        assert 3 * (plan.rehearsal.records[i] + LEAVING) == server["counters"]["records"]
