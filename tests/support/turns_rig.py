"""A program that is killed while workers close tables before their ticks; see test_turns_journal.

Runs as `python turns_rig.py LOAD HOW NUMBER`, like crash_rig.py, whose lives it extends: the last push of a
worker to a table in a clock closes it, for some workers and tables. The workers' steps are mixed at random,
as far as turns allow. At the end the bits must be those of a run that nobody disturbed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import crash_rig
from crash_life import Life_
from crash_load import Load, Push, Step, dense, rows

from mpips.model.consistency import BSP
from mpips.model.optimizer import SGD, Adam, Momentum


@dataclass(frozen=True)
class ClosingLoad(Load):
    """Pushes of which the last one to a table closes it, in an order that needs the turns.

    Attributes:
        open_pairs: Pairs of worker and table that no push closes.
        seed: Of the order of steps.
    """

    open_pairs: frozenset[tuple[int, int]] = frozenset()
    seed: int = 0

    def closes(self, p: Push) -> bool:
        """True if a push is the last one to its table in its clock."""
        n = sum(table == p.table for table, _, _ in self.sizes)
        return p.ordinal == n - 1 and (p.worker, p.table) not in self.open_pairs

    def steps(self) -> Iterator[Step]:
        """All steps; each can be consumed when it comes."""
        draw = random.Random(self.seed)
        for clock in range(self.clocks):
            if self.pulls:
                yield from (("pull", w, clock) for w in range(self.n_workers))
            yield from self._mixed(clock, draw)
        yield from (("finish", w, self.clocks) for w in range(self.n_workers))

    def _mixed(self, clock: int, draw: random.Random) -> Iterator[Step]:
        left: list[list[Step]] = [
            [*self._pushes(w, clock), ("tick", w, clock), ("cut", w, clock)]
            for w in range(self.n_workers)
        ]
        passed: set[tuple[int, int]] = (
            set()
        )  # (worker, table) that is closed, or whose worker has ticked
        n_tables = len(self.tables)

        def may(w: int) -> bool:
            step = left[w][0]
            if isinstance(step, Push):
                return all((other, step.table) in passed for other in range(w))
            if step[0] == "cut":
                return True
            return all(len(left[other]) < 2 for other in range(w))

        while any(left):
            w = draw.choice([w for w in range(self.n_workers) if left[w] and may(w)])
            step = left[w].pop(0)
            if isinstance(step, Push):
                if self.closes(step):
                    passed.add((w, step.table))
            elif step[0] == "tick":
                passed |= {(w, table) for table in range(n_tables)}
            yield step


class ClosingLife(Life_):
    """A life whose pushes close tables."""

    def push(self, p: Push) -> None:
        assert isinstance(self.load, ClosingLoad)
        self.writers[p.worker].set_closing(self.load.closes(p))
        try:
            super().push(p)
        finally:
            self.writers[p.worker].set_closing(False)


def loads() -> dict[str, ClosingLoad]:
    """All loads by name."""
    found = {}
    tables = [
        dense(600, "d", Adam(0.1), BSP()),
        rows(4, "e", Adam(0.1), BSP()),
        dense(40, "f", Momentum(0.5), BSP()),
    ]
    sizes = [(2, 40, ""), (0, 600, ""), (1, 40, ""), (2, 40, "staged"), (0, 600, "staged")]
    unstaged = [(table, n, "") for table, n, _ in sizes]  # copies have no staging memory
    some = frozenset({(0, 2), (1, 0), (2, 1)})
    for name, pairs in {"all": frozenset[tuple[int, int]](), "some": some}.items():
        found[f"{name}-close"] = ClosingLoad(tables, sizes, 3, open_pairs=pairs)
        found[f"{name}-queued"] = ClosingLoad(
            tables, sizes, 3, drain_every=5, pulls=False, open_pairs=pairs, seed=1
        )
        found[f"{name}-pair"] = ClosingLoad(
            tables, unstaged, 2, drain_every=3, partner=True, open_pairs=pairs, seed=2
        )
    tables = [dense(4, "d", SGD(0.5), BSP()), dense(4, "f", Adam(0.5), BSP())]
    found["small"] = ClosingLoad(tables, [(1, 4, ""), (0, 4, "")], clocks=1)
    return found


def in_turn(load: ClosingLoad) -> Load:
    """Return the same pushes without closing, worker by worker."""
    return Load(
        load.tables, load.sizes, load.n_workers, load.clocks, 1, load.slot_bytes, False, load.pulls
    )


crash = partial(crash_rig.crash, program=__file__)


if __name__ == "__main__":
    crash_rig.Life_ = ClosingLife  # type: ignore[misc]
    crash_rig.main(loads())
