"""The decisions on the number of backup workers, of one server; native server_backup.cpp has the argument."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from mpips import _native
from mpips.errors import RecoveryError
from mpips.model.backup_choice import BackupChoice, choose_backup
from mpips.model.consistency import estimates_backup
from mpips.model.table import Table

_EVERY = 16  # clocks from decision to decision, at least
_SHARE = 0.01  # greatest share of the time that decisions take
_MOST_STORED = 1000  # decisions in the statistics of a run


class BackupDecision(NamedTuple):
    """A decision that has changed the number of backup workers.

    Attributes:
        clock: Clock of the server from which it is in force.
        backup: The number.
        reason: The measurement behind it.
    """

    clock: int
    backup: int
    reason: str


class BackupControl:
    """Decides on the number of backup workers from the times of the workers. For the server's loop alone.

    Attributes:
        most: Greatest number.
        every: Clocks from decision to decision, at least.
        backup: The number that was decided on last; 0 at first.
        decisions: The decisions so far, the oldest first; the first 1000.
    """

    def __init__(self, core: _native.ServerCore, table: int, most: int, is_warm: bool) -> None:
        """Begin without backup workers, or go on with the decision that is in the memory.

        Args:
            core: The native server, which has started.
            table: The table whose head has the decisions.
            most: Greatest number, less than that of the workers.
            is_warm: The server has taken over the memory of an earlier launch.

        Raises:
            RecoveryError: The memory has a greater number.
        """
        self._core = core
        self._table = table
        self.most = most
        self.every = _EVERY
        self.decisions: list[BackupDecision] = []
        # The open clock, and the time in s, from which on the next decision is taken.
        self._next, self._next_s = 0, 0.0
        if not is_warm:
            self.begin(0)
            return
        try:
            self.backup = core.resume_backups(table, most)
        except _native.RecoveryError as error:
            raise RecoveryError(f"backup workers: {error}") from None
        self._next = core.open_clock() + self.every

    def begin(self, backup: int) -> None:
        """Begin with this number, before any worker is at work."""
        self.backup = min(backup, self.most)
        self._core.decide_backups(self._table, self.most, self.backup)
        self._next = self._core.open_clock() + self.every

    def poll(self) -> str:
        """Decide if it is time; return a line for people about a change, or "". Cheap."""
        if self._core.open_clock() < self._next or time.monotonic() < self._next_s:
            return ""
        self._next, began = self._core.open_clock() + self.every, time.monotonic()
        choice = self.choose()
        self._next_s = began + (time.monotonic() - began) / _SHARE
        if choice is None or choice.backup == self.backup:
            return ""
        clock = self._core.set_backup(choice.backup)
        if not clock:
            return ""  # the clock has come to the end of what a decision can hold
        before, self.backup = self.backup, choice.backup
        if len(self.decisions) < _MOST_STORED:
            self.decisions.append(BackupDecision(clock, choice.backup, choice.reason))
        return (
            f"backup workers of BSP(backup='auto') are {choice.backup} from clock {clock} on, {before} "
            f"before it: {choice.reason}"
        )

    def choose(self) -> BackupChoice | None:
        """Return the number for the times since the last call; None: not even two workers have any."""
        found = [own for own in self._core.take_backup_times() if own]
        return choose_backup(found, self.most) if len(found) > 1 else None


def backup_table(tables: Sequence[Table]) -> int | None:
    """Return the index of the table whose head has the decisions; None: the job's number is fixed."""
    found = (i for i, table in enumerate(tables) if estimates_backup(table.consistency))
    return next(found, None)
