"""The scheduler's part of a cut: when it is, at which clock, and what became of it.

Not blocking; driven by `poll` and by messages. See `mpips.snapshot` for the protocol.

A request to end the job after a checkpoint stays until a checkpoint is durable. The coordinator alone writes
and reads it, on the scheduler's thread, so nothing has to be ordered: every cut ends in `_end`, which either
raises LeavingError, because the cut is durable, or notes when the next cut begins. Any durable cut that ends
after the request serves, whatever began it: nothing is lost by a restart from it but the steps since.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mpips.config.triggers import Triggers
from mpips.errors import LeavingError
from mpips.mpi.messages import (
    LAST,
    Abandon,
    Agreed,
    Ask,
    Commit,
    Propose,
    Saved,
    Taken,
    ToServer,
    ToWorker,
    Waits,
    Write,
)

_ONE_SIGNAL_S = 1.0  # what comes within it, from whatever rank, is one signal
_MARGIN_S = 0.05  # how far ahead of the workers' clocks a cut is proposed, in time,
_MARGIN = 2  # and in clocks
_GROWTH = 4  # of the margin, after a worker was past it
_FIRST_PAUSE_S = 1.0  # before the next try of a job that is to end; doubles with each failure
_LONGEST_PAUSE_S = 30.0
_RATE_S = 0.2  # clocks per second are measured over at least so long


@dataclass
class _Pace:
    """A worker's clock, as last heard, and how fast it goes."""

    clock: int = 0
    heard: float = 0.0
    rate: float = 0.0
    since: tuple[int, float] = (0, 0.0)

    def hear(self, clock: int, now: float) -> None:
        self.clock, self.heard = max(clock, self.clock), now
        before, at = self.since
        if now - at >= _RATE_S:
            self.rate = (self.clock - before) / (now - at)
            self.since = self.clock, now

    def expected(self, now: float) -> int:
        return self.clock + int(self.rate * (now - self.heard))


@dataclass
class _Cut:
    """The cut under way."""

    id: int
    reason: str
    clock: int
    since: float
    phase: str  # "proposed", "committed", "writing", "abandoned"
    answers: dict[int, bool] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    behind: set[int] = field(default_factory=set)  # workers that wait behind their cut records
    saved: dict[int, Saved] = field(default_factory=dict)
    quiet: bool = False  # nobody need know why it was given up


