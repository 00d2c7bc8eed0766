"""The loop: inject the faults of a schedule one after the other, observe the run, and take faults back.

One fault happens at a time. The time to the next one counts from the moment at which the run has made a
further step, so each downtime has one cause, and a schedule that is too dense for the run has fewer faults.
The loop needs a clock, a function that observes the run, and the kinds of faults; the tests give it a virtual
clock and an imitated run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mpips.chaos.errors import ChaosError, NotNowError
from mpips.chaos.faults import FaultKind, Injected
from mpips.chaos.observing import Look, Observation, StepTimes, failures_since
from mpips.chaos.report import FaultResult, interrupted_fault, judge_fault
from mpips.chaos.schedule import PlannedFault
from mpips.monitor.progress import duration

_LOOK_S = 0.1  # seconds between two observations


class LoopClock(Protocol):
    """The time of the loop."""

    def unix(self) -> float:
        """Return the Unix time, with which the times of the run's files are compared."""

    def monotonic(self) -> float:
        """Return a time that no adjustment of the clock changes, seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait. Blocks."""


class MachineClock:
    """The clocks of this machine."""

    def unix(self) -> float:
        """Return the Unix time."""
        return time.time()

    def monotonic(self) -> float:
        """Return the monotonic time."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


class ChaosLoop:
    """Faults in one run. Not thread-safe.

    Attributes:
        results: The faults that have happened.
        left_out: Faults that were impossible when they were due, with the reason.
        unplanned: Causes of attempts that failed although no fault had happened.
        steps: The steps of the run over time.
        seconds: Seconds from the first step seen until now.
        last: The newest observation; None before the first one.
    """

    def __init__(
        self,
        look: Look,
        kinds: Mapping[str, FaultKind],
        schedule: Sequence[PlannedFault],
        *,
        for_s: float,
        back_s: float,
        clock: LoopClock,
        tell: Callable[[str], None],
    ) -> None:
        """Do nothing yet.

        Args:
            look: Returns what the run directory shows now.
            kinds: The kinds of faults of the schedule, by name.
            schedule: The faults, ordered by time.
            for_s: Seconds of the whole; a fault that happened before is still observed to its end.
            back_s: Seconds in which the run must make a further step after a fault.
            clock: The time.
            tell: Receives a line for people at each event.
        """
        self._look, self._kinds, self._schedule = look, kinds, schedule
        self._for_s, self._back_s = for_s, back_s
        self._clock, self._tell = clock, tell
        self.results: list[FaultResult] = []
        self.left_out: list[str] = []
        self.unplanned: list[str] = []
        self.steps = StepTimes()
        self.last: Observation | None = None
        self._begin: float | None = None
        self._n_events = 0  # events of the run up to the end of the last fault
        self._quiet_since = 0.0  # Unix time

    @property
    def seconds(self) -> float:
        """Seconds from the first step seen until now."""
        return self._clock.monotonic() - self._begin if self._begin is not None else 0.0

    def run(self) -> None:
        """Inject the faults. Blocks until the time is over or the run has ended.

        Raises:
            ChaosError: The run does not come to work, before the first fault.
        """
        seen = self._until(lambda seen: seen.all_move, self._back_s)
        if seen is None:
            state = self.last.state if self.last is not None else "unknown"
            raise ChaosError(
                f"not every worker has made a step within {self._back_s:g} s ({state}): no fault was injected"
            )
        self._begin = self._clock.monotonic()
        self._n_events, self._quiet_since = len(seen.events), self._clock.unix()
        # Planned time of the fault before, and the time at which the run was at work again.
        before_s = since_s = 0.0
        for fault in self._schedule:
            due_s = since_s + fault.at_s - before_s
            if due_s >= self._for_s:
                break
            if not self._wait_until(due_s) or not self._inject(fault):
                self.end_quiet()
                return
            before_s, since_s = fault.at_s, self.seconds
        self._wait_until(self._for_s)
        self.end_quiet()

    def end_quiet(self) -> None:
        """Note that the time without a fault ends now, also after an interruption."""
        if self.last is None:
            return
        self.steps.add_quiet(self._quiet_since, self._clock.unix())
        self._quiet_since = self._clock.unix()
        failed = failures_since(self.last.events, self._n_events)
        self._n_events = len(self.last.events)
        self.unplanned += [f"attempt {event.generation}: {event.cause}" for event in failed]

    def _inject(self, fault: PlannedFault) -> bool:
        """Inject a fault and observe what follows; return False if the run has ended."""
        before = self._until(lambda seen: seen.all_move, self._back_s)
        if before is None:
            self.left_out.append(
                f"{fault.kind} at {duration(self.seconds)}: not every worker makes steps any more"
            )
            return False
        self.end_quiet()
        kind = self._kinds[fault.kind]
        begin, at_s = self._clock.unix(), self.seconds
        injected: Injected | None = None
        try:
            injected = kind.inject(fault, before)
            self._tell(f"{duration(self.seconds)} {injected.what}")
            after = self._observe(kind, injected, before)
        except NotNowError as error:
            self.left_out.append(f"{fault.kind} at {duration(fault.at_s)}: {error}")
            self._tell(f"{duration(self.seconds)} {fault.kind} left out: {error}")
            return True
        except BaseException:
            if injected is None:
                self.left_out.append(
                    f"{fault.kind} at {duration(at_s)}: interrupted while it was injected"
                )
            else:
                self.results.append(interrupted_fault(fault, injected, before, at_s))
            raise
        finally:
            # A signal may have come while the fault was injected.
            kind.end()
        assert self.last is not None
        result = judge_fault(fault, injected, before, after, self.last, self.steps)
        result.at_s = round(at_s, 3)
        if after is not None:
            result.downtime_s = round(self.steps.downtime_s(begin, after.time_s), 3)
        self._add(result)
        return after is not None

    def _add(self, result: FaultResult) -> None:
        """Store the result of a fault and print it; quiet time begins."""
        assert self.last is not None
        self.results.append(result)
        self._n_events, self._quiet_since = len(self.last.events), self._clock.unix()
        down = "" if result.downtime_s is None else f", down {result.downtime_s:.1f} s"
        self._tell(f"{duration(self.seconds)}   {result.effect}{down}")
        for broken in result.broken:
            self._tell(f"{duration(self.seconds)}   BROKEN: {broken.reason}")

    def _observe(
        self, kind: FaultKind, injected: Injected, before: Observation
    ) -> Observation | None:
        """Let a fault last, take it back, and wait until the run is at work again.

        Returns:
            The first observation of that; None: the run has ended, or it took longer than `back_s`.
        """
        if injected.length_s:
            end = self._clock.monotonic() + injected.length_s
            while self._clock.monotonic() < end and self._note().alive:
                kind.hold()
                self._clock.sleep(min(_LOOK_S, max(end - self._clock.monotonic(), 0.0)))
            kind.end()
        if injected.ends_attempt:
            return self._until(lambda s: s.generation > before.generation and s.moves, self._back_s)
        # A report from before the end of the fault is no sign of work after it.
        ended = self._clock.unix()
        deadline = self._clock.monotonic() + self._back_s
        first = self._until(lambda s: s.moves and s.time_s > ended, self._back_s)
        if first is None:
            return None
        known = first.generation, first.made
        left_s = deadline - self._clock.monotonic()
        return self._until(lambda s: s.moves and (s.generation, s.made) > known, left_s)

    def _note(self) -> Observation:
        """Observe the run."""
        self.last = self._look()
        self.steps.note(self.last)
        return self.last

    def _until(self, is_met: Callable[[Observation], bool], limit_s: float) -> Observation | None:
        """Observe the run until a condition holds; return None if it ends, or after `limit_s`."""
        deadline = self._clock.monotonic() + limit_s
        while True:
            seen = self._note()
            if is_met(seen):
                return seen
            if not seen.alive or self._clock.monotonic() > deadline:
                return None
            self._clock.sleep(_LOOK_S)

    def _wait_until(self, at_s: float) -> bool:
        """Observe the run until a time of the schedule; return False if it ends before."""
        while self.seconds < at_s:
            if not self._note().alive:
                return False
            self._clock.sleep(min(_LOOK_S, max(at_s - self.seconds, 0.0)))
        return True
