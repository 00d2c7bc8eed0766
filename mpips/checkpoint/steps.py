"""Long work in short steps, so that one thread can serve and write.

A `Steps[T]` is a generator that returns T and yields between bounded pieces of work: True after
work, False while it waits for somebody else. Nothing in here blocks: ranks meet in non-blocking
collectives that are tested once per step, and what the kernel or NumPy does in one long call (fsync,
argsort) runs in a thread that makes no MPI call, so MPI's thread level does not matter.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.errors import StallError

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
Steps = Generator[bool, None, T]
Counts = NDArray[np.int64]

_YIELDS = 2000
_HANDOVER_S = 200e-6


def displacements(counts: Counts) -> Counts:
    """Where each part begins if parts of these lengths follow each other."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts[:-1], dtype=np.int64)))


class Peers:
    """The servers that write together: one communicator, or this process alone.

    All methods but the attributes are collective and non-blocking; every rank calls them in the same
    order. The communicator must carry nothing else meanwhile.
    """

    def __init__(self, comm: MPI.Intracomm | None, timeout_s: float, what: str) -> None:
        """`what` names the work in errors."""
        self.comm = comm
        self.rank = comm.Get_rank() if comm is not None else 0
        self.size = comm.Get_size() if comm is not None else 1
        self._timeout_s = timeout_s
        self._what = what

    def wait(self, *requests: Any) -> Steps[None]:
        """Until MPI has finished all requests.

        Raises:
            StallError: Not within the time limit.
        """
        deadline = time.monotonic() + self._timeout_s
        for request in requests:
            while not request.Test():
                if time.monotonic() > deadline:
                    raise StallError(
                        f"{self._what}: server {self.rank} has waited {self._timeout_s:g} s for the "
                        f"other {self.size - 1} servers"
                    )
                yield False

    def exchange(self, value: Any) -> Steps[list[Any]]:
        """Everyone's value (what msgpack holds) by rank."""
        mine = np.frombuffer(msgspec.msgpack.encode(value), np.uint8)
        if self.comm is None or self.size == 1:
            return [msgspec.msgpack.decode(mine.tobytes())]
        counts = np.empty(self.size, np.int64)
        yield from self.wait(self.comm.Iallgather(np.array([mine.size], np.int64), counts))
        everything = np.empty(int(counts.sum()), np.uint8)
        displs = displacements(counts)
        yield from self.wait(self.comm.Iallgatherv(mine, [everything, (counts, displs)]))
        return [
            msgspec.msgpack.decode(everything[d : d + n].tobytes())
            for d, n in zip(displs, counts, strict=True)
        ]

    def total(self, numbers: Counts) -> Steps[Counts]:
        """Element by element the sum over all ranks."""
        if self.comm is None or self.size == 1:
            return numbers
        result = np.empty_like(numbers)
        yield from self.wait(self.comm.Iallreduce(numbers, result))
        return result

    def redistribute(
        self, data: NDArray[Any], send_counts: Counts, recv_counts: Counts
    ) -> Steps[NDArray[Any]]:
        """Send each rank its rows and receive everyone's, in rank order.

        Args:
            data: Contiguous, (n, ...): rows for rank 0, then for rank 1, and so on.
            send_counts: Rows for each rank.
            recv_counts: Rows from each rank.

        Returns:
            (sum of recv_counts, ...), of the same dtype.
        """
        if self.comm is None or self.size == 1:
            return data
        unit = int(np.prod(data.shape[1:], dtype=np.int64))
        result = np.empty((int(recv_counts.sum()), *data.shape[1:]), data.dtype)
        sent, received = send_counts * unit, recv_counts * unit
        yield from self.wait(
            self.comm.Ialltoallv(
                [data, (sent, displacements(sent))],
                [result, (received, displacements(received))],
            )
        )
        return result


class Background(Generic[T]):
    """One call in a thread that touches neither MPI nor anything that the main thread changes."""

    def __init__(self, work: Callable[[], T]) -> None:
        """Start it at once."""
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None
        # A daemon: a process that gives up does not wait for its disk.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        """Whether it has returned or failed. Sleeps for a moment if not.

        Who only looks keeps the thread from its work: it needs the interpreter's lock, and a loop that
        gives it back for a microsecond at a time has taken it again before the thread is awake.
        """
        if self._thread.is_alive():
            self._thread.join(_HANDOVER_S)
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait until it has returned or failed."""
        self._thread.join()

    def result(self) -> T:
        """What it returned; blocks until then. Raises what it raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._result[0]


def in_background(work: Callable[[], T]) -> Steps[T]:
    """The result of a long call; other steps go on meanwhile. Raises what it raises."""
    return (yield from until_done(Background(work)))


def until_done(running: Background[T]) -> Steps[T]:
    """What a call in the background returns. Raises what it raises."""
    while not running.done():
        yield False
    return running.result()


def finish(steps: Steps[T]) -> T:
    """Drive to the end, blocking; while there is only waiting, yields the core, then sleeps."""
    idle = 0
    while True:
        try:
            worked = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        idle = 0 if worked else idle + 1
        # Messages move on only while MPI is entered, so do not sleep at once, and never for long.
        if idle > _YIELDS:
            time.sleep(min((idle - _YIELDS) * 20e-6, 1e-3))
        elif idle:
            os.sched_yield()
