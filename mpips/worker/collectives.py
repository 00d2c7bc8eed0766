"""Gathers, reductions and barriers of one worker, over the tree of `mpips.mpi.tree`.

While the worker waits in one of them, it takes part in checkpoints as in any other wait (`mpips.snapshot`).
A job of one worker sends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mpips.errors import ConfigError, MpipsError, StallError
from mpips.process.patience import Patience

if TYPE_CHECKING:
    from mpips.mpi.mail import Buffer
    from mpips.mpi.tree import Operation, WorkerTree
    from mpips.worker.data_plane import WorkerWaits

AnyArray: TypeAlias = npt.NDArray[Any]
Combine: TypeAlias = Literal["sum", "min", "max"] | Callable[[AnyArray, AnyArray], AnyArray]

_UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_NOTHING = np.zeros(0, np.uint8)
_PAUSE_S = 0.001  # s between two looks for messages in a wait


class Collectives:
    """The collective operations of one worker. Not thread-safe.

    Attributes:
        index: Index of this worker.
        n_workers: Number of workers.
    """

    def __init__(
        self, connection: WorkerWaits, tree: WorkerTree | None, names: Sequence[str]
    ) -> None:
        """Use a tree.

        Args:
            connection: The worker's connection, whose waits and cuts are used.
            tree: Messages to other workers; None: this worker is the only one.
            names: Names of all workers, for errors.
        """
        self.index = connection.index
        self.n_workers = len(names)
        self._connection = connection
        self._tree = tree
        self._names = names
        self._cut_off = ""  # the call that an exception has ended; "": none

    def gather(self, name: str, payload: bytes, everyone: bool) -> list[bytes]:
        """Exchange payloads with all workers; see Worker.gather."""
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise TypeError(
                f"gather {name!r}: the payload must be bytes, not {type(payload).__name__}"
            )
        if self._tree is None:
            return [bytes(payload)]
        call, framed = f"gather {name!r}{_to(everyone)}", frame([bytes(payload)])
        found = self._do(lambda tree: tree.reduce(call, framed, join, everyone), call, everyone)
        return unframe(found) if found is not None else []

    def barrier(self, name: str) -> None:
        """Wait for all workers; see Worker.barrier."""
        if self._tree is not None:
            call = f"barrier {name!r}"
            self._do(lambda tree: tree.reduce(call, _NOTHING, lambda a, b: a, True), call, True)

    def reduce(
        self, name: str, array: npt.ArrayLike, combine: Combine = "sum", everyone: bool = True
    ) -> AnyArray | None:
        """Combine arrays of all workers; see Worker.reduce."""
        own = np.asarray(array)
        if own.dtype.kind not in "biuf" or not (callable(combine) or combine in _UFUNCS):
            raise ConfigError(
                f"reduce {name!r}: array of {own.dtype}, combine = {combine!r}: the array must contain "
                f"numbers, and combine must be one of {', '.join(_UFUNCS)} or a function of two arrays"
            )
        if self._tree is None:
            return own.copy()
        function = combine if callable(combine) else None
        how = f"{own.dtype}" if function else f"{combine}, {own.dtype}, shape {own.shape}"
        call = f"reduce {name!r} ({how}){_to(everyone)}"
        ufunc = _UFUNCS[str(combine)] if function is None else None

        def merge(mine: Buffer, other: Buffer) -> Buffer:
            low, high = unpack_array(mine, own.dtype), unpack_array(other, own.dtype)
            if ufunc is not None:
                ufunc(low, high, out=low)
                return mine
            assert function is not None
            return pack_array(np.asarray(function(low, high), own.dtype))

        packed = pack_array(own)
        found = self._do(lambda tree: tree.reduce(call, packed, merge, everyone), call, everyone)
        if found is None:
            return None
        result = unpack_array(found, own.dtype)
        return result if result.flags.writeable else result.copy()

    def swap(self, name: str, array: AnyArray, partner: int) -> AnyArray:
        """Exchange arrays with a neighbour. Collective over workers; blocks.

        Args:
            name: Name of the exchange, the same on all workers.
            array: Numbers, any shape; the dtype is equal on both workers.
            partner: A worker whose index differs from this worker's in one bit. Its partner is this worker.
                This worker's own index: it exchanges nothing.

        Returns:
            The array of the partner; an empty one, shape (0,), without a partner.

        Raises:
            StallError: The partner did not come within the job's timeout.
        """
        if self._tree is None:
            return np.zeros(0, array.dtype)
        value = pack_array(array) if partner != self.index else _NOTHING
        call = f"exchange {name!r} ({array.dtype})"
        found = self._do(lambda tree: tree.swap(call, value, partner), call, True)
        if found is None or not len(found):
            return np.zeros(0, array.dtype)
        return unpack_array(found, array.dtype)

    def poll(self) -> None:
        """Advance operations that go on while the worker does something else. Cheap; for every wait."""
        if self._tree is not None:
            self._tree.glance()

    def end(self) -> None:
        """Note that the worker's program has ended: it calls no more operations. Returns at once."""
        if self._tree is not None:
            self._tree.end()

    def settle(self) -> None:
        """Wait until nothing is under way. Call it when all workers have called `end`. Blocks.

        Raises:
            StallError: Some message has not arrived within the job's timeout.
        """
        tree = self._tree
        if tree is None:
            return
        wait = Patience(self._connection.timeout_s)
        tree.waits = True
        while not tree.idle:
            tree.poll()
            if wait.is_over:
                raise StallError(self._late("the end of their programs"))
            time.sleep(_PAUSE_S)

    def _do(
        self, begin: Callable[[WorkerTree], Operation], call: str, everyone: bool
    ) -> Buffer | None:
        """Begin an operation and wait for it, see `_wait`; refuse every later one if that is cut off.

        The others may have this worker's value already. If the program called the operation again, or went on
        without it, each later one would meet another one of theirs.
        """
        assert self._tree is not None
        if self._cut_off:
            raise MpipsError(
                f"an earlier {self._cut_off} of worker {self.index} was interrupted (by a stall or Ctrl-C): "
                "other workers may have its value already, so this worker can take part in no gather, "
                "reduction or barrier: end the job and start it again"
            )
        try:
            return self._wait(begin(self._tree), call, everyone)
        except BaseException:
            self._cut_off = call
            raise

    def _wait(self, operation: Operation, call: str, everyone: bool) -> Buffer | None:
        """Return the result, or None at once if this worker receives none."""
        connection, tree = self._connection, self._tree
        assert tree is not None
        if not everyone and self.index:
            return None
        control = connection.control
        control.state, tree.waits = f"waiting in {call}", True

        def arrived() -> bool:
            control.poll()
            tree.poll()
            if operation.done:
                return True
            connection.check_cut_in_gather()
            time.sleep(_PAUSE_S)
            return operation.done

        try:
            connection.wait_until(arrived, lambda: self._late(call))
        finally:
            # A program may catch the error and go on: cuts must not wait for this gather.
            tree.waits = False
            connection.snapshot.end_gather()
        control.state = "computing"
        return operation.result

    def _late(self, call: str) -> str:
        """Return the message that not all workers have come, with the names of those that are late."""
        rows = self._tree.late() if self._tree is not None else []
        names = "; ".join(self._names[w] + (f": {doing}" if doing else "") for w, doing in rows)
        return f"not all workers have come to {call}" + (f"; late: {names}" if names else "")


