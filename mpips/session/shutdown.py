"""The end of a job that succeeds: all ranks meet once more, then release the parts that start-up made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpips.mpi.one_rank import OneRank
from mpips.recovery.exchange import remove_exchange
from mpips.server.storage_files import remove_files
from mpips.transport.region import unlink_job
from mpips.worker.start import MadeParts

if TYPE_CHECKING:
    from mpips.mpi.control import Endpoint
    from mpips.scheduler.own_worker import OwnWorker
    from mpips.session.parts import Parts


def meet(parts: Parts, endpoint: Endpoint | OwnWorker, saved: bool) -> None:
    """Wait for all ranks, then release the parts. Collective; blocks.

    After it no rank accesses another rank's memory.

    Persistent memory is removed only if the last checkpoint was `saved`: else the next launch saves it. The
    call does not return if a rank does not arrive; see `Cluster.arrive`.
    """

    # Receive last heartbeats: MPICH does not free a communicator with messages that nobody has received.
    def receive() -> None:
        endpoint.receive()
        if parts.tree is not None:
            parts.tree.poll()
        if parts.mail is not None:
            parts.mail.poll()

    parts.ranks.arrive("leaving", phase="the end", meanwhile=receive)
    receive()
    release(parts, for_good=saved or not parts.warm)


def release(parts: Parts, for_good: bool) -> None:
    """Free window, communicators and memory. Collective: all ranks call it or none."""
    if isinstance(parts.ranks, OneRank):
        parts.links.close()
    else:
        if for_good:
            parts.regions.unlink()
            unlink_job(parts.ranks.token)
            remove_exchange(parts.ranks.token)
            if parts.server is not None:
                parts.server.remove_files()
            remove_files(parts.tables)
        else:
            parts.regions.leave()
        with parts.ranks.watchdog.guard("freeing the MPI window"):
            parts.links.close()
            for comm in parts.comms:
                comm.Free()
    # Dropping the last reference unmaps the memory.
    parts.server = parts.staging = parts.mirror = None
    parts.server_record = parts.worker_record = None
    parts.made = MadeParts()
