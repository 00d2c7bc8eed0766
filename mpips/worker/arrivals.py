"""The waits in front of a clock's first tick, where memory outlives a launch or servers have replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpips.recovery.replica import Partners
from mpips.transport.channel import MemoryChannel

if TYPE_CHECKING:
    from mpips.worker.data_plane import DataPlane


class Arrivals:
    """Waits until one worker's records have arrived at its servers and at their partners."""

    def __init__(self, connection: DataPlane, partners: Partners, outlives: bool) -> None:
        """`partners`: the replicas of the servers. `outlives`: memory of servers outlives a launch."""
        self._outlives = outlives
        self._connection = connection
        self._partners = partners

    def wait(self) -> None:
        """Wait until all written records are in the servers' memory. For memory that outlives this launch.

        The first tick of a clock is sent only then: a launch that continues in memory with a tick relies on
        all servers having the records before it (mpips.recovery.memory). A wait until servers have consumed
        them would be too long: they may wait there for other workers, so only one worker at a time would
        compute. With one server the order of the ring is enough. For a server with a replica, its partner
        must have the records (`wait_for_partners`).
        """
        if len(self._connection.channels) > 1:
            self._wait_for_servers()

    def wait_for_all(self) -> None:
        """Wait until all written records are in the memory of all servers and, with replicas, of partners.

        No other worker delays this.
        """
        self._wait_for_servers()
        self.wait_for_partners()

    def _wait_for_servers(self) -> None:
        """Wait until servers without a partner that is waited for confirm that all records are there."""
        connection, channels = self._connection, self._connection.channels
        covered = self._partners.of if self._partners.waits else {}
        late = [server for server in range(len(channels)) if server not in covered]
        for server in late:
            channels[server].begin_fence()
        for server in late:
            connection.wait_until(
                lambda s=server: channels[s].wait_fence(0.02),  # type: ignore[misc]
                lambda s=server: (  # type: ignore[misc]
                    f"server {s} has not confirmed that records of worker {connection.index} have arrived"
                    f"{connection.blame(s)}"
                ),
            )

    def wait_for(self, server: int, count: int) -> None:
        """Wait until a server's first `count` records of this worker are in memory that survives the worker.

        That is the server's memory, and that of its partner, which continues if the server's node is lost. No
        other worker delays this. Without memory that outlives a launch there is nothing to wait for.
        """
        if not self._outlives:
            return
        connection, channel = self._connection, self._connection.channels[server]
        if channel.writer.applied >= count:
            return
        if server in self._partners.of:
            connection.publish([server])
            connection.wait_until(
                lambda: channel.wait_received(count, 0.02),
                lambda: (
                    f"server {server} has taken {channel.writer.applied} of {count} records"
                    f"{self.blame(server)}"
                ),
            )
        elif not isinstance(channel, MemoryChannel):
            channel.begin_fence()
            connection.wait_until(
                lambda: channel.wait_fence(0.02),
                lambda: (
                    f"server {server} has not confirmed that records of worker {connection.index} have "
                    f"arrived{connection.blame(server)}"
                ),
            )

    def wait_for_partners(self) -> None:
        """Wait until all written records have arrived at the partners. No other worker delays this."""
        if not self._partners.waits:
            return
        connection = self._connection
        connection.publish(self._partners.of)
        for server in self._partners.of:
            channel = connection.channels[server]
            count = channel.writer.next_sequence
            connection.wait_until(
                lambda c=channel, n=count: c.wait_received(n, 0.02),  # type: ignore[misc]
                lambda s=server, n=count: (  # type: ignore[misc]
                    f"server {s} has taken {connection.channels[s].writer.applied} of {n} records"
                    f"{self.blame(s)}"
                ),
            )

    def blame(self, server: int) -> str:
        """Return the clause of an error that a server waits for its partner; "" if it does not."""
        partner = self._partners.of.get(server)
        writer = self._connection.channels[server].writer
        if partner is None or writer.received >= writer.next_sequence:
            return ""
        return (
            f"; it waits for its partner, server {partner}, which has {writer.received} of "
            f"{writer.next_sequence}"
        )
