"""Defects of BSP(backup="auto") that a simulation must find; see planted.py."""

from __future__ import annotations

from typing import Any
from unittest import mock

from mpips.server.backup_control import BackupControl


def _forgets_its_backup_workers() -> list[Any]:
    """A warm server begins without backup workers, whatever the server before it has decided."""
    real = BackupControl.__init__

    def wrong(self: BackupControl, core: Any, table: int, most: int, is_warm: bool) -> None:
        real(self, core, table, most, False)

    return [mock.patch.object(BackupControl, "__init__", wrong)]


def _decides_for_the_open_clock() -> list[Any]:
    """A server's new number of backup workers is in force at the clock that is open."""
    real = BackupControl.poll

    def wrong(self: BackupControl) -> str:
        line = real(self)
        if line:
            self._core.decide_backups(self._table, self.most, self.backup)
        return line

    return [mock.patch.object(BackupControl, "poll", wrong)]


BACKUP_DEFECTS = (_forgets_its_backup_workers, _decides_for_the_open_clock)
