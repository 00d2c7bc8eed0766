"""A producer in a Python program that is not a rank of the job: the queues of libmpips_client, from Python.

The compiled module contains the functions of mpips.h, so such a program writes the same queues as one in C;
see native/src/queue/sample_queue.hpp. Neither MPI nor a worker is needed here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.errors import (
    ConfigError,
    EndedError,
    ForkError,
    MpipsError,
    QueueReplacedError,
    RegionError,
    StallError,
)
from mpips.insitu.layout import DTYPES, FieldSpec, SampleLayout

_OK, _FULL, _STALLED, _INVALID, _USAGE, _REPLACED, _SYSTEM = range(7)  # codes of mpips.h
_ERRORS: dict[int, type[MpipsError]] = {
    _STALLED: StallError,
    _USAGE: ConfigError,
    _SYSTEM: RegionError,
}


class HasRank(Protocol):
    """A communicator of mpi4py."""

    def Get_rank(self) -> int:
        """Return the rank of this process."""
        ...


class Steering(NamedTuple):
    """Values that the worker publishes for programs.

    Attributes:
        version: A number that grows with each publication.
        values: The values of the dense table, float32, shape (n,), flat. The caller's own.
    """

    version: int
    values: NDArray[np.float32]


def attach(
    name: str | os.PathLike[str] = "",
    number: int = 0,
    *,
    comm: HasRank | None = None,
    timeout_s: float = 600.0,
) -> AttachedProducer:
    """Become a producer of a stream in a program that is not a rank of the job. Needs no MPI.

    A worker of the job on this node must serve the producer by `StreamTable.serve`; it may start later.
    Blocks until it does. Not collective, not with `comm` either: each rank attaches by itself.

    Args:
        name: The name that was given to `serve`; or the directory of a run of `mpips run`, as a path or with
            a '/', whose worker serves without a name; or "" in a program that `mpips run` has started.
        number: Which producer this is. For a program of `mpips run` it counts from the first producer of its
            member.
        comm: Communicator of an MPI program in which each rank is a producer: its rank is added to `number`.
            Only `comm.Get_rank()` is called. None: this process is the only producer of its program.
        timeout_s: Longest wait of this and of all later calls, in seconds, 0 or more.

    Returns:
        The producer. As a context manager it ends the producer at the end of the block; after an exception it
        only detaches, so that the program can be started again and go on.

    Raises:
        ConfigError: An argument is not accepted, or another process is this producer.
        StallError: No worker has served the producer for `timeout_s`.
        RegionError: The system refuses access to the queue.
    """
    if not isinstance(name, str | os.PathLike):
        raise ConfigError(f"attach: name = {name!r}: must be a text or a path")
    is_number = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not is_number or number < 0:
        raise ConfigError(f"attach: number = {number!r}: must be a whole number of at least 0")
    is_time = isinstance(timeout_s, int | float | np.integer | np.floating)
    if not is_time or isinstance(timeout_s, bool) or not timeout_s >= 0:
        raise ConfigError(f"attach: timeout_s = {timeout_s!r}: must be seconds, 0 or more")
    if comm is not None and not hasattr(comm, "Get_rank"):
        raise ConfigError(f"attach: comm = {comm!r}: must be a communicator of mpi4py, or None")
    at = name if isinstance(name, str) else os.path.abspath(os.fsdecode(name))
    rank = 0 if comm is None else comm.Get_rank()
    if int(number) + rank > _MOST_NUMBER:
        raise ConfigError(f"attach: number = {int(number) + rank}: must be at most {_MOST_NUMBER}")
    return AttachedProducer(at, int(number) + rank, float(min(timeout_s, _LONGEST_S)))


_LONGEST_S = 1e12  # in place of longer timeouts, infinity among them
_MOST_NUMBER = (1 << 24) - 1


class AttachedProducer:
    """A producer in a program that is not a rank, from `mpips.attach`. Not thread-safe: raises RuntimeError.

    Exactly once. A pushed sample is in the queue: it survives the end of this program and of all processes
    of the job, but not the loss of the node. After `flush` and `close` servers hold it. A program that starts
    again goes on at `produced`. Only the process that has attached may use the object.

    Attributes:
        name: Name of the queues.
        number: Number of the producer in the stream.
        fields: Shape and type of each array of a sample, as `StreamTable` declares them.
    """

    def __init__(self, at: str, number: int, timeout_s: float) -> None:
        """Attach; see `attach`."""
        if "\0" in at:
            raise ConfigError(f"attach: name = {at!r}: contains a zero byte")
        self._pid = os.getpid()
        self._client = _native.QueueClient(os.fsencode(at), number, timeout_s)
        self.name, self.number = at, number
        self._check(self._client.open())
        self.name, self.number = self._client.name, self._client.number
        self.fields: dict[str, FieldSpec] = {
            field: (tuple(shape), DTYPES[kind - 1]) for field, kind, shape in self._client.fields()
        }
        self._layout = SampleLayout(self.name, self.fields)
        self._n_steer = self._client.n_steer

    @property
    def produced(self) -> int:
        """Number of samples pushed so far, over all launches of job and program; that of the next sample.

        Ranks of an MPI program that was killed may have different ones: they go on together at the least of
        them, and each pushes again only from its own on.
        """
        self._check_use()
        return self._client.produced

    def push(self, sample: Mapping[str, Any]) -> None:
        """Push one sample, and wait while the queue has no room.

        Args:
            sample: For each field an array of its shape, with any strides, of its type or of one that it can
                hold. Free again at return. An array of the field's type is copied once, and so is one of
                float64 for a field of float32.

        Raises:
            TypeError: A field has values that its type cannot hold.
            ValueError: A field is missing, unknown or of another shape, or contains a number beyond its type,
                or NaN or infinity where the stream does not drop such samples. Nothing was pushed.
            StallError: There was no room for the timeout; the message names the worker. Nothing was pushed.
            QueueReplacedError: The job has gone back to fewer samples. Nothing was pushed.
            EndedError: The producer has ended.
            ForkError: This process is a forked child of the one that attached.
        """
        self._push(sample, wait=True)

    def try_push(self, sample: Mapping[str, Any]) -> bool:
        """Push one sample as `push` does if there is room. Does not block.

        Returns:
            False if the queue has no room now: nothing was pushed.
        """
        return self._push(sample, wait=False)

    def _push(self, sample: Mapping[str, Any], wait: bool) -> bool:
        self._check_use()
        arrays = self._layout.checked(sample, keeps_float64=True)
        given = [_with_whole_strides(arrays[name]) for name in self.fields]
        code = self._client.push(given, wait)
        if code == _FULL:
            return False
        self._check(code)
        return True

    def flush(self) -> None:
        """Wait until servers hold all samples that were pushed. They then survive what the job survives.

        Raises:
            StallError: They have not for the timeout; the message names the worker.
            QueueReplacedError: The job has gone back to fewer samples.
            EndedError, ForkError: As for `push`.
        """
        self._check_use()
        self._check(self._client.flush())

    def steer(self) -> Steering | None:
        """Return the newest values that the worker publishes from the table of `serve(..., steer=...)`.

        Does not wait for a new publication. None: nothing was published yet, or the worker publishes nothing.

        Raises:
            StallError: Values were half written for the timeout, since the worker has ended meanwhile.
            QueueReplacedError: The job has gone back to fewer samples.
            EndedError, ForkError: As for `push`.
        """
        self._check_use()
        values = np.zeros(self._n_steer, np.float32)
        code, version = self._client.steer(values)
        self._check(code)
        return Steering(version, values) if version else None

    def close(self) -> None:
        """End the producer: no further samples come. Blocks until servers hold all of them and the end.

        The object cannot be used afterwards, nor after an error. No effect if it was closed or detached.

        Raises:
            StallError: Servers do not hold them after the timeout; the message names the worker. The samples
                and the end are in the queue.
            QueueReplacedError: The job has gone back to fewer samples: attach again, and push the others.
            ForkError: As for `push`.
        """
        self._check_process()
        if self._client.is_open:
            self._check(self._client.close())

    def detach(self) -> None:
        """Give the producer up without ending it: another program may go on. Waits for nothing.

        Without effect if it was closed or detached.
        """
        if os.getpid() == self._pid:
            self._client.detach()

    def __enter__(self) -> AttachedProducer:
        """Return the producer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the producer as `close` does; after an exception detach only."""
        if kind is None:
            self.close()
        else:
            self.detach()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkError(
                f"{self} was used in process {os.getpid()}, a forked child of process {self._pid}, which has "
                "attached it: push in the parent, or attach another producer in the child"
            )

    def _check_use(self) -> None:
        self._check_process()
        if not self._client.is_open:
            raise EndedError(f"{self} was used after close or detach: attach it again")

    def _check(self, code: int) -> None:
        if code != _OK:
            self._fail(code, self._client.message())

    def _fail(self, code: int, text: str) -> NoReturn:
        """Raise the error of a code of mpips.h and its message, without names of functions of C."""
        if code == _REPLACED:
            raise QueueReplacedError(
                f"{self}: the job goes on with fewer samples of it than were pushed here, or as another job: "
                "detach it, attach again, and go on at `produced`"
            )
        text = text.replace("mpips_open: ", "attach: ", 1).removeprefix("mpips_")
        if code == _INVALID:
            raise ValueError(text)
        if code == _USAGE and self._client.is_open and self._client.has_ended:
            raise EndedError(f"{self} has ended, so no sample may follow")
        raise _ERRORS[code](text)

    def __str__(self) -> str:
        """Return its number and the name of the queues."""
        return f"producer {self.number} of {self.name!r}"


def _with_whole_strides(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array, or a copy if its strides are not multiples of the size of a value."""
    if array.flags.c_contiguous or not any(stride % array.itemsize for stride in array.strides):
        return array
    return np.ascontiguousarray(array)
