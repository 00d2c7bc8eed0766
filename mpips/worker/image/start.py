"""Start-up of what a worker keeps over a restart: find it, check it, take it or refuse it.

A job that continues in memory takes the worker's memory of the launch before, if that launch came to work
with it (`take_over`). Inner steps cannot go on without their values: if the memory is not there, is older, or
lacks the image of the clock at which the worker continues, all ranks start from a checkpoint. Pushes can go
on without residuals: they begin with zeros, and start-up counts and reports what is lost.

Any other job makes new memory, with what the worker takes of the images in the checkpoint, or with zeros and
the values of servers. New memory has an image of clock 0 from the start-up on, before any worker makes a
step. So a launch can continue in memory when a worker has not used a table yet, for example because it still
reads its data, while others of an asynchronous job have made outer steps. That image is the worker's own one
of the checkpoint, or it records that the worker takes its values from the servers at its first use, with the
inner states in it. A worker that repeats its first clock from such an image may find newer values of servers
there; see "Asynchronous outer steps" in mpips.worker.local.tables. Without asynchronous outer steps the
servers end no clock before the worker has, so it finds the same ones.

Other numbers of workers. Let the checkpoint have the images of m workers, and the job n workers.

* Residuals are handed over, so that their sum stays: worker w takes the sum of those of the workers w, w + n,
  w + 2 n, ... of the checkpoint, or begins with zeros. Where servers apply the mean of the workers' updates,
  the sum is scaled by n / m, so what it contributes to the mean stays. Tables whose updates a group sums are
  those of its leader, at the start its lowest worker: it takes the sums of all of its group, and the others,
  which push nothing to the table, take none (mpips.checkpoint.residuals).
* The state of local training is copied: worker w takes the inner states of worker w modulo m, and the values
  of the servers, which have the steps of all workers up to their last outer steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint import WorkerState
from mpips.checkpoint.worker_files import read_heads, read_worker
from mpips.checkpoint.worker_image import LOCAL, RESIDUALS, PartImage
from mpips.errors import RegionError
from mpips.model.consistency import BSP
from mpips.model.grouping import Groups
from mpips.model.placement import Placement
from mpips.model.served import local_tables
from mpips.model.table import Table, feedback_tables
from mpips.recovery.memory import Memory
from mpips.recovery.saving import Saving
from mpips.transport.region import Regions
from mpips.worker.feedback.residuals import Residuals
from mpips.worker.groups.handover import HandoverPart
from mpips.worker.image.memory import WorkerBytes, WorkerMemory, worker_bytes
from mpips.worker.local.part import LocalPart
from mpips.worker.local.state import LocalHead, first_image, local_image_bytes, read_head
from mpips.worker.start import JobStart, NodeBytes, Planned

Float32 = NDArray[np.float32]

Taking = Callable[[str, int], Sequence[int]]


def _part(worker: int, origin: int) -> str:
    """Return the part name of a worker's persistent memory; no set of a server has such a name.

    Clocks count from launch `origin`, which created the memory of the job. A node that was absent when that
    launch removed older memory may still have images of the same clock numbers, from before.
    """
    return f"i{worker}g{origin}"


def memory(job: Planned) -> list[NodeBytes]:
    """Return the memory of each node.

    It is the memory of its workers, and under LocalSGD and DiLoCo each worker's values, states, a gradient
    and the servers' values.
    """
    local = list(local_tables(job.declared).values())
    size = worker_bytes(job.tables, job.placement, local, job.warm).n_bytes
    # Values and inner states are those of an image; beside them are the servers' values and a gradient.
    own = local_image_bytes(local) + 2 * sum(4 * t.n_elements for t in local) if local else 0
    return job.by_node(NodeBytes(size, own) if job.warm else NodeBytes(0, size + own))


def _size(p: JobStart) -> WorkerBytes:
    return worker_bytes(p.tables, p.placement, list(p.local.values()), p.warm)


def take_over(p: JobStart, worker: int, clock: int, before: Memory) -> None:
    """Take over the memory of a worker of the launch before, as `p.worker_memory`. Not collective.

    Args:
        p: The job.
        worker: Index of the worker.
        clock: Its clock, counted from the launch that created the memory.
        before: The memory in which the job continues.

    Raises:
        RegionError: The worker cannot continue; the message gives the reason.
    """
    size = _size(p)
    if not size.n_bytes:
        return
    try:
        found = WorkerMemory(p.regions.reopen(_part(worker, before.generation)), size)
    except RegionError:
        if p.local:
            raise
        return
    images = found.images
    if images is not None and (found.generation < before.served or not images.holds(clock)):
        raise RegionError(f"the local values of worker {worker} at clock {clock} are not there")
    p.worker_memory = found


def connect(p: JobStart) -> None:
    """Set `p.made.local` and `p.made.residuals` on a worker, and notes. Collective; blocks for files.

    It comes before the memory of this launch is that in which the next one continues: the mark of a worker's
    memory must not be older than that. It comes behind groups, whose leaders have their residuals.

    Raises:
        MpipsError: The first error of any rank, such as a damaged file or too little memory in /dev/shm; all
            ranks raise it.
    """
    c = p.ranks
    first = c.assignment.workers[0]
    if any(state.files for state in _states(p.saving)):
        # Also a job without such tables may start from a checkpoint that has images.
        found = c.agree(
            "reading the heads of the workers' images",
            lambda: _notes(p) if c.rank == first else [],
        )
        p.notes += found[first]
    rows = c.agree("making the workers' memory", lambda: _make(p), lengthy=True)
    _connect_handover(p)
    for rank in c.assignment.workers:
        if n := rows[rank]:
            p.notes.append(
                f"{c.name_of(rank)} has lost {n} residual{'s' if n > 1 else ''}, which are not on its node: "
                "what its pushes had not sent is missing in the result"
            )


def _notes(p: JobStart) -> list[str]:
    n_workers = len(p.ranks.assignment.workers)
    return notes_of(p.saving, n_workers, p.declared, p.tables)


def _make(p: JobStart) -> int:
    """Make the parts of this rank's worker; return how many residuals of the launch before are lost."""
    worker, n_workers, lost = p.ranks.worker, len(p.ranks.assignment.workers), 0
    if worker is None or not (p.local or feedback_tables(p.tables)):
        return 0
    memory: WorkerMemory | None
    if p.saving.places:
        memory, lost = _continue(p, worker)
    else:
        taking = taking_of(p.groups, n_workers, {t.name for t in p.grouped_tables.values()})
        start = start_image(p.saving, p.tables, p.local, worker, n_workers, taking)
        memory = _new_memory(p.regions, _part(worker, p.generation), _size(p))
        _begin(p, start, memory)
    if memory is not None and p.warm:
        memory.mark(p.generation)
    return lost


