"""The part of an embedding table's handle in its worker's group: pushes that wait, sums, and pulls once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.worker import waits
from mpips.worker.node_rows.rows import NodeRows
from mpips.worker.row_access import RowAccess

if TYPE_CHECKING:
    from mpips.worker.groups.tables import GroupedTables

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

Write = Callable[[], object]

# s that a pull waits for rows that other workers read. They need that long only if they stop or give up.
_PATIENCE_S = 1.0


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
        self._part = access.connection.node_rows
        self._writer = writer
        self._rows: NodeRows | None = None  # from the first pull on
        self._sums = grouped.sums_rows(access.index)
        if self._sums:
            grouped.add_rows(access.index, self._push_sum, self._pass_sum)

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
        """Return the rows of a plan, in `out` if it is given; None: the worker pulls by itself. Blocks.

        Workers of a group pull at one clock after another, so the workers of a node need many equal rows at
        about one time: they read them for each other (mpips.worker.node_rows.rows).

        Raises:
            StallError: A server was late for the job's timeout; the message names it.
        """
        access, connection, part = self._access, self._access.connection, self._part
        if part is None or not part.take_memory(connection.index):
            return None
        # While a clock is repeated that a server has closed, rows may have updates of this clock.
        if any(channel.writer.is_ahead_of(connection.now) for channel in connection.channels):
            return None
        rows = self._rows = self._rows or NodeRows(part, access)
        remote = rows.remote(plan)
        if not remote.any():
            return None
        unique = self._read(rows, plan.unique_keys, remote)
        found = np.empty((len(plan), access.table.dim), np.float32) if out is None else out
        plan.scatter_rows(unique, found)
        return found

    def _read(self, rows: NodeRows, keys: Int64, remote: Flags) -> Float32:
        """Return the rows of keys at the worker's clock, from other workers of the node or from servers."""
        access, connection = self._access, self._access.connection
        now = connection.now
        unique = np.empty((len(keys), access.table.dim), np.float32)
        missing = np.ones(len(keys), bool)

        def copy(claims: bool) -> Flags:
            """Copy missing rows that are there; return which of the missing ones other workers read."""
            at = np.flatnonzero(missing)
            found = rows.look(keys[at], (now, now), now, claims, remote[at])
            unique[at[found.copied]] = found.rows
            missing[at[found.copied]] = False
            claimed = np.zeros(len(keys), bool)
            claimed[at[found.claimed]] = True
            return claimed

        def fetch(chosen: Flags) -> None:
            at = np.flatnonzero(chosen)

            def taken(found: Float32, least: int, versions: Int64) -> None:
                unique[at] = found
                rows.publish(keys[at], found, now, versions, remote[at])

            access.fetch(keys[at], taken).wait()
            missing[at] = False

        claimed = copy(claims=True)
        if (own := missing & ~claimed).any():
            fetch(own)
        if claimed.any():
            until = time.monotonic() + min(_PATIENCE_S, connection.timeout_s / 2)
            waits.polled(
                connection,
                lambda: not copy(claims=False).any() or time.monotonic() > until,
                "waiting for rows that other workers of its node read",
                lambda: "rows that other workers of the node read have not come",
            )
        if missing.any():
            fetch(missing)
        return unique
