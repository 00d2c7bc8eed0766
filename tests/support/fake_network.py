"""A network that delays, reorders and tears, between a worker's channel and a rig's server.

Two kinds, as mpips has them:

rma: Puts and gets of a window, each cut at a random byte, whose pieces move in any order; `flush` returns
    when all of them have moved. Messages (puts that may ask, questions, fences) travel on a channel of
    their own: the server takes them whole and in their order, at any time, also long after `flush`.
    Nothing orders a message and a put.
p2p: All are messages in one order. `flush` returns when the server has taken the last long one or get;
    short ones behind it may still be under way.

So a `flush` that returned says of short puts only that they will arrive, unlike what mpips may believe.

Values that a worker awaits (mpips.transport.awaited) are sent by the server of mpips itself, at random times.
Their messages arrive in their order for each request, and in any order between requests.

Several workers that wait for each other run in threads, one at a time: `by_turns`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from harness import Rig, in_threads

from mpips import _native
from mpips.transport.awaited import ValueRequests, ValueService
from mpips.transport.remote import RemoteChannel

INLINE_BYTES = (16 << 10) + 192  # as mpips.transport.p2p, which cannot be loaded without MPI
KINDS = ("rma", "p2p")
PACES = (0.5, 0.02)  # chances that the next message arrives, each time that it might


class Network:
    """RemoteMemory over a rig's region.

    Between any two pieces or messages the server may drain. A word of eight bytes moves at once, as on
    every machine that MPI runs on.

    Attributes:
        drains: Let the server drain at random times.
        late: Let messages be under way for a random time; else they arrive when the worker enters MPI.
        on_piece: Called after each piece or message.
        puts: Offset and length of each put.
        pending: Pieces of puts and gets that have not moved.
        messages: What has not arrived, with whether `flush` waits for it.
    """

    name = "fake"
    piece_bytes = 256 << 10

    def __init__(self, rig: Rig, seed: int, drain: bool = True, kind: str = "rma") -> None:
        self.rig, self.rng, self.kind = rig, np.random.default_rng(seed), kind
        self.drains = self.late = drain
        self.bytes = rig.region.view(0, rig.region.n_bytes, True)
        self.pending: list = []
        self.messages: deque[tuple[Callable[[], None], bool]] = deque()
        self.on_piece = lambda: None
        self.puts: list[tuple[int, int]] = []
        self.flushes = 0
        self.pace = PACES[0]
        # Of all workers of the rig: while one waits, what another has sent goes on its way.
        self.networks: list[Network] = rig.__dict__.setdefault("networks", [])
        self.networks.append(self)
        self.turns: Turns | None = None
        self.values: Values | None = None

    @property
    def n_sends(self):
        return len(self.messages)

    def put(self, offset, data):
        if self.kind == "p2p" and len(data) <= INLINE_BYTES:
            self._put_message(offset, data, 0)
            return
        self.puts.append((offset, len(data)))
        self._move(self.bytes[offset : offset + len(data)], data)

    def get(self, offset, out):
        assert out.flags.writeable
        self._move(out, self.bytes[offset : offset + len(out)])

    def put_asking(self, offset, data, count):
        self._put_message(offset, data, count)

    def _put_message(self, offset, data, count):
        assert 0 < len(data) <= INLINE_BYTES
        self.puts.append((offset, len(data)))
        to, copy = self.bytes[offset : offset + len(data)], data.copy()

        def arrive():
            to[:] = copy
            if count:
                self.question.count = count

        self.send(arrive)

    def send(self, arrive, waits=False):
        """Send a message; `arrive` is what the server does with it."""
        self.messages.append((arrive, waits))

    def put_copied(self, offset, data):
        for at in range(0, len(data), INLINE_BYTES):
            self._put_message(offset + at, data[at : at + INLINE_BYTES], 0)

    def test(self):
        n = len(self.messages)
        self.look()
        self.wander()
        return len(self.messages) < n

    @property
    def is_under_way(self):
        return bool(self.messages)

    def leave(self):
        self.look()

    def flush(self):
        self.flushes += 1
        for i in self.rng.permutation(len(self.pending)):
            to, source = self.pending[i]
            to[:] = source
            self._between()
        self.pending.clear()
        while any(waits for _, waits in self.messages):
            self.arrive(1)
            self._between()
        self.look()

    def fence(self):
        self.confirmed = False
        self.send(lambda: setattr(self, "confirmed", True))

    def fenced(self):
        self.look()
        self.wander()
        return self.confirmed

    def look(self):
        """The worker enters MPI."""
        if not self.late:
            self.arrive()

    def arrive(self, most=None):
        """Let messages arrive, in their order."""
        for _ in range(len(self.messages) if most is None else most):
            self.messages.popleft()[0]()
            self.pace = float(self.rng.choice(PACES))
            self.on_piece()

    def wander(self):
        """Some time goes by: a message may arrive, and the server may drain."""
        for network in self.networks:
            if network.late and network.messages and self.rng.random() < network.pace:
                network.arrive(1)
        if self.drains and self.rng.random() < 0.5:
            self.rig.drain()
        if self.values is not None:
            self.values.wander()
        if self.turns is not None:
            self.turns.change()

    def _between(self):
        self.wander()
        self.on_piece()

    def _move(self, to, source):
        assert to.size == source.size > 0
        if self.kind == "p2p":
            self.send(lambda: np.copyto(to, source), waits=True)
            return
        at = 8 * int(self.rng.integers(0, len(to) // 8 + 1))
        self.pending += [(to[:at], source[:at]), (to[at:], source[at:])]


class Message:
    """A message under way; `look`: its sender or receiver enters MPI."""

    def __init__(self, look=lambda: None) -> None:
        self.is_there, self.look = False, look

    def Test(self):
        self.look()
        return self.is_there


class Values:
    """The values of a rig's server that workers await: those of one worker, and the server's part."""

    def __init__(self, network: Network, w: int) -> None:
        rig = network.rig
        self.network, self.rank = network, w
        self.of_workers: dict[int, Values] = rig.__dict__.setdefault("awaited", {})
        self.of_workers[w] = self
        self.service = rig.__dict__.setdefault("service", ValueService(self._send, network.bytes))
        # By tag: the messages of the server, and what the worker receives them into.
        self.sent: dict[int, deque] = {}
        self.receives: dict[int, deque] = {}

    def _send(self, values, rank, tag):
        message = Message()
        self.of_workers[rank].sent.setdefault(tag, deque()).append((values, message))
        return message

    def receive(self, out, tag):
        assert out.flags.writeable
        message = Message(self._enter)
        self.receives.setdefault(tag, deque()).append((out, message))
        return message

    def request(self, offset, n_bytes, version, where):
        message = Message(self._enter)

        def arrive():
            assert self.service.take(self.rank, where, offset, n_bytes, version)
            message.is_there = True

        self.network.send(arrive)
        return message

    def _enter(self):
        self.network.look()
        self.network.wander()

    def wander(self):
        """Some time goes by: the server may send, and messages of any worker may arrive."""
        rng = self.network.rng
        if rng.random() < 0.5:
            self.service.advance()
        for of_worker in self.of_workers.values():
            if of_worker.sent and rng.random() < 0.5:
                of_worker.arrive(int(rng.choice(list(of_worker.sent))))

    def arrive(self, tag):
        """Let the first message of a request arrive. MPI overwrites what the program has there."""
        values, message = self.sent[tag].popleft()
        if not self.sent[tag]:
            del self.sent[tag]
        out, receive = self.receives[tag].popleft()
        out[:] = values
        message.is_there = receive.is_there = True


class Turns:
    """Threads of which one runs at a time; which one changes within calls of the network, at random."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 77])
        self.condition = threading.Condition()
        self.left: list[int] = []
        self.now = -1

    def change(self):
        """Let another thread run, or this one go on."""
        own = self.now
        if self.rng.random() < 0.5:
            self._choose()
            with self.condition:
                self.condition.wait_for(lambda: self.now == own)

    def _choose(self):
        with self.condition:
            self.now = int(self.rng.choice(self.left))
            self.condition.notify_all()

    def run(self, functions: Sequence[Callable]) -> list:
        """Return the values of the functions, or raise the first error."""
        self.left = list(range(len(functions)))

        def one(i):
            with self.condition:
                self.condition.wait_for(lambda: self.now == i)
            try:
                return functions[i]()
            finally:
                self.left.remove(i)
                if self.left:
                    self._choose()

        self._choose()
        return in_threads([lambda i=i: one(i) for i in range(len(functions))])


