"""The memory of replicated tables on one node, and one worker's native end of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpips import _native
from mpips.checkpoint.shards import DenseShardData, ShardData
from mpips.model.consistency import BSP
from mpips.model.optimizer import SGD
from mpips.model.python_rule import PythonRule
from mpips.model.table import DenseTable, Table, replicated_tables
from mpips.transport.region import Regions, as_region_error
from mpips.worker.replicated.part import ReplicatedPart

if TYPE_CHECKING:
    from mpips.model.placement import Placement
    from mpips.server.server import Server

Float32 = NDArray[np.float32]
Rule = tuple[str, _native.OptimizerConfig, bool, int, bool]  # of one replicated table

ROUNDS = 8  # pushes of a worker to a replicated table in one clock, at most


def node_layout(
    tables: Mapping[int, DenseTable], n_workers: int, durable: bool = False
) -> _native.NodeLayout:
    """Return the layout of a node's memory for these replicated tables.

    Args:
        tables: The replicated tables, by their index in the job.
        n_workers: Number of workers of the job.
        durable: The memory outlives a launch; see mpips.recovery.node_tables.
    """
    sizes = [(t.n_elements, t.optimizer.n_state) for t in tables.values()]
    return _native.NodeLayout(n_workers, sizes, ROUNDS, durable)


def native_rules(tables: Mapping[int, DenseTable], steps: Sequence[int]) -> list[Rule]:
    """Return the rules of replicated tables as native code takes them.

    Args:
        tables: The replicated tables, by their index in the job.
        steps: Number of updates of each table before the start.
    """
    rules = []
    for table, n in zip(tables.values(), steps, strict=True):
        assert isinstance(table.consistency, BSP)
        replaces = isinstance(table.optimizer, PythonRule)
        config = SGD() if isinstance(table.optimizer, PythonRule) else table.optimizer
        mean = table.consistency.reduce == "mean"
        rules.append((table.name, config.native(), mean, n, replaces))
    return rules


def make_reduction(
    tables: Mapping[int, DenseTable],
    memory: _native.SharedMemory,
    layout: _native.NodeLayout,
    worker: int,
    local: Sequence[int],
    steps: Sequence[int],
    oversubscribed: bool,
    start: tuple[int, int, bool, bool] = (0, 0, False, False),
) -> _native.Reduction:
    """Return a worker's end of the replicated tables in a node's memory.

    Args:
        tables: The replicated tables, by their index in the job.
        memory: The memory of the node.
        layout: Its layout.
        worker: Index of the worker.
        local: Workers of the node, ascending.
        steps: Number of updates of each table before the start.
        oversubscribed: There are more ranks than cores on the node.
        start: Clock of the worker, clocks in the values, and whether the worker repeats a clock that is
            known, or had finished; see native/src/reduction/reduction.hpp.
    """
    rules = native_rules(tables, steps)
    return _native.Reduction(memory, layout, worker, list(local), rules, oversubscribed, start)


def local_part(
    tables: Sequence[Table],
    placement: Placement,
    regions: Regions,
    servers: Sequence[Server],
    stores: bool,
) -> ReplicatedPart | None:
    """Return the replicated tables of a job of one process; None if it has none.

    Args:
        tables: All tables of the job.
        placement: Shards of the servers.
        regions: Makes memory.
        servers: The servers, with the values at the start.
        stores: The job writes checkpoints.

    Raises:
        RegionError: There is too little memory.
    """
    found = replicated_tables(tables)
    if not found:
        return None
    layout = node_layout(found, 1)
    memory = make_memory(regions, "r0", layout)
    for place, (index, table) in enumerate(found.items()):
        for slot in range(1 + table.optimizer.n_state):
            array = array_of(memory, layout, place, slot, table.n_elements)
            for part in placement.dense[table.name]:
                values = servers[part.server].core.dense_array(index, slot)
                array[part.start : part.stop] = values
    steps = [max(server.core.steps(index) for server in servers) for index in found]
    reduction = make_reduction(found, memory, layout, 0, [0], steps, True)
    shards = [placement.dense[table.name] for table in found.values()]
    return ReplicatedPart(found, shards, memory, layout, reduction, None, stores)


def with_copies(shards: Sequence[ShardData], part: ReplicatedPart) -> list[ShardData]:
    """Return the shards of a job of one process, with the values of replicated tables that the worker has.

    A job that writes no checkpoints does not bring them to its server.
    """
    values = {
        table.name: array_of(part.memory, part.layout, place, 0, table.n_elements)
        for place, table in enumerate(part.tables.values())
    }
    return [
        replace(shard, values=values[shard.table])
        if isinstance(shard, DenseShardData) and shard.table in values
        else shard
        for shard in shards
    ]


def make_memory(regions: Regions, part: str, layout: _native.NodeLayout) -> _native.SharedMemory:
    """Make the memory of a node, with pages for everything but later rounds.

    Raises:
        RegionError: /dev/shm, or this machine's memory, is too small.
    """
    memory = regions.create_sparse(part, layout.total_bytes)
    with as_region_error():
        memory.commit(0, layout.first_bytes)
    return memory


def array_of(
    memory: _native.SharedMemory, layout: _native.NodeLayout, table: int, slot: int, n: int
) -> Float32:
    """Return the `n` values (slot 0) or states of a table, float32, writable, without a copy."""
    return memory.view(layout.array(table, slot), 4 * n, True).view(np.float32)
