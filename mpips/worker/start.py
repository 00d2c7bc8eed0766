"""The data of a job from which start-up makes the parts of a worker's tables, and the parts made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from mpips.mpi.one_rank import OneRank

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.config.options import SessionOptions
    from mpips.model.buffers import BufferShares
    from mpips.model.grouping import Groups
    from mpips.model.placement import Placement
    from mpips.model.table import DenseTable, EmbeddingTable, Table
    from mpips.mpi.cluster import Cluster
    from mpips.mpi.one_rank import Ranks
    from mpips.mpi.roles import Assignment
    from mpips.recovery.memory import At
    from mpips.recovery.node_tables import NodeTables
    from mpips.recovery.saving import Saving
    from mpips.rundir.directory import Supervised
    from mpips.server.server import Server
    from mpips.transport.region import Regions
    from mpips.worker.feedback.residuals import Residuals
    from mpips.worker.groups.node_pulls import NodePulls
    from mpips.worker.groups.part import GroupPart
    from mpips.worker.image.memory import WorkerMemory
    from mpips.worker.local.part import LocalPart
    from mpips.worker.node_rows.part import NodeRowsPart
    from mpips.worker.replicated.part import ReplicatedPart


@dataclass
class MadeParts:
    """The parts that start-up has made for this rank's worker. None on other ranks, and where not needed.

    Attributes:
        replicated: The replicated tables.
        local: The start of the tables under LocalSGD and DiLoCo.
        grouped: The group of the worker.
        node_pulls: Values of other nodes' servers that this node's workers pull once.
        node_rows: Memory for rows that this node's workers read for each other.
        residuals: The parts of updates that the worker's pushes have not sent.
    """

    replicated: ReplicatedPart | None = None
    local: LocalPart | None = None
    grouped: GroupPart | None = None
    node_pulls: NodePulls | None = None
    node_rows: NodeRowsPart | None = None
    residuals: Residuals | None = None


@dataclass(kw_only=True)
class JobStart:
    """A job on this rank while it starts, as far as the parts of tables need it.

    Attributes:
        ranks: All ranks and their roles.
        options: Options of the session.
        declared: All tables of the job as the program declares them.
        tables: All tables as servers have them (mpips.model.served).
        run: The supervised run of which this launch is an attempt, or None.
        warm: The servers' memory outlives this launch; only in a supervised run.
        placement: Shards of each server.
        shares: Sizes of the buffers.
        regions: Shared-memory files of this rank.
        saving: Folder for checkpoints, and the start of the job.
        at: On a worker, its position at each server, where the job continues in memory; else empty.
        server: This rank's server, or None.
        tree_comm: Communicator of messages between workers; None in a job of one worker.
        node_tables: The replicated tables in memory that outlives a launch; None: no such tables.
        local: The tables under LocalSGD and DiLoCo, with the inner rules, by their index; those in `tables`
            are what servers have of them (mpips.model.local_sgd).
        worker_memory: On a worker, its own memory, taken over from the launch before (mpips.worker.image).
        groups: Workers of each group whose updates are summed before they are sent.
        subgroups: Workers of each subgroup of a group, whose updates are summed first.
        grouped_tables: Dense tables whose updates groups sum, by index.
        grouped_rows: Embedding tables whose rows groups sum, by index.
        made: The parts made so far for this rank's worker.
        notes: Sentences for the user about start-up.
    """

    ranks: Ranks
    options: SessionOptions
    declared: Sequence[Table]
    tables: list[Table]
    run: Supervised | None
    warm: bool
    placement: Placement
    shares: BufferShares
    regions: Regions
    saving: Saving
    at: list[At] = field(default_factory=list)
    server: Server | None = None
    tree_comm: MPI.Intracomm | None = None
    node_tables: NodeTables | None = None
    local: dict[int, DenseTable] = field(default_factory=dict)
    worker_memory: WorkerMemory | None = None
    groups: Groups = ()
    subgroups: Groups = ()
    grouped_tables: dict[int, DenseTable] = field(default_factory=dict)
    grouped_rows: dict[int, EmbeddingTable] = field(default_factory=dict)
    made: MadeParts = field(default_factory=MadeParts)
    notes: list[str] = field(default_factory=list)

    @property
    def generation(self) -> int:
        """Generation number of this launch's records; 0 where no memory outlives a launch."""
        return self.run.generation if self.warm and self.run is not None else 0

    @property
    def cluster(self) -> Cluster:
        """All ranks, where there are several: steps that need messages."""
        assert not isinstance(self.ranks, OneRank)
        return self.ranks

    @property
    def oversubscribed(self) -> bool:
        """True if no wait may spin: this node has more ranks than cores, or one rank has all roles."""
        if isinstance(self.ranks, OneRank):
            return True
        t = self.ranks.topology
        return t.oversubscribed(t.node_of[self.ranks.rank])


class Planned(msgspec.Struct, frozen=True):
    """A job before it starts, as far as the memory of its parts depends on it.

    Attributes:
        declared: All tables of the job as the program declares them.
        tables: All tables as servers have them.
        options: Options of the session.
        assignment: Roles of the ranks.
        placement: Shards of each server.
        shares: Sizes of the buffers.
        warm: The job can continue in memory after a failure.
    """

    declared: Sequence[Table]
    tables: Sequence[Table]
    options: SessionOptions
    assignment: Assignment
    placement: Placement
    shares: BufferShares
    warm: bool

    @property
    def n_workers(self) -> int:
        """Number of workers."""
        return len(self.assignment.workers)

    def by_node(self, of_worker: NodeBytes) -> list[NodeBytes]:
        """Return the memory of each node, of which each worker takes the same."""
        a = self.assignment
        counts = [sum(a.node_of[rank] == k for rank in a.workers) for k in range(len(a.node_names))]
        return [NodeBytes(n * of_worker.shared, n * of_worker.private) for n in counts]


class NodeBytes(msgspec.Struct, frozen=True):
    """The memory that a part of a job takes on one node, in bytes.

    Attributes:
        shared: In /dev/shm.
        private: Memory of its processes.
        later: In /dev/shm, when it is first used; without it the job runs.
    """

    shared: int = 0
    private: int = 0
    later: int = 0
