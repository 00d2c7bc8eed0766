"""Time limits that count only while this process runs.

A process may be suspended: by SIGSTOP (gang scheduling, `scontrol suspend`, Ctrl-Z), by the kernel's freezer
of control groups, or with its whole virtual machine. CLOCK_MONOTONIC goes on meanwhile. (While a laptop
sleeps, CLOCK_MONOTONIC stands still.) A time limit by that clock would be over as soon as the process
continues, though the other processes of the job had no time at all. So every time limit of mpips uses the two
times of this module:

running     Seconds in which this process ran. Every reader of the clock stores the time. If more than
            `JUMP_S` have passed since the last reading, the process was suspended, and only `JUMP_S` of
            them count. In every rank the watchdog's thread reads the clock five times a second, even
            while the main thread computes; in processes without a watchdog, loops that wait read it.
continued   The running time at which the process last continued.

A wait is over when its limit has passed both since its beginning and since `continued`: the processes of a
job are stopped and continued at slightly different moments, so the others have the full limit again. Batch
systems may suspend a job every few seconds, and a wait must still end. So it is also over when twice the
limit has passed in running time.

If one rank alone is stopped, the clocks of the others do not jump: they find it late as always. The native
counterpart is in native/src/process/deadline.cpp, for the start of MPI.
"""

from __future__ import annotations

import time

# Seconds between two readings of the clock by which the process must have been suspended.
JUMP_S = 1.0


class RunningClock:
    """The running time of a process. Any thread may read it at any time, also a handler of a signal.

    The state is replaced as a whole. If two threads read the clock at the same time, one of them may store an
    older state: the next reading then finds the same suspension again.
    """

    def __init__(self) -> None:
        """Begin at the monotonic time, without suspensions."""
        # Monotonic s of the last reading, seconds of all suspensions, and running s of the last continuation.
        self._state = (time.monotonic(), 0.0, float("-inf"))

    def read(self) -> tuple[float, float]:
        """Return the running time and that of the last continuation (-inf before the first one), seconds."""
        last, lost_s, continued = self._state
        now = time.monotonic()
        if now - last > JUMP_S:
            lost_s += now - last - JUMP_S
            continued = now - lost_s
        self._state = (now, lost_s, continued)
        return now - lost_s, continued


_clock = RunningClock()  # of this process, as `time.monotonic` is


def running_s() -> float:
    """Return the running time of this process, seconds from any origin; see the module."""
    return _clock.read()[0]


def waited_s(since: float) -> float:
    """Return for how long the others have had time: the running seconds since `since` and the continuation.

    Args:
        since: Running time of the begin of a wait, or of another process's last sign of life.
    """
    now, continued = _clock.read()
    return now - max(since, continued)


def is_over(since: float, limit_s: float) -> bool:
    """Return True if a wait with this limit is over; see the module for the rule.

    Args:
        since: Running time of the begin of a wait, or of another process's last sign of life.
        limit_s: Seconds that it may take.
    """
    now, continued = _clock.read()
    if now - since < limit_s:
        return False
    return now - continued >= limit_s or now - since >= 2.0 * (limit_s + JUMP_S)


def was_suspended(since: float) -> bool:
    """Return True if this process was suspended after this running time."""
    return _clock.read()[1] > since


class Patience:
    """One wait with a time limit, by the running time of this process.

    Attributes:
        limit_s: Seconds that the wait may take.
        since: Running time of its beginning.
    """

    def __init__(self, limit_s: float) -> None:
        """Begin the wait."""
        self.limit_s = limit_s
        self.since = running_s()

    @property
    def is_over(self) -> bool:
        """True if the time limit has passed. Read it between two checks of what is awaited."""
        return is_over(self.since, self.limit_s)

    @property
    def age_s(self) -> float:
        """Running seconds since the begin."""
        return running_s() - self.since
