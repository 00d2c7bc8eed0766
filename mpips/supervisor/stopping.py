"""What signals to the supervisor ask of the attempt under way.

    SIGUSR1, SIGUSR2          are passed on to the ranks, as soon as they are there to take them
    SIGTERM, SIGINT, SIGHUP   the first asks the ranks for a last checkpoint, after which they end with 75; a
                              second one, or the end of `grace_s`, ends everything at once

The ranks are asked by a file in the run directory, which says why, and SIGUSR1, which every mpirun passes on;
of SIGTERM mpirun makes their end. While an attempt is only starting there is nothing new to save: the first
attempt of a run is ended at once; a later one may be about to go on in what only memory holds, and is
asked when it is at work.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from mpips.mpi import early_signals
from mpips.mpi.signals import ONE_SIGNAL_S, name_of
from mpips.rundir.directory import Status
from mpips.supervisor.attempt import Attempt

ENDING_S = 30.0  # from the first sign of an end to that of the launcher
_LOOK_S = 0.5
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Signals that the supervisor receives while a run lasts. Main thread only."""

    def __init__(self, grace_s: float = 25.0) -> None:
        """`grace_s`: what ranks get to end after the first request; 0: they are ended at once."""
        self.grace_s = grace_s
        self._seen: list[int] = []
        self._old: dict[int, object] = {}

    def __enter__(self) -> Signals:
        """Take them over, and a SIGUSR1 that came before."""
        for number in (*_PASSED_ON, *_ENDING):
            self._old[number] = signal.signal(number, lambda n, frame: self._seen.append(n))
        if early_signals.take():
            self._seen.append(signal.SIGUSR1)
        return self

    def __exit__(self, *error: object) -> None:
        """Give them back."""
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def ending(self) -> int:
        """The first signal since the last `take` that asks for the end of the run; 0: none."""
        return next((number for number in self._seen if number in _ENDING), 0)

    def take(self) -> list[int]:
        """Those that have come since the last call."""
        taken = self._seen[:]
        del self._seen[: len(taken)]
        return taken


class Changes:
    """When a value that another process writes has last changed, by the clock of this process.

    Neither clocks of two hosts nor a wall clock that somebody sets can be compared with an earlier time.

    Attributes:
        at: Monotonic time of the last change; of the start before the first one.
    """

    def __init__(self, now: float) -> None:
        """Nothing has been seen. `now`: monotonic time."""
        self.at = now
        self._seen: object = None

    def see(self, value: object, now: float) -> None:
        """Note the value that is there now. `now`: monotonic time."""
        if value != self._seen:
            self._seen, self.at = value, now


class Requests:
    """What they ask of one attempt; not blocking, `poll` drives it.

    Attributes:
        number: The signal that is to end the attempt; 0: none.
        why: Why it is ended at once, in words; "" while it is not.
    """

    def __init__(self, attempt: Attempt, signals: Signals) -> None:
        """Nothing yet, but for what `signals` holds."""
        self.number = 0
        self.why = ""
        self._attempt = attempt
        self._signals = signals
        self._held: list[int] = []
        self._since = 0.0
        self._asked = False

    def poll(self, at_work: bool) -> bool:
        """Pass on what has come. True: the attempt must be ended now.

        Args:
            at_work: The ranks are there and take signals.
        """
        now = time.monotonic()
        for number in self._signals.take():
            # What the caller knows may be half a second old.
            at_work = at_work or self._attempt.look() is not None
            self._hear(number, now, at_work)
        if at_work:
            for number in self._held:
                self._attempt.signal(number)
            self._held.clear()
            if self.number and not self._asked and not self.why:
                self._asked = True
                self._attempt.ask_to_leave(name_of(self.number))
        grace_s = self._signals.grace_s
        if self.number and not self.why and now - self._since >= grace_s:
            self.why = f"{name_of(self.number)}: no checkpoint within {grace_s:g} s"
        return bool(self.why)

    def _hear(self, number: int, now: float, at_work: bool) -> None:
        name = name_of(number)
        if number in _PASSED_ON:
            self._held.append(number)
        elif not self.number:
            self.number, self._since = number, now
            if not self._signals.grace_s:
                self.why = f"stopped at once by {name}"
            elif not at_work and self._attempt.is_first:
                self.why = f"stopped by {name} before there was anything to save"
        elif now - self._since > ONE_SIGNAL_S and not self.why:
            self.number = number
            self.why = f"stopped at once by a second {name}"


def drive(
    attempt: Attempt, requests: Requests, silence_s: float, tick: Callable[[Status | None], None]
) -> str:
    """Wait for an attempt's end, passing on signals; why it was cut off, or "".

    Args:
        attempt: Started.
        requests: What signals ask of it.
        silence_s: An attempt without a new heartbeat for so long is ended: not even a watchdog runs.
        tick: Called with the status, about twice a second.
    """
    alive = Changes(time.monotonic())
    kill_at = float("inf")
    next_look = 0.0
    at_work = False
    while not attempt.wait(0.02):
        now = time.monotonic()
        if requests.poll(at_work) or now >= kill_at:
            attempt.kill(overdue=now >= kill_at)
            return ""
        if now < next_look:
            continue
        next_look = now + _LOOK_S
        if attempt.is_ending:
            kill_at = min(kill_at, now + ENDING_S)
        status = attempt.look()
        at_work = status is not None
        alive.see(attempt.heartbeat(), now)
        if now - alive.at > silence_s:
            attempt.kill()
            return f"no rank has sent a heartbeat for {silence_s:.0f} s"
        tick(status)
    return ""
