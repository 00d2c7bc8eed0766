"""`mpips logs`: the logs of a run's ranks, each line with the rank that wrote it.

A log is what a rank and the native code in it write to stderr (`logs/attempt-N/rank-R.log`); `launcher` is
the output of mpirun. Lines carry no time, so the logs stand one after the other, in the order of ranks.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from mpips.errors import ConfigError
from mpips.rundir.directory import RunFolder
from mpips.rundir.reading import names_in, open_regular

LAUNCHER = "launcher"
_ATTEMPT = re.compile(r"attempt-(0|[1-9][0-9]{0,8})")
_RANK = re.compile(r"rank-(0|[1-9][0-9]{0,8})\.log")
_MOST_OPEN = 10_000  # lines of one log that are compared with later ones of the other
_LINE_BYTES = 1 << 16  # bytes after which a line without an end is printed as a line
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)  # all control characters but tab and newline


class LogFile(msgspec.Struct, frozen=True):
    """The log of a rank, or of the launcher.

    Attributes:
        label: "rank 3 worker 1", or "launcher".
        path: The file; it need not exist yet.
        within: The run directory: a link below it is not followed. None: the folder of the file.
    """

    label: str
    path: Path
    within: Path | None = None


def attempts(run: RunFolder) -> list[int]:
    """Return the numbers of the attempts that have logs, ascending.

    Raises:
        OSError: The folder of logs cannot be read, or it is a symbolic link.
    """
    return _numbered(run, run.logs, _ATTEMPT)


def find_logs(
    run: RunFolder, attempt: int, ranks: Collection[int] = (), role: str | None = None
) -> list[LogFile]:
    """Return the logs of an attempt that were asked for; without `ranks` and `role` all of them.

    Args:
        run: The run.
        attempt: Number of the attempt.
        ranks: Ranks whose logs are wanted; empty: any.
        role: "scheduler", "server" or "worker", also with a number ("server 0"), or "launcher"; None: any.

    Raises:
        ConfigError: No log of the attempt is meant. The message names those that exist.
        OSError: Their folder cannot be read, or it or a folder above it in the run is a symbolic link.
    """
    roles = _roles(run, attempt)
    found = []
    folder = run.attempt(attempt)
    numbers = _numbered(run, folder, _RANK)
    for rank in numbers:
        name = roles.get(rank, "")
        if (not ranks or rank in ranks) and (role is None or _has_role(name, role)):
            path = folder / f"rank-{rank}.log"
            found.append(LogFile(f"rank {rank} {name}".rstrip(), path, run.path))
    launcher = folder / "launcher.log"
    if not ranks and role in (None, LAUNCHER) and launcher.exists():
        found.append(LogFile(LAUNCHER, launcher, run.path))
    if not found and (ranks or role is not None):
        known = ", ".join(f"{r} ({roles[r]})" if r in roles else str(r) for r in numbers) or "none"
        raise ConfigError(
            f"attempt {attempt} of {run.path.name} has no such log; it has those of the ranks {known}"
        )
    return found


def _numbered(run: RunFolder, folder: Path, pattern: re.Pattern[str]) -> list[int]:
    """Return the numbers in those names of a folder of the run that have a form, ascending."""
    found = map(pattern.fullmatch, names_in(folder, run.path))
    return sorted(int(match[1]) for match in found if match is not None)


def _roles(run: RunFolder, attempt: int) -> dict[int, str]:
    """Return the role of each rank; empty if the ranks of this attempt are not known."""
    status = run.status()
    if status is None or status.generation != attempt:
        return {}
    return {place.rank: place.role for place in status.ranks}


def _has_role(name: str, role: str) -> bool:
    """Return True if the roles `name`, such as "scheduler + server 0", contain `role`."""
    parts = name.split(" + ")
    return role in parts or role in (part.partition(" ")[0] for part in parts)


def last_lines(log: LogFile, n: int) -> tuple[list[str], int]:
    """Return the last `n` lines of a log (0: all) and the offset behind them, bytes.

    The offset is that of the end of the last whole line, or of the file's end if more than 64 KiB follow.

    Raises:
        OSError: The file cannot be read.
    """
    lines: deque[str] = deque(maxlen=n or None)
    follower = Follower(log)
    while found := follower.read():
        lines.extend(found)
    return list(lines), follower.offset


class Follower:
    """Reads what is added to a log.

    Attributes:
        offset: Bytes of the file that were returned as lines.
    """

    def __init__(self, log: LogFile, offset: int = 0) -> None:
        """Begin to read at `offset`, bytes."""
        self.log = log
        self.offset = offset

    def read(self) -> list[str]:
        """Return the whole lines that follow, at most about 1 MiB of them; empty: no whole line now.

        Control characters are replaced: a log can contain what a program printed from anywhere.

        Raises:
            OSError: The file cannot be read, is not a regular file or lies behind a link. A file that
                does not exist yet has no lines.
        """
        try:
            fd, _ = open_regular(self.log.path, self.log.within)
        except FileNotFoundError:
            return []
        try:
            data = os.pread(fd, 1 << 20, self.offset)
        finally:
            os.close(fd)
        end = data.rfind(b"\n") + 1
        if not end and len(data) >= _LINE_BYTES:
            end = len(data)
        self.offset += end
        return [
            clean(line.decode(errors="replace"))
            for line in data[:end].split(b"\n")[: _n_lines(data, end)]
        ]


class LinesOnce:
    """Leaves out the second copy of a line that both a rank and the launcher have logged.

    Open MPI passes what rank 0 prints on to the launcher, so the same line is in two logs. Which of them has
    it first is not known while both grow.
    """

    def __init__(self) -> None:
        """Begin without lines."""
        # Lines of one side that the other side has not had yet, the oldest first, with their number: those of
        # the launcher are positive, those of ranks negative.
        self._open: dict[str, int] = {}

    def new(self, log: LogFile, lines: Iterable[str]) -> list[str]:
        """Return the lines of a log that the other side has not had."""
        own = 1 if log.label == LAUNCHER else -1
        found = []
        for line in lines:
            n = self._open.pop(line, 0) + own
            if n:
                self._open[line] = n
            if n * own > 0:
                found.append(line)
        while len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return found


def _n_lines(data: bytes, end: int) -> int:
    """Return the number of lines in `data[:end]`, of which the last may have no end."""
    return data.count(b"\n", 0, end) or (1 if end else 0)


def clean(text: str) -> str:
    """Replace control characters, so that a line of a log cannot move the cursor or colour the terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.rstrip("\r"))
