"""Traces with known events, written by the same records as those of a run, without a job."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mpips._native import TraceKind
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.tracing import EVENT, TraceFolder, TraceHead, TraceIndex

US = 1000
TABLES = ("dense", 'odd "name"\n')
K = TraceKind


class Part:
    """The trace of one rank whose clock is behind the true time by `late_ns`."""

    def __init__(
        self, rank: int, role: str, node: str, late_ns: int = 0, error_ns: int = -1
    ) -> None:
        self.late_ns = late_ns
        self.head = TraceHead(
            rank=rank,
            role=role,
            host=node,
            clock_id=node,
            offset_ns=0,
            error_ns=error_ns,
            tables=TABLES,
        )
        self.events: list[tuple[int, ...]] = []

    def add(self, kind: TraceKind, begin: int, end: int, sequence: int = 0, peer: int = 0) -> None:
        """Add an event at true times in us."""
        times = (begin * US - self.late_ns, end * US - self.late_ns)
        self.events.append((*times, sequence, 7, kind.value, 0, peer, 0))


def push(worker: Part, server: Part, at: int, travel: int, sequence: int) -> None:
    """A push of 10 us whose record travels, is applied for 20 us, and is known to be applied as late."""
    index = int(server.head.role.split()[1])
    worker.add(K.push, at, at + 10)
    worker.add(K.sent, at + 8, at + 8, sequence, index)
    begin = at + 8 + travel
    server.add(K.apply, begin, begin + 20, sequence, int(worker.head.role.split()[1]))
    worker.add(K.taken, begin + 20 + travel, begin + 20 + travel, sequence, index)


def written(tmp_path: Path, parts: list[Part]) -> TraceFolder:
    """A complete trace of these parts, in a run directory."""
    folder = TraceFolder(RunFolder.create(tmp_path, "job"), "t")
    folder.ask(5)
    for part in parts:
        folder.write(part.head, np.array(part.events, EVENT).tobytes())
    ranks = tuple(part.head.rank for part in parts)
    replace_json(folder.index_file, TraceIndex(generation=0, steps=5, time_s=1.0, ranks=ranks))
    return folder
