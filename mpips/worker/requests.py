"""Non-blocking operations: what a push, a pull or a prefetch returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec

from mpips import _native
from mpips.errors import StallError

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


class PushResult(msgspec.Struct, frozen=True):
    """What the servers did with a push.

    Attributes:
        applied: Servers that took it in (under BSP: into the sum of its clock).
        scaled: Of these, with a factor for its staleness.
        compensated: Of these, with delay compensation.
        rejected: Servers that dropped it as too stale.
        late: Servers whose clock had closed without it (backup workers).
        unknown: Servers whose answer was asked for too late: it is kept for the next 4096 records.
        staleness: Greatest staleness that a server measured, in updates of the table.
    """

    applied: int = 0
    scaled: int = 0
    compensated: int = 0
    rejected: int = 0
    late: int = 0
    unknown: int = 0
    staleness: int = 0


_TAKEN = {
    _native.Outcome.APPLIED,
    _native.Outcome.SCALED,
    _native.Outcome.COMPENSATED,
    _native.Outcome.ACCUMULATED,
}


def push_result(outcomes: list[tuple[_native.Outcome, int]]) -> PushResult:
    """Sum up what each server said of its part."""
    kinds = [outcome for outcome, _ in outcomes]
    return PushResult(
        applied=sum(kind in _TAKEN for kind in kinds),
        scaled=kinds.count(_native.Outcome.SCALED),
        compensated=kinds.count(_native.Outcome.COMPENSATED),
        rejected=kinds.count(_native.Outcome.REJECTED),
        late=kinds.count(_native.Outcome.LATE),
        unknown=kinds.count(_native.Outcome.NONE),
        staleness=max((staleness for _, staleness in outcomes), default=0),
    )


class Request(Protocol[Value_co]):
    """An operation under way.

    The arrays given to a push are free again when the call returns (exception: arrays from
    `Worker.allocate`, which the server reads in place, are free after `wait`). Rows of a pull belong to
    the request until `wait` has returned them.
    """

    def test(self) -> bool:
        """True if the operation is complete. Does not block."""

    def wait(self, timeout: float | None = None) -> Value_co:
        """Block until the operation is complete and return its value.

        Args:
            timeout: Seconds, or None for the job's timeout.

        Raises:
            StallError: The time has run out; names who is late. The request stays valid.
        """


class PolledRequest(Generic[Value]):
    """A request that asks again and again whether it is complete; see Request."""

    def __init__(
        self,
        advance: Callable[[float], bool],
        finish: Callable[[], Value],
        late: Callable[[], str],
        timeout_s: float,
        poll: Callable[[], None],
    ) -> None:
        """`advance(max_s)` is True when done; `late()` says for an error what is missing."""
        self._advance = advance
        self._finish = finish
        self._late = late
        self._timeout_s = timeout_s
        self._poll = poll
        self._value: Value | None = None
        self._done = False

    def test(self) -> bool:
        """See Request."""
        if not self._done and self._advance(0.0):
            self._value = self._finish()
            self._done = True
        return self._done

    def wait(self, timeout: float | None = None) -> Value:
        """See Request."""
        if not self.test():
            limit_s = self._timeout_s if timeout is None else timeout
            stalled_after(limit_s, self._advance, self._late, self._poll)
            self._value = self._finish()
            self._done = True
        return self._value  # type: ignore[return-value]


def stalled_after(
    limit_s: float,
    advance: Callable[[float], bool],
    late: Callable[[], str],
    poll: Callable[[], None],
) -> None:
    """Call `advance(max_s)`, which may block so long, until it is True.

    Raises:
        StallError: That took longer than `limit_s` seconds.
    """
    deadline = time.monotonic() + limit_s
    while not advance(min(0.02, limit_s)):
        poll()
        if time.monotonic() >= deadline:
            raise StallError(f"{late()} (waited {limit_s:g} s)")
