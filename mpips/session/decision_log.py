"""Lines about decisions that a server takes while it works: the bound of SSP, thresholds of staleness."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpips.server.server import Server

EVERY_S = 10.0  # between two groups of lines


class DecisionLog:
    """Lets a server take decisions, and prints the last lines about them, all together every 10 s at most."""

    def __init__(self, server: Server) -> None:
        """Print nothing yet."""
        self._server = server
        self._lines: dict[str, str] = {}
        self._next = 0.0  # monotonic s
        self._n_others = 0  # decisions after which others were taken before they were printed

    def poll(self) -> None:
        """Take decisions that are due, and print what is due. Cheap."""
        for line in self._server.poll_decisions():
            subject = line.partition(":")[0].partition(" is ")[0]
            self._n_others += subject in self._lines
            self._lines[subject] = line
        if self._lines and time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_S
            others = f" ({self._n_others} more since the last such line)" if self._n_others else ""
            for line in self._lines.values():
                say(f"mpips: server {self._server.index}: {line}{others}")
            self._lines.clear()
            self._n_others = 0
