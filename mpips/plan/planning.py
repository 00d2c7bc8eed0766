"""A plan: everything about a job that can be known, or modelled, before it starts."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mpips.config.schema import CheckpointConfig, JobConfig
from mpips.errors import ConfigError
from mpips.model.placement import Placement, place
from mpips.model.table import EmbeddingTable
from mpips.mpi.roles import Assignment, assign
from mpips.plan import needs as need
from mpips.plan.predict import Costs, Prediction, predict
from mpips.plan.rehearsal import Rehearsal, rehearse
from mpips.session.driver import OneRank
from mpips.training.epochs import Inputs
from mpips.training.preflight import preflight
from mpips.training.train import prepare

_RANGE_STEPS = 15
_RANGE_S = 1.5  # seconds of rehearsal for one number of servers
_MOST_SERVERS = 64  # that are rehearsed; more would be many processes' work in one


@dataclass(frozen=True)
class Hardware:
    """A node: cores, bytes of memory, bytes of /dev/shm."""

    cores: int
    memory: int
    shm: int


@dataclass(frozen=True)
class Cell:
    """One job of the range: its numbers and what comes out."""

    servers: int
    workers: int
    nodes: int
    prediction: Prediction
    samples_per_s: float


@dataclass(frozen=True)
class Plan:
    """The job, its needs and its prediction; `rehearsal` and `prediction` None without steps.

    Attributes:
        problems: Why it cannot run; empty if it can.
    """

    config: JobConfig
    inputs: Inputs
    assignment: Assignment
    placement: Placement
    hardware: Hardware
    needs: need.Needs
    costs: Costs
    steps_per_epoch: int
    rehearsal: Rehearsal | None
    prediction: Prediction | None
    cells: list[Cell]
    problems: list[str]

    @property
    def samples_per_s(self) -> float:
        """Of all workers together, by the prediction."""
        assert self.prediction is not None
        return self.inputs.info.n_samples_total / self.steps_per_epoch / self.prediction.step_s


def this_machine() -> Hardware:
    """The node that this process runs on."""
    pages = os.sysconf("SC_PAGE_SIZE")
    try:
        shm = os.statvfs("/dev/shm")
        n_shm = shm.f_frsize * shm.f_blocks
    except OSError:
        n_shm = 0
    return Hardware(os.cpu_count() or 1, pages * os.sysconf("SC_PHYS_PAGES"), n_shm)


def read_inputs(config: JobConfig, n_ranks: int) -> Inputs:
    """Check the job for so many ranks and read its data, all of it, as one process would.

    Raises:
        MpipsError: What `mpips train` would refuse.
    """
    # The folder for checkpoints is made when the job starts, and not before.
    preflight(msgspec.structs.replace(config, checkpoint=CheckpointConfig()), n_ranks)
    return prepare(OneRank(), 1, config)


def program_bytes() -> int:
    """What a process takes before it has read anything: the most that this one has taken so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def roles(n_ranks: int, per_node: int, servers: int | None) -> Assignment:
    """Roles of ranks that fill one node after the other, `per_node` on each.

    Raises:
        ConfigError: The number of servers does not fit.
    """
    if n_ranks == 1:
        return Assignment((0,), ("node0",), 0, (0,), (0,))
    node_of = [rank // per_node for rank in range(n_ranks)]
    return assign(node_of, [f"node{k}" for k in range(node_of[-1] + 1)], servers)


def make_plan(
    config: JobConfig,
    inputs: Inputs,
    n_ranks: int,
    per_node: int,
    hardware: Hardware,
    costs: Costs,
    *,
    n_steps: int,
    program: int,
    rows: Mapping[str, int],
    with_range: bool = True,
) -> Plan:
    """Plan a job. Blocks while its task rehearses, if `n_steps` is not 0.

    Raises:
        ConfigError: `rows` names no embedding table; roles or rings do not fit.
    """
    tables, options = inputs.tables, config.cluster
    known = [t.name for t in tables if isinstance(t, EmbeddingTable)]
    for name in rows:
        if name not in known:
            raise ConfigError(f"--rows {name}: embedding tables are {', '.join(known) or 'none'}")
    a = roles(n_ranks, per_node, options.servers or None)
    n_servers, n_workers = len(a.servers), len(a.workers)
    placement = place(
        tables,
        n_servers,
        n_workers,
        options.ring_slots,
        options.slot_kib * 1024,
        a.remote_workers(options.transport),
        0 if config.redundancy.partner else options.remote_staging_mib << 20,
    )
    threads = max(1, hardware.cores // min(per_node, n_ranks))
    dense = sum(layout.total_bytes - layout.tables_offset for layout in placement.layouts)
    # What does not fit into this machine cannot be rehearsed on it.
    possible = n_steps > 0 and n_servers <= _MOST_SERVERS and 3 * dense < this_machine().memory
    same_node = any(a.node_of[s] == a.node_of[w] for s in a.servers for w in a.workers)
    rehearsal = None
    if possible:
        rehearsal = rehearse(
            inputs,
            options,
            n_servers,
            n_steps,
            n_workers=n_workers,
            staged=same_node,
            threads=threads,
        )
    found = _needs(config, inputs, a, placement, rehearsal, rows, program)
    prediction = predict(rehearsal, tables, a, hardware.cores, costs) if rehearsal else None
    cells = []
    if rehearsal and with_range:
        cells = _range(config, inputs, a, per_node, hardware, costs, rehearsal, threads)
    assert inputs.train is not None
    return Plan(
        config,
        inputs,
        a,
        placement,
        hardware,
        found,
        costs,
        need.steps_per_epoch(inputs.train.n, n_workers, inputs.batch_size),
        rehearsal,
        prediction,
        cells,
        _problems(found, hardware),
    )


def _needs(
    config: JobConfig,
    inputs: Inputs,
    a: Assignment,
    placement: Placement,
    rehearsal: Rehearsal | None,
    given: Mapping[str, int],
    program: int,
) -> need.Needs:
    rows = need.expected_rows(inputs.tables, placement, inputs.train, rehearsal, given)
    c = config.checkpoint
    copies = c.every_steps > 0 or c.every_s > 0
    servers = need.server_needs(inputs.tables, placement, rows, config.redundancy.warm, copies)
    total = need.data_bytes(inputs.train) + need.data_bytes(inputs.test)
    data = -(-total // len(a.workers))
    # With partners all updates go through the rings.
    partner = config.redundancy.partner
    staging = 0 if partner else need.staging_bytes(inputs.tables, config.cluster)
    plain: dict[str, Any] = msgspec.to_builtins(config)
    return need.Needs(
        rows,
        servers,
        data,
        staging,
        program,
        need.node_needs(a, servers, data, staging, program, partner),
        need.checkpoint_bytes(inputs.tables, placement, rows, len(a.workers), plain),
    )


def _problems(found: need.Needs, hardware: Hardware) -> list[str]:
    problems = []
    for node in found.nodes:
        if node.shared > hardware.shm:
            problems.append(
                f"{node.name}: /dev/shm needs {node.shared / 2**20:,.0f} MiB and has "
                f"{hardware.shm / 2**20:,.0f}: enlarge it, take more nodes, or lower ring_slots or slot_kib"
            )
        if node.memory > hardware.memory:
            problems.append(
                f"{node.name}: memory needs {node.memory / 2**20:,.0f} MiB and has "
                f"{hardware.memory / 2**20:,.0f}: take more nodes, or fewer ranks on each"
            )
    return problems


def _range(
    config: JobConfig,
    inputs: Inputs,
    a: Assignment,
    per_node: int,
    hardware: Hardware,
    costs: Costs,
    own: Rehearsal,
    threads: int,
) -> list[Cell]:
    """The same job with other numbers of servers and workers, as many ranks on a node."""
    cells = []
    compute_s = own.seconds(lambda tally: tally.compute_s)
    for n_servers in _around(len(a.servers), 4):
        rehearsal = own
        if n_servers != own.n_servers:
            rehearsal = rehearse(
                inputs, config.cluster, n_servers, _RANGE_STEPS, max_s=_RANGE_S, threads=threads
            )
        for n_workers in _around(len(a.workers), 8):
            other = roles(1 + n_servers + n_workers, per_node, n_servers)
            found = predict(rehearsal, inputs.tables, other, hardware.cores, costs, compute_s)
            assert inputs.train is not None
            n_steps = need.steps_per_epoch(inputs.train.n, n_workers, inputs.batch_size)
            rate = inputs.train.n / n_steps / found.step_s
            cells.append(Cell(n_servers, n_workers, len(other.node_names), found, rate))
    return cells


def _around(own: int, least: int) -> Sequence[int]:
    """Powers of two up to twice the own number (or `least`), and the own number."""
    powers = [1 << k for k in range(12) if 1 << k <= max(least, 2 * own)]
    return sorted({own, *powers[-6:]})
