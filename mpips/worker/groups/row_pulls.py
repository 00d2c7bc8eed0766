"""Rows that the workers of a group pull once for all; see native/src/reduction/shared_rows.hpp.

Only a group whose workers all share this node's memory has them, and only rows of servers on other nodes are
shared. A pull at clock c shares rows if all workers of the group have ended the clocks before c or have
finished, which the reduction of the group knows. Since the group waits at the end of each clock, that holds
from the beginning of clock c. After a restart a worker may be ahead of others for a while: it pulls by
itself. It does so also while it may repeat a clock that a server has closed, as with shared pulls of dense
tables.

A pull claims what it needs, fetches what nobody else fetches and publishes that, and only then waits for the
rest. So workers do not wait for each other in a circle. A pull that ends with an error gives up what it has
claimed, since the program may go on without it: the others then pull these rows by themselves.

Left out: `prefetch`, whose rows may arrive in a later clock, and look-aheads, which hold rows over clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native

if TYPE_CHECKING:
    from mpips.worker.connection import Connection

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

_WAIT_S = 0.02  # of one wait without messages
_BEHIND_S = 0.05  # of the wait for others of the group to take part in the sums of the clock before


@dataclass(frozen=True)
class SharedRowsPart:
    """The shared rows of a group, as start-up makes them.

    Attributes:
        rows: This worker's end.
        remote: Servers on other nodes.
    """

    rows: _native.SharedRows
    remote: tuple[int, ...]


class RowPulls:
    """One worker's end of the rows that its group shares. Not thread-safe."""

    def __init__(
        self,
        connection: Connection,
        part: SharedRowsPart,
        names: Sequence[str],
        reduction: _native.Reduction,
        ends: int,
    ) -> None:
        """Use what start-up has made.

        Args:
            connection: The worker's connection, whose waits are used.
            part: The shared rows.
            names: Names of the workers of the group, for errors.
            reduction: The worker's end of the group's sums.
            ends: Its table that stands for the ends of clocks.
        """
        self._connection = connection
        self._rows = part.rows
        self._remote = part.remote
        self._names = names
        self._reduction = reduction
        self._ends = ends

    def pull(
        self,
        index: int,
        name: str,
        plan: _native.KeyPlan,
        dim: int,
        fetch: Callable[[Int64], Float32],
    ) -> Float32 | None:
        """Return the row of each unique key of a plan at the worker's clock; None: they are not shared now.

        Blocks. After None the worker pulls by itself.

        Args:
            index: Index of the table in the job.
            name: Its name.
            plan: Keys of the pull.
            dim: Length of a row.
            fetch: Pulls the rows of unique keys from the servers.

        Raises:
            StallError: A row was not there within the job's timeout; the message names the worker.
        """
        starts = plan.group_starts.tolist()
        groups = [(starts[s], starts[s + 1]) for s in self._remote if starts[s + 1] > starts[s]]
        if not groups or not self._is_common():
            return None
        clock, keys = self._connection.now, plan.unique_keys
        slots = np.full(len(keys), -1, np.int64)
        others = np.zeros(len(keys), bool)
        unique = np.empty((len(keys), dim), np.float32)
        try:
            for start, stop in groups:
                slots[start:stop], others[start:stop] = self._rows.claim(
                    index, clock, keys[start:stop]
                )
            own = ~others
            rows = fetch(keys[own])
            self._rows.publish(clock, slots[own], rows)
        except BaseException:
            self._rows.give_up(clock, slots[~others])
            raise
        unique[own] = rows
        if others.any():
            unique[others] = self._take(clock, name, keys[others], slots[others], dim, fetch)
        return unique

    def _is_common(self) -> bool:
        """Return True if all workers of the group have ended all clocks before this worker's own."""
        now = self._connection.now
        if any(channel.writer.is_ahead_of(now) for channel in self._connection.channels):
            return False
        reduction = self._reduction
        return reduction.clock == now and reduction.wait_complete(self._ends, _BEHIND_S)

    def _take(
        self,
        clock: int,
        name: str,
        keys: Int64,
        slots: Int64,
        dim: int,
        fetch: Callable[[Int64], Float32],
    ) -> Float32:
        """Wait for rows that others pull, and copy them; fetch those that they have given up."""
        n_ready = self._rows.wait_ready(clock, slots, 0, 0.0)

        def done() -> bool:
            nonlocal n_ready
            n_ready = self._rows.wait_ready(clock, slots, n_ready, _WAIT_S)
            return n_ready == len(slots)

        def late() -> str:
            worker = self._names[self._rows.claimant(int(slots[n_ready]))]
            return (
                f"{worker}, which pulls rows of table {name!r} at clock {clock} for this worker's group, has "
                "not received them (with cluster.topology, workers of a node pull a row once)"
            )

        if n_ready < len(slots):
            self._connection.wait_until(done, late)
        # Look first: a worker that has given a row up may pull it again, and publish it meanwhile.
        left = self._rows.left(slots).astype(bool)
        there = np.empty((len(slots) - np.count_nonzero(left), dim), np.float32)
        self._rows.copy(slots[~left], there)
        if len(there) == len(slots):
            return there
        out = np.empty((len(slots), dim), np.float32)
        out[~left], out[left] = there, fetch(keys[left])
        return out
