"""Ranks that work through a long input in rounds, and the first of which gets the results.

A rank that fails in a round stores the error and comes to the next meeting, where all ranks get it. So no
rank waits for one that has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpips import errors
from mpips.errors import MpipsError

if TYPE_CHECKING:
    from mpi4py import MPI


class Rounds:
    """The ranks of a launch, or this process alone.

    Attributes:
        rank: Rank of this process.
        size: Number of ranks.
    """

    def __init__(self, comm: MPI.Intracomm | None) -> None:
        """Take the ranks of a communicator; None: this process alone."""
        self._comm = comm
        self.rank = comm.Get_rank() if comm is not None else 0
        self.size = comm.Get_size() if comm is not None else 1

    def meet(self, error: Exception | None, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank. Collective, blocking.

        Args:
            error: An error of this rank; None: none.
            value: A small value that msgpack can encode.

        Raises:
            Exception: The error of this rank.
            MpipsError: The error of the first rank that has one, of its class if that is one of mpips.
        """
        if self._comm is None:
            if error is not None:
                raise error
            return [value]
        from mpips.mpi.exchange import exchange

        mine = None if error is None else [type(error).__name__, str(error)]
        rows = exchange(self._comm, [mine, value])
        if error is not None and all(row[0] is None for row in rows[: self.rank]):
            raise error
        for rank, (found, _) in enumerate(rows):
            if found is not None:
                raise _error(rank, *found)
        return [row[1] for row in rows]

    def collect(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks on rank 0, by rank; [] on others. Collective, blocking.

        Args:
            data: At most 2 GiB over all ranks.
        """
        if self._comm is None:
            return [data]
        counts = np.empty(self.size, np.int64) if self.rank == 0 else None
        self._comm.Gather(np.array([len(data)], np.int64), counts)
        send_buf = np.frombuffer(data, np.uint8)
        if counts is None:
            self._comm.Gatherv(send_buf, None)
            return []
        displs = np.concatenate(([0], np.cumsum(counts)[:-1]))
        recv_buf = np.empty(int(counts.sum()), np.uint8)
        self._comm.Gatherv(send_buf, [recv_buf, (counts, displs)])
        return [recv_buf[d : d + n].tobytes() for d, n in zip(displs, counts, strict=True)]


def _error(rank: int, kind: str, text: str) -> MpipsError:
    """Return the error of another rank."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, MpipsError):
        return known(text)
    return MpipsError(f"rank {rank}: {kind}: {text}")
