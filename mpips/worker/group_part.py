"""The group of one worker, as start-up makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mpips import _native
from mpips.model.table import DenseTable
from mpips.mpi.contributions import Contributions
from mpips.worker.group_rows import GroupRows
from mpips.worker.row_pulls import SharedRowsPart


@dataclass(frozen=True)
class GroupPart:
    """The group of one worker, as start-up makes it. Its workers are numbered in their order.

    Attributes:
        tables: Tables whose updates the group sums, by their index in the job.
        members: Index of each worker of the group in the job.
        number: Number of this worker in the group.
        memory: Memory that the workers of the group on this node share.
        layout: Its layout.
        reduction: This worker's end.
        contributions: Messages to and from workers of the group on other nodes; None: there are none.
        outlives: Memory of servers outlives the launch, so ticks have an order; see mpips.worker.grouped.
        had_finished: The worker had finished in the launch before.
        rows: The sums of rows of embedding tables; None: there are none. With them the reduction has one
            more table, without elements: its clocks are complete when all of the group have ended them.
        shared_rows: Rows of servers on other nodes that the group pulls once; None: there are none.
    """

    tables: Mapping[int, DenseTable]
    members: tuple[int, ...]
    number: int
    memory: _native.SharedMemory
    layout: _native.NodeLayout
    reduction: _native.Reduction
    contributions: Contributions | None = None
    outlives: bool = False
    had_finished: bool = False
    rows: GroupRows | None = None
    shared_rows: SharedRowsPart | None = None
