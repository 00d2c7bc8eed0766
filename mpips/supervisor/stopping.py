"""Signals to the supervisor, and what they request of the running attempt.

    SIGUSR1, SIGUSR2          are passed on to the ranks as soon as these are at work
    SIGTERM, SIGINT, SIGHUP   the first one asks the ranks for a last checkpoint, after which they end with
                              exit code 75; a second one, or the end of `grace_s`, ends all processes

A request in the run directory (mpips.rundir.requests) counts like a signal: "checkpoint" like SIGUSR1, "stop"
like SIGTERM.

The request for a checkpoint is a file in the run directory, which names the signal, and then SIGUSR1, which
every mpirun passes on; SIGTERM would make mpirun end its ranks. While an attempt starts, nothing new can be
saved: the first attempt of a run is ended at once. A later one may continue from updates that only memory
contains, so the request waits until it is at work.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

from mpips.mpi import early_signals
from mpips.mpi.signals import ONE_SIGNAL_S, name_of
from mpips.process.patience import is_over, running_s
from mpips.rundir.files import Status
from mpips.rundir.requests import JobSize, RequestFolder
from mpips.supervisor.attempt import Attempt

ENDING_S = 30.0  # seconds from the end of a rank to that of the launcher, at most
_LOOK_S = 0.5  # seconds between two readings of the status
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU)
_SIGNAL_OF = {"checkpoint": signal.SIGUSR1, "stop": signal.SIGTERM}  # by the kind of a request


class Signals:
    """Signals that the supervisor receives during a run. Use it in a `with` block. Main thread only.

    Attributes:
        grace_s: Seconds that ranks have for a last checkpoint; 0: they are ended at once.
    """

    def __init__(self, grace_s: float = 25.0, requests: RequestFolder | None = None) -> None:
        """Receive nothing yet.

        Args:
            grace_s: See the class.
            requests: Requests to the run, which count like signals; None: signals only.
        """
        self.grace_s = grace_s
        self._requests = requests
        self._next_look = 0.0  # monotonic time of the next reading of the requests
        self._seen: list[int] = []
        self._shapes: list[JobSize] = []
        self._warned: set[int] = set()  # numbers of all signals so far
        self._old: dict[int, object] = {}

    def __enter__(self) -> Signals:
        """Install the handlers, and take a SIGUSR1 that came before."""
        for number in (*_PASSED_ON, *_ENDING):
            self._old[number] = signal.signal(number, self._note)
        if early_signals.take():
            self._seen.append(signal.SIGUSR1)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the handlers that were there before."""
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: object) -> None:
        # The kernel repeats this warning every second; a second one is no wish to end at once.
        if number != signal.SIGXCPU or number not in self._warned:
            self._seen.append(number)
        self._warned.add(number)

    def ending(self) -> int:
        """Return the first signal since the last `take` that requests the end of the run; 0: none."""
        self._look()
        return next((number for number in self._seen if number in _ENDING), 0)

    def _look(self) -> None:
        """Add the requests of the run directory; it is read at most every `_LOOK_S` seconds."""
        now = time.monotonic()
        if self._requests is not None and now >= self._next_look:
            self._next_look = now + _LOOK_S
            for request in self._requests.take(socket.gethostname(), os.getpid()):
                if request.shape is not None:
                    self._shapes.append(request.shape)
                elif request.kind in _SIGNAL_OF:
                    self._seen.append(_SIGNAL_OF[request.kind])

    def request(self, number: int) -> None:
        """Count a signal as received, for a part of the run that has no ranks."""
        self._seen.append(number)

    def take_shapes(self) -> list[JobSize]:
        """Return the requests for another size of the job since the last call, in their order."""
        self._look()
        taken, self._shapes = self._shapes, []
        return taken

    def take(self) -> list[int]:
        """Return the signals received since the last call, in their order."""
        self._look()
        taken = self._seen[:]
        del self._seen[: len(taken)]
        return taken


