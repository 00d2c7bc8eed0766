"""The replicated tables of one worker, as start-up makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpips import _native
    from mpips.model.placement import ShardRange
    from mpips.model.table import DenseTable
    from mpips.mpi.contributions import Contributions


@dataclass(frozen=True)
class ReplicatedPart:
    """The replicated tables of one worker, as start-up makes them.

    Attributes:
        tables: The replicated tables, by their index in the job.
        shards: The servers' shards of each of them, in this order.
        memory: The memory that the workers of this node share.
        layout: Its layout.
        reduction: This worker's end.
        contributions: Messages between nodes; None: all workers are on this node.
        stores: The job writes checkpoints, so servers need the values.
        receivers: For each worker of another node the worker of this node that receives its updates.
        had_finished: The worker had finished in the launch before.
    """

    tables: dict[int, DenseTable]
    shards: Sequence[Sequence[ShardRange]]
    memory: _native.SharedMemory
    layout: _native.NodeLayout
    reduction: _native.Reduction
    contributions: Contributions | None = None
    stores: bool = True
    receivers: Mapping[int, int] = field(default_factory=dict)
    had_finished: bool = False
