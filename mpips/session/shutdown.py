"""The end of a job that succeeds: all ranks meet once more, then give back what start-up has made."""

from __future__ import annotations

from mpips.mpi.control import Endpoint
from mpips.session.parts import Parts
from mpips.transport.region import unlink_job


def meet(parts: Parts, endpoint: Endpoint, saved: bool) -> None:
    """Wait for all ranks, then release the parts. Collective; after it no rank touches another's memory.

    Persistent memory is removed only if the last checkpoint was `saved`: else the next launch saves it. Does
    not return if a rank does not come; see `Cluster.arrive`.
    """
    # A last heartbeat that nobody receives would keep MPICH from freeing the communicator.
    parts.cluster.arrive("leaving", phase="the end", meanwhile=endpoint.receive)
    endpoint.receive()
    release(parts, for_good=saved or not parts.warm)


def release(parts: Parts, for_good: bool) -> None:
    """Give back window, communicators and memory. Collective: every rank calls it or none."""
    if for_good:
        parts.regions.unlink()
        unlink_job(parts.cluster.token)
    else:
        parts.regions.leave()
    with parts.cluster.watchdog.guard("freeing the MPI window"):
        parts.links.close()
        for comm in parts.comms:
            comm.Free()
    # Mapped memory goes with the last reference to it.
    parts.server = parts.staging = parts.mirror = None
