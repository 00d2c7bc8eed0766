"""The activity of every rank, from its last heartbeats. It is shown to people; no decision depends on it.

A heartbeat carries what a rank has counted since its start. The rank table computes rates over the last few
seconds from these counts. Rates use the sender's clock, so late messages do not distort them. Where
heartbeats are rare, because there are many ranks, a rate is that between the last two.

Each heartbeat changes the sums over all workers by the difference that it makes, so the totals take the same
time for any number of ranks. The sums are integers, so no rounding errors add up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from mpips.mpi.messages import Evaluated, Figures, Heartbeat
from mpips.rundir.files import Load, RankPlace, RankRow
from mpips.rundir.history import MOST_LINKS, Counts
from mpips.scheduler.history_file import counts_of
from mpips.scheduler.load import LoadTable

_WINDOW = 6  # heartbeats over which rates are measured, at most
_WINDOW_S = 5.0  # s over which rates are measured, if this is two heartbeats or more
_LEAST_S = 0.2  # s, least time over which a rate is measured
_MILLI = 1000  # rates in sums are integers, in thousandths of a byte per second


class RankTotals(msgspec.Struct):
    """Sums over all workers.

    Attributes:
        pushed_bytes, pulled_bytes: Bytes since the job's start.
        push_bytes_per_s, pull_bytes_per_s: Rates over the last few seconds; None: not known yet.
        link_bytes_per_s: Bytes per second of pushes and pulls between hosts; None: not known, as with
            replicated tables, or there is one host only.
        staleness: Mean staleness of the updates that servers judged in the last few seconds, clocks; None:
            they judged none.
    """

    pushed_bytes: int = 0
    pulled_bytes: int = 0
    push_bytes_per_s: float | None = None
    pull_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    staleness: float | None = None


# Contribution of a worker to the sums over all workers: pushed bytes, pulled bytes, updates judged and their
# staleness in the window, pushed and pulled bytes per second in thousandths, 1 if the rates are known; bytes
# per second to and from servers on other hosts in thousandths, 1 if they are known.
_Part = tuple[int, int, int, int, int, int, int, int, int]
_NOTHING: _Part = (0, 0, 0, 0, 0, 0, 0, 0, 0)


@dataclass
class _Rank:
    """A rank and its last heartbeats."""

    place: RankPlace
    state: str = "starting"  # current activity
    clock: int = 0  # of a worker, since this launch or the one whose memory it took over
    received_s: float = 0.0  # Unix time of the last heartbeat; 0: none yet
    # Clock and counts of the last heartbeats, the oldest first.
    figures: deque[tuple[int, Figures]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    part: _Part = _NOTHING  # its contribution to the sums over all workers
    remote: tuple[int, ...] = ()  # indices of the servers on other hosts

    def add(self, clock: int, figures: Figures) -> None:
        """Store the counts of a heartbeat, and forget those before the window."""
        known = self.figures
        known.append((clock, figures))
        while len(known) > 2 and figures.at - known[1][1].at >= _WINDOW_S:
            known.popleft()

    @property
    def first(self) -> Figures:
        """The oldest counts of the window; zeros if none have arrived yet."""
        return self.figures[0][1] if self.figures else Figures()

    @property
    def last(self) -> Figures:
        """The newest counts; zeros if none have arrived yet."""
        return self.figures[-1][1] if self.figures else Figures()

    @property
    def seconds(self) -> float:
        """Length of the window; 0.0 if it is too short for rates."""
        seconds = self.last.at - self.figures[0][1].at if self.figures else 0.0
        return seconds if seconds >= _LEAST_S else 0.0

    def contribution(self) -> _Part:
        """Return the contribution of this rank, a worker that has sent counts, to the sums."""
        first, last, seconds = self.figures[0][1], self.figures[-1][1], self.seconds
        pushed, pulled = (
            last.pushed_bytes - first.pushed_bytes,
            last.pulled_bytes - first.pulled_bytes,
        )
        return (
            last.pushed_bytes,
            last.pulled_bytes,
            last.judged - first.judged,
            last.staleness_sum - first.staleness_sum,
            round(_MILLI * pushed / seconds) if seconds else 0,
            round(_MILLI * pulled / seconds) if seconds else 0,
            1 if len(self.figures) > 1 else 0,
            *self._remote_rate(first, last, seconds),
        )

    def _remote_rate(self, first: Figures, last: Figures, seconds: float) -> tuple[int, int]:
        """Return the last two numbers of the contribution: the rate to other hosts, and 1 if it is known."""
        if not seconds or not self.remote or len(first.links) != len(last.links) or not last.links:
            return 0, 0
        # Replicated tables travel between workers, and no count says how much of that between hosts.
        if sum(map(sum, last.links)) != last.pushed_bytes + last.pulled_bytes:
            return 0, 0
        moved = sum(sum(last.links[s]) - sum(first.links[s]) for s in self.remote)
        return round(_MILLI * moved / seconds), 1


class RankTable:
    """The last heartbeats of all ranks. One per job, on the scheduler's rank. No method blocks.

    Attributes:
        places: Role, host and process of every rank, by rank.
    """

    def __init__(self, places: Sequence[RankPlace], tables: Sequence[str] = ()) -> None:
        """Begin without heartbeats.

        Args:
            places: Role, host and process of every rank, by rank.
            tables: Names of all tables of the job.
        """
        self._load = LoadTable(places, tables)
        self.places = tuple(places)
        self._ranks = [_Rank(place) for place in places]
        self._is_worker = ["worker" in place.role for place in places]
        remote = {host: self._load.servers_off(host) for host in {p.host for p in places}}
        for rank in self._ranks:
            rank.remote = remote[rank.place.host]
        self._sums: _Part = _NOTHING
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

    def note_heartbeat(self, rank: int, beat: Heartbeat) -> None:
        """Store a heartbeat of a rank."""
        known = self._ranks[rank]
        known.state, known.clock, known.received_s = beat.state, beat.clock, time.time()
        if beat.figures is None:
            return
        known.add(beat.clock, beat.figures)
        if self._is_worker[rank]:
            before, known.part = known.part, known.contribution()
            self._sums = cast(
                "_Part",
                tuple(s + n - b for s, n, b in zip(self._sums, known.part, before, strict=True)),
            )

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
        has_links = sum(len(rank.last.links) for rank in self._ranks) <= MOST_LINKS
        return tuple(_row(rank, has_links) for rank in self._ranks)

    def counts(self, generation: int, step: int, folder: Path) -> Counts:
        """Return the counts of all ranks as a line of `history.jsonl`.

        Args:
            generation: Generation number of this attempt.
            step: Step of the run.
            folder: A folder of the file system whose free space the line has.
        """
        figures, clocks = [r.last for r in self._ranks], [r.clock for r in self._ranks]
        return counts_of(figures, clocks, self.places, generation, step, folder)

    def load(self) -> Load:
        """Return the load by table and by link. Takes a time proportional to the number of ranks."""
        return self._load.summed((r.first, r.last, r.seconds) for r in self._ranks)

    def totals(self) -> RankTotals:
        """Return the sums over all workers. Cheap, so call it often."""
        pushed, pulled, judged, stale, push_rate, pull_rate, n_known, remote, n_remote = self._sums
        return RankTotals(
            pushed_bytes=pushed,
            pulled_bytes=pulled,
            # A rate needs two heartbeats.
            push_bytes_per_s=push_rate / _MILLI if n_known else None,
            pull_bytes_per_s=pull_rate / _MILLI if n_known else None,
            link_bytes_per_s=remote / _MILLI if n_remote else None,
            staleness=stale / judged if judged else None,
        )


def _row(rank: _Rank, has_links: bool) -> RankRow:
    """Return the row of a rank in `ranks.json`; `has_links`: with the bytes of each link."""
    place, last, seconds = rank.place, rank.last, rank.seconds
    clock, first = rank.figures[0] if rank.figures else (rank.clock, last)
    judged = last.judged - first.judged
    stale = (last.staleness_sum - first.staleness_sum) / judged if judged else None

    def per_s(grown: int) -> float:
        return round(grown / seconds, 3) if seconds else 0.0

    return RankRow(
        rank=place.rank,
        role=place.role,
        host=place.host,
        pid=place.pid,
        state=rank.state,
        clock=rank.clock,
        clocks_per_s=per_s(rank.clock - clock),
        samples_per_s=per_s(last.samples - first.samples),
        records_per_s=per_s(last.records - first.records),
        push_bytes_per_s=per_s(last.pushed_bytes - first.pushed_bytes),
        pull_bytes_per_s=per_s(last.pulled_bytes - first.pulled_bytes),
        staleness=round(stale, 3) if stale is not None else None,
        max_staleness=last.max_staleness,
        queue=last.queue,
        memory_bytes=last.memory_bytes,
        links=tuple(last.links) if has_links else (),
        heard_s=round(rank.received_s, 3),
        samples=last.samples,
        records=last.records,
        pushed_bytes=last.pushed_bytes,
        pulled_bytes=last.pulled_bytes,
        judged=last.judged,
        staleness_sum=last.staleness_sum,
    )
