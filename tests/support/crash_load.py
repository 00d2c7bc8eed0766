"""The script of a crash test: tables, and what workers push to them. See crash_rig.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from mpips.model.consistency import BSP, Switch
from mpips.model.table import DenseTable, EmbeddingTable, Table


@dataclass(frozen=True)
class Push:
    """One push of the script: whose, when, the how manieth to its table in that clock, and what."""

    worker: int
    clock: int
    table: int
    ordinal: int
    update: np.ndarray
    keys: np.ndarray | None = None
    base: np.ndarray | None = None
    base_version: int = 0
    staged: bool = False


Step = Push | tuple[str, int, int]  # ("pull" | "tick" | "cut" | "finish", worker, clock)


@dataclass(frozen=True)
class Load:
    """Tables, and what workers push to them.

    Attributes:
        sizes: For each push of a clock: table, elements or rows, and how ("", "staged", "base").
        drain_every: Steps between two looks of the server at the rings.
        slot_bytes: Of a record.
        partner: There is a copy, in which every life but the first goes on: the server's own memory is
            lost with its life.
        alternates: Steps of the workers alternate, although BSP takes in one worker after the other.
        pulls: Each clock of a worker begins with a pull, so all before it is consumed.
    """

    tables: list[Table]
    sizes: list[tuple[int, int, str]]
    n_workers: int = 2
    clocks: int = 2
    drain_every: int = 1
    slot_bytes: int = 1024
    partner: bool = False
    pulls: bool = True
    alternates: bool = False

    def steps(self) -> Iterator[Step]:
        """All steps in order. Without backup workers BSP takes in one worker after the other."""
        by_turns = any(
            isinstance(t.consistency, Switch)
            or (isinstance(t.consistency, BSP) and not t.consistency.backup)
            for t in self.tables
        )
        for clock in range(self.clocks):
            if self.pulls:
                yield from (("pull", w, clock) for w in range(self.n_workers))
            lists = [
                [*self._pushes(w, clock), ("tick", w, clock), ("cut", w, clock)]
                for w in range(self.n_workers)
            ]
            in_turn = by_turns and not self.alternates
            yield from chain(*(lists if in_turn else zip_longest(*lists)))
        yield from (("finish", w, self.clocks) for w in range(self.n_workers))

    def _pushes(self, w: int, clock: int) -> Iterator[Push]:
        ordinals = [-1] * len(self.tables)
        for i, (table, n, how) in enumerate(self.sizes):
            if not self.takes_part(w, table):
                continue
            ordinals[table] += 1
            yield self._push(w, clock, table, ordinals[table], i, n, how)

    def takes_part(self, w: int, table: int) -> bool:
        """Return whether a worker pushes to a table and pulls from it."""
        n = 1 + max((t.stage for t in self.tables if t.stage is not None), default=0)
        return self.tables[table].stage in (None, w % n)

    def _push(self, w: int, clock: int, table: int, ordinal: int, i: int, n: int, how: str) -> Push:
        rng = np.random.default_rng([w, clock, table, i])
        spec = self.tables[table]
        keys = None
        if isinstance(spec, EmbeddingTable):
            keys = np.unique(rng.integers(0, 3 * n, n))[: max(n - 1, 1)].astype(np.int64)
            shape: tuple[int, ...] = (keys.size, spec.dim)
        else:
            shape = (n,)
        update = rng.integers(-3, 4, shape).astype(np.float32)
        base = rng.integers(-3, 4, shape).astype(np.float32) if "base" in how else None
        return Push(w, clock, table, ordinal, update, keys, base, clock, how == "staged")


def python_rule(values: Any, state: Any, update: Any, step: int) -> None:
    """Momentum, with the step in it."""
    state[0] = 0.5 * state[0] + update
    values -= 0.25 * state[0] * (1 + step % 2)


def dense(n: int, name: str, optimizer: Any, consistency: Any) -> DenseTable:
    return DenseTable(name, (n,), optimizer=optimizer, consistency=consistency)


def rows(dim: int, name: str, optimizer: Any, consistency: Any) -> EmbeddingTable:
    return EmbeddingTable(name, dim, optimizer=optimizer, consistency=consistency)