def _to(everyone: bool) -> str:
    return "" if everyone else " to worker 0"


def frame(payloads: Sequence[bytes]) -> Buffer:
    """Return payloads as one buffer: their number and lengths (int64), then the payloads."""
    lengths = np.array([len(payloads), *(len(p) for p in payloads)], np.int64)
    return np.frombuffer(b"".join([lengths.tobytes(), *payloads]), np.uint8)


def unframe(buffer: Buffer) -> list[bytes]:
    """Return the payloads of a buffer that `frame` or `join` returned."""
    lengths, body = _split(buffer)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    return [body[a:b].tobytes() for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def join(low: Buffer, high: Buffer) -> Buffer:
    """Return the buffer of the payloads of two, those of `low` first."""
    (low_lengths, low_body), (high_lengths, high_body) = _split(low), _split(high)
    n = np.array([len(low_lengths) + len(high_lengths)], np.int64)
    head = np.concatenate([n, low_lengths, high_lengths]).view(np.uint8)
    return np.concatenate([head, low_body, high_body])


def _split(buffer: Buffer) -> tuple[npt.NDArray[np.int64], Buffer]:
    n = int.from_bytes(buffer[:8].tobytes(), "little")
    lengths = np.frombuffer(buffer[8 : 8 * (n + 1)].tobytes(), np.int64)
    return lengths, buffer[8 * (n + 1) :]


def pack_array(array: AnyArray) -> Buffer:
    """Return a copy of an array as bytes: number of dimensions and their lengths (int64), then the values."""
    head = np.array([array.ndim, *array.shape], np.int64).view(np.uint8)
    return np.concatenate([head, np.ascontiguousarray(array).reshape(-1).view(np.uint8)])


def unpack_array(buffer: Buffer, dtype: np.dtype[Any]) -> AnyArray:
    """Return the array of this dtype that `pack_array` packed; it uses the memory of `buffer`."""
    n = int.from_bytes(buffer[:8].tobytes(), "little")
    shape = np.frombuffer(buffer[8 : 8 * (n + 1)].tobytes(), np.int64)
    return buffer[8 * (n + 1) :].view(dtype).reshape(shape.tolist())
