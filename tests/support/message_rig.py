"""Workers that send each other arrays in one process, over a network that delivers them in random order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from crowd import End, Network, Part, Receive

from mpips.errors import StallError
from mpips.mpi.array_mail import ArrayMail
from mpips.worker.messages import ArrayMessages

ANY = -1  # the number by which this network means any rank


class AnyEnd(End):
    """A communicator that can also receive from any rank, where a message has arrived."""

    def Iprobe(self, source: int, tag: int) -> bool:
        with self.network.lock:
            return self._arrived(source, tag) is not None

    def Irecv(self, buf: np.ndarray, source: int, tag: int) -> Receive:
        with self.network.lock:
            found = self._arrived(source, tag) if source == ANY else source
            assert found is not None, "nothing has arrived from any rank"
            return super().Irecv(buf, found, tag)

    def _arrived(self, source: int, tag: int) -> int | None:
        """Return a rank from which a message has arrived; None: there is none."""
        found = [
            rank
            for rank, dest, at in list(self.network.queues)
            if (dest, at) == (self.rank, tag) and source in (ANY, rank)
        ]
        self.network.random.shuffle(found)
        front = self.network.front
        return next((r for r in found if front((r, self.rank, tag)) is not None), None)


class MessagePart(Part):
    """A worker's connection, as far as messages use it.

    Attributes:
        step: Clock of the worker's program.
        cuts: Calls for checkpoints, in order: "check" and "end".
        interrupt: Raised by the next look for control messages, if it is not None.
        states: Activities that the worker has had.
    """

    def __init__(self, index: int, timeout_s: float, stop: threading.Event) -> None:
        self.states: list[str] = []
        super().__init__(index, timeout_s, stop)
        self.step = 3
        self.cuts: list[str] = []
        self.interrupt: BaseException | None = None

    @property
    def state(self) -> str:
        return self.states[-1]

    @state.setter
    def state(self, state: str) -> None:
        self.states.append(state)

    def poll(self) -> None:
        error, self.interrupt = self.interrupt, None
        if error is not None:
            raise error

    def leave(self) -> None:
        pass

    def check_cut_in_gather(self) -> None:
        self.cuts.append("check")

    def end_gather(self) -> None:
        self.cuts.append("end")


class Messenger:
    """One worker of the rig.

    Attributes:
        part: Its connection.
        messages: Its messages.
        n_refused: Calls that refuse the memory of the launch.
    """

    def __init__(
        self,
        index: int,
        n_workers: int,
        network: Network,
        timeout_s: float = 60.0,
        nodes: Sequence[int] = (),
        cuts_apart: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        nodes = nodes or [0] * n_workers
        self.part = MessagePart(index, timeout_s, stop or threading.Event())
        self.n_refused = 0
        self.mail = ArrayMail(
            AnyEnd(network, index + 10),
            index,
            [w + 10 for w in range(n_workers)],
            lambda other: nodes[other] != nodes[index],
            lambda: f"{self.part.state} at clock {self.part.step}",
            ANY,
        )
        part: Any = self.part
        names = [f"worker {w}" for w in range(n_workers)]
        self.messages = ArrayMessages(part, self.mail, names, cuts_apart, self._refuse)

    def _refuse(self) -> None:
        self.n_refused += 1

    def send(self, array: Any, to: int, tag: int = 0) -> None:
        self.messages.send(array, to, tag)

    def recv(self, source: int, tag: int = 0, out: Any = None) -> np.ndarray:
        return self.messages.recv(out, source, tag)

    def serve(self, until: Callable[[], bool]) -> None:
        """Take messages, as in the waits of another operation, until a condition holds."""
        end = time.monotonic() + 60
        while not until():
            self.mail.poll()
            time.sleep(0)
            assert time.monotonic() < end
            if self.part.stop.is_set():
                raise StallError("another worker has failed")


def messengers(
    n_workers: int, work: Callable[[Messenger], Any], seed: int = 0, **options: Any
) -> list[Any]:
    """Call `work` for each worker in a thread of its own; return the values, or raise the first error.

    At the end no message is left on the network.
    """
    network = Network(seed)
    found: list[Any] = [None] * n_workers
    errors: list[BaseException] = []
    stop = threading.Event()
    ended = threading.Barrier(n_workers)
    settled = threading.Barrier(n_workers + 1)
    over = threading.Event()

    def run(index: int) -> None:
        mine = Messenger(index, n_workers, network, stop=stop, **options)
        try:
            found[index] = work(mine)
            mine.messages.end()
            _meet(ended, mine)
            mine.messages.settle()
            _meet(settled, mine)
            assert over.wait(60)
        except BaseException as error:
            errors.append(error)
            stop.set()
            ended.abort()
            settled.abort()

    threads = [threading.Thread(target=run, args=(w,), daemon=True) for w in range(n_workers)]
    for thread in threads:
        thread.start()
    try:
        settled.wait(120)
        left = [key for key, queue in network.queues.items() if queue]
        assert not left, f"messages (sender, receiver, tag) are left: {left}"
    except threading.BrokenBarrierError:
        pass
    finally:
        over.set()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return found


def _meet(barrier: threading.Barrier, mine: Messenger) -> None:
    """Wait for the other workers, and take messages meanwhile, as at the end of a job."""
    arrived = threading.Thread(target=_wait, args=(barrier,), daemon=True)
    arrived.start()
    while arrived.is_alive():
        mine.mail.poll()
        time.sleep(0)
    if barrier.broken:
        raise StallError("another worker has failed")


def _wait(barrier: threading.Barrier) -> None:
    try:
        barrier.wait(120)
    except threading.BrokenBarrierError:
        return
