"""The group of one worker, as start-up makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpips import _native
    from mpips.model.table import DenseTable
    from mpips.mpi.contributions import Contributions
    from mpips.worker.groups.handover import HandoverPart
    from mpips.worker.groups.rows import GroupRows


@dataclass(frozen=True)
class GroupPart:
    """One level of the group of one worker, as start-up makes it. Its workers are numbered in their order.

    Attributes:
        tables: Tables whose updates the group sums, by their index in the job.
        members: Index in the job of each worker of the group, or of the subgroup with an `upper` level.
        number: Number of this worker among them.
        memory: Memory that these workers share on this node.
        layout: Its layout.
        reduction: This worker's end.
        contributions: Messages to and from such workers on other nodes; None: no such workers.
        outlives: Memory of servers outlives the launch, so ticks have an order; see groups.tables.
        had_finished: The worker had finished in the launch before.
        rows: The sums of rows of embedding tables; None: no such sums. With them the reduction has one
            more table, without elements: its clocks are complete when all of the group have ended them.
        units: Numbers of the workers of each subgroup, and of other workers alone; (): no subgroups.
        upper: The level of the group, if this one is that of a subgroup.
        handover: The residuals of the group's sums, in the lowest level of the worker; None: no residuals.
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
    units: tuple[tuple[int, ...], ...] = ()
    upper: GroupPart | None = None
    handover: HandoverPart | None = None

    def unit_of(self, number: int) -> tuple[int, ...]:
        """Return the numbers of the workers of a worker's subgroup in this level, or its own."""
        return next((unit for unit in self.units if number in unit), (number,))
