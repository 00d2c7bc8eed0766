"""Histories with BSP(backup="auto"): random decisions, and the number in force at each clock for the checker.

The checker computes the number of a clock from the decisions alone: that of the newest one which is in force.
It does not use the word in which a server stores its decision. A warm server must go on with it.
"""

from __future__ import annotations

import bisect
import random
from typing import TYPE_CHECKING

from mpips.model.backup_choice import BackupChoice
from mpips.model.consistency import BSP

if TYPE_CHECKING:
    from mpips.server.backup_control import BackupControl
    from mpips.server.server import Server

SHARE = 0.5  # of the histories with backup workers


def backup_model(backup: int, clocks: tuple[int, ...], n_workers: int) -> BSP:
    """Return the model of the tables of a history: a fixed number, or "auto" with this greatest one."""
    is_auto = random.Random(f"backup {clocks} {n_workers}").random() < SHARE
    return BSP("sum", "auto", backup) if is_auto else BSP("sum", backup)


class Backups:
    """The number of backup workers of each server at each clock; it lives over restarts in memory."""

    def __init__(self) -> None:
        self._decided: dict[int, list[tuple[int, int]]] = {}

    def begin(self, server: int, control: BackupControl) -> None:
        """Note with which number a launch begins, or check that it goes on with the last one."""
        if server not in self._decided:
            self._decided[server] = [(0, control.backup)]
        last = self._decided[server][-1][1]
        assert control.backup == last, f"server {server} has {control.backup}, not {last}"

    def note(self, server: int, control: BackupControl) -> None:
        """Note the newest decision."""
        self._decided[server].append(control.decisions[-1][:2])

    def at(self, server: int, clock: int, model: BSP) -> int:
        """Return the number at a clock."""
        if not isinstance(model.backup, str):
            return model.backup
        if server not in self._decided:
            return 0  # a server of one worker decides on nothing
        decided = self._decided[server]
        return decided[bisect.bisect_right(decided, (clock, 1 << 30)) - 1][1]


class DrawnBackups:
    """Decisions of one server in one launch, drawn at random."""

    def __init__(self, server: Server, draws: random.Random, backups: Backups) -> None:
        control = server.backup_control
        assert control is not None
        self._server, self._control, self._backups = server.index, control, backups
        control.every = 1 + draws.randrange(3)
        control._next = server.core.open_clock() + control.every  # histories have few clocks

        def choose() -> BackupChoice:
            return BackupChoice(draws.randrange(control.most + 1), "drawn")

        control.choose = choose  # type: ignore[method-assign]
        backups.begin(self._server, control)

    def poll(self) -> bool:
        """Let the server decide; return True if it has."""
        self._control._next_s = 0.0  # histories do not depend on the time that decisions take
        if not self._control.poll():
            return False
        self._backups.note(self._server, self._control)
        return True
