"""Text of one rank on the terminal of `mpips run`, such as a progress bar that is replaced in place.

Launchers pass whole lines of their ranks on, and Open MPI 5 keeps the rest, so a bar without a newline would
never appear. So the rank sends each piece of text as a line of its own: MARK and the text as JSON. The
supervisor prints the text as it was written, and its other messages above a row that has no end yet.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO, cast

from mpips.terminal.screen import columns

MARK = "\x02"  # begins a line with text to pass on
# Characters of a piece. JSON makes 12 bytes of a character at most, and a write of 4096 bytes into a pipe
# does not mix with others.
_PIECE = 300
_ERASE = "\r\x1b[K"
_UP = re.compile(r"\x1b\[[0-9]*A")


class PassedStream(io.TextIOBase):
    """A text stream of a rank whose text the supervisor prints. It never blocks.

    A terminal that is stopped (Ctrl-S) must not stop a training: text for which the pipe has no room is left
    out. The log of the rank has all of it.
    """

    def __init__(self, fd: int) -> None:
        """Write to a pipe of the launcher, which stays the caller's; it becomes non-blocking."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._text = ""  # not sent yet

    def write(self, text: str) -> int:
        """Send text as soon as it has the end of a line, or returns to its beginning."""
        self._text += text
        if "\n" in text or "\r" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Send what has not been sent.

        Raises:
            OSError: The pipe has no room, or no reader.
        """
        text, self._text = self._text, ""
        for begin in range(0, len(text), _PIECE):
            piece = json.dumps(text[begin : begin + _PIECE])
            os.write(self._fd, f"{MARK}{piece}\n".encode())

    def fileno(self) -> int:
        """Return the descriptor of the pipe."""
        return self._fd

    def isatty(self) -> bool:
        """Return True: the text ends at a terminal."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True


def passed_text(line: str) -> str | None:
    """Return the text that a rank has sent by a line of the launcher; None for other lines.

    Options of a launcher can put the name of the rank in front.
    """
    _, mark, rest = line.partition(MARK)
    if not mark:
        return None
    try:
        text = json.loads(rest)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


class PassedRow:
    """sys.stderr of `mpips run` at a terminal, where text of a rank may leave a row without an end.

    Messages of this process and of other ranks appear above that row, which is then drawn again. All threads
    may call it.
    """

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        """Replace sys.stderr until `close`."""
        self._stream = sys.stderr
        self._can_erase = env.get("TERM", "") not in ("", "dumb")
        self._lock = threading.RLock()
        self._row = ""  # text of the unfinished row, as far as it is known
        self._is_open = False  # the cursor is in a row that has no end yet
        self._has_begun = False  # a message has begun there, and has no end yet
        sys.stderr = cast(TextIO, self)

    @classmethod
    def at_terminal(cls) -> PassedRow | None:
        """Return the stream if stderr of this process ends at a terminal, else None."""
        return cls() if sys.stderr is not None and columns(sys.stderr) else None

    def pass_on(self, text: str) -> None:
        """Print text of the rank as it is."""
        with self._lock:
            self._stream.write(text)
            self._stream.flush()
            self._has_begun = False
            row = (self._row + text).rpartition("\n")[2]
            self._is_open = bool(row) if text else self._is_open
            # Behind a move upwards the cursor is in another row, whose text is not known.
            row = _UP.split(row)[-1]
            before, replaced, last = row.rpartition("\r")
            if replaced and not last:
                last = before.rpartition("\r")[2]
            self._row = replaced + last

    def print_above(self, stream: TextIO, text: str) -> None:
        """Print a message to a stream that ends at the same terminal, above the unfinished row."""
        with self._lock:
            if not self._is_open:
                stream.write(text)
                stream.flush()
                return
            if not self._has_begun:
                self._stream.write(_ERASE if self._can_erase else "\n")
                self._stream.flush()
            stream.write(text)
            stream.flush()
            self._has_begun = not text.endswith("\n")
            if not self._has_begun:
                self._stream.write(self._row)
                self._stream.flush()

    def write(self, text: str) -> int:
        """Print a message above the unfinished row."""
        self.print_above(self._stream, text)
        return len(text)

    def close(self) -> None:
        """End the unfinished row, and restore sys.stderr."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._stream.write("\n")
                self._stream.flush()
            # Leave a stream that other code has put there since.
            if cast(Any, sys.stderr) is self:
                sys.stderr = self._stream

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream."""
        return getattr(self._stream, name)
