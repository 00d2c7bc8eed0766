"""Defects of tables whose rows come and go, which a simulation must find; see planted.py."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from mpips import _native
from mpips.server import server as server_module
from mpips.worker.ahead import table_ahead


def _removes_idle_rows_late() -> list[Any]:
    """A server removes an idle row a clock too late."""
    real = server_module.native_limits

    def wrong(*arguments: Any) -> Any:
        *before, idle, most = real(*arguments)
        return (*before, idle + bool(idle), most)

    return [mock.patch.object(server_module, "native_limits", wrong)]


def _counts_clocks_of_this_job_alone() -> list[Any]:
    """A job that starts from a checkpoint counts its clocks from 0, and the uses of rows do not."""
    return [mock.patch.object(_native.ServerCore, "set_clocks_before")]


def _counts_clocks_of_this_memory_alone() -> list[Any]:
    """A server that continues in memory counts the clocks since this memory was made, as rows do not."""
    real = server_module.Server.__init__

    def wrong(self: server_module.Server, *arguments: Any) -> None:
        *before, durability, clocks = arguments
        real(self, *before, durability, 0 if durability.warm else clocks)

    return [mock.patch.object(server_module.Server, "__init__", wrong)]


def _uses_of_the_cut() -> list[Any]:
    """A cut has all rows as used in its own clock."""
    real = _native.ServerCore.embedding_uses

    def wrong(self: Any, table: int) -> np.ndarray:
        found = real(self, table).copy()
        found[:, 0] = found[:, 0].max(initial=0)
        return found

    return [mock.patch.object(_native.ServerCore, "embedding_uses", wrong)]


def _counts_keys_again() -> list[Any]:
    """A server that continues in memory has lost its counts of the keys without rows."""
    real = server_module.Server._memory

    def wrong(self: Any, name: str, *rest: Any, **options: Any) -> Any:
        found = real(self, name, *rest, **options)
        if name.endswith("-counts"):
            found.view(0, found.n_bytes, True)[:] = 0
        return found

    return [mock.patch.object(server_module.Server, "_memory", wrong)]


def _keeps_rows_that_left() -> list[Any]:
    """The look-ahead of an only worker takes all rows as unchanged that it has not pushed itself."""
    real = table_ahead.TableAhead.__init__

    def wrong(self: table_ahead.TableAhead, *arguments: Any) -> None:
        real(self, *arguments)
        self._alone = self._connection.n_workers == 1

    return [mock.patch.object(table_ahead.TableAhead, "__init__", wrong)]


LIMIT_DEFECTS = (
    _removes_idle_rows_late,
    _counts_clocks_of_this_job_alone,
    _counts_clocks_of_this_memory_alone,
    _uses_of_the_cut,
    _counts_keys_again,
    _keeps_rows_that_left,
)
