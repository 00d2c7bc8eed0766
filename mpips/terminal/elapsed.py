"""Elapsed time: lines while something takes long that prints nothing itself.

At a terminal and in a log alike there is a line every ten seconds for the first ten minutes, and then one a
minute: a reader of a log sees at once that the work goes on, and a wait of hours does not fill the log.
jobs/setup.sh has the same rule.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mpips.terminal.screen import say

FIRST_S = 10.0  # seconds between two lines at first
LATER_S = 60.0  # seconds between two lines of work that takes very long
FIRST_FOR_S = 600.0  # seconds for which the first interval holds


def interval_s(elapsed_s: float) -> float:
    """Return the seconds to the next line of work that has taken `elapsed_s` seconds."""
    return FIRST_S if elapsed_s < FIRST_FOR_S else LATER_S


class Elapsed:
    """Prints how long something has taken, each time that the interval is over."""

    def __init__(self, what: str, tell: Callable[[str], None] | None = say) -> None:
        """Begin to count the time.

        Args:
            what: The work that takes long, such as "mpips run: starting the ranks".
            tell: Prints a line; None: print nothing.
        """
        self._what = what
        self._tell = tell
        self._began = time.monotonic()
        self._next = self._began + interval_s(0.0)

    @property
    def left_s(self) -> float:
        """Seconds until the next line is due."""
        return max(self._next - time.monotonic(), 0.0)

    def look(self) -> None:
        """Print a line if it is due; errors of writing are ignored. Cheap: call it often."""
        now = time.monotonic()
        if now < self._next or self._tell is None:
            return
        self._next = now + interval_s(now - self._began)
        # Work does not end because its terminal is closed.
        with suppress(OSError, ValueError):
            self._tell(f"{self._what} ... {now - self._began:.0f} s")


@contextmanager
def show_elapsed(what: str, tell: Callable[[str], None] | None = say) -> Iterator[None]:
    """Print the time that a block takes while it prints nothing itself; a thread prints the lines.

    Args:
        what: The work that takes long.
        tell: Prints a line, on any thread; None: print nothing.
    """
    if tell is None:
        yield
        return
    elapsed, ended = Elapsed(what, tell), threading.Event()

    def watch() -> None:
        while not ended.wait(elapsed.left_s):
            elapsed.look()

    thread = threading.Thread(target=watch, name="mpips elapsed time", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
