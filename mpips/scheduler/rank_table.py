"""The activity of every rank, from its last heartbeats. It is shown to people; no decision depends on it.

A heartbeat carries what a rank has counted since its start. The rank table computes rates over the last few
seconds from these counts. Rates use the sender's clock, so late messages do not distort them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mpips.mpi.messages import Evaluated, Figures, Heartbeat
from mpips.rundir.directory import RankPlace
from mpips.rundir.files import RankRow

_WINDOW = 6  # heartbeats over which rates are measured
_LEAST_S = 0.2  # s, least time over which a rate is measured


@dataclass
class Totals:
    """Sums over all workers.

    Attributes:
        pushed_bytes, pulled_bytes: Bytes since the job's start.
        push_bytes_per_s, pull_bytes_per_s: Rates over the last few seconds; None: not known yet.
        staleness: Mean staleness of the updates that servers judged in the last few seconds, clocks; None:
            there were none.
    """

    pushed_bytes: int = 0
    pulled_bytes: int = 0
    push_bytes_per_s: float | None = None
    pull_bytes_per_s: float | None = None
    staleness: float | None = None


@dataclass
class _Rank:
    """A rank and its last heartbeats."""

    place: RankPlace
    state: str = "starting"  # current activity
    clock: int = 0  # of a worker, since this launch or the one whose memory it took over
    received_s: float = 0.0  # Unix time of the last heartbeat; 0: none yet
    # Clock and counts of the last heartbeats, the oldest first.
    figures: deque[tuple[int, Figures]] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    @property
    def last(self) -> Figures:
        """The newest counts; zeros if there are none yet."""
        return self.figures[-1][1] if self.figures else Figures()

    def gained(self, name: str) -> int:
        """Return the increase of a counter over the window."""
        if not self.figures:
            return 0
        return int(getattr(self.last, name) - getattr(self.figures[0][1], name))

    def per_s(self, grown: float) -> float:
        """Return an increase over the window per second; 0.0 if the window is too short."""
        seconds = self.last.at - self.figures[0][1].at if self.figures else 0.0
        return round(grown / seconds, 3) if seconds >= _LEAST_S else 0.0

    @property
    def clocks(self) -> int:
        """The increase of the clock over the window."""
        return self.clock - self.figures[0][0] if self.figures else 0

    @property
    def staleness(self) -> float | None:
        """The mean staleness of the updates judged in the window, clocks; None: there were none."""
        judged = self.gained("judged")
        return self.gained("staleness_sum") / judged if judged else None


class RankTable:
    """The last heartbeats of all ranks. One per job, on the scheduler's rank. No method blocks."""

    def __init__(self, places: Sequence[RankPlace]) -> None:
        """Begin without heartbeats.

        Args:
            places: Role, host and process of every rank, by rank.
        """
        self._ranks = [_Rank(place) for place in places]
        self._own_rank = next((r for r, p in enumerate(places) if "scheduler" in p.role), 0)
        self._next_own = 0.0
        self._own: Callable[[], Heartbeat] | None = None
        self._on_look: list[Callable[[], None]] = []
        self._on_end: list[Callable[[], None]] = []
        self._on_evaluated: list[Callable[[Evaluated], None]] = []

    def show_own(self, heartbeat: Callable[[], Heartbeat] | None) -> None:
        """Show a role of this process besides the scheduler's, by its heartbeats; None: no longer."""
        self._own = heartbeat

    def attach(self, look: Callable[[], None], end: Callable[[], None]) -> None:
        """Attach a display.

        Args:
            look: Called at every `look`.
            end: Called when the work of the job is over or interrupted.
        """
        self._on_look.append(look)
        self._on_end.append(end)

    def listen(self, evaluated: Callable[[Evaluated], None]) -> None:
        """Call `evaluated` with the metrics of each evaluation from here on."""
        self._on_evaluated.append(evaluated)

    @property
    def places(self) -> tuple[RankPlace, ...]:
        """Role, host and process of every rank, by rank."""
        return tuple(rank.place for rank in self._ranks)

    def note_heartbeat(self, rank: int, beat: Heartbeat) -> None:
        """Store a heartbeat of a rank."""
        known = self._ranks[rank]
        known.state, known.clock, known.received_s = beat.state, beat.clock, time.time()
        if beat.figures is not None:
            known.figures.append((beat.clock, beat.figures))

    def evaluated(self, found: Evaluated) -> None:
        """Pass the metrics of an evaluation to all listeners."""
        for listener in self._on_evaluated:
            listener(found)

    def end(self) -> None:
        """Close the display, because the work is done; other output may follow."""
        for end in self._on_end:
            end()

    def look(self) -> None:
        """Update the row of this process, once a second, and the display. Call it often."""
        now = time.monotonic()
        if now >= self._next_own:
            self._next_own = now + 1.0
            beat = self._own() if self._own is not None else Heartbeat("scheduling", 0, None)
            self.note_heartbeat(self._own_rank, beat)
        for look in self._on_look:
            look()

    def rows(self) -> tuple[RankRow, ...]:
        """Return all ranks in the form of `ranks.json`, by rank."""
        return tuple(_row(rank) for rank in self._ranks)

    def totals(self) -> Totals:
        """Return the sums over all workers."""
        workers = [rank for rank in self._ranks if "worker" in rank.place.role]
        judged = sum(rank.gained("judged") for rank in workers)
        stale = sum(rank.gained("staleness_sum") for rank in workers)
        found = Totals(
            pushed_bytes=sum(rank.last.pushed_bytes for rank in workers),
            pulled_bytes=sum(rank.last.pulled_bytes for rank in workers),
            staleness=stale / judged if judged else None,
        )
        # A rate needs two heartbeats.
        if any(len(rank.figures) > 1 for rank in workers):
            found.push_bytes_per_s = sum(
                rank.per_s(rank.gained("pushed_bytes")) for rank in workers
            )
            found.pull_bytes_per_s = sum(
                rank.per_s(rank.gained("pulled_bytes")) for rank in workers
            )
        return found


def _row(rank: _Rank) -> RankRow:
    """Return the row of a rank in `ranks.json`."""
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
        heard_s=round(rank.received_s, 3),
    )
