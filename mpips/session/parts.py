"""The parts of a job on one rank: start-up makes them, shutdown releases them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mpips.model.consistency import BSP
from mpips.recovery.replica import Partners
from mpips.server.durability import backup_workers
from mpips.worker.start import JobStart

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips import _native
    from mpips.mpi.array_mail import ArrayMail
    from mpips.mpi.tree import WorkerTree
    from mpips.recovery.mirror import Mirror
    from mpips.recovery.replica_start import Partnership
    from mpips.server.recorded import ServerRecord
    from mpips.session.links import Links
    from mpips.session.own_link import OwnLink
    from mpips.worker.recorded import WorkerRecord


@dataclass(kw_only=True)
class Parts(JobStart):
    """The parts of a job on this rank: what the parts of tables need of it, and what else there is.

    Attributes:
        has_partners: Servers have replicas on other nodes, where there are any.
        links: Window and channels, or the channel between the roles of the only rank.
        cold: Reason why the job does not continue in the previous launch's memory; "" if it does, or if
            there is no such memory.
        staging: This rank's staging memory, where it is a worker without partners.
        partnership: Replicas of servers on other nodes, where memory outlives a launch.
        mirror: Carries records to and from replicas; None where this rank has none.
        control_comm: Communicator of messages to and from the scheduler.
        tree: The worker's gathers and reductions, from its start to its end; None on other ranks.
        mail: The worker's arrays to and from single workers, alike.
        server_comm: Communicator of all servers; on servers.
        server_record: The server's part in a record or in a replay; None without one, and on other ranks.
        worker_record: The same of the worker.
        stops: Clocks of the workers at which a replay writes a checkpoint and ends; see ReplayOrder.
        ends_at: The step at which a replay ends; None: it does not end before the recorded run.
        comms: Communicators to free, in the order in which they were made.
    """

    has_partners: bool
    links: Links | OwnLink
    cold: str = ""
    staging: _native.SharedMemory | None = None
    partnership: Partnership | None = None
    mirror: Mirror | None = None
    control_comm: MPI.Intracomm | None = None
    tree: WorkerTree | None = None
    mail: ArrayMail | None = None
    server_comm: MPI.Intracomm | None = None
    server_record: ServerRecord | None = None
    worker_record: WorkerRecord | None = None
    stops: tuple[int, ...] = ()
    ends_at: int | None = None
    comms: list[MPI.Intracomm] = field(default_factory=list)

    @property
    def skips_clocks(self) -> bool:
        """True if a worker may skip clocks, since there are backup workers."""
        return backup_workers(self.tables) > 0

    def partners(self) -> Partners:
        """Return the servers' partners as a worker needs them."""
        if not self.has_partners or self.partnership is None:
            return Partners()
        ordered = bool(self.groups) or any(isinstance(t.consistency, BSP) for t in self.tables)
        return Partners(self.partnership.of, ordered)
