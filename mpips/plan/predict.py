"""The time of a step: a model, fed with what the rehearsal measured and with what `mpips bench` did.

A worker computes and talks (`worker`), a server applies the updates of all workers (`serve`), bytes go
between nodes (`network`). Where a node has more busy ranks than cores, they take turns. Under BSP a
step is one after the other: everybody waits for the last worker, then for the servers. Under SSP and
ASP workers and servers work at the same time, so the slower side decides. The largest part is the
bottleneck. What this leaves out: stragglers, evaluation, checkpoints, other jobs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpips.errors import ConfigError
from mpips.model.consistency import BSP
from mpips.model.table import Table
from mpips.mpi.roles import Assignment
from mpips.plan.rehearsal import Rehearsal

# Our name -> (name in the calibration file, its unit, what stands there without one).
FIGURES: dict[str, tuple[str, str, float]] = {
    "push_us": ("push_ack_4k_vs_two_sided", "us", 1.5),
    "pull_us": ("pull_4k_vs_two_sided", "us", 0.5),
    "push_gb_s": ("push_64m_copy_vs_sum", "GB/s", 5.0),
    "pull_gb_s": ("pull_64m_vs_memcpy", "GB/s", 8.0),
    "net_us": ("tcp_latency", "us", 20.0),
    "net_gb_s": ("tcp_bandwidth", "GB/s", 1.0),
    "disk_gib_s": ("write_vs_raw", "GiB/s", 1.0),
    "turn_us": ("turn", "us", 200.0),
}


@dataclass(frozen=True)
class Costs:
    """What things cost here.

    Attributes:
        values: By our name, in the unit of the name.
        defaults: Names of those that were not measured.
        source: The calibration file, or empty text.
    """

    values: dict[str, float]
    defaults: tuple[str, ...]
    source: str

    def s(self, name: str) -> float:
        """Seconds of a cost in microseconds."""
        return self.values[name] * 1e-6

    def bytes_per_s(self, name: str) -> float:
        """Of a cost in GB/s."""
        return self.values[name] * 1e9


def load_costs(path: Path, must_exist: bool) -> Costs:
    """From a calibration file of `mpips bench`, with defaults for what it lacks.

    Raises:
        ConfigError: The file is none, or must be there and is not.
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
        raise ConfigError(f"{path}: is no calibration file: {error}") from None
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


@dataclass(frozen=True)
class Prediction:
    """Seconds of a step, and of its parts.

    Attributes:
        step_s: The whole.
        worker_s: Of a worker alone: computing, and its side of pushes and pulls.
        turns: Busy ranks to a core of the fullest node, by which a worker is slower; 1: none waits.
        serve_s: Of the servers, for all workers.
        network_s: Bytes and round trips between nodes.
        switch_s: Of ranks that wait for a core.
        bottleneck: The largest part, in words.
    """

    step_s: float
    worker_s: float
    turns: float
    serve_s: float
    network_s: float
    switch_s: float
    bottleneck: str


def client_seconds(rehearsal: Rehearsal, costs: Costs) -> float:
    """A worker's side of its pushes and pulls in a step: rows as measured, dense tables by the costs.

    A job's dense tables go a shorter way than those of a rehearsal.
    """
    calls = rehearsal.steps[-1].dense
    dense = sum(
        costs.s("push_us" if push else "pull_us")
        + n_bytes / costs.bytes_per_s("push_gb_s" if push else "pull_gb_s")
        for push, n_bytes in calls
    )
    return dense + rehearsal.seconds(lambda tally: tally.rows_s)


def predict(
    rehearsal: Rehearsal,
    tables: Sequence[Table],
    a: Assignment,
    cores: int,
    costs: Costs,
    compute_s: float | None = None,
) -> Prediction:
    """Of a job with these roles, on nodes of `cores` cores each. Pure arithmetic.

    Args:
        rehearsal: On as many servers.
        tables: Of the job.
        a: Its roles.
        cores: Of each node.
        costs: What things cost.
        compute_s: Of a step, if another rehearsal shall say; it does not depend on the servers.
    """
    n_workers = len(a.workers)
    compute = rehearsal.seconds(lambda t: t.compute_s) if compute_s is None else compute_s
    worker_s = compute + client_seconds(rehearsal, costs)
    one = [rehearsal.seconds(lambda t, i=i: t.server_s[i]) for i in range(len(a.servers))]  # type: ignore[misc]

    # Nodes whose ranks outnumber the cores let them take turns.
    turns, serve_s, crowded = 1.0, 0.0, False
    for node in range(len(a.node_names)):
        busy = [n_workers * one[i] for i, r in enumerate(a.servers) if a.node_of[r] == node]
        workers = sum(a.node_of[r] == node for r in a.workers)
        # Who waits for others yields its core, but takes its turn in asking whether the wait is over.
        turns = max(turns, math.ceil(workers / cores), (workers + len(busy)) / cores)
        serve_s = max(serve_s, max(busy, default=0.0), sum(busy) / cores)
        crowded = crowded or workers + len(busy) > cores
    alone = len(a.node_of) == 1
    network_s = _network(rehearsal, a, costs)
    # In each step all ranks wait for each other once; with too few cores that is many switches.
    switch_s = 0.0 if alone or not crowded else costs.s("turn_us")

    all_workers = turns * worker_s
    if alone or all(isinstance(t.consistency, BSP) for t in tables):
        step_s = all_workers + serve_s + network_s + switch_s
    else:
        step_s = max(all_workers + max(one) + network_s + switch_s, serve_s)
    parts = {
        "computing, on the workers": compute if turns == 1 else 0.0,
        "pushing and pulling, on the workers": worker_s - compute if turns == 1 else 0.0,
        f"cores: {turns:.3g} busy ranks to each": all_workers if turns > 1 else 0.0,
        "applying updates, on the servers": serve_s,
        "the network between nodes": network_s,
        "ranks that wait for a core": switch_s,
    }
    bottleneck = max(parts, key=lambda name: parts[name])
    return Prediction(step_s, worker_s, turns, serve_s, network_s, switch_s, bottleneck)


def _network(rehearsal: Rehearsal, a: Assignment, costs: Costs) -> float:
    """Seconds of a step's bytes through the busiest node's link, and of its round trips."""
    traffic = [0.0] * len(a.node_names)
    remote = False
    for i, server in enumerate(a.servers):
        n_bytes = rehearsal.mean(lambda t, i=i: t.push_bytes[i] + t.pull_bytes[i])  # type: ignore[misc]
        for worker in a.workers:
            here, there = a.node_of[worker], a.node_of[server]
            if here != there:
                remote = True
                traffic[here] += n_bytes
                traffic[there] += n_bytes
    if not remote:
        return 0.0
    pulls = rehearsal.mean(lambda t: sum(t.pulls.values()))
    trips = pulls + 1  # and the answer that a push was applied
    return max(traffic) / costs.bytes_per_s("net_gb_s") + trips * 2 * costs.s("net_us")
