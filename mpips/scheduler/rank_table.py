"""What every rank does now, as far as the scheduler has heard: for people, never for decisions.

Heartbeats bring what a rank has counted since its start; the rank table makes rates of the last few seconds
of it. A rank's own clock times them, so a message that was late bends nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mpips.mpi.messages import Evaluated, Figures, Heartbeat
from mpips.rundir.directory import RankPlace
from mpips.rundir.files import RankRow

_WINDOW = 6  # heartbeats that rates are measured over
_LEAST_S = 0.2  # apart, for a rate


@dataclass
class Totals:
    """Of all ranks together, since the job's start or per second.

    Attributes:
        pushed_bytes, pulled_bytes: Of all workers.
        push_bytes_per_s, pull_bytes_per_s: The same, lately; None: not known yet.
        staleness: Mean of the updates judged lately; None: there were none.
    """

    pushed_bytes: int = 0
    pulled_bytes: int = 0
    push_bytes_per_s: float | None = None
    pull_bytes_per_s: float | None = None
    staleness: float | None = None


@dataclass
class _Rank:
    """The last heartbeats of a rank; `heard_s` is Unix time."""

    place: RankPlace
    state: str = "starting"
    clock: int = 0
    heard_s: float = 0.0
    figures: deque[tuple[int, Figures]] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    @property
    def last(self) -> Figures:
        return self.figures[-1][1] if self.figures else Figures()

    def gained(self, name: str) -> int:
        """What a counter has grown by over the window."""
        if not self.figures:
            return 0
        return int(getattr(self.last, name) - getattr(self.figures[0][1], name))

    def per_s(self, grown: float) -> float:
        """A growth over the window, by the second."""
        seconds = self.last.at - self.figures[0][1].at if self.figures else 0.0
        return round(grown / seconds, 3) if seconds >= _LEAST_S else 0.0

    @property
    def clocks(self) -> int:
        return self.clock - self.figures[0][0] if self.figures else 0

    @property
    def staleness(self) -> float | None:
        judged = self.gained("judged")
        return self.gained("staleness_sum") / judged if judged else None


class RankTable:
    """Keeps the last heartbeats of all ranks. One per job, on the scheduler's rank; never blocks.

    Attributes:
        own: What this process itself does, where it has other roles than the scheduler's.
        on_look: Called at every `look`, for a display.
        on_end: Called when the last rank has told what it did.
        on_evaluated: Called with the metrics of each evaluation.
    """

    def __init__(self, places: Sequence[RankPlace]) -> None:
        """`places`: of all ranks, by rank."""
        self._ranks = [_Rank(place) for place in places]
        self._own_rank = next((r for r, p in enumerate(places) if "scheduler" in p.role), 0)
        self._next_own = 0.0
        self.own: Callable[[], Heartbeat] | None = None
        self.on_look: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.on_evaluated: list[Callable[[Evaluated], None]] = []

    @property
    def places(self) -> tuple[RankPlace, ...]:
        """Where the ranks are."""
        return tuple(rank.place for rank in self._ranks)

    def hear(self, rank: int, beat: Heartbeat) -> None:
        """Take a heartbeat."""
        known = self._ranks[rank]
        known.state, known.clock, known.heard_s = beat.state, beat.clock, time.time()
        if beat.figures is not None:
            known.figures.append((beat.clock, beat.figures))

    def evaluated(self, found: Evaluated) -> None:
        """Pass the metrics of an evaluation on."""
        for listener in self.on_evaluated:
            listener(found)

    def end(self) -> None:
        """The work is over; what follows may be printed where a display was."""
        if self.on_end is not None:
            self.on_end()

    def look(self) -> None:
        """Look at this process, too, and let the display look. Call it often."""
        now = time.monotonic()
        if now >= self._next_own:
            self._next_own = now + 1.0
            beat = self.own() if self.own is not None else Heartbeat("scheduling", 0, None)
            self.hear(self._own_rank, beat)
        if self.on_look is not None:
            self.on_look()

    def rows(self) -> tuple[RankRow, ...]:
        """All ranks as `ranks.json` has them."""
        return tuple(_row(rank) for rank in self._ranks)

    def totals(self) -> Totals:
        """Of all workers together."""
        workers = [rank for rank in self._ranks if "worker" in rank.place.role]
        judged = sum(rank.gained("judged") for rank in workers)
        stale = sum(rank.gained("staleness_sum") for rank in workers)
        found = Totals(
            pushed_bytes=sum(rank.last.pushed_bytes for rank in workers),
            pulled_bytes=sum(rank.last.pulled_bytes for rank in workers),
            staleness=stale / judged if judged else None,
        )
        if any(len(rank.figures) > 1 for rank in workers):
            found.push_bytes_per_s = sum(
                rank.per_s(rank.gained("pushed_bytes")) for rank in workers
            )
            found.pull_bytes_per_s = sum(
                rank.per_s(rank.gained("pulled_bytes")) for rank in workers
            )
        return found


def _row(rank: _Rank) -> RankRow:
    place, last = rank.place, rank.last
    stale = rank.staleness
    return RankRow(
        rank=place.rank,
        role=place.role,
        host=place.host,
        pid=place.pid,
        state=rank.state,
        clock=rank.clock,
        clocks_per_s=rank.per_s(rank.clocks),
        samples_per_s=rank.per_s(rank.gained("samples")),
        records_per_s=rank.per_s(rank.gained("records")),
        push_bytes_per_s=rank.per_s(rank.gained("pushed_bytes")),
        pull_bytes_per_s=rank.per_s(rank.gained("pulled_bytes")),
        staleness=round(stale, 3) if stale is not None else None,
        max_staleness=last.max_staleness,
        queue=last.queue,
        memory_bytes=last.memory_bytes,
        heard_s=round(rank.heard_s, 3),
    )
