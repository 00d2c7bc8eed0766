"""The queues of one member of [producers], as the process sees them that runs the programs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mpips import _native


class QueueState(NamedTuple):
    """The state of a queue.

    Attributes:
        is_served: A worker serves it.
        is_attached: A program has it.
        is_closed: The producer has ended.
        written: Samples that programs have put into it, those of earlier queues included.
        replacements: Queues that were seen before it under the same name.
    """

    is_served: bool
    is_attached: bool
    is_closed: bool
    written: int
    replacements: int


class WatchedQueue(Protocol):
    """The interface of `_native.QueueWatch`."""

    def look(self) -> tuple[bool, bool, bool, int, int] | None: ...  # noqa: D102

    def close_producer(self) -> bool: ...  # noqa: D102


class MemberQueues:
    """The queues of one member.

    A queue whose file was removed is still seen until another one has its name: so the last number of samples
    is known, although a worker removes the queue of a producer that has ended.

    Attributes:
        produced: Samples that were put into each queue up to the last `note`.
    """

    def __init__(
        self,
        name: str,
        numbers: Sequence[int],
        produced: Sequence[int] = (),
        watches: Sequence[WatchedQueue] = (),
    ) -> None:
        """Watch the queues.

        Args:
            name: Name of the queues of the run.
            numbers: Numbers of the producers.
            produced: See `produced`; empty: nothing.
            watches: For tests.
        """
        self._watches = watches or [_native.QueueWatch(name, number) for number in numbers]
        known = len(produced) == len(numbers)
        self.produced = list(produced) if known else [0] * len(numbers)

    def look(self) -> list[QueueState | None]:
        """Return the state of each queue; None: it was never there, or cannot be read."""
        found: list[QueueState | None] = []
        for watch in self._watches:
            state = None
            with contextlib.suppress(OSError, RuntimeError):
                state = watch.look()
            found.append(None if state is None else QueueState(*state))
        return found

    def note(self) -> None:
        """Note how many samples the queues have had. Call it while a program runs, and at its end."""
        for i, state in enumerate(self.look()):
            if state is not None:
                self.produced[i] = state.written

    @property
    def are_served(self) -> bool:
        """True if a worker serves all queues and none has ended, so a program can begin."""
        return all(s is not None and s.is_served and not s.is_closed for s in self.look())

    @property
    def are_closed(self) -> bool:
        """True if all producers have ended."""
        return all(state is not None and state.is_closed for state in self.look())

    @property
    def replacements(self) -> int:
        """Number of queues that other ones have replaced."""
        return sum(state.replacements for state in self.look() if state is not None)

    @property
    def are_behind(self) -> bool:
        """True if the job waits for samples that a program of this member had put into an earlier queue."""
        return any(
            s is not None and s.is_served and not s.is_closed and s.written < produced
            for s, produced in zip(self.look(), self.produced, strict=True)
        )

    def close(self) -> None:
        """End the producers; no program of this member runs. Those that have ended are left alone."""
        for watch, state in zip(self._watches, self.look(), strict=True):
            if state is not None and not state.is_closed and not state.is_attached:
                watch.close_producer()
