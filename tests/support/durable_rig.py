"""Workers with replicated tables in durable memory, in one process, that are ended and continue.

The workers follow the rules of mpips.recovery.node_tables, as mpips.worker.replicated.tables does. Servers
are the numbers of clocks that they have of each worker. A launch ends when the test stops to run its
programs; the next one continues in the memory of the nodes that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from reduction_rig import ROUNDS, Network

from mpips import _native
from mpips.checkpoint import WorkerState
from mpips.model.optimizer import Optimizer
from mpips.mpi.contributions import Contributions
from mpips.recovery.memory import Place
from mpips.recovery.node_tables import base_of

N_SERVERS = 2
# Configure and push what a worker configures and pushes in a clock; yields where others may go on.
Step = Callable[["Launch", int, int], Iterator[None]]


class Servers:
    """The clocks of all workers at each server, which outlive a launch."""

    def __init__(self, n_workers: int) -> None:
        self.clocks = np.zeros((N_SERVERS, n_workers), int)
        self.ended = np.zeros((N_SERVERS, n_workers), bool)

    def places(self) -> list[Place]:
        return [
            Place(
                int(self.clocks[:, w].min()),
                WorkerState(worker=w, clock=0),
                int(self.clocks[:, w].max()),
                finished=bool(self.ended[:, w].all()),
            )
            for w in range(self.clocks.shape[1])
        ]


class Launch:
    """One launch: `ends[w]` is the native end of worker w, `memory[w]` the memory of its node."""

    def __init__(
        self,
        tables: Sequence[tuple[int, Optimizer]],
        nodes: Sequence[Sequence[int]],
        servers: Servers,
        seed: int,
        values: Sequence[np.ndarray] | None,
        left: Sequence[Any] = (),
    ) -> None:
        """Begin with these values, or with the memory `left` of a launch before."""
        self.nodes, self.servers = nodes, servers
        self.n = sum(map(len, nodes))
        self.sizes = [n for n, _ in tables]
        self.layout = _native.NodeLayout(
            self.n, [(n, rule.n_state) for n, rule in tables], ROUNDS, True
        )
        self.rules = [
            (f"t{i}", rule.native(), True, 0, False) for i, (_, rule) in enumerate(tables)
        ]
        self.network = Network(seed)
        self.places = servers.places()
        self.base = base_of(self.places) if left else 0
        self.ends: list[Any] = [None] * self.n
        self.memory: list[Any] = [None] * self.n
        self.messages: list[Contributions | None] = [None] * self.n
        for i, node in enumerate(nodes):
            memory = _native.SharedMemory.anonymous(self.layout.total_bytes, 0)
            if left:
                self._continue(memory, left[i % len(left)])
            else:
                assert values is not None
                for t, (n, rule) in enumerate(tables):
                    self._array(memory, t, 0)[:] = values[t]
                    for k in range(rule.n_state):
                        self._array(memory, t, 1 + k)[:] = rule.native().initial_state(k)
                    assert n == len(values[t])
                _native.set_start_versions(memory, self.layout, [0] * len(tables))
            _native.set_local_workers(memory, self.layout, list(node), self.base)
            for w in node:
                place, self.memory[w] = self.places[w], memory
                repeats = not place.finished and place.ahead > place.clock
                start = (place.clock, self.base, repeats, place.finished)
                self.ends[w] = _native.Reduction(
                    memory, self.layout, w, list(node), self.rules, True, start
                )
        if len(nodes) > 1:
            for node in nodes:
                for w in node:
                    self.messages[w] = self._connect(w, node)

    def left_by(self, memory: Any) -> Any:
        """Return what the next launch finds in a node's memory."""
        places = self.servers.places()
        workers = [(place.clock, place.ahead, place.finished) for place in places]
        return _native.LeftTables(memory, self.layout, self.rules, workers, base_of(places))

    def _continue(self, memory: Any, left: Any) -> None:
        left.write(memory)
        left.copy_contributions(memory)

    def _array(self, memory: Any, table: int, slot: int) -> np.ndarray:
        at = self.layout.array(table, slot)
        return memory.view(at, 4 * self.sizes[table], True).view(np.float32)

    def _connect(self, w: int, node: Sequence[int]) -> Contributions:
        others = [group for group in self.nodes if w not in group]

        def room(v: int, table: int, number: int) -> np.ndarray:
            at = self.layout.contribution(v, table, number)
            return self.memory[w].view(at, 4 * self.sizes[table], True)

        return Contributions(
            self.network.comm(w),
            {v: v for v in range(self.n)},
            [group[w % len(group)] for group in others],
            [v for group in others for v in group if node[v % len(node)] == w],
            self.ends[w],
            room,
            ([f"worker {v}" for v in range(self.n)], [rule[0] for rule in self.rules]),
            256,
            True,
        )

    def poll(self, w: int) -> None:
        if (messages := self.messages[w]) is not None:
            messages.poll()
        self.ends[w].advance()

    def is_idle(self, w: int) -> bool:
        messages = self.messages[w]
        return messages is None or messages.is_idle

    def push(self, w: int, table: int, update: np.ndarray) -> Iterator[None]:
        end, messages = self.ends[w], self.messages[w]
        while True:
            self.poll(w)
            if end.may_push(table) and self.is_idle(w):
                break
            yield
        number, repeats = end.pushes(table), end.repeats
        assert end.push(table, update, True)
        if messages is not None and not repeats:
            at = self.layout.contribution(w, table, number)
            raw = self.memory[w].view(at, update.nbytes, False)
            messages.push(table, end.clock, number + 1, end.rule_hash(table), raw)

    def pull(self, w: int, table: int) -> Iterator[None]:
        while True:
            self.poll(w)
            if self.ends[w].complete(table) and self.is_idle(w):
                return
            yield

    def close(self, w: int, table: int) -> None:
        end, messages = self.ends[w], self.messages[w]
        end.close(table)
        if messages is not None and not end.repeats:
            messages.close(table, end.clock)
        self.poll(w)

    def configure(self, w: int, table: int, rule: Optimizer) -> None:
        end, messages = self.ends[w], self.messages[w]
        end.configure(table, rule.native())
        if messages is not None:
            messages.rule(table, end.clock, end.raw_rule(table))

    def clock(self, w: int) -> Iterator[None]:
        """End a clock: rule (1), the ticks of all servers, and `sent`."""
        end, messages = self.ends[w], self.messages[w]
        while True:
            self.poll(w)
            if end.settled and end.all_sent(end.clock):
                break
            yield
        clock, repeats = end.clock, end.repeats
        end.tick()
        if messages is not None and not repeats:
            messages.tick(clock)
        yield
        while messages is not None and not messages.is_received:
            self.poll(w)
            yield
        for server in range(N_SERVERS):
            self.servers.clocks[server, w] = max(self.servers.clocks[server, w], clock + 1)
            yield
        end.note_sent(w, clock + 1)
        if messages is not None:
            messages.sent(clock + 1)

    def program(self, w: int, clocks: int, step: Step) -> Iterator[None]:
        end = self.ends[w]
        for clock in range(end.clock, clocks):
            yield from step(self, w, clock)
            yield from self.clock(w)
            yield
        while not (end.settled and self.is_idle(w)):
            self.poll(w)
            yield
        for server in range(N_SERVERS):
            self.servers.ended[server, w] = True
            yield
        end.finish()
        if (messages := self.messages[w]) is not None:
            messages.finish(end.clock)
        while True:
            self.poll(w)  # a finished worker still receives for its node
            yield