def by_turns(rig: Rig, seed: int, functions: Sequence[Callable]) -> list:
    """Run a function for each worker of a rig, by turns; all workers have a network. Return their values."""
    turns = Turns(seed)
    for network in rig.networks:
        network.turns = turns
    try:
        return turns.run(functions)
    finally:
        for network in rig.networks:
            network.turns = None


class Question:
    """Asking over the network: answered at some later look, if the server has come so far."""

    def __init__(self, network: Network, layout, w: int) -> None:
        self.network, self.count, self.open = network, None, False
        # Records, offset and destination of each fetch; how many of them the server has received.
        self.fetches, self.n_received = deque(), 0
        network.question = self
        at, said = layout.mailbox_offset(w), layout.geometry.answer_bytes
        self.said = network.bytes[at : at + said]
        values = network.values = Values(network, w)
        self._values = ValueRequests(values.receive, values.request)

    def await_values(self, head_at, version, offset, out, taken):
        return self._values.ask(head_at, version, offset, out, taken)

    def ask(self, count):
        self.expect()
        self.network.send(lambda: setattr(self, "count", count))

    def fetch(self, count, offset, out):
        assert out.flags.writeable
        self.fetches.append((count, offset, out))
        self.network.send(lambda: setattr(self, "n_received", self.n_received + 1))

    def fetched(self):
        network = self.network
        network.look()
        network.wander()
        if not self.n_received or self.said[:8].view(np.uint64)[0] < self.fetches[0][0]:
            return None
        # Messages arrive one after the other: for a while only some of them are here.
        _, offset, out = self.fetches[0]
        here = int(network.rng.integers(0, len(out) + 1)) if network.late else len(out)
        out[:here] = network.bytes[offset : offset + here]
        if network.late and network.rng.random() < 0.5:
            return None
        np.copyto(out, network.bytes[offset : offset + len(out)])
        self.fetches.popleft()
        self.n_received -= 1
        return self.said.copy()

    def expect(self):
        assert not self.open
        self.open, self.count = True, None

    def answer(self):
        self.network.look()
        self.network.wander()
        late = self.network.late and self.network.rng.random() < 0.5
        if late or self.count is None or self.said[:8].view(np.uint64)[0] < self.count:
            return None
        self.open = False
        return self.said.copy()


def remote(rig: Rig, w=0, seed=0, drain=True, checksums=False, kind="rma", gate=None):
    """A network and a channel of worker `w` over it."""
    network = Network(rig, seed, drain, kind)

    def make(mirror):
        geometry = rig.layout.geometry
        return _native.RingWriter(mirror, 0, geometry, w, 0, True, len(rig.tables))

    question = Question(network, rig.layout, w)
    channel = RemoteChannel(network, question, rig.layout, w, rig.n_workers, make, checksums, gate)
    return network, channel
