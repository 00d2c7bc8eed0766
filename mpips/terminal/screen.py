"""The terminal at which output of this process ends: columns, colours, and text wrapped for it.

Output that does not end at a terminal is printed as it is, on one line per sentence and without colour, so
that programs can read it. A rank under a launcher writes into a pipe, or into a pseudo-terminal without
columns; what counts then is where the launcher writes.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TextIO

from mpips.terminal.device import launcher_terminal

# Columns of the terminals at which stdout and stderr of `mpips run` end, such as "80 80"; 0: no terminal.
OF_RANKS = "MPIPS_TERMINAL"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_GOES_ON = " \\"  # end of a line of a command that goes on in the next one
# ANSI codes of the colours in use: they are readable on a dark and on a light background.
_CODES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "faint": "2"}


def columns(stream: TextIO, env: Mapping[str, str] = os.environ) -> int:
    """Return the number of columns of the terminal at which a stream ends; 0: it ends elsewhere.

    Args:
        stream: sys.stdout or sys.stderr.
        env: Environment of this process.
    """
    if isinstance(stream, Tee):
        return max(stream.columns(env))
    try:
        file = stream.fileno()
        mode = os.fstat(file).st_mode
        own = os.get_terminal_size(file).columns if os.isatty(file) else 0
    except (OSError, ValueError, AttributeError):
        return 0
    if own:
        given = env.get("COLUMNS", "")
        return int(given) if given.isdigit() and int(given) else own
    # Only a pipe, a socket or a pseudo-terminal may lead to a launcher; the log of a rank is a file.
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(file)):
        return 0
    number = 1 if stream is sys.stdout else 2
    passed = env.get(OF_RANKS, "").split()
    if len(passed) == 2 and all(text.isdigit() for text in passed):
        return int(passed[number - 1])
    terminal = launcher_terminal(number, env)
    return terminal.width() if terminal is not None else 0


def has_colour(stream: TextIO, env: Mapping[str, str] = os.environ) -> bool:
    """Return True if a stream ends at a terminal that shows colours, and NO_COLOR is not set."""
    dumb = env.get("TERM", "") in ("", "dumb")
    return not dumb and not env.get("NO_COLOR") and columns(stream, env) > 0


def for_ranks(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variable from which ranks read the terminals of this process; none without a terminal."""
    found = [columns(stream, env) for stream in (sys.stdout, sys.stderr)]
    return {OF_RANKS: f"{found[0]} {found[1]}"} if any(found) else {}


def state_style(state: str) -> str:
    """Return the colour of a state of a run or of the status of a check."""
    if state in ("done", "PASS", "good"):
        return "green"
    return (
        "red" if state in ("failed", "dead", "damaged", "stalled", "FAIL", "DAMAGED") else "yellow"
    )


def styled(text: str, style: str, on: bool = True) -> str:
    """Return text in a style ("bold", "red", "green", "yellow", "faint"); unchanged if `on` is False."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if on and text else text


def wrapped(text: str, width: int, hang: int = 2) -> str:
    """Return text in which no line is longer than `width`, unless a single word is. Words stay whole.

    Args:
        text: Lines of text. Those that fit are unchanged, and those of a command that end in a backslash.
        width: Characters of a line; 0: any number, so the text is unchanged.
        hang: Spaces in front of the continuation of a line, after the spaces at its beginning.
    """
    if not width:
        return text
    lines = []
    for line in text.split("\n"):
        if len(_ANSI.sub("", line)) <= width or line.endswith(_GOES_ON):
            lines.append(line)
            continue
        indent = " " * (len(line) - len(line.lstrip(" ")) + hang)
        parts = textwrap.wrap(
            line,
            max(width, len(indent) + 1),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
            expand_tabs=False,
        )
        lines += parts
    return "\n".join(lines)


def command_text(words: Sequence[str], width: int) -> str:
    """Return the command of a shell; lines that go on end in a backslash, so that a copy of them is complete.

    Args:
        words: The words of the command, quoted where the shell needs it.
        width: Characters of a line; 0: any number, so the command has one line.
    """
    lines: list[str] = []
    for word in words:
        if lines and (not width or len(lines[-1]) + len(word) + 3 <= width):
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return f"{_GOES_ON}\n".join(lines)


class Tee(io.TextIOBase):
    """A text stream that writes to several streams, such as a log and the terminal.

    Errors of writing are ignored: a full disk or a closed terminal must not end a training.
    """

    def __init__(self, *ways: TextIO) -> None:
        """Write to `ways`; the first one has the file descriptor."""
        self._ways = ways

    def show_on(self, *ways: TextIO) -> None:
        """Write to the first stream and to `ways` from here on."""
        self._ways = (self._ways[0], *ways)

    def columns(self, env: Mapping[str, str]) -> list[int]:
        """Return the columns of each stream; see `columns`."""
        return [columns(way, env) for way in self._ways]

    def say(self, text: str, hang: int) -> None:
        """Write text for people, wrapped only in the streams that end at a terminal. See `say`."""
        for way in self._ways:
            with contextlib.suppress(OSError):
                way.write(wrapped(text, columns(way), hang) + "\n")

    def write(self, text: str) -> int:
        """Write text as it is."""
        for way in self._ways:
            with contextlib.suppress(OSError):
                way.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush all streams."""
        for way in self._ways:
            with contextlib.suppress(OSError):
                way.flush()

    def fileno(self) -> int:
        """Return the file descriptor of the first stream."""
        return self._ways[0].fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of stderr of this process: programs draw with characters that it has."""
        return getattr(sys.__stderr__, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Return True if a stream behind the first one is a terminal; its descriptor is another one."""
        return any(way.isatty() for way in self._ways[1:])

    def writable(self) -> bool:
        """Return True."""
        return True


def say(text: str, err: bool = True, hang: int = 2) -> None:
    """Print text for people, in one write, so that no line of another rank comes between.

    Args:
        text: Lines of text without the last newline; see `wrapped`.
        err: Print to stderr, else to stdout.
        hang: See `wrapped`.
    """
    stream = sys.stderr if err else sys.stdout
    if stream is None:  # a process without this stream
        return
    if isinstance(stream, Tee):
        stream.say(text, hang)
    else:
        stream.write(wrapped(text, columns(stream), hang) + "\n")
    stream.flush()
