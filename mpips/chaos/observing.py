"""Observation of a run by its directory while faults are injected: steps over time, attempts, failures.

The scheduler writes its status about once a second, and that is the resolution of all times here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpips.rundir.files import Event, RankPlace, Status
from mpips.rundir.view import RunView


class Observation(NamedTuple):
    """A run at one moment.

    Attributes:
        time_s: Unix time of the status; of the observation, where there is no status.
        alive: A supervisor runs it.
        state: State of the run; see mpips.rundir.view.
        generation: Generation number of the attempt.
        step: Step of the run.
        made: Steps of all workers since the first observation of the attempt.
        all_move: Every worker has made a step since then.
        start_source: Source from which it began; see StartPoint.
        start_path: Path of the checkpoint that it began from; "": another source.
        recoverable: Steps of all workers that the next attempt would recover from memory.
        in_memory: The next attempt can continue in memory.
        restarts: Restarts after failures up to now.
        places: Places of the ranks of the attempt.
        events: Events of the run.
    """

    time_s: float
    alive: bool
    state: str
    generation: int = -1
    step: int = 0
    made: int = 0
    all_move: bool = False
    start_source: str = ""
    start_path: str = ""
    recoverable: int = 0
    in_memory: bool = False
    restarts: int = 0
    places: tuple[RankPlace, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def moves(self) -> bool:
        """True if the attempt runs and a worker has made a step since its first observation."""
        return self.alive and self.state == "running" and self.made > 0


class RunObserver:
    """Observes a run, and finds out whether its workers make steps in the present attempt.

    An attempt begins with the least clock of its workers as its step, so a greater step proves no work. Each
    clock is therefore compared with the first one that the worker has reported in the attempt.
    """

    def __init__(self, read: Callable[[], RunView]) -> None:
        """`read` returns a view of the run."""
        self._read = read
        self._first: dict[tuple[int, int], int] = {}  # clock by generation and rank

    def look(self) -> Observation:
        """Return what the run directory shows now."""
        view = self._read()
        status, ranks = view.status, view.ranks
        if status is None:
            return Observation(view.now, view.alive, view.state, events=view.events)
        seen = _observed(view, status)
        if ranks is None or ranks.generation != status.generation or view.state != "running":
            return seen
        made = []
        for row in ranks.ranks:
            if row.heard_s and "worker" in row.role:
                first = self._first.setdefault((ranks.generation, row.rank), row.clock)
                made.append(row.clock - first)
        n_workers = sum("worker" in row.role for row in ranks.ranks)
        every = len(made) == n_workers and all(made)
        return seen._replace(time_s=ranks.time_s, made=sum(made), all_move=every)


def _observed(view: RunView, status: Status) -> Observation:
    return Observation(
        time_s=status.time_s,
        alive=view.alive,
        state=view.state,
        generation=status.generation,
        step=status.progress.step,
        start_source=status.start.source,
        start_path=status.start.path,
        recoverable=status.progress.recoverable,
        in_memory=status.progress.in_memory,
        restarts=status.restarts,
        places=status.ranks,
        events=view.events,
    )


class StepTimes:
    """The steps of a run over time."""

    def __init__(self) -> None:
        """Begin without observations."""
        self._times: list[float] = []  # Unix times at which further steps were seen
        self._steps: list[int] = []
        self._generations: list[int] = []
        self._quiet: list[tuple[float, float]] = []  # times without a fault

    def note(self, seen: Observation) -> None:
        """Store an observation if it shows a further step, or another attempt at work."""
        if not seen.moves:
            return
        place = seen.generation, seen.step
        if not self._times or place > (self._generations[-1], self._steps[-1]):
            self._times.append(seen.time_s)
            self._steps.append(seen.step)
            self._generations.append(seen.generation)

    def add_quiet(self, begin: float, end: float) -> None:
        """Store an interval without a fault, Unix times."""
        if end > begin:
            self._quiet.append((begin, end))

    def greatest(self, generation: int) -> int:
        """Return the greatest step that was seen of an attempt; 0: none was."""
        pairs = zip(self._generations, self._steps, strict=True)
        return max((step for g, step in pairs if g == generation), default=0)

    def downtime_s(self, begin: float, end: float) -> float:
        """Return the time that a fault has cost, seconds.

        This is the time from the last step seen before it to a step after it, less the time that the steps
        between them take at the usual rate. Steps that are made again count as cost.

        Args:
            begin: Unix time of the fault.
            end: Unix time at which the run was seen at work again.
        """
        before = [i for i, t in enumerate(self._times) if t <= begin]
        after = [i for i, t in enumerate(self._times) if t >= end]
        if not before or not after:
            return 0.0
        i, j = before[-1], after[0]
        rate = self.quiet_rate()
        usual_s = (self._steps[j] - self._steps[i]) / rate if rate else 0.0
        return max(self._times[j] - self._times[i] - usual_s, 0.0)

    def quiet_rate(self) -> float:
        """Return the steps per second in quiet times; 0.0 if there were too few."""
        steps, seconds = 0, 0.0
        for begin, end in self._quiet:
            inside = [i for i, t in enumerate(self._times) if begin <= t <= end]
            same = [i for i in inside if self._generations[i] == self._generations[inside[0]]]
            if len(same) > 1:
                steps += self._steps[same[-1]] - self._steps[same[0]]
                seconds += self._times[same[-1]] - self._times[same[0]]
        return steps / seconds if seconds else 0.0

    def net_rate(self) -> float:
        """Return the steps per second from the first observation to the last one.

        Steps that were lost or made again count once.
        """
        if len(self._times) < 2:
            return 0.0
        return (self._steps[-1] - self._steps[0]) / (self._times[-1] - self._times[0])


def failures_since(events: Sequence[Event], known: int) -> list[Event]:
    """Return the failed attempts among the events after the first `known` ones."""
    return [event for event in events[known:] if event.event == "failed"]


def begins_since(events: Sequence[Event], generation: int) -> list[Event]:
    """Return the begins of attempts after a generation."""
    return [e for e in events if e.event == "began" and e.generation > generation]


Look = Callable[[], Observation]
