"""Requests: the non-blocking operations that a push or a prefetch returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec
import numpy as np

from mpips.errors import StallError
from mpips.process.patience import Patience

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


class PushResult(msgspec.Struct, frozen=True):
    """Outcome of a push, as numbers of servers.

    Attributes:
        applied: Servers that applied it (under BSP: added it to the sum of its clock).
        scaled: Those of `applied` that scaled it by its staleness.
        compensated: Those of `applied` that compensated its delay.
        rejected: Servers that dropped it as too stale.
        late: Servers that had closed its clock without it (backup workers).
        unknown: Servers whose outcome was read too late; a ring stores that of the last 4096 records.
        staleness: Greatest staleness that a server measured, in updates of the table.
    """

    applied: int = 0
    scaled: int = 0
    compensated: int = 0
    rejected: int = 0
    late: int = 0
    unknown: int = 0
    staleness: int = 0


class Request(Protocol[Value_co]):
    """An operation under way.

    The arrays of a push are free again when `push` returns. Arrays from `Worker.allocate` are free after
    `wait`, since servers read them in place. Rows of a pull belong to the request until `wait` has returned
    them.
    """

    def test(self) -> bool:
        """Return True if the operation is complete. Does not block."""

    def wait(self, timeout: float | None = None) -> Value_co:
        """Block until the operation is complete and return its value.

        Args:
            timeout: Seconds; None: the job's timeout.

        Raises:
            StallError: The operation did not complete in time; the message names the late server. The
                request stays valid.
        """


class PolledRequest(Generic[Value]):
    """A request that polls whether it is complete; see Request."""

    def __init__(
        self,
        advance: Callable[[float], bool],
        finish: Callable[[], Value],
        late: Callable[[], str],
        timeout_s: float,
        poll: Callable[[], None],
        waited: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Make a request.

        Args:
            advance: `advance(max_s)` waits for `max_s` seconds at most; True when the operation is complete.
            finish: Returns the value; called once, after `advance` has returned True.
            late: Returns what is missing, for an error.
            timeout_s: Seconds that `wait` waits without a timeout of its own.
            poll: Called between two calls of `advance`.
            waited: Called with the seconds that `wait` has waited.
        """
        self._advance = advance
        self._finish = finish
        self._late = late
        self._timeout_s = timeout_s
        self._poll = poll
        self._waited = waited
        self._value: Value | None = None
        self._done = False

    def __repr__(self) -> str:
        """Return the state as last seen; servers are not asked."""
        if not self._done:
            return "<request: under way, or complete and not looked at>"
        value = self._value
        if not isinstance(value, np.ndarray):
            return f"<request: complete, {value!r}>"
        return f"<request: complete, {value.dtype} of shape {value.shape}>"

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
            began = time.monotonic()
            stalled_after(limit_s, self._advance, self._late, self._poll)
            self._waited(time.monotonic() - began)
            self._value = self._finish()
            self._done = True
        return self._value  # type: ignore[return-value]


def stalled_after(
    limit_s: float,
    advance: Callable[[float], bool],
    late: Callable[[], str],
    poll: Callable[[], None],
) -> None:
    """Call `advance(max_s)`, which may block for `max_s` seconds, and `poll` by turns until it returns True.

    Raises:
        StallError: It was not True within `limit_s` seconds; the message is that of `late()`.
    """
    wait = Patience(limit_s)
    while not advance(min(0.02, limit_s)):
        poll()
        if wait.is_over:
            raise StallError(f"{late()} (waited {limit_s:g} s)")
