"""Make the plan of a job: roles, needs, what its steps send, and their time where it can be predicted."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from mpips.checkpoint.structure import load_writer
from mpips.config.options import SessionOptions
from mpips.config.schema import CheckpointConfig, JobConfig
from mpips.errors import ConfigError
from mpips.model.buffers import BufferShares
from mpips.model.placement import Placement
from mpips.model.served import local_tables, served
from mpips.model.table import EmbeddingTable, Table, feedback_tables
from mpips.mpi.one_rank import OneRank
from mpips.mpi.roles import Assignment, alone, assign
from mpips.plan import needs as need
from mpips.plan.checkpoint_size import checkpoint_bytes
from mpips.plan.limits import Growth, Limit, limits
from mpips.plan.placing import assume_placement
from mpips.plan.predict import Costs, Prediction, predict, why_no_time
from mpips.plan.rehearsal import Rehearsal, rehearse
from mpips.plan.rows import expected_rows
from mpips.process.memory import group_limit
from mpips.training.epochs import Inputs
from mpips.training.preflight import preflight
from mpips.training.prepare import prepare
from mpips.worker import parts
from mpips.worker.buffers import JobBuffers
from mpips.worker.groups.memory import planned_groups
from mpips.worker.start import Planned

_RANGE_STEPS = 15  # steps of a rehearsal with another number of servers
_RANGE_S = 1.5  # seconds after which such a rehearsal begins no further step
_MOST_SERVERS = 64  # servers that are rehearsed at most: one process does the work of all of them


class Hardware(msgspec.Struct, frozen=True):
    """One node of the job.

    Attributes:
        cores: CPU cores.
        memory: Bytes of main memory that a job may use.
        shm: Bytes of /dev/shm.
    """

    cores: int
    memory: int
    shm: int


class Cell(msgspec.Struct, frozen=True):
    """The same job with other numbers of servers and workers, and its prediction."""

    servers: int
    workers: int
    prediction: Prediction
    samples_per_s: float


class BufferPart(NamedTuple):
    """One kind of buffers on a node.

    Attributes:
        name: Its name, for people.
        n_bytes: Bytes of shared memory that it takes at most.
        reason: Its purpose, and how many there are.
    """

    name: str
    n_bytes: int
    reason: str


class NodeShares(NamedTuple):
    """The buffers of the node on which they take most.

    Attributes:
        node: Name of the node.
        parts: The kinds of buffers that it has.
        least_mib: The least `cluster.node_buffers_mib` with which the job can start.
    """

    node: str
    parts: tuple[BufferPart, ...]
    least_mib: int

    @property
    def total(self) -> int:
        """Bytes of shared memory that all of them take at most."""
        return sum(part.n_bytes for part in self.parts)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A job, its needs and its prediction.

    Attributes:
        config: Configuration of the job.
        inputs: Its task, tables and data.
        assignment: Roles of its ranks.
        placement: Its tables on the servers.
        shares: Sizes of its buffers.
        buffers: Their bytes on the node on which they take most.
        hardware: Each node.
        needs: Rows, bytes and memory.
        costs: Costs that the prediction uses.
        steps_per_epoch: Steps of each worker.
        rehearsal: Steps made in this process; None without such steps.
        prediction: Time of a step; None without a rehearsal or where no time can be predicted.
        no_time: Why no time is predicted, if there was a rehearsal; else "".
        cells: The prediction for other numbers of servers and workers.
        problems: Reasons why the job cannot run on these nodes; empty if it can.
        limits: Limits of the number of such ranks, the one that is met first at the front.
        assumed: Line on tables with placement = "auto"; "" without any.
    """

    config: JobConfig
    inputs: Inputs
    assignment: Assignment
    placement: Placement
    shares: BufferShares
    buffers: NodeShares
    hardware: Hardware
    needs: need.Needs
    costs: Costs
    steps_per_epoch: int
    rehearsal: Rehearsal | None
    prediction: Prediction | None
    no_time: str
    cells: list[Cell]
    problems: list[str]
    limits: list[Limit]
    assumed: str = ""

    @property
    def samples_per_s(self) -> float:
        """Samples per second of all workers together, as predicted."""
        assert self.prediction is not None
        return self.inputs.info.n_samples_total / self.steps_per_epoch / self.prediction.step_s


