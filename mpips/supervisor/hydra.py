"""Hydra, the launcher of MPICH and of Intel MPI: its processes, and what it prints about the end of ranks.

Hydra writes that to its stdout, into the output of the ranks: a block between two rules for the host of the
rank that failed first (MPICH), or one for each rank that a signal ended (Intel MPI), and up to three lines
behind it. `BlockFilter` separates these texts from the output of the ranks.

MPICH prints the pid of the first rank of the host, whichever rank failed, and the bits of two signals in one
number: that of the failed rank, and SIGKILL (9), by which Hydra ends the others. A rank that exits with a
code gets no block, and Intel MPI then prints blocks for the other ranks only.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import msgspec

_PROXY = b"hydra_pmi_proxy"  # the first 15 characters, as the kernel keeps them
_MOST_LEVELS = 3  # from the launcher down to its proxy on this host
_RULE = re.compile(rb"={60,}\s*")
_TITLE = b"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
_ENTRY = b"= "
_BEHIND = (
    b"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: ",
    b"This typically refers to a problem with your application.",
    b"Please see the FAQ page for debugging suggestions",
)
_BLOCK = re.compile(
    r"BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\s*\n"
    r"=\s+(?:RANK (\d+) )?PID (\d+) RUNNING AT (\S+)\s*\n"
    r"=\s+(?:KILLED BY SIGNAL: (\d+)|EXIT CODE: (\d+)|EXIT STATUS: (\d+))"
)
_STRING = re.compile(r"WITH THE EXIT STRING: .*\(signal (\d+)\)")


def started_ranks(launcher: int, proc: Path = Path("/proc")) -> list[tuple[int, int]]:
    """Return rank and pid of the ranks that Hydra runs on this host: the children of its proxy.

    Args:
        launcher: Process of the launcher.
        proc: Folder of the processes of this host.
    """
    found = []
    level = [launcher]
    for _ in range(_MOST_LEVELS):
        level = [child for pid in level for child in _children(proc, pid)]
        for proxy in level:
            if _read(proc / f"{proxy}/comm").strip() == _PROXY:
                for pid in _children(proc, proxy):
                    environment = _read(proc / f"{pid}/environ").split(b"\0")
                    ranks = [line[9:] for line in environment if line.startswith(b"PMI_RANK=")]
                    found += [(int(rank), pid) for rank in ranks[:1] if rank.isdigit()]
    return found


def _children(proc: Path, pid: int) -> list[int]:
    """Return the children of the first thread of a process; none if it has ended."""
    return [int(word) for word in _read(proc / f"{pid}/task/{pid}/children").split()]


def _read(path: Path) -> bytes:
    """Return the content of a file in /proc; nothing if its process has ended or is another user's."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


class EndBlock(msgspec.Struct, frozen=True):
    """One block.

    Attributes:
        host: Host of the ranks that it is about.
        rank: The rank; -1: one of the ranks of the host.
        pid: Process of the rank; 0 if the rank is unknown.
        signal: The signal that ended it; 0: unknown.
    """

    host: str
    rank: int = -1
    pid: int = 0
    signal: int = 0


def blocks(text: str) -> list[EndBlock]:
    """Return the blocks in a text, in their order."""
    found = []
    for match in _BLOCK.finditer(text):
        rank = int(match[1]) if match[1] else -1
        # Without a rank the pid is that of another rank, and the line behind the block has the signal.
        behind = _STRING.search(text, match.end()) if rank < 0 else None
        number = int(behind[1]) if behind else int(match[4] or 0)
        if not number and match[5]:
            number = _signal_of(int(match[5]))
        found.append(EndBlock(match[3], rank, int(match[2]) if rank >= 0 else 0, number))
    return found


def _signal_of(code: int) -> int:
    """Return the signal in a status as of wait(2), or 0."""
    return os.WTERMSIG(code) if os.WIFSIGNALED(code) and code < signal.NSIG else 0


class BlockFilter:
    """Separates Hydra's texts about ends from the output of ranks. Used by one thread.

    Incomplete lines of ranks pass at once, unless they can be the beginning of such a text.
    """

    def __init__(self) -> None:
        """Begin with no text."""
        self._held = b""  # a beginning of a text, or of a line that may be one
        self._is_inside = False  # between the title of a block and its second rule
        self._in_line = False  # the last output was an incomplete line of a rank

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Take output of the launcher; return the part that is from ranks, and the part that is Hydra's."""
        data, self._held = self._held + data, b""
        output = texts = b""
        while data:
            line, end, rest = data.partition(b"\n")
            if not end and (self._is_inside or (not self._in_line and _may_begin(line))):
                break
            if self._in_line:
                output += line + end
            elif self._is_inside and (line.startswith(_ENTRY) or _RULE.fullmatch(line)):
                texts += line + end
                self._is_inside = line.startswith(_ENTRY)
            elif line.startswith(_BEHIND):
                texts += line + end
            elif n_bytes := _opening(data):
                if n_bytes < 0:
                    break
                texts += data[:n_bytes]
                data, self._is_inside = data[n_bytes:], True
                continue
            else:
                output += line + end
                self._is_inside = False
            self._in_line = not end
            data = rest
        self._held = data
        return output, texts

    def end(self) -> bytes:
        """Return output of ranks that was held back, at the end of the output."""
        held, self._held = self._held, b""
        return b"" if self._is_inside else held


def _may_begin(line: bytes) -> bool:
    """Return True if an incomplete line may be the first part of a text of Hydra."""
    is_behind = line.startswith(_BEHIND) or any(text.startswith(line) for text in _BEHIND)
    return is_behind or bool(_RULE.fullmatch(line)) or not line.strip(b"=")


def _opening(data: bytes) -> int:
    """Return the length of an empty line, a rule and a title at the beginning of `data`.

    0: `data` begins with something else. -1: more bytes are needed.
    """
    n_bytes = 0
    first, end, rest = data.partition(b"\n")
    if not first:
        n_bytes += len(end)
        first, end, rest = rest.partition(b"\n")
        if not first and not end:
            return -1
    if not end:
        return -1 if not first.strip(b"=") else 0
    if not _RULE.fullmatch(first):
        return 0
    n_bytes += len(first) + len(end)
    title, end, _ = rest.partition(b"\n")
    if not end:
        return -1 if _TITLE.startswith(title) else 0
    return n_bytes + len(title) + 1 if title.startswith(_TITLE) else 0
