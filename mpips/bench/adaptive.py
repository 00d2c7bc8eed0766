"""The suite `adaptive`: models of consistency that adapt, beside all fixed ones in the same run.

Three workers sleep for some milliseconds in each step, in place of computing, so that two cores are enough;
then they push a real gradient. In the job `slow_worker` one worker needs three times as long for each step.
In `stalls` one worker stops for as long, in proportion, as 5 s a minute. In `even` all are equally
fast. BSP makes a fixed number of steps. Its loss at the end is the target, and the figure of a model is the
time until worker 0 has seen a loss at or below it.
"""

from __future__ import annotations

from statistics import median

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Comparison, Findings

JOBS = ("slow_worker", "stalls", "even")
WORKLOADS = ("logistic", "rows", "network")
FIXED = ("bsp", "ssp_1", "ssp_2", "ssp_4", "ssp_8", "asp")
ADAPTIVE = ("ssp_auto", "reject_auto", "switch")
RATIOS = {"slow_worker": "slow_worker_vs_best", "stalls": "stalls_vs_best", "even": "even_vs_bsp"}
PROGRAM = "mpips.bench.rank.adapting:run"
_RANKS = 5  # the scheduler, a server, three workers
_TIMEOUT_S = 3600.0

# Seconds by job, workload and model, one for each repetition.
Times = dict[str, dict[str, dict[str, list[float]]]]


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure on this machine.

    Args:
        suite: "adaptive".
        options: Repetitions and sizes.
        nodes: 2 is skipped: the suite has no ranks on other nodes.
    """
    found = Findings()
    if nodes == 2:
        names = (ratio_name(job, model) for job in JOBS for model in ADAPTIVE)
        found.skipped = dict.fromkeys(names, "the suite runs on this machine: without --nodes")
        return found
    return on_ranks(PROGRAM, _RANKS, options, _TIMEOUT_S)


def ratio_name(job: str, model: str) -> str:
    """Return the name of the ratio of a model that adapts in a job."""
    return f"{RATIOS[job]}_{model}"


def compared(times: Times) -> Findings:
    """Return, for each job and model that adapts, the workload with the greatest ratio to its baseline.

    The baseline is BSP for the job `even`, else the fixed model with the least median time, by workload.

    Args:
        times: Seconds until the target, of all models; infinite where a model has not come to it.
    """
    found = Findings()
    for job, by_workload in times.items():
        for model in ADAPTIVE:
            sides = []
            for workload, by_model in by_workload.items():
                if not by_model[model]:
                    continue
                best = min(FIXED, key=lambda name, of=by_model: median(of[name]))  # type: ignore[misc]
                base = "bsp" if job == "even" else best
                sides.append(
                    Comparison(
                        name=ratio_name(job, model),
                        what=f"time to the loss of BSP, job {job}, {model}, worst workload: {workload}",
                        unit="s",
                        ours=by_model[model],
                        baseline=by_model[base],
                        baseline_name=base if job == "even" else f"the best fixed model, {base}",
                    )
                )
            found.comparisons.append(max(sides, key=lambda side: side.ratio))
    return found
