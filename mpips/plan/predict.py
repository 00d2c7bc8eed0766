"""Predict the time of a step from what the rehearsal and `mpips bench` measured on this machine.

A worker computes, pushes and pulls; a server applies the updates of all workers. Under BSP the two follow
each other: every worker waits for the slowest one, then for the servers. Under SSP and ASP they work at the
same time, so the slower side decides. The model has no fitted constant.

A prediction exists only where it was measured to be within a factor of 1.5 (`mpips bench plan`): for a job
on one node that has a core for each worker and server. Ranks that share cores wait for each other, and ranks
on several nodes wait for the network; neither time follows from what is measured here, so none is predicted.
Not part of the prediction: stragglers, evaluation, checkpoints, other jobs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.table import Table
from mpips.mpi.roles import Assignment
from mpips.plan.rehearsal import Rehearsal

# Name in this module -> (name in the calibration file, unit there, value used without a measurement).
FIGURES: dict[str, tuple[str, str, float]] = {
    "push_us": ("push_ack_4k_vs_two_sided", "us", 1.5),
    "pull_us": ("pull_4k_vs_two_sided", "us", 0.5),
    "push_gb_s": ("push_64m_copy_vs_sum", "GB/s", 5.0),
    "pull_gb_s": ("pull_64m_vs_memcpy", "GB/s", 8.0),
}


class Costs(msgspec.Struct, frozen=True):
    """Costs of a worker's calls of dense tables on this machine.

    Attributes:
        values: Cost by the names of `FIGURES`, in the unit that ends the name.
        defaults: Names of the costs that were not measured.
        source: Path of the calibration file; "" without such a file.
    """

    values: dict[str, float]
    defaults: tuple[str, ...]
    source: str

    def call_s(self, push: bool, n_bytes: int) -> float:
        """Return the seconds of one push (or pull) of `n_bytes` bytes of a dense table."""
        kind = "push" if push else "pull"
        return self.values[f"{kind}_us"] * 1e-6 + n_bytes / (self.values[f"{kind}_gb_s"] * 1e9)


def load_costs(path: Path, must_exist: bool) -> Costs:
    """Read a calibration file of `mpips bench`; use a default for each figure that it lacks.

    Raises:
        ConfigError: The file cannot be parsed, or it does not exist and `must_exist` is True.
    """
    found: dict[str, dict[str, object]] = {}
    source = ""
    try:
        raw = json.loads(path.read_text())
        found, source = dict(raw["figures"]), str(path)
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(
                f"{path}: no such calibration file; mpips bench all writes one"
            ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: is no calibration file: {error}; mpips bench all writes one"
        ) from None
    values, defaults = {}, []
    for name, (key, unit, default) in FIGURES.items():
        figure = found.get(key, {})
        measured = figure.get("ours")
        if isinstance(measured, int | float) and figure.get("unit") == unit and measured > 0:
            values[name] = float(measured)
        else:
            values[name] = default
            defaults.append(name)
    return Costs(values, tuple(defaults), source)


class Prediction(msgspec.Struct, frozen=True):
    """The predicted seconds of a step.

    Attributes:
        step_s: Seconds of the whole step.
        worker_s: Seconds of one worker: computing, and its side of pushes and pulls.
        serve_s: Seconds of the busiest server for the updates of all workers.
        bottleneck: The largest part, in words.
    """

    step_s: float
    worker_s: float
    serve_s: float
    bottleneck: str


def why_no_time(a: Assignment, cores: int) -> str:
    """Return why no time can be predicted for a job with these roles, or "" if one can.

    Args:
        a: Roles of the job's ranks.
        cores: Cores of each node.
    """
    if len(a.node_names) > 1:
        return f"the job spans {len(a.node_names)} nodes; what the network takes is not known"
    busy = len({*a.servers, *a.workers})
    if busy > cores:
        return f"{busy} workers and servers share {cores} core{'s' if cores > 1 else ''}"
    return ""


def client_seconds(rehearsal: Rehearsal, costs: Costs) -> float:
    """Return the seconds of a worker's side of its pushes and pulls in a step.

    Calls of embedding tables take what the rehearsal measured. Calls of dense tables take what `mpips bench`
    measured, because in a job they use a shorter path than in a rehearsal.
    """
    dense = sum(costs.call_s(push, n_bytes) for push, n_bytes in rehearsal.steps[-1].dense)
    return dense + rehearsal.seconds(lambda tally: tally.rows_s)


def server_seconds(rehearsal: Rehearsal) -> list[float]:
    """Return the measured seconds of each server's work in one step of one worker."""
    return [
        rehearsal.seconds(lambda tally, i=i: tally.server_s[i])  # type: ignore[misc]
        for i in range(rehearsal.n_servers)
    ]


def predict(
    rehearsal: Rehearsal,
    tables: Sequence[Table],
    a: Assignment,
    costs: Costs,
    compute_s: float | None = None,
) -> Prediction:
    """Predict the step of a job with these roles on one node with a core for each of them.

    Args:
        rehearsal: Measured on as many servers as the job has.
        tables: Tables of the job.
        a: Roles of the job's ranks, for which `why_no_time` returns "".
        costs: Costs of calls of dense tables.
        compute_s: Seconds of computing in a step; None: those of `rehearsal`. They do not depend on the
            servers.
    """
    compute = rehearsal.seconds(lambda t: t.compute_s) if compute_s is None else compute_s
    worker_s = compute + client_seconds(rehearsal, costs)
    one_worker_s = max(server_seconds(rehearsal))
    serve_s = len(a.workers) * one_worker_s
    alone = len(a.node_of) == 1
    if alone or all(isinstance(t.consistency, BSP) for t in tables):
        step_s = worker_s + serve_s
    else:
        step_s = max(worker_s + one_worker_s, serve_s)
    parts = {
        "computing, on the workers": compute,
        "pushing and pulling, on the workers": worker_s - compute,
        "applying updates, on the servers": serve_s,
    }
    return Prediction(step_s, worker_s, serve_s, max(parts, key=lambda name: parts[name]))
