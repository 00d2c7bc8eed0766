"""Long work in short steps, so that one thread of a server can consume records and write a checkpoint.

A `Steps[T]` is a generator that returns a T and yields between bounded pieces of work: True after work, False
while it waits. Nothing here blocks. Ranks meet in non-blocking collectives, which are tested once in a step.
One long call of the kernel or of NumPy (fsync, argsort) runs in another thread. That thread makes no
MPI call, so the thread level of MPI does not matter.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpips.errors import StallError
from mpips.process.patience import Patience

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")
Steps = Generator[bool, None, T]
Counts = NDArray[np.int64]

_YIELDS = 2000  # steps without work in which `finish` yields the core before it sleeps
_HANDOVER_S = 200e-6  # s that `Background.done` leaves the interpreter's lock to the thread
_SETTLE_S = 60.0  # s that abandoned work waits for its call in the background


def displacements(counts: Counts) -> Counts:
    """Return the start of each part if parts of these lengths follow each other; int64, same shape."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts[:-1], dtype=np.int64)))


class Peers:
    """The ranks that work together: those of a communicator, or this process alone.

    All methods are non-blocking, and all except `wait` are collective. Every rank calls them in the same
    order. Nothing else may use the communicator meanwhile.

    Attributes:
        comm: The communicator; None: this process alone.
        rank: Rank of this process.
        size: Number of ranks.
    """

    def __init__(self, comm: MPI.Intracomm | None, timeout_s: float, what: str) -> None:
        """Describe the ranks. Local.

        Args:
            comm: The communicator; None: this process alone.
            timeout_s: Time limit of one wait, seconds.
            what: Names the work in errors.
        """
        self.comm = comm
        self.rank = comm.Get_rank() if comm is not None else 0
        self.size = comm.Get_size() if comm is not None else 1
        self._timeout_s = timeout_s
        self._what = what

    def wait(self, *requests: Any) -> Steps[None]:
        """Wait until MPI has finished all requests. Local.

        Raises:
            StallError: They were not finished within the time limit.
        """
        wait = Patience(self._timeout_s)
        for request in requests:
            while not request.Test():
                if wait.is_over:
                    raise StallError(
                        f"{self._what}: server {self.rank} has waited {self._timeout_s:g} s for the "
                        f"other {self.size - 1} servers; look at those ranks and at the file system, or "
                        "raise cluster.timeout_s"
                    )
                yield False

    def exchange(self, value: Any) -> Steps[list[Any]]:
        """Return the values of all ranks, by rank; msgpack must be able to encode them."""
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
        """Return the sum over all ranks, element by element; int64, same shape."""
        if self.comm is None or self.size == 1:
            return numbers
        result = np.empty_like(numbers)
        yield from self.wait(self.comm.Iallreduce(numbers, result))
        return result

    def redistribute(
        self, data: NDArray[Any], send_counts: Counts, recv_counts: Counts
    ) -> Steps[NDArray[Any]]:
        """Send rows to each rank, and return the rows received from each rank, in the order of ranks.

        Args:
            data: Contiguous, (n, ...): rows for rank 0, then for rank 1, and so on. It must not change until
                the call has returned.
            send_counts: Number of rows for each rank, (size,).
            recv_counts: Number of rows from each rank, (size,).

        Returns:
            (sum of recv_counts, ...), of the same dtype; `data` itself with one rank.
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
    """One call in a thread of its own. It must not use MPI, nor anything that the main thread changes."""

    def __init__(self, work: Callable[[], T]) -> None:
        """Start the call at once."""
        self._work = work
        self._result: list[T] = []
        self._error: BaseException | None = None
        # Make it a daemon, so that a process that exits on an error does not wait for its disk.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as error:
            self._error = error

    def done(self) -> bool:
        """Return True if the call has returned or failed; otherwise sleep for a moment and return False.

        The sleep is necessary. The thread needs the interpreter's lock. A loop that releases the lock for
        only a microsecond at a time takes it again before the thread has woken up, so that the thread makes
        no progress.
        """
        if self._thread.is_alive():
            self._thread.join(_HANDOVER_S)
        return not self._thread.is_alive()

    def join(self, limit_s: float | None = None) -> None:
        """Wait until the call has returned or failed, at most `limit_s`; None: without a limit. Blocking."""
        self._thread.join(limit_s)

    def result(self) -> T:
        """Return the call's result, or raise its exception. Blocks until then."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._result[0]


def in_background(work: Callable[[], T]) -> Steps[T]:
    """Run a long call in a thread, and return its result or raise its exception."""
    return (yield from until_done(Background(work)))


def until_done(running: Background[T]) -> Steps[T]:
    """Wait for a call in the background, and return its result or raise its exception.

    If the wait ends by an exception, the call is over before the caller's clean-up begins, which would
    otherwise miss what the call still makes. Only a collected generator does not wait: the interpreter may be
    at its end, where threads no longer run.
    """
    try:
        while not running.done():
            yield False
    except GeneratorExit:
        raise
    except BaseException:
        running.join(_SETTLE_S)
        raise
    return running.result()


class AbandonedError(BaseException):
    """The exception that ends abandoned steps; no clean-up of the steps takes it for a failure."""


def abandon(steps: Iterator[object] | None) -> None:
    """End steps early: their clean-up runs now, and not when the interpreter collects the generator.

    Blocks until a call in the background has returned, which may take as long as the disk needs.

    Args:
        steps: A generator of any state, or None.
    """
    if not isinstance(steps, Generator):
        return
    try:
        steps.throw(AbandonedError())
    except (AbandonedError, StopIteration):
        return
    steps.close()


def drive(steps: Iterator[object], between: Callable[[], object]) -> None:
    """Run all steps, with `between` after each; an exception of either abandons the steps. Blocking."""
    try:
        for _ in steps:
            between()
    except BaseException:
        abandon(steps)
        raise


def finish(steps: Steps[T]) -> T:
    """Run all steps and return their result. Blocking; while they only wait, yields the core, then sleeps."""
    idle = 0
    try:
        while True:
            try:
                worked = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            idle = 0 if worked else idle + 1
            # Do not sleep at once, and never for long: messages make progress only while this thread is in
            # MPI.
            if idle > _YIELDS:
                time.sleep(min((idle - _YIELDS) * 20e-6, 1e-3))
            elif idle:
                os.sched_yield()
    except BaseException:
        abandon(steps)
        raise
