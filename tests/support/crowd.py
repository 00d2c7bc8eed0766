"""Workers that exchange messages in one process, over a network that delivers them in random order."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from mpips.errors import StallError
from mpips.mpi.mail import PIECE_TAG, Mail
from mpips.mpi.tree import WorkerTree, neighbours_of
from mpips.worker.collectives import Collectives


class Traffic:
    """The messages of one rank: their number and bytes, received and sent, and the ranks they went to."""

    def __init__(self) -> None:
        self.sent = self.received = self.sent_bytes = self.received_bytes = 0
        self.largest = 0
        self.partners: set[int] = set()


class Message:
    def __init__(self, data: np.ndarray, delay: int) -> None:
        self.buffer, self.data = data, data.copy()
        self.delay = delay
        self.taken = False


class Send:
    """A send; complete when the receiver has taken the message. Its buffer must not change before."""

    def __init__(self, network: Network, message: Message) -> None:
        self.network, self.message = network, message

    def Test(self) -> bool:
        with self.network.lock:
            assert (self.message.buffer == self.message.data).all()
            return self.message.taken


class Receive:
    def __init__(self, network: Network, key: tuple[int, int, int], buffer: np.ndarray) -> None:
        self.network, self.key, self.buffer = network, key, buffer
        self.done = False

    def Test(self) -> bool:
        with self.network.lock:
            self.network.deliver(self.key)
            return self.done


class Network:
    """Messages between ranks: in order for a sender, receiver and tag, and after a random delay."""

    def __init__(self, seed: int = 0, most_delay: int = 4) -> None:
        self.lock = threading.RLock()
        self.random = random.Random(seed)
        self.most_delay = most_delay
        self.queues: dict[tuple[int, int, int], deque[Message]] = defaultdict(deque)
        self.posted: dict[tuple[int, int, int], deque[Receive]] = defaultdict(deque)
        self.traffic: dict[int, Traffic] = defaultdict(Traffic)

    def end(self, rank: int) -> End:
        """Return the communicator as one rank uses it."""
        return End(self, rank)

    def front(self, key: tuple[int, int, int]) -> Message | None:
        """Return the next message if it has arrived. Each look makes it arrive sooner."""
        queue = self.queues[key]
        if not queue:
            return None
        queue[0].delay -= 1
        return queue[0] if queue[0].delay < 0 else None

    def deliver(self, key: tuple[int, int, int]) -> None:
        posted = self.posted[key]
        while posted and (message := self.front(key)) is not None:
            receive = posted.popleft()
            assert len(message.data) <= len(receive.buffer)
            receive.buffer[: len(message.data)] = message.data
            receive.done = message.taken = True
            self.queues[key].popleft()
            at = self.traffic[key[1]]
            at.received += 1
            at.received_bytes += len(message.data)


class End:
    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank = network, rank

    def Isend(self, buf: np.ndarray, dest: int, tag: int) -> Send:
        network = self.network
        with network.lock:
            delay = network.random.randint(0, network.most_delay)
            message = Message(buf, delay)
            network.queues[self.rank, dest, tag].append(message)
            at = network.traffic[self.rank]
            at.sent += 1
            at.sent_bytes += len(buf)
            at.largest = max(at.largest, len(buf))
            at.partners.add(dest)
            return Send(network, message)

    def Irecv(self, buf: np.ndarray, source: int, tag: int) -> Receive:
        with self.network.lock:
            key = (source, self.rank, tag)
            receive = Receive(self.network, key, buf)
            self.network.posted[key].append(receive)
            self.network.deliver(key)
            return receive

    def Iprobe(self, source: int, tag: int) -> bool:
        assert tag != PIECE_TAG
        with self.network.lock:
            return self.network.front((source, self.rank, tag)) is not None


def tree_of(
    network: Network,
    index: int,
    n_workers: int,
    *,
    piece_bytes: int = 64 << 20,
    timeout_s: float = 60.0,
    doing: Callable[[], str] = lambda: "computing at clock 3",
) -> WorkerTree:
    """Return the tree of one worker, whose rank is 10 more than its index."""
    mail = Mail(
        network.end(index + 10),
        {w: w + 10 for w in neighbours_of(index, n_workers)},
        piece_bytes,
    )
    return WorkerTree(mail, index, [f"worker {w}" for w in range(n_workers)], timeout_s, doing)


class Part:
    """A worker's connection, as far as gathers use it."""

    def __init__(self, index: int, timeout_s: float, stop: threading.Event) -> None:
        self.index, self.timeout_s, self.stop = index, timeout_s, stop
        self.control: Any = self
        self.snapshot: Any = self
        self.state = "computing"

    def poll(self) -> None:
        pass

    def check_cut_in_gather(self) -> None:
        pass

    def end_gather(self) -> None:
        pass

    def wait_until(self, done: Callable[[], bool], late: Callable[[], str]) -> None:
        deadline = time.monotonic() + self.timeout_s
        while not done():
            assert not self.stop.is_set(), "another worker has failed"
            if time.monotonic() >= deadline:
                raise StallError(late())


def crowd(
    n_workers: int,
    work: Callable[[Collectives], Any],
    network: Network | None = None,
    timeout_s: float = 60.0,
) -> list[Any]:
    """Call `work` for each worker in a thread of its own; return the values, or raise the first error."""
    network = network or Network()
    found: list[Any] = [None] * n_workers
    errors: list[BaseException] = []
    stop = threading.Event()

    def run(index: int) -> None:
        tree = tree_of(network, index, n_workers, timeout_s=timeout_s) if n_workers > 1 else None
        names = [f"worker {w}" for w in range(n_workers)]
        part: Any = Part(index, timeout_s, stop)
        collectives = Collectives(part, tree, names)
        try:
            found[index] = work(collectives)
            collectives.end()
            collectives.settle()
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=run, args=(w,), daemon=True) for w in range(n_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s + 30)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)
    return found
