"""Placement of dense tensors: pieces of tensors on servers, the choice of servers, and the balance.

All functions are arithmetic on element counts. They allocate no tensor and need no MPI.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from mpips.terminal.table import text_table

FLOAT_BYTES = 4
LINE_FLOATS = 16  # float32 values in a cache line
LINE_BYTES = FLOAT_BYTES * LINE_FLOATS


class PlannedPiece(NamedTuple):
    """Elements [start, stop) of a tensor, held by `server`."""

    server: int
    start: int
    stop: int


class Balance(msgspec.Struct, frozen=True):
    """The load of each server.

    Attributes:
        unit: Unit of the load, "bytes" or "rows".
        per_server: The load of each server, in this unit.
    """

    unit: str
    per_server: tuple[int, ...]

    @property
    def total(self) -> int:
        """Load of all servers together."""
        return sum(self.per_server)

    @property
    def mean(self) -> float:
        """Mean load of a server."""
        return self.total / len(self.per_server)

    @property
    def max_over_mean(self) -> float:
        """Load of the fullest server divided by the mean; 1 is perfectly even."""
        return max(self.per_server) / self.mean if self.total else 1.0

    def describe(self) -> str:
        """Return a table with one line per server and a summary, as text of several lines."""
        rows = [(str(server), f"{load:,}") for server, load in enumerate(self.per_server)]
        summary = (
            f"total {self.total:,} {self.unit}, mean {self.mean:,.1f}, "
            f"max/mean {self.max_over_mean:.3f}"
        )
        return "\n".join([*text_table([("server", self.unit), *rows], right=[1]), summary])


class PlannedPlacement(msgspec.Struct, frozen=True):
    """The pieces of every dense tensor, and the server of each piece.

    Attributes:
        n_servers: Number of servers.
        pieces: For each tensor, in the given order, its pieces sorted by `start`. They cover the tensor
            without overlap. A tensor without elements has no pieces.
    """

    n_servers: int
    pieces: dict[str, tuple[PlannedPiece, ...]]

    def balance(self) -> Balance:
        """Return the bytes of each server."""
        loads = [0] * self.n_servers
        for piece in (piece for pieces in self.pieces.values() for piece in pieces):
            loads[piece.server] += _n_bytes(piece)
        return Balance("bytes", tuple(loads))

    def describe(self) -> str:
        """Return a table with one line per piece, followed by the balance, as text of several lines."""
        rows = [
            (name, str(piece.server), str(piece.start), str(piece.stop), f"{_n_bytes(piece):,}")
            for name, pieces in self.pieces.items()
            for piece in pieces
        ]
        header = ("tensor", "server", "start", "stop", "bytes")
        table = text_table([header, *rows], right=range(1, len(header)))
        return "\n".join([*table, "", self.balance().describe()])

    def __repr__(self) -> str:
        n_pieces = sum(map(len, self.pieces.values()))
        return (
            f"Placement({len(self.pieces)} tensors in {n_pieces} pieces on {self.n_servers} "
            f"servers, max/mean {self.balance().max_over_mean:.3f})"
        )


def cut_at_lines(sizes: Mapping[str, int], n_servers: int) -> dict[str, tuple[PlannedPiece, ...]]:
    """Cut every tensor over all servers, at multiples of 16 elements (a cache line of 64 bytes).

    The pieces of one tensor differ by at most one line, and so do the sums over all tensors. To achieve this,
    the lines that remain after an even division go to the servers that hold least. The last line, which may
    be short, goes to the fullest of these servers.

    Args:
        sizes: Elements of each tensor by name.
        n_servers: At least 1.

    Returns:
        The pieces of each tensor, sorted by `start`.
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
    """Cut one tensor of `size` elements; `loads`: elements that each server holds already."""
    n_servers = len(loads)
    if size == 0:
        return []
    # Leave 1 to n_servers lines over, so that the short line is always among them.
    each, left_over = divmod(-(-size // LINE_FLOATS) - 1, n_servers)
    by_load = sorted(range(n_servers), key=lambda server: (loads[server], server))
    chosen = by_load[: left_over + 1]
    last = chosen[-1]

    # Begin after the server that gets the short line, so that it gets the end of the tensor.
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
    """Assign items to servers, heaviest first, each to the least loaded (Graham's LPT rule, 1969).

    Deterministic: items of equal weight are assigned in the given order; of servers with equal load the lower
    number is chosen.

    Args:
        weights: One per item, not negative.
        n_servers: At least 1.
        loads: Load of each server beforehand; (): none.

    Returns:
        The server of each item. If all servers start empty, the fullest has at most 4/3 of the optimal load.
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
    """Return each tensor in one piece; `servers` has the server of each tensor, in the order of `sizes`."""
    return {
        name: (PlannedPiece(server, 0, size),) if size else ()
        for (name, size), server in zip(sizes.items(), servers, strict=True)
    }


def _n_bytes(piece: PlannedPiece) -> int:
    return FLOAT_BYTES * (piece.stop - piece.start)