def _continue(p: JobStart, worker: int) -> tuple[WorkerMemory, int]:
    """Set the parts of a worker that continues in memory; return it and the number of lost residuals."""
    origin, size = p.saving.origin, _size(p)
    assert isinstance(origin, Memory)
    part = _part(worker, origin.generation)
    memory = p.worker_memory or WorkerMemory(p.regions.create(part, size.n_bytes), size)
    if memory.images is not None:
        image = memory.images.read(p.saving.places[worker].clock)[LOCAL]
        p.made.local = LocalPart(p.local, memory.images, image, True, True)
    residuals = p.made.residuals = _residuals(memory, p.tables, p.placement)
    if residuals is None:
        return memory, 0
    if memory.generation < origin.served:
        # Nothing in it is of this run's last launch: let no half be valid.
        residuals.forget()
    return memory, residuals.count_lost([at.sequence for at in p.at])


def _begin(p: JobStart, start: StartImage, memory: WorkerMemory | None) -> None:
    """Set the parts of a worker that continues in no memory, and fill its new memory."""
    residuals = p.made.residuals = _residuals(memory, p.tables, p.placement)
    if residuals is not None:
        residuals.fill(start.residuals)
    images = memory.images if memory is not None else None
    if images is not None:
        images.write(0, first_image(p.local.values(), start.local, start.is_own))
    if p.local:
        p.made.local = LocalPart(p.local, images, start.local, start.is_own)


def _new_memory(regions: Regions, part: str, size: WorkerBytes) -> WorkerMemory | None:
    """Return new memory of a worker; None if it needs none. It is private if it ends with the launch."""
    if not size.n_bytes:
        return None
    place = regions if size.halves > 1 else Regions(regions.token, shared=False)
    return WorkerMemory(place.create(part, size.n_bytes), size)


def _residuals(
    memory: WorkerMemory | None, tables: Sequence[Table], placement: Placement
) -> Residuals | None:
    if memory is None or not feedback_tables(tables):
        return None
    return Residuals(memory.memory, tables, placement, memory.size.halves)


def new_residuals(
    tables: Sequence[Table], placement: Placement, regions: Regions
) -> Residuals | None:
    """Return residuals of zeros for a worker outside a job; None where no table has error feedback.

    Raises:
        RegionError: There is too little memory.
    """
    memory = _new_memory(regions, _part(0, 0), worker_bytes(tables, placement, (), False))
    return _residuals(memory, tables, placement)


def _connect_handover(p: JobStart) -> None:
    """Let a worker take part in the handover of its group's residuals. Not collective."""
    part = p.made.grouped
    tables = feedback_tables(p.tables).keys() & p.grouped_tables.keys()
    if part is None or p.made.residuals is None or p.tree_comm is None or not tables:
        return
    c, top = p.cluster, part.upper or part
    ranks = tuple(c.assignment.workers[worker] for worker in top.members)
    handover = HandoverPart(p.tree_comm, ranks, top.number, p.made.residuals, tables, c.gate.close)
    p.made.grouped = replace(part, handover=handover)


