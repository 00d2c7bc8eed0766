"""Signals to a rank, and the requests that follow from them, from the start of a job to its end.

    SIGUSR1           a checkpoint; the option `on_usr1` sets what follows
    SIGTERM, SIGINT   the first: a checkpoint, then exit with code 75, if checkpoints are saved and there is
                      time; the second, or the end of that time: exit at once with code 128 + number
    SIGXCPU           a checkpoint, then exit with code 75: the warning before a limit of processor time or
                      memory ends the process (ulimit -t; s_cpu and s_vmem of Grid Engine). It is repeated
                      every second, so a second one has no effect
    SIGUSR2           the stacks of all threads are written

Before a job is at work there is nothing to save. SIGTERM and SIGINT then end it at once, and the time of a
SIGUSR1 is stored until the job is at work.

The time that a rank has depends on the sender of the signal:

* srun, MPICH's mpirun and a shell leave `grace_s` to a rank.
* Open MPI's mpirun ends a job, for any reason, by SIGCONT, SIGTERM and SIGKILL, each 0.25 s (Open MPI 5.0) or
  1 s (4.1) after the one before (measured). This is too short to save, and hardly enough to clean up. So a
  rank under Open MPI that gets SIGTERM shortly after SIGCONT ends at once.
* `mpips run` requests the checkpoint itself, by SIGUSR1 and a file in the run directory, and waits for it. A
  rank that gets SIGTERM under `mpips run` is being removed, and ends at once.

Python runs handlers in the main thread, between two of its instructions. They store what came, or raise an
exception that unwinds the stack. While the main thread is inside MPI they do not run. For that case the
watchdog's thread receives SIGTERM and SIGINT separately and measures the time. When the time is over it sends
the signal once more, and ends the process if that has no effect. Only the watchdog's thread writes `expired`,
before it sends that second signal. Both threads may store the time of a SIGCONT; the two values are about
equal, so their order does not matter.

A forked child gets the handlers back that were there before, except the one of SIGUSR1
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
from typing import Any, ClassVar

from mpips.mpi import early_signals
from mpips.mpi.messages import Ask
from mpips.process import forked
from mpips.rundir.directory import Supervised
from mpips.terminal.screen import say

# s within which signals count as one: a batch system signals all processes, and mpirun passes the signal on.
ONE_SIGNAL_S = 0.3
_SEQUENCE_S = 1.5  # s, more than lies between mpirun's SIGCONT and its SIGTERM
_OPENMPI = "OMPI_COMM_WORLD_SIZE"  # set by Open MPI's mpirun, not by srun


class TerminatedError(SystemExit):
    """Raised for SIGTERM, so that the stack unwinds and everything is cleaned up; exit code 143.

    Attributes:
        newest: The newest one of this process. A script that `mpips.init` started ends without a call that
            could catch the exception, and its exit handler looks here.
    """

    newest: ClassVar[TerminatedError | None] = None

    def __init__(self, code: int) -> None:
        """`code`: exit code of the process."""
        super().__init__(code)
        TerminatedError.newest = self


def interruption_behind(error: BaseException) -> KeyboardInterrupt | TerminatedError | None:
    """Return the exception of a signal's handler if an exception is it, or hides it; None: neither.

    Up to Python 3.11, a handler that raises while a class is made, for example during an import, appears as
    a RuntimeError whose cause is the exception of the handler. An exception that a program has raised from
    a KeyboardInterrupt is its own.
    """
    found: BaseException | None = error
    while type(found) is RuntimeError and str(found).startswith("Error calling __set_name__"):
        found = found.__cause__
    return found if isinstance(found, KeyboardInterrupt | TerminatedError) else None


def unwinding_s(env: Mapping[str, str] = os.environ) -> float:
    """Return the seconds that the main thread has to end by itself before the watchdog ends the process."""
    return 0.15 if _OPENMPI in env else 0.5


def name_of(number: int) -> str:
    """Return the name of a signal, "SIGTERM" for 15."""
    return signal.Signals(number).name


class SignalRequests:
    """The requests of signals to this process, as a block; the module describes which signal requests what.

    Outside the main thread, or where nothing is saved, the block leaves the handlers of signals unchanged.

    Attributes:
        grace_s: Seconds from the first SIGTERM or SIGINT to the end; 0: there is no time to save.
        expired: True once that time has passed. Written by the watchdog's thread.
        is_over: True once the block has ended without an error.
    """

    def __init__(self, wanted: bool, grace_s: float = 0.0, run: Supervised | None = None) -> None:
        """Prepare the block.

        Args:
            wanted: False: the block changes nothing.
            grace_s: Seconds that a last checkpoint may take. A supervised rank has none, see the module.
            run: The supervised run of this rank, if any.
        """
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
        """Install the handlers, and take over a SIGUSR1 that came before."""
        if not self._wanted:
            return self
        forked.register(self)
        self._take_over(signal.SIGUSR1, self._note)
        self._take_over(signal.SIGXCPU, self._warned)
        self._usr1_at = early_signals.take()
        if self.grace_s:
            if _OPENMPI in os.environ:
                self._take_over(signal.SIGCONT, self.continued)
            self._take_over(signal.SIGTERM, self._end)
            # At an interactive prompt Ctrl-C must return to the prompt.
            if not hasattr(sys, "ps1"):
                self._take_over(signal.SIGINT, self._end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Restore the handlers."""
        forked.forget(self)
        self.disown()
        self.is_over = error is None

    def disown(self) -> None:
        """Restore the handlers that were there before the block."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old.clear()

    def _take_over(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        self._old[number] = signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._usr1_at = time.monotonic()

    def continued(self, number: int = signal.SIGCONT, frame: FrameType | None = None) -> None:
        """Store the time of a SIGCONT. Called as a handler, and by the watchdog's thread."""
        self._continued_at = time.monotonic()

    def grace_now(self) -> float:
        """Return the seconds of grace if the first signal comes now: 0 shortly after a SIGCONT."""
        killing = time.monotonic() - self._continued_at < _SEQUENCE_S
        return 0.0 if killing else self.grace_s

    def _end(self, number: int, frame: FrameType | None) -> None:
        now, name = time.monotonic(), name_of(number)
        if self._why:
            return
        # Let the first signal request a checkpoint and the end, if there is time to save.
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

    def _warned(self, number: int, frame: FrameType | None) -> None:
        if self._first is None:
            self._first = number, time.monotonic()
            self._ending = Ask("end", self._first[1], why=name_of(number))

    def take(self) -> Ask | None:
        """Return and clear the request of the signals since the last call; None if they made none.

        A request for the end is returned before a request for a checkpoint.
        """
        if self._ending is not None:
            ask, self._ending = self._ending, None
            return ask
        if not self._usr1_at:
            return None
        at, self._usr1_at = self._usr1_at, 0.0
        # `mpips run` requests the end of the job by SIGUSR1 and a file.
        why = self._run.asked_to_leave() if self._run is not None else ""
        return Ask("end", at, why=why) if why else Ask("signal", at, why="SIGUSR1")

    def say_end(self, code: object, newest: str) -> None:
        """Print why this process ends at once, if a signal within the block is the reason.

        Args:
            code: Exit code.
            newest: Name of the newest checkpoint.
        """
        if self._why:
            line = f"mpips: {self._why}, exit {code}; newest checkpoint: {newest}"
            say(line)


