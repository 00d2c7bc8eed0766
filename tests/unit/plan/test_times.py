"""Predicted times: they follow the model of a step, where there is one, and its costs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from planning_rig import BIG, DEFAULTS, job, planned

from mpips.bench.measure import BARS, Comparison, Findings
from mpips.errors import ConfigError
from mpips.model.consistency import ASP
from mpips.model.table import DenseTable
from mpips.plan import planning
from mpips.plan.planning import roles
from mpips.plan.predict import FIGURES, Costs, load_costs, predict, why_no_time
from mpips.plan.rehearsal import Rehearsal
from mpips.plan.report import as_json, as_text
from mpips.plan.stage import Tally


def tally(compute_s: float, servers: list[float], n_bytes: int = 0) -> Tally:
    n = len(servers)
    return Tally(
        {"w": 1},
        {"w": 1},
        [n_bytes] * n,
        [n_bytes] * n,
        servers,
        step_s=compute_s + sum(servers),
    )


def rehearsal(compute_s: float, servers: list[float], n_bytes: int = 0) -> Rehearsal:
    steps = [tally(compute_s, servers, n_bytes) for _ in range(10)]
    return Rehearsal(len(servers), [30] * len(servers), steps, {}, set(), {}, {})


BSP_TABLE = [DenseTable("w", (10,))]


ASP_TABLE = [DenseTable("w", (10,), consistency=ASP())]


def step(found: Rehearsal, n_workers: int, tables: Any = None) -> Any:
    n = 1 + found.n_servers + n_workers
    return predict(found, tables or BSP_TABLE, roles(n, n, found.n_servers), DEFAULTS)


def test_under_bsp_workers_and_servers_follow_each_other() -> None:
    found = step(rehearsal(1.0, [0.1]), 4)
    assert found.worker_s == pytest.approx(1.0)
    assert found.serve_s == pytest.approx(0.4)
    assert found.step_s == pytest.approx(1.4)
    assert found.bottleneck == "computing, on the workers"


def test_under_asp_the_slower_side_decides() -> None:
    assert step(rehearsal(1.0, [0.1]), 4, ASP_TABLE).step_s == pytest.approx(1.1)
    slow = step(rehearsal(1.0, [0.5]), 4, ASP_TABLE)
    assert slow.step_s == pytest.approx(2.0)
    assert slow.bottleneck == "applying updates, on the servers"


def test_a_job_of_one_rank_does_one_after_the_other() -> None:
    found = predict(rehearsal(1.0, [0.5]), ASP_TABLE, roles(1, 1, None), DEFAULTS)
    assert found.step_s == pytest.approx(1.5)
    assert why_no_time(roles(1, 1, None), cores=1) == ""


def test_more_servers_serve_faster() -> None:
    one, two = step(rehearsal(0.1, [0.4]), 4), step(rehearsal(0.1, [0.2, 0.2]), 4)
    assert two.serve_s == pytest.approx(one.serve_s / 2)


def test_calls_of_dense_tables_take_what_the_costs_give() -> None:
    found = rehearsal(1.0, [0.0])
    found.steps[-1].dense += [(True, 10**9), (False, 4 * 10**9)]
    costs = Costs({"push_us": 1e6, "pull_us": 2e6, "push_gb_s": 2.0, "pull_gb_s": 4.0}, (), "")
    a = roles(3, 3, 1)
    assert predict(found, BSP_TABLE, a, costs).worker_s == pytest.approx(1 + 1 + 2 + 0.5 + 1.0)


def test_no_time_is_predicted_where_ranks_share_cores_or_nodes(svm: Path) -> None:
    assert why_no_time(roles(6, 6, 2), cores=5) == ""
    assert why_no_time(roles(6, 6, 2), cores=4) == "5 workers and servers share 4 cores"
    assert "spans 2 nodes" in why_no_time(roles(6, 3, 2), cores=8)
    for n, per_node in ((9, 9), (4, 2)):
        plan = planned(job("logistic", svm), n, per_node, with_range=True)
        text, report = as_text(plan), as_json(plan)
        assert (plan.prediction, plan.cells) == (None, [])
        assert f"no time is predicted: {plan.no_time}" in text
        assert report["no_prediction"] == plan.no_time != ""
        assert not {"prediction", "range"} & report.keys()
        # The measured times are shown in any case.
        assert report["measured"]["compute_s"] > 0
        assert len(report["measured"]["serve_s"]) == len(plan.needs.servers)
        assert "messages to servers" in text


def test_the_range_has_a_core_for_each_worker_and_server(svm: Path) -> None:
    plan = planned(job("logistic", svm), 3, with_range=True)
    sizes = {(cell.servers, cell.workers) for cell in plan.cells}
    assert sizes == {(1, 1), (1, 2), (2, 1), (2, 2)}
    own = next(cell for cell in plan.cells if (cell.servers, cell.workers) == (1, 1))
    assert own.samples_per_s == pytest.approx(plan.samples_per_s)
    assert all(math.isfinite(cell.samples_per_s) for cell in plan.cells)
    wide = planned(job("logistic", svm), 3, hardware=replace(BIG, cores=5), with_range=True)
    assert len(wide.cells) == 6
    assert "-" in as_text(wide).partition("samples/s  ")[2]


def test_slow_outliers_do_not_count() -> None:
    found = rehearsal(1.0, [0.0])
    found.steps[-1].step_s = 1000.0
    assert found.seconds(lambda t: t.compute_s) == pytest.approx(1.0)


def calibration(path: Path, **figures: tuple[float, str]) -> Path:
    rows = {name: {"ours": value, "unit": unit} for name, (value, unit) in figures.items()}
    path.write_text(json.dumps({"format": 1, "figures": rows}))
    return path


def test_costs_come_from_the_calibration_file_and_defaults_are_named(tmp_path: Path) -> None:
    figures = {"pull_4k_vs_two_sided": (7.5, "us"), "pull_64m_vs_memcpy": (3.0, "Mb/s")}
    path = calibration(tmp_path / "c.json", **figures)
    costs = load_costs(path, True)
    assert costs.values["pull_us"] == 7.5
    assert "pull_us" not in costs.defaults
    # A figure in another unit is not used.
    assert "pull_gb_s" in costs.defaults
    assert costs.values["pull_gb_s"] == FIGURES["pull_gb_s"][2]
    assert costs.source == str(path)
    assert load_costs(tmp_path / "no.json", False) == DEFAULTS
    with pytest.raises(ConfigError, match="mpips bench all"):
        load_costs(tmp_path / "no.json", True)
    (tmp_path / "bad.json").write_text("[1]")
    with pytest.raises(ConfigError, match="no calibration file"):
        load_costs(tmp_path / "bad.json", False)


def test_the_figures_are_those_that_bench_writes() -> None:
    """A figure that no suite writes would always be a default."""
    text = "".join(p.read_text() for p in Path(planning.__file__).parents[1].glob("bench/**/*.py"))
    for key, _, _ in FIGURES.values():
        assert f'"{key}"' in text, key


def test_without_steps_no_time_is_predicted(svm: Path) -> None:
    plan = planned(job("logistic", svm), 4, n_steps=0)
    assert (plan.rehearsal, plan.prediction, plan.cells) == (None, None, [])
    assert "no steps were made here" in as_text(plan)
    assert "prediction" not in as_json(plan)


@pytest.mark.parametrize(("ours", "met"), [(1.4, True), (0.7, True), (1.6, False), (0.6, False)])
def test_a_prediction_must_be_near_from_both_sides(ours: float, met: bool) -> None:
    comparison = Comparison(
        name="plan_digits_mlp_3",
        what="",
        unit="us",
        ours=[ours],
        baseline=[1.0],
        baseline_name="the job",
    )
    Findings(comparisons=[comparison]).judge(BARS)
    assert comparison.met is met