def taking_of(groups: Groups, n_workers: int, grouped: Collection[str]) -> Taking:
    """Return the workers whose shares of a checkpoint's residuals a worker takes, by table and worker."""
    leader_of = {worker: min(group) for group in groups for worker in group}

    def taking(table: str, worker: int) -> list[int]:
        if table not in grouped:
            return [worker]
        return [w for w in range(n_workers) if leader_of.get(w, w) == worker]

    return taking


class StartImage(NamedTuple):
    """The share of a worker in the images of a checkpoint.

    Attributes:
        residuals: Residuals by table, float32, flat; only of tables that have some in the checkpoint.
        local: The state of local training; None: the checkpoint has none, or the job no such tables.
        is_own: `local` is that of this worker.
    """

    residuals: dict[str, Float32]
    local: PartImage | None
    is_own: bool


def start_image(
    saving: Saving,
    tables: Sequence[Table],
    local: Collection[object],
    worker: int,
    n_workers: int,
    taking: Taking = lambda table, worker: [worker],
) -> StartImage:
    """Return what a worker takes of the images in the checkpoint from which the job starts. Blocks for files.

    Args:
        saving: The start of the job.
        tables: All tables of this job.
        local: Its tables under LocalSGD and DiLoCo; empty: no state is read.
        worker: Index of the worker.
        n_workers: Number of workers of this job.
        taking: `taking(table, worker)` returns the workers of this job whose residuals of a table the worker
            takes: those of its group, of which it is the leader, or its own.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    states = _states(saving)
    m, sums, state = len(states), dict[str, Float32](), None
    feedback = {table.name: table for table in feedback_tables(tables).values()}
    takes = {name: set(taking(name, worker)) for name in feedback}
    for other, described in enumerate(states):
        names = [name for name, workers in takes.items() if other % n_workers in workers]
        is_model = bool(local) and other == worker % m
        if saving.start is None or not (names or is_model):
            continue
        image = read_worker(saving.start, described)
        if is_model:
            state = image.get(LOCAL)
        for name, values in image[RESIDUALS].arrays.items() if RESIDUALS in image else ():
            if name in names:
                sums[name] = sums[name] + values if name in sums else values
    means = {n for n, t in feedback.items() if _applies_mean(t)}
    scaled = {n: v * np.float32(n_workers / m if n in means else 1) for n, v in sums.items()}
    return StartImage(scaled, state, m in (0, n_workers))


def _applies_mean(table: Table) -> bool:
    return isinstance(table.consistency, BSP) and table.consistency.reduce == "mean"


def _states(saving: Saving) -> Sequence[WorkerState]:
    """Return the states of the workers in the checkpoint from which a job starts."""
    return saving.origin.workers if saving.start is not None and saving.origin is not None else ()


def notes_of(
    saving: Saving, n_workers: int, declared: Sequence[Table], tables: Sequence[Table]
) -> list[str]:
    """Return sentences for the user on what a job does not take of the images in its checkpoint.

    Blocks to read the heads of the images.

    Args:
        saving: The start of the job.
        n_workers: Number of workers of this job.
        declared: All tables that the job declares.
        tables: All tables as servers have them.

    Raises:
        CheckpointError: A file cannot be read.
    """
    start, states = saving.start, [state for state in _states(saving) if state.files]
    if start is None or not states:
        return []
    heads = [read_heads(start, state) for state in states]
    local = [read_head(bytes(head[LOCAL].notes)) for head in heads if LOCAL in head]
    found = _local_notes(start, local, n_workers, declared) if local else []
    residuals, now = heads[0].get(RESIDUALS), {t.name for t in feedback_tables(tables).values()}
    return found + [
        f"table {name!r} has no codec with error feedback now: the residuals in the checkpoint are not used"
        for name, _ in (residuals.arrays if residuals is not None else ())
        if name not in now
    ]


def _local_notes(
    start: Path, heads: Sequence[LocalHead], n_workers: int, declared: Sequence[Table]
) -> list[str]:
    found, present = [], {table.name for table in local_tables(declared).values()}
    since = max(head.steps - head.synchronized for head in heads)
    unused = [table.name for table in heads[0].tables if table.name not in present]
    if unused:
        names = ", ".join(repr(name) for name in unused)
        found.append(
            f"{start} has values and inner states of workers for {names}, under LocalSGD or DiLoCo then and "
            f"not now: they are not used, and with them the inner steps since the last outer step of each "
            f"table ({since} at most); the tables start with the servers' values"
        )
    if present and len(heads) != n_workers:
        found.append(
            f"{start} has the inner states of {len(heads)} workers: worker w of {n_workers} starts with "
            f"those of worker w modulo {len(heads)}, and all start with the servers' values, without the "
            f"inner steps since the last outer step of each table ({since} at most)"
        )
    return found
