"""Messages between the scheduler and the other ranks: late, in order between each two of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from mpips.mpi.pending import PendingCut
from simulation.world import World


class Mail:
    """Messages to one receiver, by sender."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queues: dict[int, deque[Any]] = {}

    def send(self, sender: int, message: Any) -> None:
        """Send a message; it is received later."""
        self._queues.setdefault(sender, deque()).append(message)
        self._world.changed()

    def receive(self) -> list[tuple[int, Any]]:
        """Return some of the messages that are under way, in the order of each sender."""
        if not any(self._queues.values()):
            return []
        draws, found = self._world.random, []
        senders = list(self._queues)
        draws.shuffle(senders)
        for sender in senders:
            queue = self._queues[sender]
            while queue and draws.random() < 0.6:
                found.append((sender, queue.popleft()))
        if found or any(self._queues.values()):
            self._world.changed()
        return found


class WorkerControl:
    """The control plane of a worker; see mpips.worker.control_plane."""

    def __init__(self, worker: int, mail: Mail, to_scheduler: Callable[[int, Any], None]) -> None:
        self.state, self.clock = "computing", 0
        self.final_statistics: bytes | None = None
        self.speed = self.fastest = 0.0
        self.cut = PendingCut()
        self._worker, self._mail, self._send = worker, mail, to_scheduler

    def poll(self) -> None:
        for _, message in self._mail.receive():
            if message == "bye":
                self.final_statistics = b"{}"
                continue
            answer = self.cut.take(message, self.clock)
            if answer is not None:
                self.tell(answer)

    def hurry(self) -> None:
        pass

    def beat(self) -> None:
        self.poll()

    def tell(self, message: Any) -> None:
        self._send(self._worker, message)

    def begin(self, work: object) -> None:
        pass

    def done(self, statistics: bytes) -> None:
        self._send(self._worker, None)

    def report(
        self, epoch: int, step: int, samples: int, loss_sum: float, details: object = None
    ) -> None:
        pass