class _Handlers:
    """The handlers that were installed before a block, by signal number."""

    def __init__(self, before: dict[int, Any]) -> None:
        self.before = before

    def disown(self) -> None:
        """Restore them in a forked child, except for SIGUSR1, which may be sent to all processes of a job."""
        for number, handler in self.before.items():
            if number != signal.SIGUSR1:
                signal.signal(number, handler)


@contextmanager
def signals_unwind(run: Supervised | None = None) -> Iterator[None]:
    """Turn SIGTERM into an exception within the block; no effect outside the main thread.

    The time of a SIGUSR1 is stored until the job is at work. SIGUSR2 writes the stacks of all threads to
    stderr, or to the rank's log in a supervised run.

    Args:
        run: The supervised run of this rank, if any.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        raise TerminatedError(128 + number)

    # Under a supervisor SIGUSR2 already writes to the rank's log, see failure_report.
    dumps_here = run is None
    old = _Handlers({n: signal.signal(n, h) for n, h in _handlers(terminate)})
    forked.register(old)
    if dumps_here:
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    try:
        yield
    except RuntimeError as error:
        if (interruption := interruption_behind(error)) is not None:
            raise interruption from None
        raise
    finally:
        forked.forget(old)
        for number, handler in old.before.items():
            signal.signal(number, handler)
        if dumps_here:
            faulthandler.unregister(signal.SIGUSR2)


def _handlers(terminate: Callable[[int, FrameType | None], None]) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = [(signal.SIGTERM, terminate)]
    # Leave a program's own handler of SIGUSR1 in place.
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        found.append((signal.SIGUSR1, early_signals.note))
    return found
