"""The shared memory that a launch of a supervised run leaves, and the places where workers continue in it.

Servers with a journal leave in shared memory everything that is acknowledged, and every record that is
complete in their rings. The next launch takes this memory over if all of it is there: the tables, options and
numbers of ranks are the same; the segments of every server are on its node, and no running process uses them;
and the staging memory is there to which records still point. If anything is missing, all ranks start from the
newest checkpoint instead.

Positions. The position of a worker at a server is the worker's clock there, and the number of pushes of that
clock that are there. A worker continues at the greatest of its clocks over all servers, with the cursor and
the random state that it had at that clock. The worker does not write again those of its pushes of this clock
that a server already has (native/src/ring/ring_replay.cpp). Cursor and random state must therefore be known
at every clock: a worker sends them to all servers before it ticks, in a cut record that belongs to no
checkpoint. The record of a checkpoint replaces it; under LocalSGD and DiLoCo a checkpoint may be of a later
inner step of the same clock, and its record then contains both positions.

Order. All records before a tick are in the memory of all servers before a tick of that clock is sent to any
server (mpips.worker.connection.Connection.clock). So if one server has the tick, all servers have the pushes
of that clock, and no server is more than one tick ahead of another. The worker sends the missing ticks before
anything else (Connection.end_clock_behind). The job is then as if the launch before had been killed a moment
later, when these ticks had arrived. (A worker that repeated the clock instead could wait for ever: its pulls
would lie, at a server that has the tick, behind pushes of the next clock, which under BSP wait for others,
who may wait for the missing tick.)

Records that wait. Under BSP a push waits in its ring for the workers before it, and everything behind it
waits as well. A server drops what waits of the clock that a worker repeats (native `drop_repeated`), so the
repetition meets the rings that the first time met.

Copies of lost servers. Under SSP and ASP a server that continues from its partner's copy may lack pushes of
clocks that other servers have: they were in the lost server's ring and not consumed. So may the memory of a
launch that has repeated these clocks and was killed in between. The position that a worker sends before a
tick shows it, because it lies behind the pushes in the ring: a server that has the position of the next clock
has all pushes of this one. If a server without the tick lacks that position, the worker continues at the
least of its clocks, and repeats what some servers have already. Under BSP and in groups no copy lacks such
pushes (mpips.recovery.replica).

Precondition. A worker that repeats a clock must make the same pushes as before in number, order, tables,
lengths and keys. Their values may differ; the values of the first time count. Each server computes a tag of
the pushes (native/src/ring/push_tag.hpp). If a repetition differs, nothing shows which of its updates have
already been counted. The worker then ends the job with a ReplayError, and the next launch starts from the
checkpoint.

Refused memory. A launch may find the memory wrong: it contains a record that no correct worker sends, or a
repetition differs. The rank that finds this writes `memory-refused.json`. No later launch continues in this
memory; the next one starts from the newest checkpoint. A worker that exchanges arrays with another one writes
the same file before its first message (mpips.worker.messages).

Clocks. Clocks count from the launch that created the memory, in all launches that continue in it.
`memory.json` in the run directory describes the state from which that launch started. The scheduler writes
the file.

Format. `memory.json` has the number of the format of all that memory (native/src/shm/memory_format.hpp), and
the build of mpips that served from it last. A launch of a build with another format reads nothing else of the
memory and removes nothing: it ends with a ConfigError, which names both builds (`why_other_build`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mpips import _native
from mpips.checkpoint import Manifest, WorkerState
from mpips.checkpoint.position import PositionPart, decode_part
from mpips.errors import RecoveryError
from mpips.model.build import Build, this_build
from mpips.rundir.directory import RunFolder, Supervised, read_json, replace_json

FORMAT = _native.memory_format
FILE = "memory.json"
REFUSED_FILE = "memory-refused.json"


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The content of memory.json: the state from which clocks in shared memory count.

    Attributes:
        generation: Generation number of the launch that created the memory.
        served: Generation number of the last launch that completed its start-up; memory of earlier
            launches is stale (mpips.recovery.replica).
        tables: Checksum of tables and options.
        shape: Number of servers, number of workers.
        step: Steps of the run before the launch that created the memory.
        run_id: Id of the run in its checkpoints.
        workers: States of workers in the checkpoint from which that launch started; empty without one.
        beginning: States of that launch's own workers at their start, where these differ from `workers`.
        sampling: Meaning of the workers' cursors; see `mpips.checkpoint.Manifest`.
        data: Description of the training data; see `mpips.checkpoint.Manifest`.
        first_checkpoint: Generation number of the checkpoints of the launch that created the memory.
        format: Format of the memory; 0: of mpips before it had a number.
        build: The mpips of the last launch that completed its start-up.
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
    format: int = 0
    build: Build = Build()

    def write(self, run: Supervised) -> None:
        """Write memory.json for later launches, durably: no launch could continue beside a damaged one.

        Raises:
            OSError: The run directory cannot be written to.
        """
        replace_json(run.folder.path / FILE, self, durable=True)


def read_memory(run: Supervised) -> Memory | None:
    """Return the content of memory.json; None if there is no such file."""
    return read_json(run.folder.path / FILE, Memory)


class MemoryHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of memory.json that every format has; see Memory."""

    format: int = 0
    build: Build = Build()


