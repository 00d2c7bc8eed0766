"""A log in which a progress bar is a few lines: a program may replace a line thousands of times.

The program replaces a row in place by a carriage return, or by a cursor that moves upwards. The log has the
text with which such a row ends, and before that one text every half minute. Other text passes unchanged, at
once, but for the codes of colours.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from typing import TextIO

STATE_S = 30.0  # s after which the present text of a row is written, if the row has not ended
_TOKEN = re.compile(r"(\r*\n|\r|\x1b\[[0-?]*[ -/]*[@-~])")


class ReadableLog(io.TextIOBase):
    """A text stream that writes to a log.

    The text of a row that has not ended is held back until `end_row`, a newline or the next state.
    """

    def __init__(self, log: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to `log`; `clock` returns monotonic time, seconds."""
        self._log = log
        self._clock = clock
        self._has_begun = False  # the last line of the log has no end yet
        self._is_held = False  # the row is replaced in place
        self._row = ""  # its text
        self._is_new = False  # the log does not have it
        self._replaces = False  # the next text replaces it
        self._next = 0.0  # time from which the present text of a row is written; 0: no row so far

    def write(self, text: str) -> int:
        """Write text, or hold it back with its row."""
        if self._is_held or "\r" in text or "\x1b" in text:
            self._take(text)
        elif text:
            self._log.write(text)
            self._has_begun = not text.endswith("\n")
        return len(text)

    def _take(self, text: str) -> None:
        tokens = _TOKEN.split(text)
        for i, token in enumerate(tokens):
            if not token:
                continue
            if token.endswith("\n"):
                self._end_line()
            elif token == "\r":
                self._hold()
                self._replaces = True
            elif token.startswith("\x1b["):
                if token.endswith("A"):
                    # The log has the row above, unless that changes.
                    self._hold()
                    self._row, self._is_new, self._replaces = "", False, False
            elif not self._is_held:
                self._log.write(token)
                self._has_begun = True
            elif self._replaces:
                self._row, self._is_new, self._replaces = token, True, False
            elif i == 0 and tokens[1:] and tokens[1].endswith("\n"):
                # A line of another part of the program follows the bar directly.
                self.end_row()
                self._log.write(token)
                self._has_begun = True
            else:
                self._row += token
                self._is_new = True
        if self._is_held and self._clock() >= self._next:
            self._write_row()

    def _hold(self) -> None:
        if self._is_held:
            return
        if self._has_begun:
            self._log.write("\n")
            self._has_begun = False
        self._is_held, self._row, self._is_new = True, "", False
        self._next = self._next or self._clock() + STATE_S

    def _end_line(self) -> None:
        if self._is_held:
            self.end_row()
        else:
            self._log.write("\n")
            self._has_begun = False

    def _write_row(self) -> None:
        """Write the present text of the row, if the log does not have it."""
        if self._is_new and self._row.strip():
            self._next = self._clock() + STATE_S
            self._log.write(self._row.rstrip() + "\n")
        self._is_new = False

    def end_row(self) -> None:
        """Write what is held back, because the row or the program ends."""
        if self._is_held:
            self._is_held = False
            self._write_row()

    def flush(self) -> None:
        """Flush the log. A row that is held back stays so."""
        self._log.flush()

    def fileno(self) -> int:
        """Return the file descriptor of the log."""
        return self._log.fileno()

    def writable(self) -> bool:
        """Return True."""
        return True
