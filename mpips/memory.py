"""What a launch of a supervised run leaves in shared memory, and where the next one goes on.

Servers with a journal leave everything that was acknowledged or complete in their rings. The next launch
takes it over if all of it is there: the same tables, options and numbers of ranks, every server's segments
on its node with no living process in them, and the staging memory that records still point to. If anything
is missing, all ranks start from the newest checkpoint instead.

A worker's position at a server is the clock that it is in and how many pushes of that clock are there. It
goes on at the least of its clocks, as its cursor and random state were there, and what a server has of it
already is not written again (native/src/ring/ring_writer.cpp). So that cursor and random state are known
at every clock, a worker says them before it ticks, in a cut record that belongs to no checkpoint. All
records before a tick reach all servers before any tick of that clock reaches one: so if one server has
the tick, all have the pushes.

Clocks count on from the launch that last began anew; `memory.json` in the run directory says what that one
started from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mpips.checkpoint import WorkerState
from mpips.cuts.position import Part, decode_part
from mpips.rundir import Supervised, read_json, replace_json

FILE = "memory.json"


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """memory.json: what the clocks in shared memory count from.

    Attributes:
        generation: The launch that began anew.
        served: The last one that came to service; older memory is stale (mpips.partner).
        tables: Checksum of tables and options.
        shape: Servers and workers.
        step: Steps of the run before it.
        run_id: Names the run in checkpoints.
        workers: Where its workers started from, if that was a checkpoint.
        sampling: How their cursors are to be read; see `mpips.checkpoint.Manifest`.
    """

    generation: int
    served: int = 0
    tables: str
    shape: tuple[int, int]
    step: int = 0
    run_id: str = ""
    workers: tuple[WorkerState, ...] = ()
    sampling: dict[str, Any] = {}

    def write(self, run: Supervised) -> None:
        """Leave it for later launches."""
        replace_json(run.folder.path / FILE, self)


def read_memory(run: Supervised) -> Memory | None:
    """What the launch before has left; None if there is nothing."""
    return read_json(run.folder.path / FILE, Memory)


class At(msgspec.Struct, frozen=True):
    """A worker's position at a server; see ServerCore.position. Texts as hexadecimal digits."""

    sequence: int
    applied: int
    clock: int
    finished: bool
    taken: list[int]
    texts: list[str]

    @classmethod
    def of(cls, found: dict[str, Any]) -> At:
        """What the server's core says."""
        return cls(**{**found, "texts": [text.hex() for text in found["texts"]]})


@dataclass(frozen=True)
class Place:
    """Where a worker goes on.

    Attributes:
        clock: Since the launch that began anew.
        state: Cursor and random state there.
    """

    clock: int
    state: WorkerState


def place_of(worker: int, positions: Sequence[At], memory: Memory) -> Place:
    """Where a worker goes on, by its positions at all servers."""
    clock = min(at.clock for at in positions)
    parts = [decode_part(bytes.fromhex(text)) for at in positions for text in at.texts]
    known = [part for part in parts if 0 < part.clock <= clock]
    same = len(memory.workers) == memory.shape[1]
    base = memory.workers[worker] if same else WorkerState(worker=worker, clock=memory.step)
    if not known:
        return Place(clock, base)
    # With backup workers a clock may be skipped: the last that was said before it counts.
    part = max(known, key=lambda p: p.clock)
    return Place(clock, worker_state(worker, part, base.clock + clock))


def worker_state(worker: int, part: Part, clock: int) -> WorkerState:
    """A worker's state as manifests hold it."""
    return WorkerState(
        worker=worker,
        clock=clock,
        epoch=_whole(part.cursor, "epoch"),
        step=_whole(part.cursor, "step"),
        random=part.random,
        cursor=part.cursor,
    )


def _whole(cursor: Mapping[str, Any], name: str) -> int:
    """A number of a cursor that has one, as those of `mpips train` do."""
    value = cursor.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