def read_head(folder: RunFolder) -> MemoryHead | None:
    """Return format and build of memory.json, whatever else the file has; None if there is no such file."""
    return read_json(folder.path / FILE, MemoryHead)


def why_other_build(head: MemoryHead, run: Path, alike: bool = True) -> str:
    """Return why this mpips does not continue in the memory of a run, and the ways out; "" if it can.

    Args:
        head: Format and build of the memory.
        run: The run directory.
        alike: The memory has the tables and options of this job. If not, the build that computes them may be
            the cause.
    """
    here = this_build()
    if head.format == FORMAT and (alike or head.build == here):
        return ""
    if head.format != FORMAT:
        what = f"in format {head.format}, and this is {here}, which has format {FORMAT}"
    else:
        what = f"with other tables or options than this one has with {here}"
    return (
        f"{run}: its shared memory was written by {head.build} {what}: the memory stays as it is; continue "
        f"in it with that mpips and mpips run {run}, or remove it and begin from the newest checkpoint with: "
        f"mpips run --discard-memory {run} && mpips run {run}"
    )


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The content of memory-refused.json: no launch may continue in the memory of a launch.

    Attributes:
        generation: Generation number of that launch.
        reason: Why, for the user.
        is_wrong: The launch found the memory wrong. False: it is right, but its workers exchange arrays.
    """

    generation: int
    reason: str
    is_wrong: bool = True


def refuse_memory(run: Supervised, reason: str) -> None:
    """Forbid later launches to continue in the memory of this launch.

    Args:
        run: The run.
        reason: Why the memory is wrong, for the user.

    Raises:
        OSError: The run directory cannot be written to.
    """
    refused = Refused(generation=run.generation, reason=reason)
    replace_json(run.folder.path / REFUSED_FILE, refused, durable=True)


def refuse_for_messages(run: Supervised) -> None:
    """Forbid later launches to continue in the memory of this launch, because its workers exchange arrays.

    In memory each worker continues where it was, perhaps at another clock than the others. They would not
    send again the arrays of its clock. So the next launch starts from a checkpoint, where all workers are at
    one clock. Several workers may call it.

    Raises:
        OSError: The run directory cannot be written to.
    """
    found = read_json(run.folder.path / REFUSED_FILE, Refused)
    if found is not None and found.generation == run.generation:
        return
    reason = "had sent arrays between its workers, which may be at different clocks in it"
    refused = Refused(generation=run.generation, reason=reason, is_wrong=False)
    replace_json(run.folder.path / REFUSED_FILE, refused, durable=True)


def why_refused(run: Supervised, memory: Memory) -> str:
    """Return the reason for which a launch that used this memory has refused it; "": none has."""
    refused = read_json(run.folder.path / REFUSED_FILE, Refused)
    if refused is None or refused.generation < memory.generation:
        return ""
    found = "found it wrong: " if refused.is_wrong else ""
    return f"attempt {refused.generation} {found}{refused.reason}"


class At(msgspec.Struct, frozen=True):
    """A worker's position at a server, as ServerCore.position returns it.

    Attributes:
        sequence: Number of the worker's next record.
        applied: Number of its records that the server has consumed.
        clock: Clock of the worker at this server.
        finished: True if the worker has finished.
        pushes: Number of complete pushes of this clock that the server has.
        tag: Tag of these pushes (native/src/ring/push_tag.hpp).
        ended: Clock and tag of pushes of recent clocks before `clock`.
        texts: Encoded cursors and random states of the worker (mpips.checkpoint.position), as hexadecimal
            digits.
    """

    sequence: int
    applied: int
    clock: int
    finished: bool
    pushes: int
    tag: int
    ended: list[tuple[int, int]]
    texts: list[str]

    @property
    def parts(self) -> list[PositionPart]:
        """The decoded texts."""
        return [decode_part(bytes.fromhex(text)) for text in self.texts]

    def has_pushes_before(self, clock: int) -> bool:
        """Return True if the server has all pushes of the clock before this one: its position is there."""
        return any(part.clock == clock for part in self.parts)

    @classmethod
    def of(cls, found: dict[str, Any]) -> At:
        """Return the position from the dictionary that ServerCore.position returns."""
        fields = {name: value for name, value in found.items() if name != "taken"}
        return cls(**{**fields, "texts": [text.hex() for text in found["texts"]]})


class Place(msgspec.Struct, frozen=True):
    """The place where a worker continues.

    Attributes:
        clock: Clock of the worker, counted from the launch that created the memory.
        state: Cursor and random state at this clock.
        steps: Number of clocks that its program has ended, counted alike; see PositionPart.
        ahead: Greatest clock of the worker at any server.
        at_start: True if the worker has not ended a clock since the launch that created the memory. It then
            starts as it started in that launch.
        finished: True if all servers have the worker's end.
    """

    clock: int
    state: WorkerState
    ahead: int = 0
    at_start: bool = False
    steps: int = 0
    finished: bool = False


def place_of(
    worker: int,
    positions: Sequence[At],
    memory: Memory,
    skips_clocks: bool = False,
) -> Place:
    """Return the place where a worker continues, from its positions at all servers.

    The module's docstring defines that clock.

    Args:
        worker: Index of the worker.
        positions: Position of the worker at each server.
        memory: State from which the clocks count.
        skips_clocks: True if there are backup workers, so that a worker may skip clocks.

    Raises:
        RecoveryError: No server has the worker's cursor at that clock; or the worker may skip clocks, and
            servers have it at different clocks.
    """
    clock = min(at.clock for at in positions)
    ahead = max(at.clock for at in positions)
    finished = all(at.finished for at in positions)
    if skips_clocks and ahead != clock:
        # A server learns only from the next record of a worker that it has skipped clocks. The pushes
        # that the worker would repeat at the lower clock need not be those that it made at the higher one.
        raise RecoveryError(
            f"with backup workers, worker {worker} is at clock {clock} on one server and at {ahead} on "
            "another"
        )
    parts = [part for at in positions for part in at.parts]
    behind = [at for at in positions if at.clock < ahead]
    if (
        not skips_clocks
        and ahead == clock + 1
        and all(at.has_pushes_before(ahead) for at in behind)
    ):
        clock = ahead
    # Find the states that are known of the worker, up to this clock.
    known = [part for part in parts if 0 < part.clock <= clock]
    same = len(memory.workers) == memory.shape[1]
    base = memory.workers[worker] if same else WorkerState(worker=worker, clock=memory.step)
    base = memory.beginning[worker] if memory.beginning else base
    if clock == 0:
        return Place(clock, base, ahead, at_start=True, finished=finished)
    # Take the state at this clock. A worker that skips clocks has its state from before them.
    part = max(known, key=lambda p: p.clock, default=PositionPart())
    if part.clock != clock and not (skips_clocks and part.clock):
        found = ", ".join(str(p.clock) for p in parts) or "none"
        raise RecoveryError(
            f"no server has the cursor of worker {worker} at clock {clock}; there are cursors of clocks: "
            f"{found}"
        )
    part = part.in_memory or part
    # A worker that skips clocks has ended more of them than its state says.
    steps = clock if part.steps is None else part.steps
    state = worker_state(worker, part, base.clock + steps)
    return Place(clock, state, ahead, steps=steps, finished=finished)


def worker_state(worker: int, part: PositionPart, clock: int) -> WorkerState:
    """Return a worker's state in the form that manifests contain."""
    return WorkerState(
        worker=worker,
        clock=clock,
        epoch=_whole(part.cursor, "epoch"),
        step=_whole(part.cursor, "step"),
        random=part.random,
        cursor=part.cursor,
        files=() if part.image is None else (part.image,),
    )


