"""Elapsed time: a line every ten seconds while something takes long that prints nothing itself."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from mpips.terminal.screen import columns, say

AT_TERMINAL_S = 10.0  # seconds between two lines at a terminal
ELSEWHERE_S = 60.0  # seconds between two lines in a log


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
        self._every_s = AT_TERMINAL_S if columns(sys.stderr) else ELSEWHERE_S
        self._began = time.monotonic()
        self._next = self._began + self._every_s

    @property
    def left_s(self) -> float:
        """Seconds until the next line is due."""
        return max(self._next - time.monotonic(), 0.0)

    def look(self) -> None:
        """Print a line if it is due; errors of writing are ignored. Cheap: call it often."""
        now = time.monotonic()
        if now < self._next or self._tell is None:
            return
        self._next = now + self._every_s
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