class Changes:
    """The running time of this process at the last change of a value that another process writes.

    Times of another host, or of a wall clock that is set, cannot be compared with it.

    Attributes:
        at: Running time of the last change; before the first one, of the start.
    """

    def __init__(self, now: float) -> None:
        """No value has been read. `now`: running time."""
        self.at = now
        self._seen: object = None

    def see(self, value: object, now: float) -> None:
        """Note the value that was read. `now`: running time."""
        if value != self._seen:
            self._seen, self.at = value, now


class Requests:
    """The requests of signals to one attempt. Not blocking: the caller calls `poll` again and again.

    Attributes:
        number: The signal that requests the end of the attempt; 0: none.
        why: Why the attempt must be ended at once, in words; "": it need not be.
    """

    def __init__(self, attempt: Attempt, signals: Signals) -> None:
        """Pass signals on to `attempt`; those that `signals` has received before count as well."""
        self.number = 0
        self.why = ""
        self._attempt = attempt
        self._signals = signals
        self._deferred: list[int] = []  # signals to pass on when the ranks are at work
        self._since = 0.0  # running time of the first signal that asks for the end
        self._asked = False  # the ranks were asked for a last checkpoint

    def poll(self, at_work: bool) -> bool:
        """Handle the signals received since the last call; return True if the attempt must be ended now.

        Args:
            at_work: The ranks are at work, so they handle signals.
        """
        now = running_s()
        for number in self._signals.take():
            # Read the status again: that of the caller may be half a second old.
            at_work = at_work or self._attempt.look() is not None
            self._receive(number, now, at_work)
        if at_work:
            for number in self._deferred:
                self._attempt.signal(number)
            self._deferred.clear()
            if self.number and not self._asked and not self.why:
                self._asked = True
                self._attempt.ask_to_leave(name_of(self.number))
        grace_s = self._signals.grace_s
        if self.number and not self.why and now - self._since >= grace_s:
            self.why = f"{name_of(self.number)}: no checkpoint within {grace_s:g} s"
        return bool(self.why)

    def _receive(self, number: int, now: float, at_work: bool) -> None:
        """Note one signal. Ending signals within `ONE_SIGNAL_S` count as one: launchers send several."""
        name = name_of(number)
        if number in _PASSED_ON:
            self._deferred.append(number)
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
    attempt: Attempt,
    requests: Requests,
    silence_s: float,
    tick: Callable[[Status | None], None],
    look: Callable[[], None] = lambda: None,
) -> str:
    """Wait for an attempt's end and pass signals on; return why the supervisor ended it, or "".

    Args:
        attempt: The attempt; it was started.
        requests: The requests of signals to it.
        silence_s: Seconds without a new heartbeat after which the attempt is ended: no watchdog of it runs.
            Time in which the ranks of this host are suspended does not count, see `Attempt.is_suspended`.
        tick: Called with the status about twice a second.
        look: Called at the end of each process, and 50 times a second; after a request for the end of the
            attempt no more.
    """
    alive = Changes(running_s())
    kill_at = float("inf")
    next_look = 0.0
    at_work = False
    while not attempt.wait(0.02):
        now = running_s()
        if requests.poll(at_work) or now >= kill_at:
            attempt.kill(overdue=now >= kill_at)
            return ""
        if not requests.number:
            look()
        if now < next_look:
            continue
        next_look = now + _LOOK_S
        # Give the launcher a limited time once a rank has ended.
        if attempt.is_ending:
            kill_at = min(kill_at, now + ENDING_S)
            attempt.end_orphans()
        status = attempt.look()
        at_work = status is not None
        alive.see(attempt.heartbeat(), now)
        if attempt.is_suspended:
            alive.at = now
        if is_over(alive.at, silence_s):
            attempt.kill()
            return f"no rank has sent a heartbeat for {silence_s:.0f} s"
        tick(status)
    return ""
