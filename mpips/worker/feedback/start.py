"""The memory of a worker's residuals at the start: new, from a checkpoint, or of the launch before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips.checkpoint import Manifest
from mpips.checkpoint.reader import open_checkpoint
from mpips.checkpoint.residuals import ResidualFolder, Taking, restored, unused
from mpips.errors import RegionError
from mpips.model.grouping import Groups
from mpips.model.placement import Placement
from mpips.model.table import Table, feedback_tables
from mpips.recovery.memory import Memory
from mpips.recovery.saving import Saving
from mpips.transport.region import Regions
from mpips.worker.feedback.residuals import Residuals, residual_layout
from mpips.worker.groups.handover import HandoverPart
from mpips.worker.start import JobStart, NodeBytes, Planned

if TYPE_CHECKING:
    from mpips.rundir.directory import Supervised

Float32 = NDArray[np.float32]

# Name of a worker's file; mpips.recovery.replica_memory takes it for no set of a server.
_PART = "e{worker}"


def memory(job: Planned) -> list[NodeBytes]:
    """Return the memory of each node: residuals of its workers, in two halves if they outlive a launch."""
    n_bytes = residual_layout(job.tables, job.placement, 2 if job.warm else 1)[1]
    return job.by_node(NodeBytes(n_bytes, 0) if job.warm else NodeBytes(0, n_bytes))


def local_residuals(
    tables: Sequence[Table],
    placement: Placement,
    regions: Regions,
    saving: Saving | None = None,
    run: Supervised | None = None,
) -> Residuals | None:
    """Return the residuals of the worker of a job in one process; None if it has none. Blocking.

    Without `saving` they begin with zeros, and nothing is saved.

    Raises:
        MpipsError: There is too little memory, or the checkpoint cannot be read.
    """
    saving = saving or Saving(None, regions.token)
    return _new(tables, placement, regions, saving, run, 0, 1, halves=1)


def connect(parts: JobStart) -> None:
    """Set `made.residuals`: make or take over the residuals of this rank's worker. Collective; blocks.

    It comes after the channels, which have the worker's position at each server. It comes before the memory
    of this launch is that in which the next one continues: the file's mark must not be older than that.

    Raises:
        MpipsError: The first error of any rank; all ranks raise it.
    """
    parts.notes += notes_of(parts.saving, parts.tables)
    if not feedback_tables(parts.tables):
        return
    c = parts.cluster
    rows = c.agree("making the workers' residuals", lambda: _make(parts), lengthy=True)
    _connect_handover(parts)
    lost = [(c.name_of(rank), rows[rank]) for rank in c.assignment.workers if rows[rank]]
    for name, n in lost:
        parts.notes.append(
            f"{name} has lost {n} residual{'s' if n > 1 else ''}, which are not on its node: what its "
            "pushes had not sent is missing in the result"
        )


def _connect_handover(p: JobStart) -> None:
    """Let a worker take part in the handover of its group's residuals. Not collective."""
    c, part = p.cluster, p.made.grouped
    tables = feedback_tables(p.tables).keys() & p.grouped_tables.keys()
    if part is None or p.made.residuals is None or p.tree_comm is None or not tables:
        return
    top = part.upper or part
    ranks = tuple(c.assignment.workers[worker] for worker in top.members)
    handover = HandoverPart(p.tree_comm, ranks, top.number, p.made.residuals, tables, c.gate.close)
    p.made.grouped = replace(part, handover=handover)


def _taking(groups: Groups, n_workers: int, grouped: Collection[str]) -> Taking:
    """Return the workers whose shares of a checkpoint's residuals a worker takes; see `restored`."""
    leader_of = {worker: min(group) for group in groups for worker in group}

    def taking(table: str, worker: int) -> list[int]:
        if table not in grouped:
            return [worker]
        return [w for w in range(n_workers) if leader_of.get(w, w) == worker]

    return taking


def notes_of(saving: Saving, tables: Sequence[Table]) -> list[str]:
    """Return a sentence for each table whose residuals in the checkpoint the job does not use."""
    if not isinstance(saving.origin, Manifest):
        return []
    return [
        f"table {table!r} has no codec with error feedback now: the residuals in the checkpoint are not used"
        for table in unused(saving.origin, tables)
    ]


def _make(parts: JobStart) -> int:
    """Make the residuals of this rank; return how many the launch before had and are lost."""
    worker = parts.cluster.worker
    if worker is None:
        return 0
    p, n_workers = parts, len(parts.cluster.assignment.workers)
    if not p.saving.places:
        p.made.residuals = _new(
            p.tables,
            p.placement,
            p.regions,
            p.saving,
            p.run,
            worker,
            n_workers,
            2 if p.warm else 1,
            _taking(p.groups, n_workers, {t.name for t in p.grouped_tables.values()}),
        )
        if p.made.residuals is not None and p.warm:
            p.made.residuals.mark(p.generation)
        return 0
    # Continue in the memory of the launch before, if it is on this node and no older one.
    assert isinstance(p.saving.origin, Memory)
    folder = _folder(p.saving, p.run, worker)
    part, n_bytes = _PART.format(worker=worker), residual_layout(p.tables, p.placement, 2)[1]
    try:
        memory = p.regions.reopen(part)
    except RegionError:
        memory = p.regions.create(part, n_bytes)
    residuals = Residuals(memory, p.tables, p.placement, 2, folder)
    next_records = [at.sequence for at in p.at]
    if residuals.generation < p.saving.origin.served:
        # Nothing in it is of this run's last launch: let no half be valid.
        residuals.forget()
    lost = residuals.count_lost(next_records)
    residuals.mark(p.generation)
    p.made.residuals = residuals
    return lost


def _new(
    tables: Sequence[Table],
    placement: Placement,
    regions: Regions,
    saving: Saving,
    run: Supervised | None,
    worker: int,
    n_workers: int,
    halves: int,
    taking: Taking = lambda table, worker: [worker],
) -> Residuals | None:
    """Return new residuals: those of the checkpoint from which the job starts, or zeros."""
    n_bytes = residual_layout(tables, placement, halves)[1]
    if not n_bytes:
        return None
    private = Regions(regions.token, shared=False)
    memory = (regions if halves > 1 else private).create(_PART.format(worker=worker), n_bytes)
    residuals = Residuals(memory, tables, placement, halves, _folder(saving, run, worker))
    values: dict[str, Float32] = {}
    if saving.start is not None:
        with open_checkpoint(saving.start) as checkpoint:
            values = restored(saving.start, checkpoint.manifest, tables, worker, n_workers, taking)
    residuals.fill(values)
    return residuals


def _folder(saving: Saving, run: Supervised | None, worker: int) -> ResidualFolder | None:
    if saving.folder is None:
        return None
    return ResidualFolder(saving.folder, run.generation if run is not None else 0, worker)
