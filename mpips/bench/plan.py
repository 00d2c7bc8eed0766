"""The suite `plan`: compare the step that `mpips plan` predicts with the step of the job on this machine.

Predictions and jobs alternate. The jobs have three ranks (scheduler, one server, one worker): as many busy
ranks as two cores. `mpips plan` predicts no time for more ranks than cores.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from msgspec.structs import replace

from mpips.bench.launching import Options, on_ranks
from mpips.bench.measure import Comparison, Findings
from mpips.bench.rank.plan import planned_jobs
from mpips.bench.report import calibration_path
from mpips.config.schema import JobConfig
from mpips.plan.planning import make_plan, program_bytes, read_inputs, this_machine
from mpips.plan.predict import Costs, load_costs

_RANKS = 3  # scheduler, server, worker
_STEPS = 60  # of the rehearsal


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Predict and run three jobs on three ranks of this machine.

    Raises:
        BenchError: A launch failed.
    """
    found = Findings()
    costs = load_costs(calibration_path(), must_exist=False)
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        jobs = planned_jobs(Path(folder), 1)
        predicted: dict[str, list[float]] = {name: [] for name in jobs}
        measured: dict[str, list[float]] = {name: [] for name in jobs}
        for _ in range(options.repetitions):
            for name, job in jobs.items():
                predicted[name].append(_predicted(job.config, costs))
            for figure in on_ranks("mpips.bench.rank.plan:run", _RANKS, options).figures:
                measured[figure.name] += figure.values
        for name, job in jobs.items():
            found.comparisons.append(
                Comparison(
                    name=f"plan_{name}_{_RANKS}",
                    what=f"a step of {job.what}, {_RANKS} ranks, as predicted",
                    unit="us",
                    ours=[1e6 * s for s in predicted[name]],
                    baseline=[1e6 * s for s in measured[name]],
                    baseline_name="the job",
                )
            )
    if costs.defaults:
        found.notes.append(f"defaults, not measured: {', '.join(costs.defaults)}")
    return found


def _predicted(config: JobConfig, costs: Costs) -> float:
    """Return the predicted seconds of a step of the job."""
    here = this_machine()
    plan = make_plan(
        config,
        read_inputs(config, _RANKS),
        _RANKS,
        _RANKS,
        # Predict for two cores at least, so that the suite also runs on one core, where it means less.
        replace(here, cores=max(here.cores, 2)),
        costs,
        n_steps=_STEPS,
        program=program_bytes(),
        rows={},
        with_range=False,
    )
    assert plan.prediction is not None
    return plan.prediction.step_s
