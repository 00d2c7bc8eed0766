"""The updates of a group that servers have applied; see "SSP and ASP" in mpips.worker.groups.tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpips.worker import waits
from mpips.worker.groups.level import GroupLevel

if TYPE_CHECKING:
    from mpips.worker.data_plane import DataPlane


class GroupApplied:
    """One worker's knowledge of what servers have applied. Not thread-safe."""

    def __init__(self, connection: DataPlane, level: GroupLevel, members: Sequence[int]) -> None:
        """Know nothing yet.

        Args:
            connection: The worker's connection.
            level: The level of the whole group.
            members: Index in the job of each of its workers.
        """
        self._connection = connection
        self._level = level
        self._members = members
        # Newest clock of this worker up to which a server is known to have the leaders' ticks, by server.
        self._applied: dict[int, int] = {}

    def is_applied(self, server: int, max_s: float) -> bool:
        """Return whether a server has applied what other workers have pushed for this one's earlier clocks.

        Args:
            server: Index of the server.
            max_s: Seconds to wait at most if it has not.
        """
        clock = self._level.clock
        if clock == 0 or self._applied.get(server) == clock:
            return True
        leader = self._members[self._leader_before(clock)]
        channel = self._connection.channels[server]
        if leader != self._connection.index and channel.clocks()[leader] < clock:
            time.sleep(min(max_s, waits.BETWEEN_POLLS_S))
            return False
        self._applied[server] = clock
        return True

    def _leader_before(self, clock: int) -> int:
        """Return the leader of the clock before this worker's clock."""
        # One that may have finished since, and whose end this worker has not received, has noted `sent`.
        noted = self._level.sender(clock - 1)
        return self._level.leader(clock - 1) if noted is None else noted

    def late_at(self, server: int) -> str:
        """Return the message that a server has not applied what `is_applied` asks for."""
        clock = self._level.clock
        leader = self._level.names[self._leader_before(clock)]
        return (
            f"{leader}, which leads this worker's group, has not ended clock {clock - 1} at server {server}, "
            "which applies the group's updates then"
        )
