"""Start-up of tables under LocalSGD and DiLoCo on a worker: its persistent memory, and where it starts.

A worker starts from the image in persistent memory where the job continues there, else from its file in the
checkpoint, else from the servers' values. The memory is one file of shared memory per worker. If it is not
there, or has not the image of the clock at which the worker continues, all ranks start from a checkpoint.

New memory has an image of clock 0 from the start-up on, before any worker makes a step. So a launch can
continue in memory when a worker has not used a table yet, for example because it still reads its data, while
others of an asynchronous job have made outer steps. That image is the worker's own one of the checkpoint, or
it records that the worker takes its values from the servers at its first use, with the inner states in it. A
worker that repeats its first clock from such an image may find newer values of servers there; see
"Asynchronous outer steps" in mpips.worker.local.tables. Without asynchronous outer steps the servers end no
clock before the worker has, so it finds the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpips.checkpoint import Manifest, local_files
from mpips.errors import RegionError
from mpips.model.served import local_tables
from mpips.model.table import DenseTable, Table
from mpips.transport.region import Regions
from mpips.worker.local.state import (
    Bytes,
    LocalHead,
    LocalMemory,
    LocalState,
    image_bytes,
    load,
    memory_bytes,
    read_head_of,
)
from mpips.worker.local.tables import LocalPart
from mpips.worker.start import JobStart, NodeBytes, Planned

if TYPE_CHECKING:
    from mpips import _native
    from mpips.checkpoint.manifest import WorkerState


def _part(worker: int, origin: int) -> str:
    """Return the part name of a worker's persistent memory.

    Clocks count from launch `origin`, which created the memory of the job. A node that was absent when that
    launch removed older memory may still have images of the same clock numbers, from before.
    """
    return f"l{worker}g{origin}"


def _memory(memory: _native.SharedMemory, tables: Mapping[int, DenseTable]) -> LocalMemory:
    return LocalMemory(memory, image_bytes(list(tables.values())))


def reopen(
    regions: Regions, tables: Mapping[int, DenseTable], worker: int, clock: int, origin: int
) -> LocalMemory:
    """Take over the memory of the launch before, with the image of this clock.

    Args:
        regions: Memory of the job on this node.
        tables: The tables under LocalSGD and DiLoCo by their index.
        worker: Index of the worker.
        clock: Its clock, counted from the launch that created the memory.
        origin: Generation number of that launch.

    Raises:
        RegionError: It is not there; the message gives the reason.
    """
    memory = regions.reopen(_part(worker, origin))
    needed = memory_bytes(list(tables.values()))
    if memory.n_bytes < needed:
        raise RegionError(f"the local values of worker {worker} have another size")
    found = _memory(memory, tables)
    if not found.holds(clock):
        raise RegionError(f"the local values of worker {worker} at clock {clock} are not there")
    return found


def memory(job: Planned) -> list[NodeBytes]:
    """Return the memory of each node: values, states and a gradient of each worker, and persistent images."""
    found = list(local_tables(job.declared).values())
    if not found:
        return job.by_node(NodeBytes())
    # Values and inner states are those of an image; beside them are the servers' values and a gradient.
    private = image_bytes(found) + 2 * sum(4 * t.n_elements for t in found)
    return job.by_node(NodeBytes(memory_bytes(found) if job.warm else 0, private))


def connect(p: JobStart) -> None:
    """Set `p.made.local` on a worker, and notes on what the job does not take. Collective; blocks for files.

    Also a job without tables under LocalSGD or DiLoCo may start from a checkpoint that has such files.

    Raises:
        MpipsError: The first error of any rank, such as a damaged file or too little memory in /dev/shm; all
            ranks raise it.
    """
    c = p.cluster
    c.agree("reading the workers' local values", lambda: _connect(p))
    workers = p.saving.origin.workers if isinstance(p.saving.origin, Manifest) else ()
    if p.saving.start is None or not any(worker.local for worker in workers):
        return
    n_workers, is_first = len(c.assignment.workers), c.rank == c.assignment.workers[0]
    found = c.agree(
        "reading the heads of the workers' local values",
        lambda: notes_of(p.saving.start, workers, n_workers, p.declared) if is_first else [],
    )
    p.notes += found[c.assignment.workers[0]]


def _connect(p: JobStart) -> None:
    """Set `p.made.local` on a worker. Not collective; blocks to read a file."""
    worker = p.cluster.worker
    if not p.local or worker is None:
        return
    if p.saving.places:
        memory, clock = p.local_memory, p.saving.places[worker].clock
        assert memory is not None
        p.made.local = LocalPart(p.local, memory, memory.image(clock), True, True, p.saving.folder)
        return
    workers = p.saving.origin.workers if p.saving.origin is not None else ()
    n_workers = len(p.cluster.assignment.workers)
    image, is_own = start_image(p.saving.start, workers, worker, n_workers)
    new = None
    if p.warm:
        n_bytes = memory_bytes(list(p.local.values()))
        new = _memory(p.regions.create(_part(worker, p.generation), n_bytes), p.local)
        write_first(new, p.local, image, is_own)
    p.made.local = LocalPart(p.local, new, image, is_own, False, p.saving.folder)


def write_first(
    memory: LocalMemory, tables: Mapping[int, DenseTable], image: Bytes | None, is_own: bool
) -> None:
    """Write the image of clock 0 to new memory; see the module.

    Args:
        memory: The memory.
        tables: The tables under LocalSGD and DiLoCo by their index.
        image: The image in the checkpoint from which the worker starts; None: no such image.
        is_own: It is that of this worker.

    Raises:
        ConfigError: The image has other tables or inner rules.
        CheckpointError: It is damaged.
    """
    states = [LocalState.of(table) for table in tables.values()]
    head = LocalHead(is_new=True)
    if image is not None:
        found = load(image, states, False)
        head = found.counted_anew() if is_own else head
    if head.is_new:
        for state in states:
            state.pending = False
    memory.write(0, head, states)


def start_image(
    start: Path | None, workers: Sequence[WorkerState], worker: int, n_workers: int
) -> tuple[Bytes | None, bool]:
    """Return the image in a checkpoint from which a worker starts, and whether it is its own.

    If the checkpoint is of another number of workers, worker w takes the inner states of worker w modulo that
    number.

    Args:
        start: Folder of the checkpoint; None: no checkpoint.
        workers: States of the workers in it.
        worker: Index of the worker.
        n_workers: Number of workers of this job.

    Raises:
        CheckpointError: The file is damaged.
    """
    if start is None or not workers:
        return None, True
    local = workers[worker % len(workers)].local
    image = local_files.read(start, local) if local is not None else None
    return image, len(workers) == n_workers


def notes_of(
    start: Path | None, workers: Sequence[WorkerState], n_workers: int, tables: Sequence[Table]
) -> list[str]:
    """Return sentences for the user on what a job does not take from the workers' files of a checkpoint.

    Blocks to read the heads of the files.

    Args:
        start: Folder of the checkpoint; None: no checkpoint.
        workers: States of the workers in it.
        n_workers: Number of workers of this job.
        tables: All tables that the job declares.

    Raises:
        CheckpointError: A file cannot be read.
    """
    files = [worker.local for worker in workers if worker.local is not None]
    if start is None or not files:
        return []
    heads = [read_head_of(start / file.name) for file in files]
    found, present = [], {table.name for table in local_tables(tables).values()}
    unused = [table.name for table in heads[0].tables if table.name not in present]
    if unused:
        names = ", ".join(repr(name) for name in unused)
        found.append(
            f"{start} has values and inner states of workers for {names}, under LocalSGD or DiLoCo then and "
            f"not now: they are not used, and with them the inner steps since {_since(heads)}; the tables "
            "start with the servers' values"
        )
    if present and len(workers) != n_workers:
        found.append(
            f"{start} has the inner states of {len(workers)} workers: worker w of {n_workers} starts with "
            f"those of worker w modulo {len(workers)}, and all start with the servers' values, without the "
            f"inner steps since {_since(heads)}"
        )
    return found


def _since(heads: Sequence[LocalHead]) -> str:
    """Return from where on the inner steps count that servers may not have."""
    most = max(head.steps - head.synchronized for head in heads)
    return f"the last outer step of each table ({most} at most)"
