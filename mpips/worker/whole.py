"""Operations of a worker that no exception may cut off in the middle: Ctrl-C, a stall, a signal's handler.

A program may catch such an exception and go on, as in a notebook. Where the operation has changed nothing
yet, the program may call it again: waits for others and for room come first where that is possible. Behind
that place, a repetition would count twice what a part of the servers has already, and to go on without it
would lose what the others lack. So every later use of the worker is then refused, by the name of the
operation.

An exception that comes when the operation is complete, and before the program has the result, counts as one
within it. One that comes later is in the program itself. (The direct path of a push is one native call: see
mpips.worker.paths.direct.)
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from mpips.errors import LeavingError, MpipsError


class Refusable(Protocol):
    """A worker's connection, every use of which raises behind an operation that was cut off.

    Attributes:
        is_refused: Every use raises.
    """

    is_refused: bool

    def refuse_after(self, what: str) -> None:
        """Let every later use raise MpipsError: the operation `what` was cut off."""


class Whole:
    """One operation, as in `with Whole(connection, "clock()"):`."""

    def __init__(
        self, connection: Refusable, what: str, measure: Callable[[], object] | None = None
    ) -> None:
        """Name the operation.

        Args:
            connection: The worker's connection, which is refused if the block is cut off.
            what: The operation, for the error.
            measure: Returns a value that changes when the block has done something that a repetition would do
                again; None: the block can be repeated nowhere.
        """
        self._connection = connection
        self._what = what
        self._measure = measure
        self._before: object = None

    def __enter__(self) -> None:
        """Measure what is done."""
        self._before = self._measure() if self._measure is not None else None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Refuse the connection if an error has cut the operation off when something was changed."""
        connection = self._connection
        if error is None or not is_cut_off(connection, error):
            return
        if self._measure is None or self._measure() != self._before:
            connection.refuse_after(self._what)


def is_cut_off(connection: Refusable, error: BaseException) -> bool:
    """Return True if an error may have cut an operation off, behind which the worker can still be used."""
    return not isinstance(error, LeavingError) and not connection.is_refused


def cut_off_error(worker: int, what: str) -> MpipsError:
    """Return the error of every use of a worker behind an operation that was cut off.

    Args:
        worker: Its index.
        what: The operation.
    """
    return MpipsError(
        f"an earlier {what} of worker {worker} was interrupted (by a stall or Ctrl-C) when a part of it was "
        "done: to repeat it would count that part twice, so this worker can do nothing more: end the job and "
        "start it again"
    )
