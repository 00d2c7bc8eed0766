"""The parts of a job on one rank: start-up makes them, shutdown releases them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mpi4py import MPI

from mpips.model.consistency import BSP
from mpips.recovery.replica import Partners
from mpips.server.durability import backup_workers

if TYPE_CHECKING:
    from mpips import _native
    from mpips.config.options import SessionOptions
    from mpips.model.grouping import Groups
    from mpips.model.placement import Placement
    from mpips.model.table import DenseTable, EmbeddingTable, Table
    from mpips.mpi.cluster import Cluster
    from mpips.mpi.tree import WorkerTree
    from mpips.recovery.memory import At
    from mpips.recovery.mirror import Mirror
    from mpips.recovery.node_tables import NodeTables
    from mpips.recovery.replica_start import Partnership
    from mpips.recovery.saving import Saving
    from mpips.rundir.directory import Supervised
    from mpips.server.server import Server
    from mpips.session.links import Links
    from mpips.transport.region import Regions
    from mpips.worker.group_part import GroupPart
    from mpips.worker.held_rows import HeldRowsPart
    from mpips.worker.local_state import LocalMemory
    from mpips.worker.local_tables import LocalPart
    from mpips.worker.node_pulls import NodePulls
    from mpips.worker.replicated_part import ReplicatedPart
    from mpips.worker.residuals import Residuals


@dataclass
class Parts:
    """The parts of a job on this rank.

    Attributes:
        cluster: All ranks and their roles.
        options: Options of the session.
        tables: All tables of the job.
        run: The supervised run of which this launch is an attempt, or None.
        warm: The servers' memory outlives this launch; only in a supervised run.
        has_partners: Servers have replicas on other nodes, where there are any.
        placement: Shards of each server.
        regions: Shared-memory files of this rank.
        links: Window and channels.
        saving: Folder for checkpoints, and the start of the job.
        cold: Reason why the job does not continue in the previous launch's memory; "" if it does, or if
            there is no such memory.
        at: On a worker, its position at each server, where the job continues in memory; else empty.
        server: This rank's server, or None.
        staging: This rank's staging memory, where it is a worker without partners.
        partnership: Replicas of servers on other nodes, where memory outlives a launch.
        node_tables: The replicated tables in memory that outlives a launch; None where there are none.
        mirror: Carries records to and from replicas; None where this rank has none.
        control_comm: Communicator of messages to and from the scheduler.
        tree_comm: Communicator of messages between workers; None in a job of one worker.
        tree: The worker's gathers and reductions, from its start to its end; None on other ranks.
        replicated: The replicated tables, on workers of a job that has any; else None.
        local: The tables under LocalSGD and DiLoCo, with the inner rules, by their index; those in `tables`
            are what servers have of them (mpips.model.local_sgd).
        local_memory: Persistent memory of the worker for them, taken over from the launch before.
        local_part: The worker's start of these tables; else None.
        groups: Workers of each group whose updates are summed before they are sent.
        subgroups: Workers of each subgroup of a group, whose updates are summed first.
        grouped_tables: Dense tables whose updates groups sum, by index.
        grouped_rows: Embedding tables whose rows groups sum, by index.
        grouped: The group of this rank's worker; None on other ranks, and where it is in none.
        shared_pulls: Values of other nodes' servers that this node's workers pull once; None: there are none.
        held_rows: Memory for rows that look-aheads of this node's workers read for each other; None: none.
        residuals: What this worker's pushes have not sent; None on other ranks, and without such codecs.
        server_comm: Communicator of all servers; on servers.
        comms: Communicators to free, in the order in which they were made.
        notes: Sentences for the user about start-up.
    """

    cluster: Cluster
    options: SessionOptions
    tables: list[Table]
    run: Supervised | None
    warm: bool
    has_partners: bool
    placement: Placement
    regions: Regions
    links: Links
    saving: Saving
    cold: str = ""
    at: list[At] = field(default_factory=list)
    server: Server | None = None
    staging: _native.SharedMemory | None = None
    partnership: Partnership | None = None
    node_tables: NodeTables | None = None
    mirror: Mirror | None = None
    control_comm: MPI.Intracomm | None = None
    tree_comm: MPI.Intracomm | None = None
    tree: WorkerTree | None = None
    replicated: ReplicatedPart | None = None
    local: dict[int, DenseTable] = field(default_factory=dict)
    local_memory: LocalMemory | None = None
    local_part: LocalPart | None = None
    groups: Groups = ()
    subgroups: Groups = ()
    grouped_tables: dict[int, DenseTable] = field(default_factory=dict)
    grouped_rows: dict[int, EmbeddingTable] = field(default_factory=dict)
    grouped: GroupPart | None = None
    shared_pulls: NodePulls | None = None
    held_rows: HeldRowsPart | None = None
    residuals: Residuals | None = None
    server_comm: MPI.Intracomm | None = None
    comms: list[MPI.Intracomm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def generation(self) -> int:
        """Generation number of this launch's records; 0 where no memory outlives a launch."""
        return self.run.generation if self.warm and self.run is not None else 0

    @property
    def skips_clocks(self) -> bool:
        """True if a worker may skip clocks, since there are backup workers."""
        return backup_workers(self.tables) > 0

    @property
    def oversubscribed(self) -> bool:
        """True if there are more ranks than cores on this node."""
        t = self.cluster.topology
        return t.oversubscribed(t.node_of[self.cluster.rank])

    def partners(self) -> Partners:
        """Return the servers' partners as a worker needs them."""
        if not self.has_partners or self.partnership is None:
            return Partners()
        ordered = bool(self.groups) or any(isinstance(t.consistency, BSP) for t in self.tables)
        return Partners(self.partnership.of, ordered)
