"""Where dense tensors lie: pieces of tensors on servers, how they are chosen, how even they are.

Everything here is arithmetic on element counts; nothing is allocated and no MPI is needed.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

FLOAT_BYTES = 4
LINE_FLOATS = 16
LINE_BYTES = FLOAT_BYTES * LINE_FLOATS


class PlannedPiece(NamedTuple):
    """Elements [start, stop) of a tensor, held by `server`."""

    server: int
    start: int
    stop: int


@dataclass(frozen=True)
class Balance:
    """How evenly servers are loaded.

    Attributes:
        unit: What is counted, "bytes" or "rows".
        per_server: The load of each server.
    """

    unit: str
    per_server: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.per_server)

    @property
    def mean(self) -> float:
        return self.total / len(self.per_server)

    @property
    def max_over_mean(self) -> float:
        """1 is perfect; the slowest server works this much longer than the average one."""
        return max(self.per_server) / self.mean if self.total else 1.0

    def describe(self) -> str:
        """A table with one line per server and a summary."""
        rows = [(str(server), f"{load:,}") for server, load in enumerate(self.per_server)]
        summary = (
            f"total {self.total:,} {self.unit}, mean {self.mean:,.1f}, "
            f"max/mean {self.max_over_mean:.3f}"
        )
        return text_table(("server", self.unit), rows) + "\n" + summary


@dataclass(frozen=True)
class PlannedPlacement:
    """Which server holds which part of every dense tensor.

    Attributes:
        n_servers: Number of servers.
        pieces: For each tensor, in the order given, its pieces sorted by `start`; they cover the
            tensor without overlap. A tensor without elements has none.
    """

    n_servers: int
    pieces: dict[str, tuple[PlannedPiece, ...]]

    def balance(self) -> Balance:
        """Bytes per server."""
        loads = [0] * self.n_servers
        for piece in (piece for pieces in self.pieces.values() for piece in pieces):
            loads[piece.server] += _n_bytes(piece)
        return Balance("bytes", tuple(loads))

    def describe(self) -> str:
        """A table with one line per piece, followed by the balance."""
        rows = [
            (name, str(piece.server), str(piece.start), str(piece.stop), f"{_n_bytes(piece):,}")
            for name, pieces in self.pieces.items()
            for piece in pieces
        ]
        table = text_table(("tensor", "server", "start", "stop", "bytes"), rows)
        return table + "\n\n" + self.balance().describe()

    def __repr__(self) -> str:
        n_pieces = sum(map(len, self.pieces.values()))
        return (
            f"Placement({len(self.pieces)} tensors in {n_pieces} pieces on {self.n_servers} "
            f"servers, max/mean {self.balance().max_over_mean:.3f})"
        )


def cut_at_lines(sizes: Mapping[str, int], n_servers: int) -> dict[str, tuple[PlannedPiece, ...]]:
    """Cut every tensor over all servers, at multiples of 16 elements (64 bytes).

    The shares of one tensor differ by at most one line, and so do the sums over all tensors: the
    lines left over go to the servers that hold least, and the last one, which may be short, to the
    fullest of those.

    Args:
        sizes: Elements per tensor.
        n_servers: At least 1.
    """
    loads = [0] * n_servers
    cut = {}
    for name, size in sizes.items():
        pieces = _cut_one(size, loads)
        for piece in pieces:
            loads[piece.server] += piece.stop - piece.start
        cut[name] = tuple(pieces)
    return cut


def _cut_one(size: int, loads: Sequence[int]) -> list[PlannedPiece]:
    n_servers = len(loads)
    if size == 0:
        return []
    # From 1 to n_servers lines are left over, so that the short one is always among them.
    each, left_over = divmod(-(-size // LINE_FLOATS) - 1, n_servers)
    by_load = sorted(range(n_servers), key=lambda server: (loads[server], server))
    chosen = by_load[: left_over + 1]
    last = chosen[-1]

    pieces = []
    start = 0
    for server in (*range(last + 1, n_servers), *range(last + 1)):
        n_lines = each + (server in chosen)
        stop = min(start + n_lines * LINE_FLOATS, size)
        if stop > start:
            pieces.append(PlannedPiece(server, start, stop))
        start = stop
    return pieces


def assign_longest_first(
    weights: Sequence[float], n_servers: int, loads: Sequence[float] = ()
) -> tuple[int, ...]:
    """Give items to servers, heaviest first, each to the least loaded (Graham's LPT rule, 1969).

    Deterministic: equal weights go in the order given, equal loads to the lower server.

    Args:
        weights: One per item, not negative.
        n_servers: At least 1.
        loads: What the servers carry beforehand; empty means nothing.

    Returns:
        The server of each item; the fullest carries at most 4/3 of the optimum when all started
        empty.
    """
    heap = [(load, server) for server, load in enumerate(loads or [0] * n_servers)]
    heapq.heapify(heap)
    servers = [0] * len(weights)
    for item in sorted(range(len(weights)), key=lambda item: (-weights[item], item)):
        load, server = heap[0]
        servers[item] = server
        heapq.heapreplace(heap, (load + weights[item], server))
    return tuple(servers)


def whole_tensors(
    sizes: Mapping[str, int], servers: Sequence[int]
) -> dict[str, tuple[PlannedPiece, ...]]:
    """Each tensor in one piece, on the server named at its place in `servers`."""
    return {
        name: (PlannedPiece(server, 0, size),) if size else ()
        for (name, size), server in zip(sizes.items(), servers, strict=True)
    }


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded with spaces; the first is aligned left, the others right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def padded(line: Sequence[str]) -> str:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        return "  ".join(cells)

    return "\n".join(map(padded, lines))


def _n_bytes(piece: PlannedPiece) -> int:
    return FLOAT_BYTES * (piece.stop - piece.start)
