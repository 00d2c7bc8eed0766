"""Ranks that work through a long input in rounds, and the first of which gets the results.

A rank that fails in a round stores the error and comes to the next meeting, where all ranks get it. So no
rank waits for one that has left. The work of a round may take any time, within `working`. For a rank that is
stopped or cut off the others wait for a limited time (`mpips.mpi.attendance`); then they end, with its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from mpips import errors
from mpips.errors import MpipsError, StallError
from mpips.mpi import launch

if TYPE_CHECKING:
    from mpi4py import MPI


class Rounds:
    """The ranks of a launch, or this process alone.

    Attributes:
        rank: Rank of this process.
        size: Number of ranks.
        clean: Called before this process ends without the others; must not call MPI.
    """

    def __init__(self, comm: MPI.Intracomm | None, timeout_s: float, what: str) -> None:
        """Take the ranks of a communicator. Not collective.

        Args:
            comm: The communicator; None: this process alone.
            timeout_s: Time limit of a wait for other ranks, seconds.
            what: Names the whole work in errors.
        """
        self._comm = comm
        self._what = what
        self.rank = comm.Get_rank() if comm is not None else 0
        self.size = comm.Get_size() if comm is not None else 1
        self.clean: Callable[[], object] = lambda: None
        self._attendance: Any = None
        if comm is not None:
            from mpips.mpi.attendance import Attendance

            self._attendance = Attendance(
                comm, timeout_s, "rank {}".format, self._give_up, "--timeout"
            )

    def working(self) -> AbstractContextManager[None]:
        """Return a block for work that may take any time; the others wait in `meet`. It must not call MPI."""
        if self._attendance is None:
            return nullcontext()
        block: AbstractContextManager[None] = self._attendance.lengthy(lambda: None)
        return block

    def meet(self, error: Exception | None, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank. Collective, blocking.

        Does not return if a rank does not come in time: this process ends then, with exit code 124.

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
        rows = exchange(self._comm, [mine, value], self._wait)
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
        self._wait(self._comm.Igather(np.array([len(data)], np.int64), counts))
        send_buf = np.frombuffer(data, np.uint8)
        if counts is None:
            self._wait(self._comm.Igatherv(send_buf, None))
            return []
        displs = np.concatenate(([0], np.cumsum(counts)[:-1]))
        recv_buf = np.empty(int(counts.sum()), np.uint8)
        self._wait(self._comm.Igatherv(send_buf, [recv_buf, (counts, displs)]))
        return [recv_buf[d : d + n].tobytes() for d, n in zip(displs, counts, strict=True)]

    def _wait(self, request: MPI.Request) -> None:
        self._attendance.wait(request, "a round", lengthy=True, phase=self._what)

    def _give_up(self, message: str, late: int) -> NoReturn:
        """End this process without the other ranks: with a late rank they cannot agree on an error."""
        self.clean()
        launch.print_error(f"rank {self.rank}: {message}")
        os._exit(StallError.exit_code)


def _error(rank: int, kind: str, text: str) -> MpipsError:
    """Return the error of another rank."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, MpipsError):
        return known(text)
    return MpipsError(f"rank {rank}: {kind}: {text}")
