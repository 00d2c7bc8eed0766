"""The decision whether a failed attempt is followed by another one.

A run is given up when its restarts are used up, when the cause cannot change (a wrong configuration, a
missing library), or when two attempts in a row brought it no further. An attempt brings the run further if a
failure after it would lose fewer steps than one before it: a checkpoint or surviving memory holds a later
step.

An attempt that a signal from outside ended before its ranks were at work proves nothing about the job:
    jobs are
preempted, hosts are drained, and several such ends in a row are one event. They are counted apart, up to
MOST_KILLED_STARTS in a row, and the supervisor waits longer before each further attempt.
"""

from __future__ import annotations

import math
import random

from mpips.mpi.intervals import heartbeat_interval_s
from mpips.rundir.files import Status
from mpips.supervisor.attempt import Ended
from mpips.supervisor.block import newest_checkpoint
from mpips.supervisor.plan import SupervisionPlan
from mpips.supervisor.verdict import CONFIG, MISSING, Verdict

# Attempts in a row that were killed from outside before their work began, after which the run is given up.
MOST_KILLED_STARTS = 10
FIRST_PAUSE_S = (
    1.0  # seconds before the attempt after the first such one; doubled for each further one
)
LONGEST_PAUSE_S = 60.0
_FUTILE = 2  # attempts in a row without progress after which the run is given up
# s; an attempt at work for less, besides an interval of heartbeats, may have made steps that no status shows
_UNKNOWN_S = 1.5


class Restarts:
    """Counts the attempts in a row that brought a run no further.

    Attributes:
        killed_starts: Attempts in a row that were killed from outside before their work began.
        pause_s: Seconds to wait before the next attempt.
    """

    def __init__(self, plan: SupervisionPlan) -> None:
        """`plan`: of the run."""
        self.killed_starts = 0
        self.pause_s = 0.0
        self._plan = plan
        self._futile = 0  # attempts in a row that brought the run no further
        self._best = -1  # greatest step that no failure could lose; -1: none
        self._starts: set[int] = set()  # steps at which attempts that came to work started

    def begin(self) -> None:
        """Note the checkpoints that are there before the first attempt; the lease of the run is held."""
        self._best = self._recoverable(None)

    @property
    def is_futile(self) -> bool:
        """True if the last attempt that has failed brought the run no further."""
        return self._futile > 0

    def _recoverable(self, status: Status | None) -> int:
        """Return the greatest step that a failure now would not lose; `status`: of the last attempt."""
        saved = newest_checkpoint(self._plan.checkpoints).step
        return max(saved, status.progress.recoverable if status is not None else 0)

    def why_stop(self, verdict: Verdict, ended: Ended, restarts: int) -> str:
        """Count a failed attempt; return why no other one follows, or "" if one does.

        Args:
            verdict: Outcome of the attempt.
            ended: End of its launcher.
            restarts: Restarts before it, without those after killed starts.
        """
        if verdict.kind in (CONFIG, MISSING):
            return f"none: a {verdict.kind} fails every attempt alike"
        if was_killed_start(verdict, ended):
            return self._after_killed_start()
        self.killed_starts, self.pause_s = 0, 0.0
        now = self._recoverable(ended.status)
        new_start = shows_steps = False
        if ended.status is not None:
            # An attempt that started at an earlier step lost the memory that held `_best`.
            start = ended.status.start.step
            self._best = min(self._best, start)
            new_start = start not in self._starts
            self._starts.add(start)
            shows_steps = ended.status.progress.step > start
        # Steps of the last interval of heartbeats show only in the step at which the next attempt starts: all
        # those of a short attempt, and of one whose first step took long (a program that is compiled first).
        in_memory = self._plan.config.redundancy.warm and self._plan.pool.n_ranks > 1
        unknown_s = _UNKNOWN_S + heartbeat_interval_s(self._plan.pool.n_ranks, math.inf)
        unknown = in_memory and new_start and (ended.worked_s < unknown_s or not shows_steps)
        self._futile = 0 if now > self._best or unknown else self._futile + 1
        self._best = max(self._best, now)
        run = self._plan.run
        if self._futile >= _FUTILE:
            return (
                f"none: {_FUTILE} attempts in a row have brought the run no further; remove the cause, then "
                f"continue with: {run.again}"
            )
        if restarts >= self._plan.max_restarts:
            return f"none: all {self._plan.max_restarts} restarts are used up; continue with: {run.again}"
        return ""

    def _after_killed_start(self) -> str:
        self.killed_starts += 1
        if self.killed_starts >= MOST_KILLED_STARTS:
            return (
                f"none: {MOST_KILLED_STARTS} attempts in a row were killed from outside before their work "
                f"began; find out who ends them, then continue with: {self._plan.run.again}"
            )
        longest = min(FIRST_PAUSE_S * 2 ** (self.killed_starts - 1), LONGEST_PAUSE_S)
        # Runs that one event has ended must not all start again at the same moment.
        self.pause_s = longest * random.uniform(0.5, 1.0)
        return ""


def was_killed_start(verdict: Verdict, ended: Ended) -> bool:
    """Return True if a signal from outside ended the attempt before its ranks were at work.

    The first status of an attempt is written before any rank is at work. The supervisor may see it only after
    the end, so `ended.worked_s` may be 0 in any case.
    """
    return verdict.death is not None and verdict.death.outside and ended.status is None
