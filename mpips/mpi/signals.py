"""What signals ask of a rank, from the start of a job to its end.

    SIGUSR1           a checkpoint; what follows is the configuration's choice (`on_usr1`)
    SIGTERM, SIGINT   the first: a checkpoint, then the end with 75, as far as there is somewhere to save to
                      and time to do it; the second, or the end of that time: the end at once, 128 + number
    SIGUSR2           the stacks of all threads

Before a job is at work there is nothing to save: SIGTERM and SIGINT end it at once, SIGUSR1 is remembered.

How much time there is depends on who sends the signal. srun, MPICH's mpirun and a shell leave `grace_s` to
a rank. Open MPI's mpirun ends a job, for whatever reason, by SIGCONT, SIGTERM and SIGKILL, each 0.25 s
(5.0) or a second (4.1) after the one before (measured): no time to save, hardly enough to clean up. So a rank
of it to which SIGCONT has come shortly before ends at once. `mpips run` asks for the checkpoint itself, by
SIGUSR1 and a file in the run directory, and waits; a rank of it that gets SIGTERM is being cleaned away
and ends at once.

Handlers run in the main thread, between two of its instructions; they take notes, or raise what unwinds the
stack. Where the main thread is inside MPI they do not run: the watchdog's thread hears of SIGTERM and
SIGINT by itself, keeps the time, sends the signal once more at its end, and ends the process if
that did not help. It alone writes `expired`, before that second signal; both may note a SIGCONT, with
about the same time.

A forked child gets the handlers back that were there before, but for that of SIGUSR1
(see mpips.process.forked).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from mpips.mpi import early_signals
from mpips.mpi.messages import Ask
from mpips.process import forked
from mpips.rundir.directory import Supervised

ONE_SIGNAL_S = (
    0.3  # what comes within it is one: mpirun passes on what the batch system sends to all
)
_SEQUENCE_S = 1.5  # at most, from mpirun's SIGCONT to its SIGTERM
_OPENMPI = "OMPI_COMM_WORLD_SIZE"  # tells of its mpirun; srun does not set it


class TerminatedError(SystemExit):
    """SIGTERM: unwinds the stack so that everything is cleaned up; exit code 143."""


def unwinding_s(env: Mapping[str, str] = os.environ) -> float:
    """How long the main thread has to end by itself, before the watchdog does it."""
    return 0.15 if _OPENMPI in env else 0.5


def name_of(number: int) -> str:
    """SIGTERM for 15."""
    return signal.Signals(number).name


class SignalRequests:
    """What signals ask of this process while the block lasts; see above.

    Where this is not the main thread, or nothing is saved, signals stay as they are.

    Attributes:
        grace_s: From the first SIGTERM or SIGINT to the end; 0: there is no time to save.
        expired: That time has passed.
        is_over: The block was left without an error.
    """

    def __init__(self, wanted: bool, grace_s: float = 0.0, run: Supervised | None = None) -> None:
        """`wanted` False: the block changes nothing; `run`: the supervised run of this rank."""
        here = threading.current_thread() is threading.main_thread()
        self._wanted = wanted and here
        self._run = run
        self.grace_s = grace_s if self._wanted and run is None else 0.0
        self._continued_at = float("-inf")
        self.expired = self.is_over = False
        self._usr1_at = 0.0
        self._ending: Ask | None = None
        self._first: tuple[int, float] | None = None
        self._why = ""  # set when the process is to end at once
        self._old: dict[int, Any] = {}

    def __enter__(self) -> SignalRequests:
        """Take the signals over, and what came before."""
        if not self._wanted:
            return self
        forked.register(self)
        self._take_over(signal.SIGUSR1, self._note)
        self._usr1_at = early_signals.take()
        if self.grace_s:
            if _OPENMPI in os.environ:
                self._take_over(signal.SIGCONT, self.continued)
            self._take_over(signal.SIGTERM, self._end)
            # Whoever sits at a prompt wants it back.
            if not hasattr(sys, "ps1"):
                self._take_over(signal.SIGINT, self._end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Give them back."""
        forked.forget(self)
        self.disown()
        self.is_over = error is None

    def disown(self) -> None:
        """Set the handlers that were there before the block."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()

    def _take_over(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        self._old[number] = signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._usr1_at = time.monotonic()

    def continued(self, number: int = signal.SIGCONT, frame: FrameType | None = None) -> None:
        """Take note of SIGCONT."""
        self._continued_at = time.monotonic()

    def grace_now(self) -> float:
        """What there is of `grace_s` if the first signal comes now."""
        killing = time.monotonic() - self._continued_at < _SEQUENCE_S
        return 0.0 if killing else self.grace_s

    def _end(self, number: int, frame: FrameType | None) -> None:
        now, name = time.monotonic(), name_of(number)
        if self._why:
            return
        if self._first is None:
            self._first = number, now
            if self.grace_now():
                self._ending = Ask("end", now, why=name)
                return
            self._why = f"{name} from mpirun, which leaves no time to save"
        elif self.expired:
            self._why = f"{name}: no checkpoint within {self.grace_s:g} s"
        elif now - self._first[1] > ONE_SIGNAL_S:
            self._why = f"stopped at once by a second {name}"
        else:
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise TerminatedError(128 + number)

    def take(self) -> Ask | None:
        """What has been asked for since the last call."""
        if self._ending is not None:
            ask, self._ending = self._ending, None
            return ask
        if not self._usr1_at:
            return None
        at, self._usr1_at = self._usr1_at, 0.0
        # `mpips run` says by a file that it wants the job to end.
        why = self._run.asked_to_leave() if self._run is not None else ""
        return Ask("end", at, why=why) if why else Ask("signal", at, why="SIGUSR1")

    def say_end(self, code: object, newest: str) -> None:
        """Say why this process ends at once, if that is for a signal that came within the block."""
        if self._why:
            line = f"mpips: {self._why}, exit {code}; newest checkpoint: {newest}"
            print(line, file=sys.stderr, flush=True)


class _Handlers:
    """The handlers that were there before a block, by signal number."""

    def __init__(self, before: dict[int, Any]) -> None:
        self.before = before

    def disown(self) -> None:
        """Set them again in a forked child, but for SIGUSR1: it may be sent to a whole job."""
        for number, handler in self.before.items():
            if number != signal.SIGUSR1:
                signal.signal(number, handler)


@contextmanager
def signals_unwind(run: Supervised | None = None) -> Iterator[None]:
    """Turn SIGTERM into an exception while a job runs, where this is the main thread.

    SIGUSR1 is remembered until the job is at work. SIGUSR2 writes the stacks of all threads to stderr, or
    to the rank's log in a supervised `run`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        raise TerminatedError(128 + number)

    # Under a supervisor the rank's log is registered, see failure_report.
    dumps_here = run is None
    old = _Handlers({n: signal.signal(n, h) for n, h in _handlers(terminate)})
    forked.register(old)
    if dumps_here:
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    try:
        yield
    finally:
        forked.forget(old)
        for number, handler in old.before.items():
            signal.signal(number, handler)
        if dumps_here:
            faulthandler.unregister(signal.SIGUSR2)


def _handlers(terminate: Callable[[int, FrameType | None], None]) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = [(signal.SIGTERM, terminate)]
    # A program's own handler of SIGUSR1 stays.
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        found.append((signal.SIGUSR1, early_signals.note))
    return found
