"""`mpips bench plan`: predictions of `mpips plan` held against jobs on this machine.

A prediction and a job take turns. The job's ranks are 1 + 1 + 1 (as many busy ranks as two cores), and
1 + 2 + 3, which must take turns on them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.workloads import planned_jobs
from mpips.bench.report import calibration_path
from mpips.config.schema import JobConfig
from mpips.mpi.launch import n_cores
from mpips.plan.planning import make_plan, program_bytes, read_inputs, this_machine
from mpips.plan.predict import Costs, load_costs

_SERVERS = {3: 1, 6: 2}
_STEPS = 60


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Three jobs on three and on six ranks of this machine.

    Raises:
        BenchError: A launch failed.
    """
    # What waiting for each other costs on crowded cores comes first: the predictions take it.
    found = on_ranks("turn", 2 + 2 * n_cores(), options)
    costs = load_costs(calibration_path(), must_exist=False)
    values = {**costs.values, "turn_us": found.figures[0].median}
    left = tuple(name for name in costs.defaults if name != "turn_us")
    costs = Costs(values, left, costs.source)
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        for n, servers in _SERVERS.items():
            jobs = planned_jobs(Path(folder), servers)
            predicted: dict[str, list[float]] = {name: [] for name in jobs}
            measured: dict[str, list[float]] = {name: [] for name in jobs}
            for _ in range(options.repetitions):
                for name, job in jobs.items():
                    predicted[name].append(_predicted(job.config, n, costs))
                for figure in on_ranks("plan", n, options).figures:
                    measured[figure.name] += figure.values
            for name, job in jobs.items():
                found.comparisons.append(
                    Comparison(
                        name=f"plan_{name}_{n}",
                        what=f"a step of {job.what}, {n} ranks, as predicted",
                        unit="us",
                        ours=[1e6 * s for s in predicted[name]],
                        baseline=[1e6 * s for s in measured[name]],
                        baseline_name="the job",
                    )
                )
    if costs.defaults:
        found.notes.append(f"defaults, not measured: {', '.join(costs.defaults)}")
    return found


def _predicted(config: JobConfig, n_ranks: int, costs: Costs) -> float:
    plan = make_plan(
        config,
        read_inputs(config, n_ranks),
        n_ranks,
        n_ranks,
        this_machine(),
        costs,
        n_steps=_STEPS,
        program=program_bytes(),
        rows={},
        with_range=False,
    )
    assert plan.prediction is not None
    return plan.prediction.step_s
