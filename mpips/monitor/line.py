"""One line of a terminal that is replaced in place while other output is printed.

The line is written to the terminal's device, not to stderr: Open MPI 5 forwards only whole lines of its
ranks, so a line without its newline would never appear. The device is opened again and non-blocking, so that
a stopped terminal (Ctrl-S) stops no training. The cursor stays visible and no other setting of the terminal
is changed, so a killed process leaves nothing to repair.

Output of this process to stdout and stderr replaces the line, which is then drawn again below it. Output of
other ranks comes through the launcher and follows the text of the line directly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO, cast

from mpips.terminal.device import Terminal

_ERASE = b"\r\x1b[K"
_FORWARDING_S = 0.3  # seconds that a launcher needs at most to forward a message to the terminal


class LiveLine:
    """The line, which replaces this process's stdout and stderr until `close`. All threads may call it."""

    def __init__(self, terminal: Terminal) -> None:
        """Open the terminal and take over stdout and stderr until `close`.

        Raises:
            OSError: The terminal cannot be written to.
        """
        self._terminal = terminal
        self._fd = terminal.open()
        self._lock = threading.RLock()
        self._shown = b""
        self._deferred_until = 0.0  # monotonic s before which the line is not drawn
        self._unfinished = False  # the last message has no newline yet
        self._streams: list[tuple[str, TextIO, TextIO]] = []
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            above = cast(TextIO, _Above(stream, self))
            setattr(sys, name, above)
            self._streams.append((name, stream, above))

    def width(self) -> int:
        """Return the number of columns of the terminal."""
        return self._terminal.width()

    def show(self, text: str) -> None:
        """Replace the line, unless a message is being printed or another job has the terminal."""
        with self._lock:
            deferred = self._unfinished or time.monotonic() < self._deferred_until
            if not deferred and self._terminal.is_foreground():
                self._draw(text)

    def _draw(self, text: str) -> None:
        """Write the text over the line that is shown, if it differs."""
        encoded = text.encode(errors="replace")
        if encoded != self._shown:
            self._write(b"\r" + encoded + b"\x1b[K")
            self._shown = encoded

    def close(self, text: str = "", erase: bool = False) -> None:
        """Show a last text, end the line, and restore stdout and stderr.

        Args:
            text: The last text; "": the line stays as it is.
            erase: Leave no line at all.
        """
        with self._lock:
            for name, stream, above in self._streams:
                # Leave a stream that other code has put there since.
                if getattr(sys, name) is above:
                    setattr(sys, name, stream)
            self._streams.clear()
            if self._fd < 0:
                return
            if self._terminal.is_foreground():
                if self._unfinished:
                    self._write(b"\n")
                if text and not erase:
                    self._draw(text)
                if self._shown:
                    self._write(_ERASE if erase else b"\n")
            os.close(self._fd)
            self._fd = -1

    @contextlib.contextmanager
    def making_room(self, text: str, forwarded: bool) -> Iterator[None]:
        """Erase the line while a message is written.

        Args:
            text: The message.
            forwarded: A launcher forwards the message to the terminal, which takes up to `_FORWARDING_S`.
        """
        with self._lock:
            if self._shown and self._fd >= 0:
                self._write(_ERASE)
                self._shown = b""
            yield
            if text:
                self._unfinished = not text.endswith("\n")
            if forwarded:
                self._deferred_until = time.monotonic() + _FORWARDING_S

    def _write(self, data: bytes) -> None:
        """Write as much as the terminal takes without blocking."""
        # With `stty tostop` a background process that writes receives SIGTTOU, which would stop the rank.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            with contextlib.suppress(OSError):
                os.write(self._fd, data)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Above:
    """A stream whose messages appear above the line."""

    def __init__(self, stream: TextIO, line: LiveLine) -> None:
        self._stream = stream
        self._line = line
        self._forwarded = not stream.isatty()

    def write(self, text: str) -> int:
        """Write a message in place of the line; the line is drawn again below it."""
        with self._line.making_room(text, self._forwarded):
            n = self._stream.write(text)
            self._stream.flush()
        return n

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream."""
        return getattr(self._stream, name)
