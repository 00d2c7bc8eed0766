"""The line on the trial of a sweep that runs: a live line at a terminal, one line a minute elsewhere."""

from __future__ import annotations

import contextlib
import time

from mpips.errors import ConfigError
from mpips.monitor.line import LiveLine
from mpips.monitor.progress import Snapshot, duration, fields, fit
from mpips.rundir.directory import RunFolder
from mpips.supervisor.sweep import Sweep
from mpips.terminal.device import find_terminal
from mpips.terminal.elapsed import interval_s
from mpips.terminal.screen import say


class TrialWatch:
    """Shows the progress of the trial that runs, from the files of its run."""

    def __init__(self, sweep: Sweep) -> None:
        """Show nothing yet; take over stdout and stderr until `close` if they end at a terminal."""
        self._sweep = sweep
        self._number = 0
        self._began = self._last = time.monotonic()
        self._line: LiveLine | None = None
        terminal = find_terminal()
        if terminal is not None:
            # After `su` the terminal belongs to another user: then print lines.
            with contextlib.suppress(OSError):
                self._line = LiveLine(terminal)

    def look(self, number: int) -> None:
        """Show trial `number`, counted from 1; without a live line at the intervals of `interval_s`.

        Errors of writing are ignored.
        """
        now = time.monotonic()
        if number != self._number:
            self._number, self._began, self._last = number, now, now
        if self._line is not None:
            # A character in the last column makes some terminals begin a new line.
            self._line.show(self._text(now - self._began, max(self._line.width() - 1, 0)))
        elif now - self._last >= interval_s(self._last - self._began):
            self._last = now
            # The sweep does not end because its output is closed.
            with contextlib.suppress(OSError, ValueError):
                say(self._text(now - self._began, 10_000))

    def _text(self, seconds: float, width: int) -> str:
        """Return the line of the trial, of at most `width` characters."""
        trials = self._sweep.content.trials
        head = f"{self._number}/{len(trials)}  {duration(seconds)}"
        try:
            status = RunFolder(self._sweep.path / trials[self._number - 1].run).status()
        except ConfigError:
            # The file cannot be read at this moment; the next call reads it again.
            status = None
        if status is None or not status.ranks:
            return f"{head}  starting"[:width]
        text = fit(fields(Snapshot.of(status.progress)), width - len(head) - 2)
        return f"{head}  {text}"[:width]

    def close(self) -> None:
        """Erase the live line, if there is one."""
        if self._line is not None:
            self._line.close(erase=True)
