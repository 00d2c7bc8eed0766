"""Actors of one thread, one at a time, in an order that a seed draws; their clock; and how they die.

Every actor is a greenlet. It gives up its turn in `World.pause`: where it waits, where it sends, and at some
fault points within native code. The world then chooses the next one. So a history depends on its seed alone.

Death. A launch ends like a job whose rank is killed. The actor that dies stops where it is: at its last
pause, or within native code at a fault point. The others go on for some turns, because a kill is not noticed
at once. Then none of them runs again. Those that have paused in Python are unwound by an exception; an actor
within native code is left as it is, with its stack, for as long as the process lives.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import greenlet

from mpips import _native
from mpips.process import patience

# Turns after which a launch in which nobody ends counts as stuck.
MOST_TURNS = 100_000
_left: list[
    greenlet.greenlet
] = []  # of actors that died in native code: their stacks must not be unwound


class LaunchEndedError(BaseException):
    """The launch of this actor has ended; raised in `World.pause`."""


class StuckError(AssertionError):
    """Nobody has ended for very many turns."""


class Actor:
    """One of the world's actors.

    Attributes:
        name: Its name.
        done: It has returned.
        dead: It has been killed.
        weight: Chance of its turn, relative to others.
        in_native: It has paused within native code.
        waits_since: Number of changes up to which it has found nothing to do; -1: it does not wait.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name, self.done, self.dead = name, False, False
        self.weight, self.in_native, self.waits_since = 1.0, False, -1
        self.greenlet = greenlet.greenlet(work)

    @property
    def where(self) -> str:
        """The functions in which it has paused, the innermost last."""
        frame, names = self.greenlet.gr_frame, []
        while frame is not None:
            names.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        return " > ".join(reversed(names[:14]))


