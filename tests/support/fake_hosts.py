"""Hosts that are asked in simulated time: a launcher of steps with its own clock, and counts of steps."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mpips.supervisor.asking import Answers, AskingLimits, ask_hosts
from mpips.supervisor.host_step import HostReport

NEVER = math.inf


@dataclass(frozen=True)
class Reply:
    """The behaviour of a host in one step.

    Attributes:
        start_s: Seconds from the start of the step to that of the command.
        answer_s: Seconds from then to the answer.
        refused: Error with which the whole step ends after `start_s`; "": none.
        error: Error in the host's answer.
    """

    start_s: float = 0.2
    answer_s: float = 0.5
    refused: str = ""
    error: str = ""


class FakeStep:
    """A step of a `FakeHosts`."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """Nothing has happened yet."""
        self.hosts = hosts
        self.n_waited = len(hosts)
        self.started = False
        self.error: str | None = None
        self.new: list[HostReport] = []

    def ended(self) -> str | None:
        """Return the error with which the step has ended; None: it runs."""
        return self.error

    def reports(self) -> list[HostReport]:
        """Return the reports since the last call."""
        taken, self.new = self.new, []
        return taken

    def stop(self) -> None:
        """End the step."""
        if self.error is None:
            self.error = "stopped"


@dataclass
class FakeHosts:
    """A launcher of steps whose hosts reply as a function says. Time passes only in `wait`.

    Attributes:
        reply: Returns the behaviour of a host by name, number of times it was asked, seconds since the start.
        has_wide_steps: One step can run on several hosts.
        time_s: Simulated time.
        asked: How often each host was asked.
        n_steps: Steps that were started.
        most_starting: Most steps at a time that no host had started.
        most_running: Most steps at a time that had not ended.
        printed: Lines for people.
    """

    reply: Callable[[str, int, float], Reply]
    has_wide_steps: bool = True
    time_s: float = 1000.0
    asked: Counter[str] = field(default_factory=Counter)
    n_steps: int = 0
    most_starting: int = 0
    most_running: int = 0
    printed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with no step."""
        self._began = self.time_s
        self._order = itertools.count()
        self._events: list[tuple[float, int, FakeStep, HostReport | str]] = []
        self._steps: list[FakeStep] = []

    def start(self, hosts: Sequence[str]) -> FakeStep:
        """Start a step on these hosts."""
        step = FakeStep(hosts)
        for host in hosts:
            reply = self.reply(host, self.asked[host], self.time_s - self._began)
            self.asked[host] += 1
            at = self.time_s + reply.start_s
            if reply.refused:
                self._plan(at, step, reply.refused)
            elif at < NEVER:
                self._plan(at, step, HostReport(host))
                self._plan(at + reply.answer_s, step, HostReport(host, "{}", reply.error))
        self.n_steps += 1
        self._steps = [s for s in self._steps if s.error is None] + [step]
        self.most_running = max(self.most_running, len(self._steps))
        self.most_starting = max(self.most_starting, sum(not s.started for s in self._steps))
        return step

    def _plan(self, at: float, step: FakeStep, what: HostReport | str) -> None:
        if at < NEVER:
            heapq.heappush(self._events, (at, next(self._order), step, what))

    def wait(self, timeout_s: float) -> None:
        """Advance the clock to the next event, at most by `timeout_s`."""
        until = self.time_s + timeout_s
        if self._events and self._events[0][0] <= until:
            until = self._events[0][0]
        self.time_s = until
        while self._events and self._events[0][0] <= until:
            _, _, step, what = heapq.heappop(self._events)
            if step.error is None:
                self._happen(step, what)

    def _happen(self, step: FakeStep, what: HostReport | str) -> None:
        if isinstance(what, str):
            step.error = what
            return
        step.started = True
        step.new.append(what)
        if what.answer is not None:
            step.n_waited -= 1
            if step.n_waited == 0:
                step.error = ""

    def now(self) -> float:
        """Return the simulated time, seconds."""
        return self.time_s

    def ask(self, names: Sequence[str], hurry_at_s: float = NEVER) -> Answers:
        """Ask hosts; `hurry_at_s`: time at which a signal asks for the end."""
        return ask_hosts(
            names,
            self,
            AskingLimits(),
            self.printed.append,
            lambda: self.seconds >= hurry_at_s,
        )

    @property
    def seconds(self) -> float:
        """Simulated seconds since the start."""
        return self.time_s - self._began
