"""A network that delays, reorders and tears, between a worker's channel and a rig's server."""

from __future__ import annotations

import numpy as np
from harness import Rig

from mpips import _native
from mpips.transport.remote import RemoteChannel


class Network:
    """RemoteMemory over a rig's region: nothing happens before `flush`, and then in any order.

    Every put and get is cut at a random byte; between any two pieces the server may drain, and other
    pieces move. A word of eight bytes moves at once, as on every machine that MPI runs on.
    """

    name = "fake"
    piece_bytes = 256 << 10

    def __init__(self, rig: Rig, seed: int, drain: bool = True) -> None:
        self.rig, self.rng = rig, np.random.default_rng(seed)
        self.drains = drain
        self.bytes = rig.region.view(0, rig.region.n_bytes, True)
        self.pending: list = []
        self.on_piece = lambda: None
        self.puts: list[tuple[int, int]] = []
        self.flushes = 0

    def put(self, offset, data):
        assert len(data) > 0
        self.puts.append((offset, len(data)))
        self._cut(self.bytes[offset : offset + len(data)], data)

    def get(self, offset, out):
        assert out.flags.writeable
        self._cut(out, self.bytes[offset : offset + len(out)])

    def _cut(self, to, source):
        assert to.size == source.size
        at = 8 * int(self.rng.integers(0, len(to) // 8 + 1))
        self.pending += [(to[:at], source[:at]), (to[at:], source[at:])]

    def put_asking(self, offset, data, count):
        self.put(offset, data.copy())
        if count:
            self.question.count = count

    def leave(self):
        pass

    def flush(self):
        self.flushes += 1
        for i in self.rng.permutation(len(self.pending)):
            to, source = self.pending[i]
            to[:] = source
            if self.drains and self.rng.random() < 0.5:
                self.rig.drain()
            self.on_piece()
        self.pending.clear()


class Question:
    """Asking over the network: answered at some later look, if the server has come so far."""

    def __init__(self, network: Network, layout, w: int) -> None:
        self.network, self.count, self.open = network, None, False
        network.question = self
        at, said = layout.mailbox_offset(w), layout.geometry.said_bytes
        self.said = network.bytes[at : at + said]

    def ask(self, count):
        self.expect()
        self.count = count

    def expect(self):
        assert not self.open
        self.open = True

    def answer(self):
        if self.network.drains:
            self.network.rig.drain()
        late = self.network.drains and self.network.rng.random() < 0.5
        if late or self.said[:8].view(np.uint64)[0] < self.count:
            return None
        self.open = False
        return self.said.copy()


def remote(rig: Rig, w=0, seed=0, drain=True, checksums=False):
    """A network and a channel of worker `w` over it."""
    network = Network(rig, seed, drain)

    def make(mirror):
        geometry = rig.layout.geometry
        return _native.RingWriter(mirror, 0, geometry, w, 0, True, len(rig.tables))

    question = Question(network, rig.layout, w)
    return network, RemoteChannel(network, question, rig.layout, w, rig.n_workers, make, checksums)
