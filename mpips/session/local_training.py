"""Start-up of tables under LocalSGD and DiLoCo on a worker: its persistent memory, and where it starts.

A worker starts from the image in persistent memory where the job continues there, else from its file in the
checkpoint, else from the servers' values. The memory is one file of shared memory per worker. If it is not
there, or has not the image of the clock at which the worker continues, all ranks start from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpips.checkpoint import local_files
from mpips.errors import RegionError
from mpips.worker.local_state import Bytes, LocalMemory, image_bytes, memory_bytes
from mpips.worker.local_tables import LocalPart

if TYPE_CHECKING:
    from mpips import _native
    from mpips.checkpoint.manifest import WorkerState
    from mpips.model.table import DenseTable
    from mpips.session.parts import Parts
    from mpips.transport.region import Regions


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
        RegionError: It is not there; the message says why.
    """
    memory = regions.reopen(_part(worker, origin))
    needed = memory_bytes(list(tables.values()))
    if memory.n_bytes < needed:
        raise RegionError(f"the local values of worker {worker} have another size")
    found = _memory(memory, tables)
    if not found.holds(clock):
        raise RegionError(f"the local values of worker {worker} at clock {clock} are not there")
    return found


def connect_local(p: Parts) -> None:
    """Set `p.local_part` on a worker. Not collective; blocks to read a file.

    Raises:
        CheckpointError: The worker's file in the checkpoint is damaged.
        RegionError: /dev/shm is too small.
    """
    worker = p.cluster.worker
    if not p.local or worker is None:
        return
    if p.saving.places:
        memory, clock = p.local_memory, p.saving.places[worker].clock
        assert memory is not None
        p.local_part = LocalPart(p.local, memory, memory.image(clock), True, True, p.saving.folder)
        return
    new = None
    if p.warm:
        n_bytes = memory_bytes(list(p.local.values()))
        new = _memory(p.regions.create(_part(worker, p.generation), n_bytes), p.local)
    workers = p.saving.origin.workers if p.saving.origin is not None else ()
    n_workers = len(p.cluster.assignment.workers)
    image, is_own = start_image(p.saving.start, workers, worker, n_workers)
    p.local_part = LocalPart(p.local, new, image, is_own, False, p.saving.folder)


def start_image(
    start: Path | None, workers: Sequence[WorkerState], worker: int, n_workers: int
) -> tuple[Bytes | None, bool]:
    """Return the image in a checkpoint from which a worker starts, and whether it is its own.

    If the checkpoint is of another number of workers, worker w takes the inner states of worker w modulo that
    number.

    Args:
        start: Folder of the checkpoint; None: there is none.
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


def note_of(start: Path | None, workers: Sequence[WorkerState], n_workers: int) -> str:
    """Return a sentence for the user where inner states come from another number of workers; else ""."""
    if start is None or len(workers) == n_workers or not any(w.local for w in workers):
        return ""
    return (
        f"{start} has the inner states of {len(workers)} workers: worker w of {n_workers} starts with "
        f"those of worker w modulo {len(workers)}, and all start with the servers' values"
    )
