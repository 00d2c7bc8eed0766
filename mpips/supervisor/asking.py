"""Run a command on many hosts, a bounded number at a time, and distinguish a bad host from a slow disk.

A step is one start of the command on one or several hosts. Each host sends a report when the command has
started there, for which it reads no shared file system, and its answer when the command has ended.

    order       All hosts are asked in one step if the launcher can do that. Hosts that did not answer are
                asked again in smaller steps, at last each in a step of its own, after pauses that grow.
    deadlines   A step must start within `start_s`, and on all its hosts within `start_s` of the first; each
                host must answer within `answer_s` of its own start, or twice the mean time of the others.
    failures    A host fails when its deadline passes, or when its own step ends without an answer. A step
                of several hosts of which none has started is not a failure of a host.
    bad hosts   A host is bad after `tries` failures, or at once if its error means that it is unreachable.
    slow disk   Where more hosts fail than have answered, the cause is the shared file system or the
                controller of the batch system. No failure is counted then: hosts that have started get
                more time; the others are asked again with more time to start, and if steps are refused,
                new ones wait. When `patience_s` have passed without a further answer, hosts that have
                started make room for those that were not asked yet, and after these all are given up.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from mpips.supervisor.host_names import compact
from mpips.supervisor.host_step import HostReport, HostStep, StepLauncher

# Steps that are being started at a time. The controller of Slurm creates steps one after the other under one
# lock, and answers other commands between them; 64 waiting requests are what it bears without time-outs of
# the commands of other users, and half of them are left to others.
STARTING_AT_ONCE = 32
# Steps at a time, started ones included: each is an srun or ssh of about 10 MB on this host.
RUNNING_AT_ONCE = 128
MANY = 4  # hosts; of fewer, a majority can be bad at the same time
_CHECK_S = 0.1  # seconds between two comparisons of all deadlines with the time
_PAUSE_LIMIT_S = 30.0  # seconds between two tries of a host, at most
_HOLD_LIMIT_S = 8.0  # seconds without new steps after many were refused, at most
_SHRINK = 4  # factor between the sizes of the steps in which a host is asked
# Errors of ssh and srun that name the host as the cause.
_UNREACHABLE = re.compile(
    r"no route to host|connection (?:refused|timed out)|could not resolve|name or service not known"
    r"|host is down|network is unreachable|permission denied|host key verification failed"
    r"|communication connection failure|invalid node name|node configuration is not available"
    r"|node failure|nodes? .*\b(?:down|drain)",
    re.IGNORECASE,
)
_NEVER_STARTS = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR)
# This host lacks processes, memory or descriptors, or the names of the hosts are too many for one command.
_LACKS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.E2BIG)


class AskingLimits(msgspec.Struct, frozen=True):
    """The limits of an inquiry.

    Attributes:
        start_s: Seconds in which a step must start on a host.
        answer_s: Seconds from the start on a host to its answer. Python starts from a shared file system.
        tries: Failures after which a host is bad.
        pause_s: Seconds before the second try; doubled with each failure.
        patience_s: Seconds without an answer after which hosts are given up that are slow for a common cause.
    """

    start_s: float = 10.0
    answer_s: float = 30.0
    tries: int = 3
    pause_s: float = 0.5
    patience_s: float = 240.0


class Answers(NamedTuple):
    """The result of an inquiry.

    Attributes:
        failed: Why each host is bad that did not answer, or answered with an error.
        answers: The answer of each other host.
    """

    failed: dict[str, str]
    answers: dict[str, str]


@dataclass(eq=False)
class _Asked:
    """A host that has not answered yet."""

    name: str
    size: int  # hosts of its next step, at most
    n_tries: int = 0
    n_failures: int = 0  # tries that count against the host
    is_late: bool = False  # a try has failed, or a deadline has passed
    step: _Running | None = None


@dataclass(eq=False)
class _Running:
    """A step that has not ended, or whose end was not noticed yet."""

    step: HostStep
    names: list[str]
    deadlines: dict[str, float]  # of hosts that have not answered in it
    started: dict[str, float] = field(default_factory=dict)  # time of the start on each host
    idle_at: float = math.inf  # when the last host answered, or left the step


class Inquiry:
    """Asks hosts once. Use `ask_hosts`."""

    def __init__(
        self,
        names: Sequence[str],
        launcher: StepLauncher,
        limits: AskingLimits,
        tell: Callable[[str], None],
        hurry: Callable[[], bool],
    ) -> None:
        """Start nothing yet. See `ask_hosts`."""
        self._launcher = launcher
        self._limits = limits
        self._tell = tell
        self._hurry = hurry
        self._began = self._answered_at = self._checked_at = launcher.now()
        self._n = len(names)
        self._answers: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._is_common = False  # the failures have a common cause, by the last comparison
        self._printed = False
        self._waited_s = 0.0  # sum over hosts that answered: time from start to answer
        self._hold_until = -math.inf  # no step starts before, because many were refused
        self._hold_s = limits.pause_s
        self._running: list[_Running] = []
        self._order = itertools.count()
        size = self._n if launcher.has_wide_steps else 1
        self._open = {name: _Asked(name, size) for name in names}
        self._waiting = [(self._began, next(self._order), asked) for asked in self._open.values()]

    def run(self) -> Answers:
        """Ask all hosts; return what they answered. Blocks."""
        try:
            while self._open:
                self._start_due()
                self._launcher.wait(_CHECK_S)
                self._look()
                if self._hurry():
                    self._give_up("not waited for: a signal asks for the end")
                elif self._is_hopeless():
                    self._give_up(
                        f"no answer for {self._limits.patience_s:g} s, as from most hosts: the shared file "
                        "system or the batch system is slow"
                    )
        finally:
            for running in self._running:
                running.step.stop()
        if self._printed:
            seconds = self._launcher.now() - self._began
            self._tell(
                f"mpips run: {len(self._answers)} of {self._n} hosts have answered after {seconds:.0f} s"
            )
        return Answers(self._failed, self._answers)

    def _is_hopeless(self) -> bool:
        """Return True if all hosts have been asked, and most have not answered for too long."""
        if not self._is_common or self._silence_s() <= self._limits.patience_s:
            return False
        return all(asked.step is not None or asked.n_tries for asked in self._open.values())

    def _answer_limit_s(self) -> float:
        """Return the seconds in which a host must answer: twice the mean of other hosts, if that is more."""
        mean_s = self._waited_s / max(len(self._answers), 1)
        return max(self._limits.answer_s, 2 * mean_s)

    def _silence_s(self) -> float:
        """Return the seconds since the last answer, or since the first question."""
        return self._launcher.now() - self._answered_at

    def _give_up(self, why: str) -> None:
        """Count every host as bad that has not answered."""
        self._failed |= dict.fromkeys(self._open, why)
        self._open.clear()

    # Starting steps.

    def _start_due(self) -> None:
        """Start steps for the hosts whose pause is over, as many as may run."""
        if self._launcher.now() < self._hold_until:
            return
        starting = sum(not running.started for running in self._running)
        while (
            self._is_due() and starting < STARTING_AT_ONCE and len(self._running) < RUNNING_AT_ONCE
        ):
            group: list[_Asked] = []
            size = self._waiting[0][2].size
            while self._is_due() and len(group) < size:
                _, _, asked = heapq.heappop(self._waiting)
                group.append(asked)
                size = min(size, asked.size)
            self._start(group)
            starting += 1

    def _is_due(self) -> bool:
        """Return True if a host waits for a step whose pause is over."""
        # A host may have answered in an earlier step while it waited for the next one.
        while self._waiting and self._waiting[0][2].name not in self._open:
            heapq.heappop(self._waiting)
        return bool(self._waiting) and self._waiting[0][0] <= self._launcher.now()

    def _start(self, group: list[_Asked]) -> None:
        """Start a step on some hosts."""
        names = [asked.name for asked in group]
        try:
            step = self._launcher.start(names)
        except OSError as error:
            why = f"{error.filename or 'the command'}: {error.strerror}"
            final = error.errno in _NEVER_STARTS
            # After `patience_s` without an answer, lack of resources counts, too, so that the wait ends.
            lacks = error.errno in _LACKS and self._silence_s() <= self._limits.patience_s
            for asked in group:
                self._fail(asked, why, counts=not lacks, final=final, size=len(group))
            return
        # Failures that were not the host's own allow more time.
        n_common = max(asked.n_tries - asked.n_failures for asked in group)
        limit_s = self._limits.start_s * 2 ** min(n_common, 3)
        deadline = self._launcher.now() + limit_s
        running = _Running(step, names, dict.fromkeys(names, deadline))
        self._running.append(running)
        for asked in group:
            asked.step = running

    # Reports, ends and deadlines.

    def _look(self) -> None:
        """Receive the reports of all steps, and handle ended steps and passed deadlines."""
        now = self._launcher.now()
        ended: list[tuple[_Running, str]] = []
        for running in list(self._running):
            if now - running.idle_at > self._limits.start_s:
                running.step.stop()
            error = running.step.ended()
            for report in running.step.reports():
                self._receive(running, report, now)
            if error is not None:
                self._running.remove(running)
                ended.append((running, error))
        late: list[_Running] = []
        if now - self._checked_at >= _CHECK_S:
            self._checked_at = now
            late = [r for r in self._running if any(at <= now for at in r.deadlines.values())]
        self._compare(ended, late)
        if self._is_common and now >= self._hold_until and any(r.deadlines for r, _ in ended):
            self._hold_until = now + self._hold_s
            self._hold_s = min(2 * self._hold_s, _HOLD_LIMIT_S)
        for running, error in ended:
            self._handle_end(running, error)
        for running in late:
            self._handle_late(running, now)

    def _receive(self, running: _Running, report: HostReport, now: float) -> None:
        """Handle a report of a host."""
        name = running.names[0] if len(running.names) == 1 else report.host
        if report.answer is None:
            if not running.started:
                limit = now + self._limits.start_s
                running.deadlines = dict.fromkeys(running.deadlines, limit)
            running.started[name] = now
            if name in running.deadlines:
                running.deadlines[name] = now + self._answer_limit_s()
            return
        asked = self._open.pop(name, None)
        if asked is None:
            return
        self._answered_at = now
        self._hold_s = self._limits.pause_s
        self._waited_s += now - running.started.get(name, now)
        if report.error:
            self._failed[name] = report.error
        else:
            self._answers[name] = report.answer
        for step in (running, asked.step):
            if step is not None:
                self._leave(step, name, now)

    def _leave(self, running: _Running, name: str, now: float) -> None:
        """Wait no longer for a host in a step."""
        if running.deadlines.pop(name, None) is not None and not running.deadlines:
            # A step whose hosts have answered ends by itself.
            running.idle_at = now
            if name in self._open:
                running.step.stop()

    def _compare(self, ended: list[tuple[_Running, str]], late: list[_Running]) -> None:
        """Compare how many hosts failed and how many answered."""
        for running, error in ended:
            for name in running.deadlines if error or len(running.names) > 1 else ():
                self._open[name].is_late = True
        now = self._launcher.now()
        for running in late:
            for name, at in running.deadlines.items():
                self._open[name].is_late = self._open[name].is_late or at <= now
        if not (ended or late or self._is_common):
            return
        names = [asked.name for asked in self._open.values() if asked.is_late]
        self._is_common = self._n >= MANY and len(names) > len(self._answers)
        if self._is_common and self._silence_s() >= self._limits.start_s and not self._printed:
            self._printed = True
            self._tell(
                f"mpips run: {len(names)} of {self._n} hosts have not answered ({compact(names)}): the "
                "shared file system or the batch system is slow; waiting until "
                f"{self._limits.patience_s:g} s pass without a further answer"
            )

    def _handle_end(self, running: _Running, error: str) -> None:
        """Ask the hosts again that did not answer in an ended step."""
        names = list(running.deadlines)
        running.deadlines = {}
        alone = len(running.names) == 1
        for name in names:
            asked = self._open[name]
            if alone and not error:
                # A host without an answer of its own: the command ended well.
                del self._open[name]
                self._answers[name] = ""
                self._answered_at = self._launcher.now()
                continue
            counts = alone and not self._is_common
            final = counts and bool(_UNREACHABLE.search(error))
            why = error or "the step ended without an answer"
            self._fail(asked, why, counts, final, len(running.names))

    def _handle_late(self, running: _Running, now: float) -> None:
        """Handle the passed deadlines of a step: ask these hosts again, or wait longer for all."""
        for name, at in list(running.deadlines.items()):
            if at > now:
                continue
            has_started = name in running.started
            if has_started and self._is_common and not self._must_make_room():
                running.deadlines[name] = now + self._answer_limit_s()
                continue
            self._leave(running, name, now)
            why = f"the command did not start within {self._limits.start_s:g} s"
            if has_started:
                why = f"no answer within {self._limits.answer_s:g} s of the start of the command"
            counts = not self._is_common and (len(running.names) == 1 or bool(running.started))
            self._fail(self._open[name], why, counts, False, len(running.names))

    def _must_make_room(self) -> bool:
        """Return True if only hosts that have been silent for too long keep others from being asked."""
        if len(self._running) < RUNNING_AT_ONCE or self._silence_s() <= self._limits.patience_s:
            return False
        return self._is_due()

    def _fail(self, asked: _Asked, why: str, counts: bool, final: bool, size: int) -> None:
        """Ask a host again after a pause, or count it as bad.

        Args:
            asked: The host.
            why: Why its try failed.
            counts: The failure is the host's own.
            final: Another try cannot succeed.
            size: Hosts of the failed step.
        """
        asked.n_tries += 1
        asked.n_failures += counts
        if final or asked.n_failures >= self._limits.tries:
            times = f" ({asked.n_failures} times)" if asked.n_failures > 1 else ""
            self._failed[asked.name] = why + times
            del self._open[asked.name]
            return
        n_open = len(self._open)
        asked.size = max(1, min(size // _SHRINK, -(-n_open // STARTING_AT_ONCE)))
        n_before = asked.n_tries if self._is_common else asked.n_failures
        pause_s = min(self._limits.pause_s * 2 ** min(max(n_before - 1, 0), 16), _PAUSE_LIMIT_S)
        due = self._launcher.now() + pause_s
        heapq.heappush(self._waiting, (due, next(self._order), asked))


def ask_hosts(
    names: Sequence[str],
    launcher: StepLauncher,
    limits: AskingLimits,
    tell: Callable[[str], None],
    hurry: Callable[[], bool],
) -> Answers:
    """Run the command of `launcher` on each host. Blocks; see the top of the module for how long.

    Args:
        names: The hosts, each once.
        launcher: Starts the steps.
        limits: The limits.
        tell: Receives lines for people, if most hosts are slow.
        hurry: Called several times a second; True: hosts that have not answered are given up.
    """
    return Inquiry(names, launcher, limits, tell, hurry).run()
