"""Collective exchanges of small values at start-up, encoded with msgpack, never pickled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from mpi4py import MPI


def exchange(
    comm: MPI.Intracomm, value: Any, wait: Callable[[MPI.Request], object] = MPI.Request.Wait
) -> list[Any]:
    """Return the values of all ranks, by rank. Collective over `comm`, blocking; start-up and shutdown only.

    Args:
        comm: Communicator of the ranks that take part.
        value: Anything that msgpack can encode: numbers, text, bytes, lists, dicts, None.
        wait: Waits for a request, for example with a time limit; see `mpips.mpi.attendance`.
    """
    # Exchange the lengths first, then all values in one buffer.
    mine = np.frombuffer(msgspec.msgpack.encode(value), np.uint8)
    counts = np.empty(comm.Get_size(), np.int64)
    wait(comm.Iallgather(np.array([mine.size], np.int64), counts))
    displs = np.concatenate(([0], np.cumsum(counts)[:-1]))
    everything = np.empty(int(counts.sum()), np.uint8)
    wait(comm.Iallgatherv(mine, [everything, counts, displs, MPI.BYTE]))
    parts = [everything[d : d + c].tobytes() for d, c in zip(displs, counts, strict=True)]
    return [msgspec.msgpack.decode(part) for part in parts]


def deliver(
    comm: MPI.Intracomm,
    values: Mapping[int, Any],
    wait: Callable[[MPI.Request], object] = MPI.Request.Wait,
) -> dict[int, Any]:
    """Send a value to each of some ranks; return those that were sent to this rank, by sender.

    Collective over `comm`, blocking; start-up and shutdown only. A rank needs memory for its own values only.

    Args:
        comm: Communicator of the ranks that take part.
        values: Values that `exchange` accepts, by receiver.
        wait: See `exchange`.
    """
    parts = {rank: msgspec.msgpack.encode(value) for rank, value in sorted(values.items())}
    out_counts, counts = np.zeros(comm.Get_size(), np.int64), np.zeros(comm.Get_size(), np.int64)
    for rank, part in parts.items():
        out_counts[rank] = len(part)
    wait(comm.Ialltoall(out_counts, counts))
    sent = np.frombuffer(b"".join(parts.values()), np.uint8)
    received = np.empty(int(counts.sum()), np.uint8)
    out_displs, displs = (np.concatenate(([0], np.cumsum(n)[:-1])) for n in (out_counts, counts))
    wait(
        comm.Ialltoallv(
            [sent, out_counts, out_displs, MPI.BYTE], [received, counts, displs, MPI.BYTE]
        )
    )
    return {
        int(r): msgspec.msgpack.decode(received[displs[r] : displs[r] + counts[r]].tobytes())
        for r in np.flatnonzero(counts)
    }
