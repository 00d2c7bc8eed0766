"""Histories with embedding tables whose rows come and go, and what must be in these tables at each clock.

The model has neither sketch, sets nor steps in which rows are removed: after each clock it has the rows that
are in the table by the definition of the limit, with their values and the clocks of their pushes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpips import BSP, EmbeddingTable, Idle, MaxRows, MinCount

if TYPE_CHECKING:
    from simulation.program import Era, Shape

# Share of the histories; the salt is chosen so that no test's seed is one of them.
SHARE, SALT = 0.1, 11
LIMITS = "limits"  # name of these histories


def is_limited(seed: int, feature: str) -> bool:
    """Return True if the embedding tables of a history with this feature have limits."""
    found = random.Random(f"limits {SALT} {seed}").random() < SHARE
    return found and feature in ("", "gathers")


def draw_limits(seed: int, feature: str) -> dict[str, Any] | None:
    """Draw `admit` and `evict` of all embedding tables of a run; None: the tables have no limits."""
    if not is_limited(seed, feature):
        return None
    draws = random.Random(f"limits of {seed}")
    rows, by = draws.choice((1, 2, 3)), draws.choice(("lru", "lfu"))
    evict = draws.choice((None, Idle(1), Idle(2), Idle(2), MaxRows(rows, by=by)))
    counted = MinCount(2, within=draws.choice((1, 2, 4)), memory_mib=1)
    admit = counted if evict is None or draws.random() < 0.4 else None
    return {"admit": admit, "evict": evict}


def with_limits(shape: Shape, limits: dict[str, Any]) -> Shape:
    """Return a shape whose embedding tables have these limits, under BSP."""
    tables = tuple(
        replace(table, consistency=BSP("sum"), **limits)
        if isinstance(table, EmbeddingTable)
        else table
        for table in shape.tables
    )
    shape = shape._replace(tables=tables)
    if isinstance(limits["evict"], MaxRows):
        # So few rows are one set, which one server has.
        shape = shape._replace(n_servers=1, has_partners=False)
    return shape


class Present(NamedTuple):
    """The rows of a table at a clock.

    Attributes:
        clock: Clock of the run.
        values: By key, (8,).
        uses: By key: last clock of the run with a push, and number of such clocks.
    """

    clock: int
    values: dict[int, np.ndarray]
    uses: dict[int, tuple[int, int]]


class LimitedRows:
    """The rows of a table with limits at each clock of an era."""

    def __init__(self, era: Era, table: int, base: Present | None) -> None:
        """Begin with `base`; None: with no rows, at clock 0 of the run."""
        self._era, self._table = era, table
        limits = era.shape.tables[table]
        assert isinstance(limits, EmbeddingTable)
        self._admit, self._evict = limits.admit, limits.evict
        self._states = [base or Present(0, {}, {})]
        # Keys without a row: last clock with a push, and number of such clocks.
        self._counts: dict[int, tuple[int, int]] = {}

    def at(self, clocks: Sequence[int]) -> Present:
        """Return the rows when workers are at these clocks, which must be a cut of BSP."""
        now, ends = max(clocks), self._era.shape.clocks
        assert list(clocks) == [min(now, end) for end in ends] or len(set(clocks)) == 1, (
            f"no clock of BSP ends with the workers at {clocks}"
        )
        while len(self._states) <= now:
            self._states.append(self._next(len(self._states) - 1))
        return self._states[now]

    def _next(self, clock: int) -> Present:
        """Return the rows after a clock of the era."""
        before = self._states[clock]
        now, values, uses = before.clock, dict(before.values), dict(before.uses)
        for key, update in self._pushed(clock).items():
            if key not in values and not self._is_admitted(key, now):
                continue
            values[key] = values.get(key, np.zeros(8, np.float32)) + update
            uses[key] = now, uses.get(key, (0, 0))[1] + 1
        for key in self._leaving(now, uses):
            del values[key], uses[key]
        return Present(now + 1, values, uses)

    def _pushed(self, clock: int) -> dict[int, np.ndarray]:
        """Return the sum of the updates of all workers in a clock, by key."""
        from simulation.program import Push

        found: dict[int, np.ndarray] = {}
        for worker, end in enumerate(self._era.shape.clocks):
            for op in self._era.ops(worker, clock) if clock < end else ():
                if isinstance(op, Push) and op.table == self._table and op.keys is not None:
                    for key, update in zip(op.keys, self._era.update(worker, op), strict=True):
                        found[key] = found.get(key, np.zeros(8, np.float32)) + update
        return found

    def _is_admitted(self, key: int, now: int) -> bool:
        if self._admit is None:
            return True
        assert isinstance(self._admit, MinCount)
        last, n = self._counts.get(key, (now, 0))
        n = n + 1 if now - last <= self._admit.within else 1
        self._counts[key] = now, n
        return n >= self._admit.clocks

    def _leaving(self, now: int, uses: dict[int, tuple[int, int]]) -> list[int]:
        if isinstance(self._evict, Idle):
            return [key for key, (last, _) in uses.items() if now + 1 > last + self._evict.clocks]
        if not isinstance(self._evict, MaxRows):
            return []
        by_count = self._evict.by == "lfu"
        order = sorted(
            uses,
            key=lambda key: (
                uses[key][0] == now,
                uses[key][1] if by_count else 0,
                uses[key][0],
                mixed(key),
            ),
        )
        return order[: max(0, len(order) - self._evict.rows)]

    def check(
        self, present: Present, keys: Sequence[int], uses: dict[int, tuple[int, int]] | None
    ) -> None:
        """Check that these keys have rows, with these uses; None: there are none."""
        assert set(keys) == present.values.keys(), (
            f"table {self._table} has rows of {sorted(keys)}, not {sorted(present.values)}"
        )
        if self._evict is not None:
            assert (uses or {}) == present.uses, (
                f"rows of table {self._table} have uses {uses}, not {present.uses}"
            )


def mixed(key: int) -> int:
    """Return the finaliser of SplitMix64, by which rows of equal use leave."""
    x, mask = key & (2**64 - 1), 2**64 - 1
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    return x ^ (x >> 31)


def whole(present: Present, n_keys: int) -> np.ndarray:
    """Return the values of keys 0 .. n_keys-1, (n_keys, 8); zeros without a row."""
    found = np.zeros((n_keys, 8), np.float32)
    for key, value in present.values.items():
        found[key] = value
    return found
