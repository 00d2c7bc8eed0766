"""The connections of a launch, in place of mpips.session.links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpips import _native
from mpips.recovery import takeover
from mpips.transport.channel import Channel
from mpips.transport.region import attach
from simulation.network import TurnChannel, remote_channel, rig_of

if TYPE_CHECKING:
    from mpips.recovery.memory import At
    from mpips.server.server import Server
    from simulation.cluster import SimulatedCluster
    from simulation.launch import Launch


class SimulatedLinks:
    """This rank's ends; see mpips.session.links.Links."""

    def __init__(
        self,
        launch: Launch,
        cluster: SimulatedCluster,
        options: object,
        placement: Any,
        tables: Sequence[Any],
        skips_clocks: bool,
        generation: int,
        idle: object,
    ) -> None:
        self._launch, self._cluster, self._tables = launch, cluster, tables
        self._skips_clocks, self._generation = skips_clocks, generation
        self.channels: list[Channel] = []
        self.notes: list[str] = []
        self.progress = None

    def open(
        self,
        server: Server | None,
        at: Sequence[At],
        staging: Callable[[int], str] | None,
        oversubscribed: bool,
    ) -> None:
        """Connect all workers with all servers. Collective."""
        c, launch = self._cluster, self._launch
        if server is not None:
            launch.servers[server.index] = server
            launch.rigs[server.index] = rig_of(server, len(c.assignment.workers), self._tables)
        c.arrive("connecting workers and servers")
        if c.worker is not None:
            for s in range(len(c.assignment.servers)):
                channel = self._channel(c.worker, launch.servers[s])
                if at:
                    takeover.resume(channel, at[s], self._skips_clocks)
                self.channels.append(channel)
        c.arrive("attaching the workers' staging memory")
        for w, rank in enumerate(c.assignment.workers):
            is_here = c.assignment.node_of[rank] == c.assignment.node_of[c.rank]
            if server is not None and staging is not None and is_here:
                server.core.set_staging(w, attach(c.token, staging(w), 0))
        c.arrive("attaching the workers' staging memory")

    def _channel(self, w: int, server: Server) -> Channel:
        launch, a, layout = self._launch, self._cluster.assignment, server.layout
        if a.node_of[a.servers[server.index]] != a.node_of[self._cluster.rank]:
            network, channel = remote_channel(
                launch.world, launch.rigs[server.index], w, self._generation, launch.layout.kind
            )
            launch.networks.append(network)
            return channel
        writer = _native.RingWriter(
            server.region,
            layout.mailbox_offset(w),
            layout.geometry,
            w,
            self._generation,
            True,
            len(self._tables),
        )
        return TurnChannel(launch.world, server.region, layout, writer, len(a.workers))

    def close(self) -> None:
        """Drop the channels."""
        self.channels.clear()
