"""The decisions on the bound of SSP("auto"), on server 0; how they become valid: native server_bound.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpips import _native
from mpips.model.adaptive_bound import BoundChoice, Interval, choose_bound
from mpips.model.consistency import SSP
from mpips.model.table import Table

_MOST_STORED = 1000  # decisions in the statistics of a run
_NEVER = 2**64  # a clock that is not reached


class Decision(NamedTuple):
    """A decision that has changed the bound.

    Attributes:
        clock: Clock of the servers from which it is in force.
        bound: The bound.
        reason: The measurement behind it.
    """

    clock: int
    bound: int
    reason: str


class BoundControl:
    """Decides on the bound from the measured times of the workers. Not thread-safe: for the server's loop.

    Attributes:
        most: Greatest bound.
        bound: The bound that was decided on last; 0 at first.
        decisions: The decisions so far, the oldest first; the first 1000.
    """

    def __init__(self, core: _native.ServerCore, table: int, most: int, bound: int = 0) -> None:
        """Begin with a bound.

        Args:
            core: The native server, which has started.
            table: The table whose head has the decisions.
            most: Greatest bound.
            bound: The bound that was in force before this launch, if any.
        """
        self._core = core
        self._table = table
        self.most = most
        self._next = 0  # lowest clock of all workers at which the next decision is taken
        self._n_decisions = 0
        self.decisions: list[Decision] = []
        self.begin(bound)

    def begin(self, bound: int) -> None:
        """Begin with this bound, before any worker is at work."""
        self.bound = self._begun = min(bound, self.most)
        self._core.decide_bounds(self._table, self.most, self.bound)
        # Measure so many clocks at least.
        self._next = self._core.min_clock() + self.most + 2

    def poll(self) -> str:
        """Decide if it is time; return a line for people about a change of the bound, or "". Cheap."""
        if self._core.min_clock() < self._next:
            return ""
        return self._decide()

    def _decide(self) -> str:
        choice = self.choose()
        now = self._core.min_clock()
        if choice is None or choice.bound == self.bound:
            self._next = now + self.most + 2
            return ""
        clock = self._core.set_bound(choice.bound)
        if not clock:
            # All workers have finished, or the clock has come to the end of what a decision can hold.
            self._next = _NEVER
            return ""
        before, self.bound, self._next = self.bound, choice.bound, clock
        self._n_decisions += 1
        if len(self.decisions) < _MOST_STORED:
            self.decisions.append(Decision(clock, choice.bound, choice.reason))
        return (
            f"bound of SSP('auto') is {choice.bound} from clock {clock} on, {before} before it: "
            f"{choice.reason}"
        )

    def all_bounds(self) -> tuple[tuple[int, int], ...] | None:
        """Return clock and bound of all decisions, the oldest first; None: not all of them are stored.

        A bound with which the launch began stands first, at clock 0.
        """
        if self._n_decisions > len(self.decisions):
            return None
        begun = ((0, self._begun),) if self._begun else ()
        return (*begun, *((d.clock, d.bound) for d in self.decisions))

    def choose(self) -> BoundChoice | None:
        """Return the bound for the times since the last call; None: not even two workers have any."""
        found = [
            Interval(worker, seconds / n)
            for worker, (n, seconds) in enumerate(self._core.take_intervals())
            if n
        ]
        return choose_bound(found, self.most) if len(found) > 1 else None


def bound_in_force(memory: _native.SharedMemory, layout: _native.Layout, table: int) -> int:
    """Return the bound that a server of an earlier launch has decided on last; 0 if its memory has none."""
    word = _native.read_word(memory, layout.decision_offset(table))
    return (word or 0) >> 8 & 0xFF


def bound_table(tables: Sequence[Table]) -> int | None:
    """Return the index of the table whose head has the decisions; None: no table is under SSP("auto")."""
    found = (
        i
        for i, table in enumerate(tables)
        if isinstance(table.consistency, SSP) and table.consistency.is_adaptive
    )
    return next(found, None)
