"""The suite `adaptive`: what it computes from the times of the models."""

from __future__ import annotations

from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpips.bench import adaptive
from mpips.bench.adaptive import ADAPTIVE, BARS_OF, FIXED, JOBS, RATIOS, WORKLOADS, compared
from mpips.bench.launching import Options
from mpips.bench.measure import BARS
from mpips.bench.rank.adapting import TimedLosses, UnevenSession, pause, seconds_to
from mpips.bench.rank.adapting_works import Computing, data_file, job_of
from mpips.config.overrides import parse_consistency
from mpips.model.consistency import ASP, BSP, SSP, Reject, Switch


def made_times(own: dict[tuple[str, str, str], list[float]]) -> adaptive.Times:
    """Times of 10 s and 12 s, but for (job, workload, model) in `own`."""
    return {
        job: {
            name: {
                model: own.get((job, name, model), [10.0, 12.0]) for model in (*FIXED, *ADAPTIVE)
            }
            for name in ("logistic", "network")
        }
        for job in JOBS
    }


def test_each_ratio_is_that_of_the_worst_workload_to_its_best_fixed_model():
    times = made_times(
        {
            ("stalls", "network", "asp"): [5.0, 5.0],
            ("stalls", "network", "switch"): [6.0, 7.0],
            ("stalls", "logistic", "switch"): [30.0, 18.0],
            ("stalls", "network", "ssp_auto"): [20.0, 20.0],
            ("even", "logistic", "asp"): [1.0, 1.0],
            ("slow_worker", "logistic", "switch"): [inf, inf],
        }
    )
    found = {c.name: c for c in compared(times).comparisons}
    assert len(found) == len(JOBS) * (1 + len(ADAPTIVE))
    stalls = found["stalls_vs_best_switch"]
    # Ratios of 3 and 1.5 in logistic are more than 6 / 5 and 7 / 5.
    assert stalls.what.endswith("worst workload: logistic")
    assert (stalls.ours, stalls.baseline) == ([30.0, 18.0], [10.0, 12.0])
    assert found["stalls_vs_best_ssp_auto"].what.endswith("network")
    assert found["stalls_vs_best_ssp_auto"].baseline_name == "the best fixed model, asp"
    assert found["slow_worker_vs_best_switch"].ratio == inf
    even = found["even_vs_bsp_ssp_auto"]
    assert (even.baseline_name, even.baseline) == ("bsp", [10.0, 12.0])


def test_the_bars_are_those_of_one_model_for_all_jobs():
    """ssp_auto is the best one with a slow worker alone, reject_auto exceeds the bars least."""
    worse = {
        (job, "logistic", model): [10 * factor, 12 * factor]
        for job, model, factor in (
            ("slow_worker", "reject_auto", 1.04),
            ("even", "reject_auto", 1.01),
            ("stalls", "ssp_auto", 1.3),
            ("even", "backup_auto", 1.03),
            ("stalls", "switch", 1.2),
            ("even", "switch_plateau", 1.2),
            ("slow_worker", "auto", 1.2),
        )
    }
    found = compared(made_times(worse))
    found.judge(BARS)
    ratios = {c.name: c for c in found.comparisons}
    for job, name in RATIOS.items():
        assert ratios[name].what.startswith("best model, reject_auto: ")
        assert ratios[name].bar == ("<=", BARS_OF[job])
        assert ratios[f"{name}_reject_auto"].bar is None
    assert ratios["slow_worker_vs_best"].ratio == pytest.approx(1.04)
    assert len(found.notes) >= len(JOBS) * 2


def test_the_time_is_that_of_the_first_loss_at_the_target():
    progress = TimedLosses([1.0, 2.0, 3.0, 4.0], [9.0, 5.0, 6.0, 5.0])
    assert seconds_to(progress, 5.0) == 2.0
    assert seconds_to(progress, 4.9) == inf


def test_only_worker_1_is_late_and_by_as_much_as_the_job_says():
    """A stall of 5 s in a minute is a twelfth of the time of the other workers."""
    for job, mean in (("even", 1.0), ("slow_worker", 3.0), ("stalls", 1 + 1 / 12)):
        uneven = UnevenSession(job, 0.01, 72)
        assert all(pause(w, step, uneven) == 0.01 for w in (0, 2) for step in range(72))
        total = sum(pause(1, step, uneven) for step in range(72)) / 72 / 0.01
        assert total == pytest.approx(mean)


@pytest.mark.parametrize("model", [*FIXED, *ADAPTIVE])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_all_jobs_of_all_workloads_can_be_made(workload: str, model: str, tmp_path: Path):
    job = job_of(workload, tmp_path, model, 72)
    expected = {
        "bsp": BSP("sum"),
        "backup_1": BSP("sum", 1),
        "asp": ASP(),
        "ssp_auto": SSP("auto"),
        "backup_auto": BSP("sum", "auto"),
        "reject_auto": ASP() if workload == "deepfm" else ASP(Reject("auto")),
        "switch": Switch(BSP("sum"), ASP(), at=4),
        "switch_plateau": Switch(BSP("sum"), ASP(), at="plateau"),
        "auto": Switch(BSP("sum"), ASP(), at="uneven"),
    }
    found = parse_consistency(job.table, BSP())
    assert found == expected.get(model, SSP(int(model[-1]) if model[-1].isdecimal() else 0))
    if workload == "deepfm":
        own = [parse_consistency(options, BSP()) for options in job.tables.values()]
        assert own == [ASP(Reject("auto"))] * (6 if model == "reject_auto" else 0)


def test_data_are_written_once(tmp_path: Path):
    path = data_file("deepfm", tmp_path)
    assert len(path.read_text().splitlines()) == 1501
    path.write_text("here")
    assert data_file("deepfm", tmp_path).read_text() == "here"


def test_two_nodes_are_skipped():
    found = adaptive.run("adaptive", Options(), nodes=2)
    assert set(found.skipped) == set(RATIOS.values())


def test_a_gradient_is_computed_between_the_pulls_and_the_first_push_of_a_step():
    events: list[str] = []

    class Table:
        def pull(self) -> None:
            events.append("pull")

        def push(self, value: int, base: int) -> int:
            events.append("push")
            return value + base

    worker = SimpleNamespace(table=lambda name: Table(), index=3)
    computing = Computing(worker, lambda: events.append("compute"))
    computing.table("a").pull()
    computing.table("b").pull()
    assert computing.table("a").push(1, base=2) == 3
    computing.table("b").push(1, base=2)
    computing.compute()
    assert events == ["pull", "pull", "compute", "push", "push"]
    assert computing.index == 3
    # A step without a push takes its time as well.
    Computing(worker, lambda: events.append("alone")).compute()
    assert events[-1] == "alone"