class World:
    """The actors of one launch after the other, the clock, and the seed.

    Attributes:
        random: Draws all that is random.
        now: The clock, seconds.
        turns: Number of turns so far.
        changes: Number of turns that have changed anything for others, so far.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.turns = self.changes = 0
        self.actors: list[Actor] = []
        self.current: Actor | None = None
        self.ending = False
        self.deaths = 0
        # Turn and passage of a fault point at which an actor dies; None: none does.
        self._dies_at: int | None = None
        self._dies_within = False
        self._ends_at: int | None = None
        self._stride = 0
        self._tick_s = 1e-4
        self._hub = greenlet.getcurrent()
        self._error: BaseException | None = None

    # The clock.

    def monotonic(self) -> float:
        """Return the time; each look at it takes some."""
        self.now += 1e-7
        return self.now

    def monotonic_ns(self) -> int:
        """Return the time in nanoseconds."""
        return int(self.monotonic() * 1e9)

    def sleep(self, seconds: float) -> None:
        """Let time go by, and others have their turns."""
        self.now += seconds
        self.wait()

    @contextlib.contextmanager
    def as_time(self) -> Iterator[None]:
        """Within the block the clock of this process is that of the world."""
        names = ("monotonic", "monotonic_ns", "perf_counter", "sleep", "time")
        before, sched_yield = {name: getattr(time, name) for name in names}, os.sched_yield
        mine: dict[str, Any] = dict.fromkeys(("monotonic", "perf_counter", "time"), self.monotonic)
        mine |= {"monotonic_ns": self.monotonic_ns, "sleep": self.sleep}
        try:
            for name, function in mine.items():
                setattr(time, name, function)
            os.sched_yield = lambda: self.sleep(1e-4)
            patience._clock = patience.RunningClock()
            yield
        finally:
            for name, function in before.items():
                setattr(time, name, function)
            os.sched_yield = sched_yield
            patience._clock = patience.RunningClock()

    # Turns.

    def spawn(self, name: str, work: Callable[[], None]) -> Actor:
        """Add an actor that calls `work` from its first turn on."""

        def run() -> None:
            try:
                work()
            except LaunchEndedError:
                pass
            except BaseException as error:
                if self._error is None and not self.ending:
                    self._error = error
            actor.done = True

        actor = Actor(name, run)
        self.actors.append(actor)
        return actor

    def pause(self) -> None:
        """Give up the turn; return at the next one."""
        if self.current is None:
            return
        if self.ending:
            raise LaunchEndedError
        self._hub.switch()
        if self.ending:
            raise LaunchEndedError

    def wait(self) -> None:
        """Give up the turn until another actor has changed anything, or nobody has anything to do."""
        if self.current is not None:
            self.current.waits_since = self.changes
        self.pause()

    def changed(self) -> None:
        """Note that this actor has changed something for which others may wait."""
        self.changes += 1

    def maybe_pause(self, chance: float = 0.3) -> None:
        """Give up the turn, or not."""
        if self.current is not None and self.random.random() < chance:
            self.pause()

    def _passed(self, name: str) -> None:
        """Called by native code at a fault point: another one's turn, or the end of this actor."""
        _native.fault_hook_after(self._distance())
        actor = self.current
        if actor is None or self.ending:
            return
        if self._dies_within and self._is_due():
            self._die(actor)
        actor.in_native = True
        self._hub.switch()
        actor.in_native = False

    def _distance(self) -> int:
        return 1 + int(self.random.expovariate(1 / self._stride)) if self._stride else 0

    def run(self, stride: int, dies_at: int | None = None, dies_within: bool = False) -> bool:
        """Run all actors until they have returned, or until one is killed and the launch ends.

        Args:
            stride: Passages of fault points between two turns within native code, on average; 0: none.
            dies_at: Turn of this launch at which an actor dies; None: none does.
            dies_within: It dies at a fault point, the first one after that turn.

        Returns:
            True if the launch was killed.

        Raises:
            BaseException: What an actor has raised.
            StuckError: Nobody has ended for very many turns.
        """
        self._hub = greenlet.getcurrent()
        self.ending, self._error, self._ends_at = False, None, None
        self._stride = stride
        self._dies_at = None if dies_at is None else self.turns + dies_at
        self._dies_within = dies_within and stride > 0
        first = self.turns
        _native.arm_fault_hook(self._passed if stride else None, self._distance())
        try:
            able = list(self.actors)
            while self._error is None and able:
                if self._ends_at is not None and self.turns >= self._ends_at:
                    break
                if self.turns - first > MOST_TURNS:
                    names = "\n".join(f"{actor.name}: {actor.where}" for actor in able)
                    raise StuckError(f"no end after {MOST_TURNS} turns of\n{names}")
                actor = self._turn(able)
                if actor.done or actor.dead:
                    able.remove(actor)
        finally:
            _native.arm_fault_hook(None, 0)
            killed = any(actor.dead for actor in self.actors)
            self._end()
        if self._error is not None:
            raise self._error
        return killed

    def die_in(self, turns: int) -> None:
        """Let an actor of this launch die in so many turns, in native code if `run` was told so."""
        self._dies_at = self.turns + turns

    def end_soon(self) -> None:
        """End the launch after some turns, without a death."""
        self._ends_at = self.turns + self.random.choice((0, 1, 5, 30, 200))

    def _turn(self, able: list[Actor]) -> Actor:
        """Let one of the actors go on to its next pause, and return it."""
        draws = self.random
        if self.turns % 64 == 0:
            # For a while some are much slower than others, and time passes at another speed.
            for actor in self.actors:
                actor.weight = draws.choice((1.0, 1.0, 0.2, 0.02))
            self._tick_s = draws.choice((1e-5, 1e-4, 1e-3))
        self.turns += 1
        self.now += self._tick_s
        changes = self.changes
        ready = [each for each in able if each.waits_since != changes]
        if not ready:
            # Everybody waits: for a message that is late, or for time to go by.
            self.now += draws.choice((1e-4, 1e-3, 1e-2))
            ready = able
        actor = self._one_of(ready)
        if not self._dies_within and self._is_due():
            self._mark_dead(actor)
            return actor
        self.current, actor.waits_since = actor, -1
        actor.greenlet.switch()
        self.current = None
        if actor.waits_since < 0:
            self.changes += 1
        return actor

    def _one_of(self, ready: list[Actor]) -> Actor:
        if len(ready) == 1:
            return ready[0]
        at = self.random.random() * sum([actor.weight for actor in ready])
        for actor in ready:
            at -= actor.weight
            if at < 0:
                return actor
        return ready[-1]

    def _is_due(self) -> bool:
        return self._dies_at is not None and self.turns >= self._dies_at

    def _mark_dead(self, actor: Actor) -> None:
        actor.dead = True
        self.deaths += 1
        self._dies_at = None
        self._ends_at = self.turns + self.random.choice((0, 0, 1, 5, 30, 200))

    def _die(self, actor: Actor) -> None:
        """End an actor within native code."""
        self._mark_dead(actor)
        actor.in_native = True
        self._hub.switch()
        raise AssertionError("a dead actor has a turn")

    def _end(self) -> None:
        """End all actors that have not returned."""
        self.ending = True
        for actor in self.actors:
            if actor.done or not actor.greenlet:
                continue
            if actor.in_native:
                _left.append(actor.greenlet)
                continue
            self.current = actor
            actor.greenlet.throw(LaunchEndedError)
        self.current = None
        self.actors = []
