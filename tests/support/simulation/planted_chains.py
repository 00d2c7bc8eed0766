"""Defects of chains of checkpoints that a simulation must find; see planted.py."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

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


def _forgets_new_rows() -> list[Any]:
    """A copy compares only as many rows as both copies have."""
    real = copy._copy_rows

    def wrong(memory: Any, arrays: Any, before: int) -> Changed:
        found = real(memory, arrays, before)
        return Changed(found.places[found.places < before], found.removed)

    return [mock.patch.object(copy, "_copy_rows", wrong)]


def _forgets_the_last_piece() -> list[Any]:
    """A copy compares only full pieces of a dense table."""
    real = copy._copy_elements

    def wrong(memory: Any, arrays: Any, before: int) -> Changed:
        places = real(memory, arrays, before).places
        return Changed(places[places < before // copy.PIECE].astype(np.intp))

    return [mock.patch.object(copy, "_copy_elements", wrong)]


CHAIN_DEFECTS = (_continues_after_a_failure, _forgets_new_rows, _forgets_the_last_piece)
