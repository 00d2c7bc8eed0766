"""Memory that workers share within a launch, and no longer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from mpips.errors import RegionError
from mpips.transport.region import as_region_error, attach

if TYPE_CHECKING:
    from mpips import _native
    from mpips.worker.start import JobStart


def share(
    p: JobStart,
    part: str,
    what: str,
    keys: Sequence[Hashable | None],
    n_bytes: Sequence[int],
    takes_pages: bool = True,
) -> tuple[_native.SharedMemory | None, list[int]]:
    """Make memory for each set of workers, zeroed. Collective; blocks.

    When all have attached it, its name is removed: it ends with the processes, however they end.

    Args:
        p: The parts of this rank.
        part: First part of the names, the same on all ranks.
        what: The action, for errors.
        keys: For each worker what it has in common with those that it shares memory with; None: it needs no
            memory.
        n_bytes: Size of each worker's memory, equal for equal keys.
        takes_pages: Reserve its pages now. Otherwise users do so with `commit` before the first access.

    Returns:
        This rank's memory, or None; for each worker the first one that uses the same memory, -1 for none. A
        worker that cannot attach the memory of its set has memory of its own.

    Raises:
        MpipsError: The first error of any rank; all ranks raise it.
    """
    c, memory = p.cluster, None
    made: list[str] = []

    def name_of(worker: int) -> str:
        return f"{part}{worker}-{p.generation}"

    def make(worker: int) -> _native.SharedMemory:
        name = name_of(worker)
        found = p.regions.create_sparse(name, n_bytes[worker])
        made.append(name)
        if takes_pages:
            with as_region_error():
                found.commit(0, n_bytes[worker])
        return found

    def begin() -> None:
        nonlocal memory
        if c.worker is not None and keys[c.worker] is not None:
            first = keys.index(keys[c.worker])
            memory = make(first) if first == c.worker else None

    def join() -> int:
        nonlocal memory
        if c.worker is None or keys[c.worker] is None:
            return -1
        if memory is not None:
            return c.worker
        first = keys.index(keys[c.worker])
        try:
            memory = attach(c.token, name_of(first), n_bytes[first])
        except RegionError:
            # Containers on one node may have a /dev/shm each.
            memory, first = make(c.worker), c.worker
        return first

    try:
        c.agree(what, begin)
        rows = c.agree(what, join)
    finally:
        # After an error, too: the names of a run that continues in memory would stay until its end.
        for name in made:
            p.regions.unlink_part(name)
    return memory, [rows[rank] for rank in c.assignment.workers]
