"""A plan has the samples per batch, and so the steps, of a job of as many workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planning_rig import job, planned
from thread_ranks import prepared

from mpips.plan import planning
from mpips.plan.needs import steps_per_epoch
from mpips.plan.rehearsal import Rehearsal, rehearse
from mpips.plan.report import as_json
from mpips.training.epochs import Inputs


def test_a_plan_has_the_batches_that_the_task_chooses_for_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.svm"
    path.write_text("".join(f"{i % 2} {1 + i % 7}:1 {9 + i % 5}:1\n" for i in range(160)))
    made = set()

    def noted(inputs: Inputs, *args: Any, **options: Any) -> Rehearsal:
        made.add((args[2], inputs.batch_size))
        return rehearse(inputs, *args, **options)

    monkeypatch.setattr(planning, "rehearse", noted)
    # 128 samples for one worker, 64 for two, 32 for more.
    config = job("logistic", path, ("train.epochs", 1520), ("options.l1", 3.0))
    plan = planned(config, 4, with_range=True)
    assert (plan.inputs.batch_size, plan.steps_per_epoch) == (64, 2)
    assert plan.inputs.tables == prepared(config, 2)[0].tables
    assert as_json(plan)["steps_per_epoch"] == 2
    steps = {n: steps_per_epoch(160, n, size) for n, size in ((1, 128), (2, 64), (3, 32))}
    for cell in plan.cells:
        rate = 160 / steps[cell.workers] / cell.prediction.step_s
        assert cell.samples_per_s == pytest.approx(rate)
    assert {cell.workers for cell in plan.cells} == {1, 2}
    assert made == {(n_servers, size) for n_servers in (1, 2) for size in (64, 128)}
