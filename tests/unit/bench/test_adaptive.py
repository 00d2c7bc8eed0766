"""The suite `adaptive`: what it computes from the times of the models."""

from __future__ import annotations

from mpips.bench import adaptive
from mpips.bench.adaptive import ADAPTIVE, FIXED, JOBS, RATIOS, compared
from mpips.bench.launching import Options
from mpips.bench.rank.adapting import Progress, Site, _pause, model_of, seconds_to
from mpips.model.consistency import SSP


def test_each_ratio_is_that_of_the_worst_workload_to_its_best_fixed_model():
    times = {
        job: {
            name: {model: [10.0 + i, 12.0 + i] for i, model in enumerate((*FIXED, *ADAPTIVE))}
            for name in ("logistic", "network")
        }
        for job in JOBS
    }
    times["stalls"]["network"]["asp"] = [5.0, 5.0]
    times["stalls"]["network"]["switch"] = [6.0, 7.0]
    times["stalls"]["logistic"]["reject_auto"] = []
    times["slow_worker"]["logistic"]["switch"] = [float("inf")] * 2
    found = {c.name: c for c in compared(times).comparisons}
    assert len(found) == len(JOBS) * len(ADAPTIVE)
    stalls = found["stalls_vs_best_switch"]
    # 18 / 10 and 20 / 12 of logistic are more than 6 / 5 and 7 / 5.
    assert stalls.what.endswith("worst workload: logistic")
    assert (stalls.ours, stalls.baseline) == ([18.0, 20.0], [10.0, 12.0])
    assert found["stalls_vs_best_reject_auto"].what.endswith("network")
    assert found["slow_worker_vs_best_switch"].ratio == float("inf")
    even = found["even_vs_bsp_ssp_auto"]
    assert (even.baseline_name, even.baseline) == ("bsp", [10.0, 12.0])


def test_the_time_is_that_of_the_first_loss_at_the_target():
    progress = Progress([1.0, 2.0, 3.0, 4.0], [9.0, 5.0, 6.0, 5.0])
    assert seconds_to(progress, 5.0) == 2.0
    assert seconds_to(progress, 4.9) == float("inf")


def test_only_worker_1_is_late_and_by_as_much_as_the_job_says():
    for job, mean in (("even", 1.0), ("slow_worker", 3.0), ("stalls", 1 + 9 / 120)):
        site = Site(job, 0.01, 240, 240, 1.0)
        assert all(_pause(w, step, site) == 0.01 for w in (0, 2) for step in range(240))
        total = sum(_pause(1, step, site) for step in range(240)) / 240 / 0.01
        assert abs(total - mean) < 1e-9


def test_all_models_can_be_made():
    for name in (*FIXED, *ADAPTIVE):
        model_of(name, 240)
    assert model_of("ssp_4", 240) == SSP(4)


def test_two_nodes_are_skipped():
    found = adaptive.run("adaptive", Options(), nodes=2)
    assert len(found.skipped) == len(RATIOS) * len(ADAPTIVE)
