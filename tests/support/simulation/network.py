"""The channels between workers and servers, whose waits are turns of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from fake_network import PACES, Network, Question

from mpips import _native
from mpips.transport.channel import MemoryChannel
from mpips.transport.remote import RemoteChannel
from simulation.world import World


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
        self._world.wait()
        return self.writer.applied >= count

    def wait_received(self, count: int, max_s: float) -> bool:
        self._world.wait()
        return super().wait_received(count, 0.0)

    def wait_credit(self, max_s: float) -> bool:
        self._world.wait()
        self.writer.collect()
        return self.writer.credits > 0

    def wait_collected(self, before: int, max_s: float) -> bool:
        self._world.wait()
        self.writer.collect()
        return self.writer.collected_before() >= before

    def wait_head(self, table: int, version: int, min_clock: int, max_s: float) -> bool:
        if self._has_come(table, version, min_clock):
            return True
        self._world.wait()
        return self._has_come(table, version, min_clock)

    def _has_come(self, table: int, version: int, min_clock: int) -> bool:
        head = _native.read_head(self.memory, self.layout.head_offset(table))
        return head is not None and head[0] >= version and head[1] >= min_clock

    def read_version(self, table: int) -> int:
        # A server may have its turn only when this one pauses.
        while _native.read_head(self.memory, self.layout.head_offset(table)) is None:
            self._world.wait()
        return super().read_version(table)

    def read_decision(self, table: int) -> tuple[int, int]:
        self._world.maybe_pause()
        clock, _ = super().read_decision(table)
        # The server may publish decisions and clocks between the two reads.
        self._world.maybe_pause()
        return clock, super().read_decision(table)[1]

    def read_dense(self, table: int, out: np.ndarray, max_s: float) -> bool:
        self._world.maybe_pause(0.1)
        if super().read_dense(table, out, 0.0):
            return True
        self._world.wait()
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
        draws = self._world.random
        for network in self.networks:
            if network.messages and draws.random() < network.pace:
                network.arrive(1)
        if self.values is not None:
            self.values.wander()
        self._world.maybe_pause()

    def send(self, arrive: Any, waits: bool = False) -> None:
        """Send a message; see Network.send."""
        super().send(arrive, waits)
        self._world.changed()

    def arrive(self, most: int | None = None) -> None:
        """Let messages arrive; see Network.arrive."""
        for _ in range(len(self.messages) if most is None else most):
            self.messages.popleft()[0]()
        self.pace = self._world.random.choice(PACES)
        self._world.changed()

    def flush(self) -> None:
        """Return when all puts and gets have moved; with p2p when the server has taken the last long one."""
        self.flushes += 1
        while self.pending:
            self._move_one()
            self.wander()
        while any(waits for _, waits in self.messages):
            self.arrive(1)
            self.wander()

    def _move_one(self) -> None:
        to, source = self.pending.pop(self._world.random.randrange(len(self.pending)))
        to[:] = source
        self._world.changed()

    def carry(self) -> None:
        """Let a message arrive, or a piece of a put or get move, while its worker does something else."""
        draws = self._world.random
        if self.messages and draws.random() < 0.5:
            self.arrive(1)
        if self.pending and draws.random() < 0.5:
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


@contextmanager
def simulated_waits(world: World) -> Iterator[None]:
    """Within this context waits in the memory that workers share are turns of others."""

    def turning(name: str, *methods: str, least: Callable[..., int] = lambda *_: 0) -> Any:
        """Patch a class; `least`: what a method returns, by its arguments, that has to wait."""
        real = getattr(_native, name)

        def wait(method: str) -> Any:
            def waits(self: Any, *arguments: Any) -> Any:
                *rest, max_s = arguments
                found = getattr(real, method)(self, *rest, 0.0)
                if max_s and found == least(*rest):
                    world.wait()
                    found = getattr(real, method)(self, *rest, 0.0)
                return found

            return waits

        changed = type(name, (real,), {method: wait(method) for method in methods})
        return mock.patch.object(_native, name, changed)

    with ExitStack() as stack:
        stack.enter_context(turning("Reduction", "wait_complete", "wait_room"))
        stack.enter_context(turning("SharedPulls", "wait_ready"))
        yield
