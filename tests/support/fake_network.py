"""A network that delays, reorders and tears, between a worker's channel and a rig's server.

Two kinds, as mpips has them:

rma: Puts and gets of a window, each cut at a random byte, whose pieces move in any order; `flush` returns
    when all of them have moved. Messages (puts that may ask, questions, fences) travel on a channel of
    their own: the server takes them whole and in their order, at any time, also long after `flush`.
    Nothing orders a message and a put.
p2p: All are messages in one order. `flush` returns when the server has taken the last long one or get;
    short ones behind it may still be under way.

So a `flush` that returned says of short puts only that they will arrive, unlike what mpips may believe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from harness import Rig

from mpips import _native
from mpips.transport.remote import RemoteChannel

INLINE_BYTES = 16 << 10  # as mpips.transport.p2p, which cannot be loaded without MPI
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


class Question:
    """Asking over the network: answered at some later look, if the server has come so far."""

    def __init__(self, network: Network, layout, w: int) -> None:
        self.network, self.count, self.open = network, None, False
        # Records, offset and destination of each fetch; how many of them the server has received.
        self.fetches, self.n_received = deque(), 0
        network.question = self
        at, said = layout.mailbox_offset(w), layout.geometry.answer_bytes
        self.said = network.bytes[at : at + said]

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
