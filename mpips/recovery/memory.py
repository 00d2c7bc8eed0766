"""What a launch of a supervised run leaves in shared memory, and where the next one goes on.

Servers with a journal leave everything that was acknowledged or complete in their rings. The next launch
takes it over if all of it is there: the same tables, options and numbers of ranks, every server's segments
on its node with no living process in them, and the staging memory that records still point to. If anything
is missing, all ranks start from the newest checkpoint instead.

A worker's position at a server is the clock that it is in and how many pushes of that clock are there. It
goes on at the least of its clocks, as its cursor and random state were there, and what a server has of it
already is not written again (native/src/ring/ring_writer.cpp). So that cursor and random state are known
at every clock, a worker sends them before it ticks, in a cut record that belongs to no checkpoint. All
records before a tick are in the memory of all servers before any tick of that clock is sent to one
(Worker.clock): so if one server has the tick, all have the pushes, and no server is more than one tick
ahead of another.

Precondition. A worker that repeats a clock must make the same pushes as before in number, order, tables,
lengths and keys; their values may differ, and those of the first time count. Each server keeps a tag of them
(native/src/ring/push_tag.hpp). A worker whose repetition differs ends the job with a ReplayError, since
nothing tells which of its updates count already, and the next launch starts from the checkpoint.

Memory that a launch finds wrong (a record that no correct worker sends, a repetition that differs) is
refused from then on: the rank that finds it writes `memory-refused.json`, and the next launch begins anew
from the newest checkpoint.

Clocks count on from the launch that last began anew; `memory.json` in the run directory says what that one
started from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mpips.checkpoint import WorkerState
from mpips.checkpoint.position import PositionPart, decode_part
from mpips.errors import RecoveryError
from mpips.rundir.directory import Supervised, read_json, replace_json

FILE = "memory.json"
REFUSED_FILE = "memory-refused.json"


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """memory.json: what the clocks in shared memory count from.

    Attributes:
        generation: The launch that began anew.
        served: The last one that came to service; older memory is stale (mpips.recovery.replica).
        tables: Checksum of tables and options.
        shape: Servers and workers.
        step: Steps of the run before it.
        run_id: Names the run in checkpoints.
        workers: Where its workers started from, if that was a checkpoint.
        beginning: The states of its own workers at their start, where those are not `workers`.
        sampling: How their cursors are to be read; see `mpips.checkpoint.Manifest`.
        data: What the training data holds, in the order of its columns; see there.
        first_checkpoint: Generation number of the checkpoints of the launch that began anew.
    """

    generation: int
    served: int = 0
    tables: str
    shape: tuple[int, int]
    step: int = 0
    run_id: str = ""
    workers: tuple[WorkerState, ...] = ()
    beginning: tuple[WorkerState, ...] = ()
    sampling: dict[str, Any] = {}
    data: dict[str, Any] = {}
    first_checkpoint: int = 0

    def write(self, run: Supervised) -> None:
        """Leave it for later launches."""
        replace_json(run.folder.path / FILE, self)


def read_memory(run: Supervised) -> Memory | None:
    """What the launch before has left; None if there is nothing."""
    return read_json(run.folder.path / FILE, Memory)


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """memory-refused.json: launch `generation` found the memory wrong that it worked in."""

    generation: int
    reason: str


def refuse_memory(run: Supervised, reason: str) -> None:
    """Let no later launch go on in the memory of this one.

    Raises:
        OSError: The run directory cannot be written to.
    """
    replace_json(run.folder.path / REFUSED_FILE, Refused(generation=run.generation, reason=reason))


def why_refused(run: Supervised, memory: Memory) -> str:
    """Return why a launch that worked in this memory has refused it; "": none has."""
    refused = read_json(run.folder.path / REFUSED_FILE, Refused)
    if refused is None or refused.generation < memory.generation:
        return ""
    return f"attempt {refused.generation} found it wrong: {refused.reason}"


class At(msgspec.Struct, frozen=True):
    """A worker's position at a server; see ServerCore.position.

    Attributes:
        sequence: Number of its next record.
        applied: Records that the server has consumed.
        clock: The clock that it is in.
        finished: It has finished.
        pushes, tag: Complete pushes of that clock that are there, and what identifies them
            (native/src/ring/push_tag.hpp).
        ended: Clock and tag of clocks before it.
        texts: Texts that describe where it stands, in hexadecimal digits.
    """

    sequence: int
    applied: int
    clock: int
    finished: bool
    pushes: int
    tag: int
    ended: list[tuple[int, int]]
    texts: list[str]

    @classmethod
    def of(cls, found: dict[str, Any]) -> At:
        """Return what the server's core gives."""
        fields = {name: value for name, value in found.items() if name != "taken"}
        return cls(**{**fields, "texts": [text.hex() for text in found["texts"]]})


@dataclass(frozen=True)
class Place:
    """Where a worker goes on.

    Attributes:
        clock: Since the launch that began anew.
        state: Cursor and random state there.
        ahead: The greatest clock that a server has of the worker.
        at_start: It has not ended a clock since the launch that began anew, and starts as it started there.
    """

    clock: int
    state: WorkerState
    ahead: int = 0
    at_start: bool = False


def place_of(
    worker: int, positions: Sequence[At], memory: Memory, skips_clocks: bool = False
) -> Place:
    """Return where a worker goes on, by its positions at all servers.

    Args:
        worker: Its index.
        positions: One for each server.
        memory: What the clocks count from.
        skips_clocks: There are backup workers, so a worker may pass over clocks.

    Raises:
        RecoveryError: No server has the worker's cursor at that clock; it may have passed over clocks and
            servers have it at different ones.
    """
    clock = min(at.clock for at in positions)
    ahead = max(at.clock for at in positions)
    if skips_clocks and ahead != clock:
        # A server learns that a worker passed over clocks from its next record. What the worker would
        # repeat at the one clock need not be what it did at the other.
        raise RecoveryError(
            f"with backup workers, worker {worker} is at clock {clock} on one server and at {ahead} on "
            "another"
        )
    parts = [decode_part(bytes.fromhex(text)) for at in positions for text in at.texts]
    known = [part for part in parts if 0 < part.clock <= clock]
    same = len(memory.workers) == memory.shape[1]
    base = memory.workers[worker] if same else WorkerState(worker=worker, clock=memory.step)
    base = memory.beginning[worker] if memory.beginning else base
    if clock == 0:
        return Place(clock, base, ahead, at_start=True)
    # A worker that passes over clocks stands at the last cursor before them.
    part = max(known, key=lambda p: p.clock, default=PositionPart())
    if part.clock != clock and not (skips_clocks and part.clock):
        found = ", ".join(str(p.clock) for p in parts) or "none"
        raise RecoveryError(
            f"no server has the cursor of worker {worker} at clock {clock}; there are those of clocks: "
            f"{found}"
        )
    return Place(clock, worker_state(worker, part, base.clock + clock), ahead)


def worker_state(worker: int, part: PositionPart, clock: int) -> WorkerState:
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