class Coordinator:
    """Decides on cuts. One at a time.

    Attributes:
        statistics: What became of all of them, as plain values.
    """

    def __init__(
        self,
        triggers: Triggers,
        common_clock: bool,
        before: int,
        n_workers: int,
        n_servers: int,
        tell_worker: Callable[[int, ToWorker], None],
        tell_servers: Callable[[ToServer], None],
        timeout_s: float,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """`common_clock`: all workers cut at one clock; `before`: steps of the run before this launch."""
        self._triggers = triggers
        self._common = common_clock
        self._before = before
        self._working = set(range(n_workers))
        self._n_servers = n_servers
        self._tell_worker = tell_worker
        self._tell_servers = tell_servers
        self._patience_s = timeout_s / 2
        self._say = say or _warn
        self._pace = [_Pace() for _ in range(n_workers)]
        self._cut: _Cut | None = None
        self._last_id = 0
        self._wanted: str | None = None
        self._leaving = ""  # what the job is to end for
        self._not_before = 0.0  # monotonic time of the next try; 0: at once
        self._pause_s = _FIRST_PAUSE_S
        self._signal_at = float("-inf")  # monotonic time
        self._gathering: set[int] = set()  # workers in a gather where they cannot come to a cut
        self._aligned = False  # without a common clock: the next cut is at one clock all the same
        self._margin = _MARGIN
        self._next_time = time.monotonic() + triggers.every_s if triggers.every_s else None
        self._next_steps = self._multiple_after(0)
        self.statistics: dict[str, Any] = {"written": 0, "failed": 0, "given_up": 0, "skipped": 0}

    def begin_at(self, clock: int) -> None:
        """The workers begin at about this clock: what was due before it is past."""
        self._next_steps = self._multiple_after(clock)
        for pace in self._pace:
            pace.clock, pace.since = clock, (clock, 0.0)

    @property
    def busy(self) -> bool:
        """Whether a cut is under way: servers and workers may still hear of it."""
        return self._cut is not None

    def hear(self, worker: int, clock: int) -> None:
        """A worker's clock, from its heartbeat."""
        self._pace[worker].hear(clock, time.monotonic())

    def worker_done(self, worker: int) -> None:
        """It has finished, and is ready for any cut."""
        self._working.discard(worker)
        self._gathering.discard(worker)
        if self._cut is not None and self._cut.phase == "proposed":
            self._decide()
        if self._working:
            return
        # What is left to save is saved at the end.
        self._wanted = None
        if self._cut is not None and self._cut.phase in ("proposed", "committed"):
            self._give_up(quiet=True)

    def ask(self, ask: Ask) -> None:
        """Somebody wants a checkpoint."""
        if not self._working:
            return
        if ask.reason == "steps":
            if self._before + ask.clock < self._next_steps:
                return  # another worker has said it before
            self._next_steps = self._multiple_after(ask.clock)
        if ask.reason in ("signal", "end") and not self._hear_signal(ask):
            return
        if ask.reason == "end" and self._adopt():
            return
        self._want(ask.reason)

    def _hear_signal(self, ask: Ask) -> bool:
        """Whether it is news, and not what another rank has told."""
        leave = ask.reason == "end" or self._triggers.on_usr1 == "exit"
        if ask.at < self._signal_at + _ONE_SIGNAL_S and (self._leaving or not leave):
            return False
        self._signal_at = ask.at
        if leave:
            self._leaving = ask.why or "a signal"
        return True

    def _adopt(self) -> bool:
        """End after the cut under way, if that is not far away: there may be no time for another."""
        cut = self._cut
        if cut is None or cut.phase == "abandoned" or (cut.reason == "planned" and not cut.taken):
            return False
        cut.reason = "end"
        return True

    def _want(self, reason: str) -> None:
        cut = self._cut
        # A cut that waits for its step to come gives way.
        planned = cut is not None and cut.reason == "planned" and not cut.taken
        if (self._wanted is None and (cut is None or planned)) or (
            reason in ("signal", "end") and self._leaving
        ):
            self._wanted = reason
        else:
            self.statistics["skipped"] += 1
        if planned and cut is not None and cut.phase in ("proposed", "committed"):
            self._give_up(quiet=True)

    def poll(self) -> None:
        """Look at the time and begin what is due.

        Raises:
            LeavingError: The checkpoint after which the job was to end is durable.
        """
        now = time.monotonic()
        if self._next_time is not None and now >= self._next_time and self._working:
            self._next_time = now + self._triggers.every_s
            self._want("time")
        cut = self._cut
        if cut is not None and cut.phase == "proposed" and now - cut.since > self._patience_s:
            self._give_up()
        if self._cut is None and self._working and not self._gathering and now >= self._not_before:
            self._begin(now)

    def _begin(self, now: float) -> None:
        if self._wanted is not None:
            reason, self._wanted = self._wanted, None
            at_one_clock = self._common or self._aligned
            self._propose(reason, self._ahead(now) if at_one_clock else 0, now)
        elif self._common and self._triggers.every_steps:
            # Long before anybody comes there, so that nobody waits for the decision.
            passed = self._next_steps
            self._next_steps = max(passed, self._multiple_after(self._ahead(now) - 1))
            self.statistics["skipped"] += (self._next_steps - passed) // self._triggers.every_steps
            self._propose("planned", self._next_steps - self._before, now)

    def _ahead(self, now: float) -> int:
        """A clock that no worker has reached yet, probably."""
        at_work = [self._pace[w] for w in self._working]
        rate = max(p.rate for p in at_work)
        return max(p.expected(now) for p in at_work) + max(self._margin, int(rate * _MARGIN_S))

    def _multiple_after(self, clock: int) -> int:
        """The first step of the run behind this clock at which there is to be a checkpoint."""
        n = self._triggers.every_steps
        return ((self._before + clock) // n + 1) * n if n else 0

    def _propose(self, reason: str, clock: int, now: float) -> None:
        self._last_id += 1
        self._cut = cut = _Cut(self._last_id, reason, clock, now, "proposed")
        if not clock:
            self._commit(cut)
            return
        for worker in self._working:
            self._tell_worker(worker, Propose(cut.id, clock))

    def _commit(self, cut: _Cut) -> None:
        cut.phase = "committed"
        self._tell_servers(Commit(cut.id, cut.clock))
        for worker in self._working:
            self._tell_worker(worker, Commit(cut.id, cut.clock))

    def agreed(self, worker: int, answer: Agreed) -> None:
        """A worker's answer to a proposal."""
        self._pace[worker].hear(answer.clock, time.monotonic())
        cut = self._cut
        if cut is not None and cut.id == answer.id and cut.phase == "proposed":
            cut.answers[worker] = answer.ok
            self._decide()

    def _decide(self) -> None:
        cut = self._cut
        assert cut is not None
        if not self._working <= cut.answers.keys():
            return
        if all(cut.answers[w] for w in self._working):
            self._margin = max(_MARGIN, self._margin // 2)
            self._commit(cut)
            return
        # Somebody is past it: once more, further ahead.
        self._margin = min(self._margin * _GROWTH, 1 << 20)
        self._wanted = self._wanted or (cut.reason if cut.reason != "planned" else None)
        self._give_up(quiet=True)

    def _give_up(self, quiet: bool = False) -> None:
        """Call the cut off; servers that know of it say so before there is another."""
        cut = self._cut
        assert cut is not None
        cut.quiet = quiet
        known, cut.phase = cut.phase, "abandoned"
        for worker in self._working:
            self._tell_worker(worker, Abandon(cut.id))
        if known == "proposed":
            self._end(cut)
        else:
            self._tell_servers(Abandon(cut.id))

    def waits(self, worker: int, message: Waits) -> None:
        """A worker waits for other workers before its cut record, or for a server behind it.

        Where both happen in one cut, nobody in it moves any more; see mpips.snapshot. It is given up without
        a word and begun again when the gather has ended, without a common clock in the other way: at one
        clock, if workers cut wherever they were, and the other way round.
        """
        if message.how == "over":
            self._gathering.discard(worker)
            return
        if message.how == "before":
            self._gathering.add(worker)
        cut = self._cut
        if cut is None or cut.id != message.id or cut.phase != "committed":
            return
        if message.how == "behind":
            cut.behind.add(worker)
        if self._gathering and cut.behind:
            self._aligned = not self._aligned
            self._wanted = self._wanted or (cut.reason if cut.reason != "planned" else None)
            self._give_up(quiet=True)

    def taken(self, server: int, taken: Taken) -> None:
        """A server has its copy, or cannot get it."""
        cut = self._cut
        if cut is None or cut.id != taken.id or cut.phase != "committed":
            return
        if not taken.ok:
            self._give_up()
            return
        cut.taken.add(server)
        if len(cut.taken) == self._n_servers:
            cut.phase = "writing"
            self._tell_servers(Write(cut.id))

    def saved(self, server: int, saved: Saved) -> None:
        """A server has done with the cut.

        Raises:
            LeavingError: All have, and the job was to end after it.
        """
        if saved.id == LAST:
            self._say(f"{saved.error}; the job waits and tries again")
            return
        cut = self._cut
        if cut is None or cut.id != saved.id:
            return
        cut.saved[server] = saved
        if len(cut.saved) == self._n_servers:
            self._end(cut)

    def _end(self, cut: _Cut) -> None:
        self._cut = None
        if cut.reason == "planned" and cut.phase == "writing":
            self._next_steps = self._multiple_after(cut.clock)
        if cut.phase == "abandoned":
            if not cut.quiet:
                self.statistics["given_up"] += 1
                self._came_to_nothing(
                    "a checkpoint was given up: not all workers had come to it within "
                    f"{self._patience_s:g} s"
                )
            elif self._leaving and self._wanted is None:
                self._wanted = "end"
            return
        error = next((s.error for _, s in sorted(cut.saved.items()) if s.error), "")
        if error:
            self.statistics["failed"] += 1
            self._came_to_nothing(error)
            return
        self.statistics["written"] += 1
        self.statistics["path"] = cut.saved[0].path
        for _, saved in sorted(cut.saved.items()):
            if saved.note:
                self._say(saved.note)
        if self._leaving:
            raise LeavingError(
                f"{self._leaving}: wrote checkpoint {cut.saved[0].path}, exit "
                f"{LeavingError.exit_code}; start again to go on"
            )

    def _came_to_nothing(self, why: str) -> None:
        """Warn; try again later if the job is to end, since it ends after a durable checkpoint only."""
        if not self._leaving:
            self._say(f"{why}; training goes on")
            return
        self._say(f"{why}; the job still has to end, so it tries again in {self._pause_s:g} s")
        self._wanted = self._wanted or "end"
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def _warn(sentence: str) -> None:
    print(f"mpips: warning: {sentence}", file=sys.stderr, flush=True)