def this_machine() -> Hardware:
    """Return the node that this process runs on, with the memory that its control group grants."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        shm = os.statvfs("/dev/shm")
        n_shm = shm.f_frsize * shm.f_blocks
    except OSError:
        n_shm = 0
    return Hardware(os.cpu_count() or 1, min(memory, group_limit() or memory), n_shm)


def read_inputs(config: JobConfig, n_ranks: int) -> Inputs:
    """Check the job for `n_ranks` ranks and read all of its data in this process.

    Batches and tables are those of a job of one worker; see `Inputs.for_workers`.

    Raises:
        MpipsError: `mpips train` would refuse the job, or the job writes checkpoints and h5py is missing.
    """
    if config.checkpoint.folder:
        load_writer()
    # Do not make the folder for checkpoints: the job does when it starts, perhaps on another machine.
    preflight(msgspec.structs.replace(config, checkpoint=CheckpointConfig()), n_ranks)
    return prepare(OneRank(), 1, config)


def program_bytes() -> int:
    """Return the bytes of a process that has read no data: the peak resident size of this one so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def roles(n_ranks: int, per_node: int, servers: int | None) -> Assignment:
    """Return the roles of ranks that fill one node after the other, `per_node` ranks on each.

    Raises:
        ConfigError: The number of servers does not fit the number of ranks.
    """
    if n_ranks == 1:
        return alone("node0")
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
    """Plan a job. Blocks while its task makes steps.

    Args:
        config: Configuration of the job.
        inputs: Its task, tables and data, as `read_inputs` returns them.
        n_ranks: Ranks of the job.
        per_node: Ranks on each node.
        hardware: Each node.
        costs: Costs for the prediction.
        n_steps: Steps that the task makes in this process, at most; 0: none, so nothing is measured.
        program: Bytes that a rank takes before it reads data.
        rows: Rows of embedding tables whose keys the data does not tell, by name.
        with_range: Also predict the job with other numbers of servers and workers.

    Raises:
        ConfigError: `rows` names a table that is not an embedding table; roles or rings do not fit.
    """
    options = config.cluster
    _check_rows(rows, inputs.tables)
    a = roles(n_ranks, per_node, options.servers or None)
    n_servers, n_workers = len(a.servers), len(a.workers)

    # Roles, tables, buffers and placement: what start-up decides.
    def of(n: int) -> tuple[Inputs, str]:
        """Return the inputs of a job of `n` workers with the placement of this one."""
        return assume_placement(config, inputs.for_workers(n), a, hardware.shm, costs)

    own, assumed = of(n_workers)
    tables = served(own.tables)
    groups = planned_groups(own.tables, options, a)
    buffers = JobBuffers(own.tables, tables, options, a, groups, config.redundancy.partner)
    shares = buffers.shares()
    placement = shares.place(tables, n_servers, n_workers, a.near_workers(options.transport))

    # Steps of the task, its needs, and its speed where it can be predicted.
    threads = max(1, hardware.cores // min(per_node, n_ranks))
    rehearsal = None
    if n_steps > 0 and _can_rehearse(own, placement):
        rehearsal = _rehearsed(own, options, shares, a, n_steps, threads)
    found = _needs(config, own, a, placement, shares, rehearsal, rows, program)
    no_time = why_no_time(a, hardware.cores) if rehearsal else ""
    prediction, cells = None, []
    if rehearsal and not no_time:
        prediction = predict(rehearsal, tables, a, costs)
        if with_range:
            cells = _range(
                config,
                own,
                lambda n: of(n)[0],
                a,
                shares,
                hardware.cores,
                costs,
                rehearsal,
                threads,
            )

    # The limits that more ranks would meet.
    assert own.train is not None
    here, journal = min(per_node, n_ranks), config.redundancy.warm
    growth = Growth(tables, options, shares, found, n_ranks, here, own.train.n, journal)
    return Plan(
        config=config,
        inputs=own,
        assignment=a,
        placement=placement,
        shares=shares,
        buffers=_buffers(buffers, shares),
        hardware=hardware,
        needs=found,
        costs=costs,
        steps_per_epoch=need.steps_per_epoch(own.train.n, n_workers, own.batch_size),
        rehearsal=rehearsal,
        prediction=prediction,
        no_time=no_time,
        cells=cells,
        problems=_problems(found, hardware),
        limits=limits(growth, hardware.shm, hardware.memory),
        assumed=assumed,
    )


def _check_rows(rows: Mapping[str, int], tables: Sequence[Table]) -> None:
    """Raise ConfigError if a name of `--rows` is not that of an embedding table."""
    known = [t.name for t in tables if isinstance(t, EmbeddingTable)]
    for name in rows:
        if name not in known:
            raise ConfigError(
                f"--rows {name}: no such embedding table; there are: {', '.join(known) or 'none'}"
            )


def _can_rehearse(inputs: Inputs, placement: Placement) -> bool:
    """Return False for a job that this machine cannot hold, or whose steps are not alike."""
    dense = sum(layout.total_bytes - layout.tables_offset for layout in placement.layouts)
    fits = placement.n_servers <= _MOST_SERVERS and 3 * dense < this_machine().memory
    # Steps between outer steps are not alike.
    return fits and not local_tables(inputs.tables)


def _rehearsed(
    inputs: Inputs,
    options: SessionOptions,
    shares: BufferShares,
    a: Assignment,
    n_steps: int,
    threads: int,
) -> Rehearsal:
    """Make steps of the job in this process. Blocks. Arguments as for `rehearse`."""
    same_node = any(a.node_of[s] == a.node_of[w] for s in a.servers for w in a.workers)
    return rehearse(
        inputs,
        options,
        shares,
        len(a.servers),
        n_steps,
        n_workers=len(a.workers),
        staged=same_node,
        threads=threads,
    )


def _buffers(buffers: JobBuffers, shares: BufferShares) -> NodeShares:
    """Return the buffers of the node on which they take most."""
    node = buffers.fullest(shares)
    parts = tuple(BufferPart(*part) for part in buffers.describe(node, shares))
    return NodeShares(buffers.names[node], parts, buffers.least()[0])


def _needs(
    config: JobConfig,
    inputs: Inputs,
    a: Assignment,
    placement: Placement,
    shares: BufferShares,
    rehearsal: Rehearsal | None,
    given: Mapping[str, int],
    program: int,
) -> need.Needs:
    tables, c = served(inputs.tables), config.checkpoint
    rows = expected_rows(tables, placement, inputs.train, rehearsal, given)
    copies = c.every_steps > 0 or c.every_s > 0 or c.keep_best
    journal = config.redundancy.warm
    servers = need.server_needs(tables, placement, rows, journal, copies)
    # A worker whose share is larger than that reads it in windows.
    most = int(config.data.memory_mib * (1 << 20))
    final = inputs.final_test.data if inputs.final_test is not None else None
    data = sum(
        min(-(-need.data_bytes(part) // len(a.workers)), most)
        for part in (inputs.train, inputs.test, final)
    )
    staging = need.staging_bytes(tables, shares.staging)
    residuals = need.residual_bytes(tables, placement, journal)
    common = need.common_bytes(tables, placement)
    job = Planned(inputs.tables, tables, config.cluster, a, placement, shares, journal)
    plain: dict[str, Any] = msgspec.to_builtins(config)
    return need.Needs(
        rows,
        servers,
        data,
        staging,
        program,
        need.node_needs(
            a,
            servers,
            data,
            staging,
            program,
            config.redundancy.partner,
            common,
            parts.memory(job),
        ),
        checkpoint_bytes(
            tables,
            placement,
            rows,
            len(a.workers),
            plain,
            inputs.info,
            inputs.arrays,
            inputs.train,
        ),
        residuals,
        common,
        4 * len(a.workers) * sum(t.n_elements for t in feedback_tables(inputs.tables).values()),
    )


def _problems(found: need.Needs, hardware: Hardware) -> list[str]:
    """Return a sentence for each node whose memory or /dev/shm is too small."""
    problems = []
    for node in found.nodes:
        if node.shared > hardware.shm:
            problems.append(
                f"{node.name}: /dev/shm needs {node.shared / 2**20:,.0f} MiB and has "
                f"{hardware.shm / 2**20:,.0f}: enlarge it, take more nodes, or set "
                "cluster.node_buffers_mib"
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
    inputs_of: Callable[[int], Inputs],
    a: Assignment,
    shares: BufferShares,
    cores: int,
    costs: Costs,
    own: Rehearsal,
    threads: int,
) -> list[Cell]:
    """Predict the job with other numbers of servers and workers that one node has a core for each of.

    Args:
        config: Configuration of the job.
        inputs: Inputs of the job.
        inputs_of: Returns those of a job with another number of workers, which may have other batches.
        a: Roles of the job.
        shares: Sizes of its buffers.
        cores: Cores of a node.
        costs: Costs for the prediction.
        own: Rehearsal of the job.
        threads: As of `rehearse`.
    """
    cells = []
    assert inputs.train is not None
    measured = {(own.n_servers, inputs.batch_size): own}

    def rehearsed(n_servers: int, of: Inputs) -> Rehearsal:
        """Rehearse once for each number of servers and each batch size: the work depends on both."""
        key = (n_servers, of.batch_size)
        if key not in measured:
            measured[key] = rehearse(
                of, config.cluster, shares, n_servers, _RANGE_STEPS, max_s=_RANGE_S, threads=threads
            )
        return measured[key]

    for n_servers in _around(len(a.servers), 4):
        for n_workers in (n for n in _around(len(a.workers), 8) if n_servers + n <= cores):
            of = inputs if n_workers == len(a.workers) else inputs_of(n_workers)
            # Computing does not depend on the servers.
            compute_s = rehearsed(own.n_servers, of).seconds(lambda tally: tally.compute_s)
            n_ranks = 1 + n_servers + n_workers
            other = roles(n_ranks, n_ranks, n_servers)
            found = predict(rehearsed(n_servers, of), of.tables, other, costs, compute_s)
            n_steps = need.steps_per_epoch(inputs.train.n, n_workers, of.batch_size)
            rate = inputs.train.n / n_steps / found.step_s
            cells.append(Cell(n_servers, n_workers, found, rate))
    return cells


def _around(own: int, least: int) -> Sequence[int]:
    """Return the last six powers of two up to twice `own` (at least up to `least`), and `own` itself."""
    powers = [1 << k for k in range(12) if 1 << k <= max(least, 2 * own)]
    return sorted({own, *powers[-6:]})
