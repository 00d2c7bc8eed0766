"""How servers that write together stay together when one of them fails.

A failure is kept; its server goes on taking part without doing anything, until the next agreement,
where all servers hear of it and raise the same error.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from mpips.checkpoint.steps import Peers, Steps
from mpips.errors import CheckpointError, DiskFullError

_FULL = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")


class Agreement:
    """The failure of this server, if any, and the meetings at which it is told.

    Attributes:
        failure: The first one of this server.
    """

    def __init__(self, peers: Peers, sentence: str) -> None:
        """`sentence` begins every error: what was not done."""
        self.failure: Exception | None = None
        self._peers = peers
        self._sentence = sentence

    def keep(self, error: Exception) -> None:
        """Remember a failure; the first one counts."""
        self.failure = self.failure or error

    def attempt(self, work: Callable[[], T]) -> T | None:
        """The result of local work, or None if it failed or something did before."""
        if self.failure is not None:
            return None
        # Whatever happens, the others must hear of it.
        try:
            return work()
        except Exception as error:
            self.failure = error
            return None

    def meet(self, value: Any = None) -> Steps[list[Any]]:
        """Everyone's value, if nobody has failed; collective.

        Raises:
            CheckpointError: A server has; the same text on all servers.
            DiskFullError: The same, where the disk of any server is full.
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
    """Whether a failure is that of a full disk or quota; libraries hide the number in their text."""
    if isinstance(error, DiskFullError) or (isinstance(error, OSError) and error.errno in _FULL):
        return True
    return any(os.strerror(number) in str(error) for number in _FULL)


def _text(error: Exception) -> str:
    """One line for people."""
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
