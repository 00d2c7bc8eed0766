"""The part of an embedding table's handle in its worker's group: pushes that wait, sums, and pulls once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.worker.row_access import RowAccess

if TYPE_CHECKING:
    from mpips.worker.groups.tables import GroupedTables

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

Write = Callable[[], object]


class RowGroup:
    """The part of a worker's handle of one embedding table under BSP in its group. Not thread-safe."""

    def __init__(
        self,
        grouped: GroupedTables,
        access: RowAccess,
        writer: Callable[[_native.KeyPlan, Float32], Write],
    ) -> None:
        """Register the table.

        Args:
            grouped: The worker's group.
            access: Access to its rows.
            writer: Returns a function that writes the records of a push.
        """
        self._grouped = grouped
        self._access = access
        self._writer = writer
        self._pulls = None
        self._sums = grouped.sums_rows(access.index)
        if self._sums:
            grouped.add_rows(access.index, self._push_sum, self._pass_sum)
            self._pulls = grouped.row_pulls

    def leave(self) -> None:
        """Drop what the group has of the handle: their references to each other would hold the memory."""
        self._grouped.drop_rows(self._access.index)

    def push(self, plan: _native.KeyPlan, keys: Int64, rows: Float32, n_servers: int) -> bool:
        """Push rows at the end of the worker's clock, with those of the group if they fit.

        Args:
            plan: Plan of the keys.
            keys: int64, shape (n,). Free again at return, like `rows`.
            rows: float32, shape (n, dim), C-contiguous, checked.
            n_servers: Number of servers that have any of the keys.

        Returns:
            True if the plan is free at once; else it is after the end of the clock.
        """
        grouped = self._grouped
        if self._sums:
            repeats = plan.n_unique < len(plan)
            unique = plan.unique_keys if repeats else keys
            sums = plan.sum_rows(rows) if repeats else rows
            if grouped.push_rows(self._access.index, unique, sums, n_servers):
                return True
        grouped.hold(self._writer(plan, rows.copy()))
        return False

    def _push_sum(self, keys: Int64, rows: Float32) -> None:
        """Push the rows of all workers of the group; see mpips.worker.groups.rows.

        Args:
            keys: int64, shape (n,); rows of equal keys are summed in their order.
            rows: float32, shape (n, dim).
        """
        plan = self._access.planned(keys)
        self._writer(plan, rows)()
        self._access.free(plan)

    def _pass_sum(self, keys: Int64, rows: Float32) -> None:
        """Contribute the rows of all workers of the subgroup to the group, those of equal keys added up.

        Args:
            keys: int64, shape (n,).
            rows: float32, shape (n, dim).
        """
        plan = self._access.planned(keys)
        self._grouped.pass_rows(self._access.index, plan.unique_keys, plan.sum_rows(rows))
        self._access.free(plan)

    def pull(self, plan: _native.KeyPlan, out: Float32 | None) -> Float32 | None:
        """Return the rows of a plan, in `out` if it is given; None: the worker pulls by itself. Blocks."""
        if self._pulls is None:
            return None
        access = self._access

        def fetch(keys: Int64) -> Float32:
            return access.start_pull(access.planned(keys), None).wait()

        unique = self._pulls.pull(access.index, access.table.name, plan, access.table.dim, fetch)
        if unique is None:
            return None
        rows = np.empty((len(plan), access.table.dim), np.float32) if out is None else out
        plan.scatter_rows(unique, rows)
        return rows