def resumed_at(positions: Sequence[At], place: Place) -> list[At]:
    """Return a worker's positions as its channels continue at them.

    A server that lacks the last tick before the worker's place has all pushes in front of it, and the worker
    repeats none of them.
    """
    return [
        msgspec.structs.replace(at, pushes=0, tag=0) if at.clock < place.clock else at
        for at in positions
    ]


def servers_behind(positions: Sequence[At], place: Place) -> tuple[int, ...]:
    """Return the servers that lack the last tick of a worker before its place."""
    return tuple(server for server, at in enumerate(positions) if at.clock < place.clock)


def worker_states(
    origin: Manifest | Memory | None, parts: Sequence[PositionPart], clocks: Sequence[int]
) -> list[WorkerState]:
    """Return the state of each worker for a manifest, with its clock counted from the beginning of the run.

    Args:
        origin: State from which the clocks of this launch count; None: from the beginning of the run.
        parts: Positions of the workers.
        clocks: Their clocks in this launch.
    """
    found = []
    for worker, (part, clock) in enumerate(zip(parts, clocks, strict=True)):
        before = 0
        if origin is not None:
            same = len(origin.workers) == len(parts)
            before = origin.workers[worker].clock if same else origin.step
        found.append(worker_state(worker, part, before + clock))
    return found


def _whole(cursor: Mapping[str, Any], name: str) -> int:
    """Return a whole number of a cursor, as cursors of `mpips train` contain them; 0 if it has none."""
    value = cursor.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
