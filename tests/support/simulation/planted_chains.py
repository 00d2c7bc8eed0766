"""Defects of chains of checkpoints that a simulation must find; see planted.py."""

from __future__ import annotations

from typing import Any
from unittest import mock

from mpips.checkpoint.changes import Changed
from mpips.snapshot import copy, server_part


def _continues_after_a_failure() -> list[Any]:
    """A server compares with its last copy although that was in no checkpoint."""
    real = server_part.ServerPart._copy

    def wrong(self: Any) -> None:
        place = self._place
        real(self)
        self._place = self._place or place

    return [mock.patch.object(server_part.ServerPart, "_copy", wrong)]


def _forgets_a_changed_row() -> list[Any]:
    """A copy does not mark the last of the rows that differ."""
    real = copy._copy_rows

    def wrong(memory: Any, arrays: Any, before: int) -> Changed:
        found = real(memory, arrays, before)
        return Changed(found.places[:-1], found.removed)

    return [mock.patch.object(copy, "_copy_rows", wrong)]


CHAIN_DEFECTS = (_continues_after_a_failure, _forgets_a_changed_row)
