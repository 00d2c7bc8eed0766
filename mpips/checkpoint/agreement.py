"""Agreement on failures among servers that write a checkpoint together.

A server that fails stores its failure. It still takes part in all collective steps, without doing any work,
until the next agreement (`Agreement.meet`). There all servers receive the failures of all servers, and raise
the same error. So no server waits in a collective step that another server has left.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from mpips.checkpoint.file_error import FULL
from mpips.checkpoint.steps import Peers, Steps
from mpips.errors import CheckpointError, DiskFullError

T = TypeVar("T")


class Agreement:
    """The failure of this server, if any, and the collective steps that share it.

    Attributes:
        failure: First failure of this server; None: no failure.
    """

    def __init__(self, peers: Peers, sentence: str) -> None:
        """Start without a failure.

        Args:
            peers: All servers that write.
            sentence: Beginning of every error: what was not done.
        """
        self.failure: Exception | None = None
        self._peers = peers
        self._sentence = sentence

    def keep(self, error: Exception) -> None:
        """Store a failure, unless there is an earlier one."""
        self.failure = self.failure or error

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Do local work and return its result; return None if it fails, or if this server failed before."""
        if self.failure is not None:
            return None
        # Store every kind of exception, because the other servers must receive it.
        try:
            return work()
        except Exception as error:
            self.failure = error
            return None

    def meet(self, value: Any = None) -> Steps[list[Any]]:
        """Return the values of all servers if none of them has failed. Collective.

        Args:
            value: This server's value, which msgpack can encode.

        Raises:
            CheckpointError: A server has failed; the text is the same on all servers.
            DiskFullError: A server has failed, and the disk of some server is full.
        """
        failure = self.failure
        mine = [None, False] if failure is None else [_text(failure), is_disk_full(failure)]
        everyone = yield from self._peers.exchange([*mine, value])
        failures = {r: text for r, (text, _, _) in enumerate(everyone) if text is not None}
        if failures:
            self._raise(failures, any(full for _, full, _ in everyone))
        return [value for _, _, value in everyone]

    def _raise(self, failures: dict[int, str], full: bool) -> NoReturn:
        if len(set(failures.values())) == 1:
            which = f"server {min(failures)}: " if len(failures) < self._peers.size else ""
            reason = which + next(iter(failures.values()))
        else:
            reason = "; ".join(f"server {r}: {text}" for r, text in failures.items())
        kind = DiskFullError if full else CheckpointError
        raise kind(f"{self._sentence}: {reason}") from self.failure


def is_disk_full(error: Exception) -> bool:
    """Return True if a failure comes from a full disk or quota.

    The text of a library's error is searched as well, because libraries put the system's error there and lose
    its number. Errors of mpips have a kind.
    """
    if isinstance(error, CheckpointError):
        return isinstance(error, DiskFullError)
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    return any(os.strerror(number) in str(error) for number in FULL)


def _text(error: Exception) -> str:
    """Return a failure as one line of text."""
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
