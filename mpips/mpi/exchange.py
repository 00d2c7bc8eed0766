"""Collective exchange of small values at start-up, encoded with msgpack, never pickled."""

from __future__ import annotations

from collections.abc import Callable
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
