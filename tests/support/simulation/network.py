"""The channels between workers and servers, whose waits are turns of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_network import Network, Question
from simulation.world import World

from mpips import _native
from mpips.transport.channel import MemoryChannel
from mpips.transport.remote import RemoteChannel


class TurnChannel(MemoryChannel):
    """A channel within a node: loads and stores in the server's region. Its waits let others have turns."""

    name = "shm"

    def __init__(
        self,
        world: World,
        memory: _native.SharedMemory,
        layout: _native.Layout,
        writer: _native.RingWriter,
        n_workers: int,
    ) -> None:
        super().__init__(memory, layout, writer, n_workers, oversubscribed=True)
        self._world = world

    def send(self) -> None:
        self._world.maybe_pause()

    def publish(self) -> None:
        self._world.maybe_pause()

    def begin_fence(self) -> None:
        self._world.maybe_pause()

    def wait_applied(self, count: int, max_s: float) -> bool:
        self._world.pause()
        return super().wait_applied(count, 0.0)

    def wait_received(self, count: int, max_s: float) -> bool:
        self._world.pause()
        return super().wait_received(count, 0.0)

    def wait_credit(self, max_s: float) -> bool:
        self._world.pause()
        return super().wait_credit(0.0)

    def wait_collected(self, before: int, max_s: float) -> bool:
        self._world.pause()
        return super().wait_collected(before, 0.0)

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        if super().wait_head(table, version, min_clock, 0.0):
            return True
        self._world.pause()
        return super().wait_head(table, version, min_clock, 0.0)

    def read_version(self, table: int) -> int:
        # A server may have its turn only when this one pauses.
        while _native.read_head(self.memory, self.layout.head_offset(table)) is None:
            self._world.pause()
        return super().read_version(table)

    def read_dense(self, table: int, out: np.ndarray, max_s: float) -> bool:
        self._world.maybe_pause(0.1)
        if super().read_dense(table, out, 0.0):
            return True
        self._world.pause()
        return False


class TurnNetwork(Network):
    """A network between one worker and one server; others have turns while anything is under way.

    What it has not delivered when the launch ends is lost.
    """

    def __init__(self, world: World, rig: Any, kind: str) -> None:
        super().__init__(rig, world.random.randrange(1 << 30), drain=False, kind=kind)
        self.late, self._world = True, world

    def wander(self) -> None:
        """Some time goes by: messages of anybody may arrive, and others have turns."""
        super().wander()
        self._world.maybe_pause()

    def flush(self) -> None:
        """Return when all puts and gets have moved, and with p2p when the server has taken the last long one."""
        while self.pending:
            self._move_one()
            self._between()
        super().flush()

    def _move_one(self) -> None:
        to, source = self.pending.pop(int(self.rng.integers(len(self.pending))))
        to[:] = source

    def carry(self) -> None:
        """Let a message arrive, or a piece of a put or get move, while its worker does something else."""
        if self.messages and self.rng.random() < 0.5:
            self.arrive(1)
        if self.pending and self.rng.random() < 0.5:
            self._move_one()
        if self.values is not None:
            self.values.wander()


def rig_of(server: Any, n_workers: int, tables: Any) -> Any:
    """Return what the networks of a server need of it."""
    return SimpleNamespace(
        region=server.region, layout=server.layout, n_workers=n_workers, tables=tables
    )


def remote_channel(
    world: World, rig: Any, worker: int, generation: int, kind: str
) -> tuple[TurnNetwork, RemoteChannel]:
    """Return a worker's network and channel to a server on another node.

    Args:
        world: The actors.
        rig: See `rig_of`; one for each server.
        worker: Index of the worker.
        generation: Number of the launch.
        kind: "rma" or "p2p".
    """
    network, geometry = TurnNetwork(world, rig, kind), rig.layout.geometry

    def make(mirror: _native.SharedMemory) -> _native.RingWriter:
        return _native.RingWriter(mirror, 0, geometry, worker, generation, True, len(rig.tables))

    question = Question(network, rig.layout, worker)
    return network, RemoteChannel(
        network,  # type: ignore[arg-type]
        question,
        rig.layout,
        worker,
        rig.n_workers,
        make,
    )
