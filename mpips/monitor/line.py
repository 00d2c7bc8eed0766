"""One line of a terminal that is replaced in place while other output goes by.

The line is written to the terminal's device and not to stderr: Open MPI 5 forwards only whole lines of its
ranks, so a line without its newline would never be seen. The device is opened anew and non-blocking: a
terminal that is stopped (Ctrl-S) stops no training. The cursor stays visible and nothing else of the terminal
is changed, so a process that is killed leaves nothing to repair.

What this process writes to stdout and stderr meanwhile takes the place of the line, which is drawn again
below it. Output of other ranks comes through the launcher and follows the line's text directly.
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

from mpips.monitor.terminal import Terminal

_ERASE = b"\r\x1b[K"
_FORWARDING_S = 0.3  # a launcher needs this long at most to forward a message to the terminal


class LiveLine:
    """The line, and this process's streams while it is there. All threads may call it."""

    def __init__(self, terminal: Terminal) -> None:
        """Open the terminal and take over stdout and stderr until `close`.

        Raises:
            OSError: The terminal cannot be written to.
        """
        self._terminal = terminal
        self._fd = terminal.open()
        self._lock = threading.RLock()
        self._shown = b""
        self._held_until = 0.0
        self._unfinished = False  # a message is written that has no newline yet
        self._streams: list[tuple[str, TextIO, TextIO]] = []
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            above = cast(TextIO, _Above(stream, self))
            setattr(sys, name, above)
            self._streams.append((name, stream, above))

    def width(self) -> int:
        """Columns of the terminal now."""
        return self._terminal.width()

    def show(self, text: str) -> None:
        """Replace the line; does nothing while a message is on its way or another job has the terminal."""
        with self._lock:
            held = self._unfinished or time.monotonic() < self._held_until
            if not held and self._terminal.is_foreground():
                self._draw(text)

    def _draw(self, text: str) -> None:
        encoded = text.encode(errors="replace")
        if encoded != self._shown:
            self._write(b"\r" + encoded + b"\x1b[K")
            self._shown = encoded

    def close(self, text: str = "") -> None:
        """Show a last text, end the line, and give stdout and stderr back."""
        with self._lock:
            for name, stream, above in self._streams:
                # Code that put a stream of its own there keeps it.
                if getattr(sys, name) is above:
                    setattr(sys, name, stream)
            self._streams.clear()
            if self._fd < 0:
                return
            if self._terminal.is_foreground():
                if self._unfinished:
                    self._write(b"\n")
                if text:
                    self._draw(text)
                if self._shown:
                    self._write(b"\n")
            os.close(self._fd)
            self._fd = -1

    @contextlib.contextmanager
    def making_room(self, text: str, forwarded: bool) -> Iterator[None]:
        """Erase the line while a message is written.

        Args:
            text: The message.
            forwarded: A launcher takes the message to the terminal, which takes time.
        """
        with self._lock:
            if self._shown and self._fd >= 0:
                self._write(_ERASE)
                self._shown = b""
            yield
            if text:
                self._unfinished = not text.endswith("\n")
            if forwarded:
                self._held_until = time.monotonic() + _FORWARDING_S

    def _write(self, data: bytes) -> None:
        """Write what the terminal takes at once. Without SIGTTOU, by which `stty tostop` stops a rank."""
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
        """Write a message in place of the line."""
        with self._line.making_room(text, self._forwarded):
            n = self._stream.write(text)
            self._stream.flush()
        return n

    def __getattr__(self, name: str) -> Any:
        """Return everything else as the stream has it."""
        return getattr(self._stream, name)
