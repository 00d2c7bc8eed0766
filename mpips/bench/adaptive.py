"""The suite `adaptive`: models of consistency that adapt, beside all fixed ones in the same run.

Three workers pull, sleep for some milliseconds in place of computing, so that two cores are enough, and
push the real gradient at the values that they have pulled. In the job `slow_worker` one worker needs three
times as long for each step. In `stalls` one worker stops for as long, in proportion, as 5 s a minute. In
`even` all are equally fast. BSP makes a fixed number of steps. Its loss at the end is the target, and the
figure of a model is the time until worker 0 has seen a loss at or below it. A model that has not after 1.5
times the time of BSP gets this time.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Comparison, Findings

JOBS = ("slow_worker", "stalls", "even")
WORKLOADS = ("logistic", "deepfm", "network")
FIXED = ("bsp", "backup_1", "ssp_1", "ssp_2", "ssp_4", "ssp_8", "asp")
QUICK_FIXED = ("bsp", "ssp_2", "asp")  # of --quick
ADAPTIVE = ("ssp_auto", "backup_auto", "reject_auto", "switch", "switch_plateau", "auto")
RATIOS = {"slow_worker": "slow_worker_vs_best", "stalls": "stalls_vs_best", "even": "even_vs_bsp"}
BARS_OF = {"slow_worker": 1.05, "stalls": 1.05, "even": 1.02}
LONGEST = (
    1.5  # times of BSP that a session takes at most: the figure of a model that misses the target
)
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
        why = "the suite runs on this machine: without --nodes"
        found.skipped = dict.fromkeys(RATIOS.values(), why)
        return found
    return on_ranks(PROGRAM, _RANKS, options, _TIMEOUT_S)


def compared(times: Times) -> Findings:
    """Return the ratio of each model that adapts, by job, and those of the best of them, which have the bars.

    The ratio of a model in a job is that of the workload where it is worst. The baseline is BSP in the job
    `even`, else the fixed model with the least median time, by workload. The best model is one for all
    jobs: that whose ratios exceed the bars least.

    Args:
        times: The seconds of all models, with as many repetitions for each.
    """
    worst = {
        (job, model): max(
            (_comparison(job, name, model, found) for name, found in by_workload.items()),
            key=lambda side: side.ratio,
        )
        for job, by_workload in times.items()
        for model in _adaptive(by_workload)
    }
    models = dict.fromkeys(model for _, model in worst)
    best = min(
        models, key=lambda model: max(worst[job, model].ratio / BARS_OF[job] for job in times)
    )
    found = Findings()
    for job in times:
        best_of_all = worst[job, best]
        found.comparisons.append(_named(best_of_all, RATIOS[job], f"best model, {best}: "))
    for (job, model), side in worst.items():
        found.comparisons.append(_named(side, f"{RATIOS[job]}_{model}", ""))
    found.notes = list(_table(times))
    return found


def _adaptive(by_workload: dict[str, dict[str, list[float]]]) -> list[str]:
    first = next(iter(by_workload.values()))
    return [model for model in ADAPTIVE if model in first]


def _comparison(
    job: str, workload: str, model: str, by_model: dict[str, list[float]]
) -> Comparison:
    fixed = [name for name in FIXED if name in by_model]
    best = min(fixed, key=lambda name: median(by_model[name]))
    base = "bsp" if job == "even" else best
    return Comparison(
        name="",
        what=f"time to the loss of BSP, job {job}, {model}, worst workload: {workload}",
        unit="s",
        ours=by_model[model],
        baseline=by_model[base],
        baseline_name=base if job == "even" else f"the best fixed model, {base}",
    )


def _named(side: Comparison, name: str, before: str) -> Comparison:
    return Comparison(
        name=name,
        what=before + side.what,
        unit=side.unit,
        ours=side.ours,
        baseline=side.baseline,
        baseline_name=side.baseline_name,
    )


def _table(times: Times) -> Iterable[str]:
    """Yield a line with the median times of all models for each job and workload."""
    for job, by_workload in times.items():
        for workload, by_model in by_workload.items():
            each = ", ".join(f"{name} {median(found):.3g} s" for name, found in by_model.items())
            yield f"{job}, {workload}: {each}"
