"""Workers with replicated tables on some nodes, in one process, and what servers would compute."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpips import _native
from mpips.kernels import reference
from mpips.model.optimizer import Optimizer
from mpips.mpi.contributions import Contributions

Float32 = np.ndarray
ROUNDS = 3


class _Request:
    """A request that is complete only some looks after it could be."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.done = False

    def Test(self) -> bool:
        self._network.move()
        return self.done


class Network:
    """Messages between the ranks of one process, which take a random time; in order for each pair and tag."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        # By (source, destination, tag): (request, buffer) of sends and of receives, in order.
        self._sends: dict[tuple[int, int, int], deque[Any]] = defaultdict(deque)
        self._receives: dict[tuple[int, int, int], deque[Any]] = defaultdict(deque)

    def move(self) -> None:
        """Deliver some messages. The data is that of the moment of delivery, as with large messages."""
        for key, sends in self._sends.items():
            receives = self._receives[key]
            while sends and receives and self._random.random() < 0.4:
                (sent, data), (received, room) = sends.popleft(), receives.popleft()
                flat = room.view(np.uint8).reshape(-1)
                flat[:] = data.view(np.uint8).reshape(-1)
                sent.done = received.done = True

    @property
    def under_way(self) -> int:
        return sum(map(len, self._sends.values()))

    def comm(self, rank: int) -> _Comm:
        return _Comm(self, rank)


class _Comm:
    def __init__(self, network: Network, rank: int) -> None:
        self._network, self._rank = network, rank

    def Isend(self, buf: Any, dest: int, tag: int) -> _Request:
        request = _Request(self._network)
        self._network._sends[self._rank, dest, tag].append((request, buf))
        return request

    def Irecv(self, buf: Any, source: int, tag: int) -> _Request:
        request = _Request(self._network)
        self._network._receives[source, self._rank, tag].append((request, buf))
        return request

    def Iprobe(self, source: int, tag: int) -> bool:
        raise NotImplementedError


class Plain:
    """One table as servers hold it under BSP."""

    def __init__(self, rule: Optimizer, n: int, mean: bool, values: Float32) -> None:
        self.rule, self.mean, self.steps = rule, mean, 0
        self.values = values.copy()
        native = rule.native()
        state = [np.full(n, native.initial_state(k), np.float32) for k in range(rule.n_state)]
        self.state = np.array(state, np.float32).reshape(rule.n_state, n)

    def apply(self, pushes: Sequence[Sequence[Float32]], n_workers: int) -> None:
        """Apply the pushes of a clock, by worker; `n_workers` end the clock."""
        flat = [push for own in pushes for push in own]
        if not flat:
            return
        total = flat[0].copy()
        for push in flat[1:]:
            total += push
        self.steps += 1
        scale = float(np.float32(1) / np.float32(n_workers)) if self.mean else 1.0
        reference.update(self.rule.native(), self.values, self.state, total, self.steps, scale, 1.0)


class ReductionRig:
    """Workers of replicated tables on nodes; `ends[w]` is the native end of worker w."""

    def __init__(
        self,
        sizes: Sequence[int],
        rules: Sequence[Optimizer],
        nodes: Sequence[Sequence[int]],
        mean: bool = True,
        seed: int = 0,
        piece_bytes: int = 256,
    ) -> None:
        """`nodes`: the workers of each node."""
        self.n_workers = sum(map(len, nodes))
        self.sizes, self.network = list(sizes), Network(seed)
        self.names = [f"t{i}" for i in range(len(sizes))]
        self.layout = _native.NodeLayout(
            self.n_workers,
            [(n, rule.n_state) for n, rule in zip(sizes, rules, strict=True)],
            ROUNDS,
        )
        random = np.random.default_rng(seed)
        initial = [random.standard_normal(n).astype(np.float32) for n in sizes]
        self.plain = [
            Plain(rule, n, mean, values)
            for rule, n, values in zip(rules, sizes, initial, strict=True)
        ]
        self.ends: list[Any] = [None] * self.n_workers
        self.memory: list[Any] = [None] * self.n_workers
        self.messages: list[Contributions | None] = [None] * self.n_workers
        native = [
            (name, rule.native(), mean, 0, False)
            for name, rule in zip(self.names, rules, strict=True)
        ]
        for node in nodes:
            memory = _native.SharedMemory.anonymous(self.layout.total_bytes, 0)
            for t, plain in enumerate(self.plain):
                for slot, array in enumerate([plain.values, *plain.state]):
                    self.array(memory, t, slot)[:] = array
            for w in node:
                self.memory[w] = memory
                self.ends[w] = _native.Reduction(memory, self.layout, w, list(node), native, True)
        if len(nodes) > 1:
            for node in nodes:
                for w in node:
                    self.messages[w] = self._connect(w, node, nodes, piece_bytes)

    def array(self, memory: Any, table: int, slot: int) -> Float32:
        at = self.layout.array(table, slot)
        return memory.view(at, 4 * self.sizes[table], True).view(np.float32)

    def room(self, memory: Any, worker: int, table: int, number: int) -> np.ndarray:
        at = self.layout.contribution(worker, table, number)
        return memory.view(at, 4 * self.sizes[table], True)

    def _connect(
        self, w: int, node: Sequence[int], nodes: Sequence[Sequence[int]], piece_bytes: int
    ) -> Contributions:
        others = [group for group in nodes if w not in group]
        return Contributions(
            self.network.comm(w),
            {v: v for v in range(self.n_workers)},
            [group[w % len(group)] for group in others],
            [v for group in others for v in group if node[v % len(node)] == w],
            self.ends[w],
            lambda v, t, number: self.room(self.memory[w], v, t, number),
            ([f"worker {v}" for v in range(self.n_workers)], self.names),
            piece_bytes,
        )

    def poll(self, w: int) -> None:
        if (messages := self.messages[w]) is not None:
            messages.poll()
        self.ends[w].advance()

    def is_ready(self, w: int, table: int) -> bool:
        self.poll(w)
        messages = self.messages[w]
        return self.ends[w].complete(table) and (messages is None or messages.is_idle)

    def push(self, w: int, table: int, update: Float32) -> None:
        end = self.ends[w]
        number = end.pushes(table)
        assert end.push(table, update, True)
        if (messages := self.messages[w]) is not None:
            raw = self.room(self.memory[w], w, table, number)
            messages.push(table, end.clock, number + 1, end.rule_hash(table), raw)

    def close(self, w: int, table: int) -> None:
        self.ends[w].close(table)
        if (messages := self.messages[w]) is not None:
            messages.close(table, self.ends[w].clock)

    def tick(self, w: int) -> None:
        clock = self.ends[w].clock
        self.ends[w].tick()
        if (messages := self.messages[w]) is not None:
            messages.tick(clock)

    def finish(self, w: int) -> None:
        self.ends[w].finish()
        if (messages := self.messages[w]) is not None:
            messages.finish(self.ends[w].clock)

    def settle(self, workers: Sequence[int] | None = None) -> None:
        """Let all workers go on until nothing is left to do."""
        workers = range(self.n_workers) if workers is None else workers
        for _ in range(100_000):
            for w in workers:
                self.poll(w)
            if all(self.ends[w].settled for w in workers) and not self.network.under_way:
                return
        raise AssertionError([end.awaited() for end in self.ends])

    def assert_plain(self, w: int) -> None:
        """The node of worker w has values, state and counts with the bits of a server."""
        for t, plain in enumerate(self.plain):
            assert self.ends[w].steps(t) == plain.steps
            for slot, array in enumerate([plain.values, *plain.state]):
                assert self.ends[w].values(t, slot).tobytes() == array.tobytes(), (w, t, slot)
