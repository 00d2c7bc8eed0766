"""The rule of placement = "auto": which dense tables are replicated, and which lie on servers.

The rule is that of a hybrid job (S. Kim et al., "Parallax: Sparsity-aware Data Parallel Training of Deep
Neural Networks", EuroSys 2019): rows of embeddings always go to servers, and a dense table goes the way whose
estimated time is less. An estimate takes one update of the table by every worker, counts the bytes that the
slowest rank moves in memory and the busiest node sends or receives, and divides them by measured bandwidths.
So replicated tables pay where workers are more than servers, or servers far away; servers pay with many
nodes, since each node would receive the updates of all others. A replicated table takes memory on every node
with workers: the smallest ones come first, and the rest lies on servers when the memory is used up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mpips.errors import ConfigError
from mpips.model.replicated import Replicated, check_replicated
from mpips.model.table import DenseTable, Table

_LEAST_GAIN = (
    0.9  # estimates are rough, and replicated tables take memory: a smaller gain does not count
)
# Of the free shared memory, which buffers of later pushes need, too; at a restart in memory, the tables of
# the launch before.
_SHARE_OF_ROOM = 0.5


@dataclass(frozen=True)
class Site:
    """The ranks of a job and the bandwidths between them.

    Attributes:
        worker_nodes: Node of each worker.
        server_nodes: Node of each server.
        memory_rate: Bytes per second that a rank reads or writes in memory while all do so.
        network_rate: Bytes per second that a node sends to another while it receives as many; infinite with
            one node.
        room: Bytes of free shared memory on the node with workers that has the least.
        durable: Replicated tables continue in memory after a failure, so they have two versions.
    """

    worker_nodes: tuple[int, ...]
    server_nodes: tuple[int, ...]
    memory_rate: float
    network_rate: float
    room: int
    durable: bool = False

    def server_seconds(self, table: DenseTable) -> float:
        """Estimate the time in which every worker updates and pulls a table on servers once."""
        n_workers, n_servers = len(self.worker_nodes), len(self.server_nodes)
        # Workers copy an update and pull the values at the same time; servers read all updates.
        passes = 4 + (n_workers + _rule_passes(table)) / n_servers
        received = self._received_by_servers / self.network_rate
        return 4.0 * table.n_elements * (passes / self.memory_rate + received)

    def replicated_seconds(self, table: DenseTable) -> float:
        """Estimate the time in which every worker updates and pulls a replicated table once."""
        n_workers, on_node = len(self.worker_nodes), self._workers_on.values()
        copied = 1 + table.optimizer.n_state if self.durable else 0
        passes = 4 + (n_workers + _rule_passes(table) + copied) / min(on_node)
        # Each worker sends to every other node, and each node receives from every worker of the others.
        busiest = max(max(n * (len(on_node) - 1), n_workers - n) for n in on_node)
        return 4.0 * table.n_elements * (passes / self.memory_rate + busiest / self.network_rate)

    def replicated_bytes(self, table: DenseTable) -> int:
        """Return the shared memory of a replicated table on each node: values, state and all updates."""
        versions = 2 if self.durable else 1
        arrays = versions * (1 + table.optimizer.n_state) + len(self.worker_nodes)
        return 4 * table.n_elements * arrays

    @cached_property
    def _workers_on(self) -> Counter[int]:
        """Number of workers of each node that has any."""
        return Counter(self.worker_nodes)

    @cached_property
    def per_node(self) -> list[tuple[int, int]]:
        """Numbers of workers and servers of each node."""
        servers = Counter(self.server_nodes)
        return [(self._workers_on[node], servers[node]) for node in {*self._workers_on, *servers}]

    @cached_property
    def _received_by_servers(self) -> float:
        """Number of times that the busiest node receives each value, in updates and in pulls."""
        n_workers, n_servers = len(self.worker_nodes), len(self.server_nodes)
        counts = (s * (n_workers - w) + w * (n_servers - s) for w, s in self.per_node)
        return max(counts) / n_servers


@dataclass(frozen=True)
class Choice:
    """The result of the rule.

    Attributes:
        replicated: Names of the tables to replicate.
        reason: One sentence, for people.
    """

    replicated: tuple[str, ...]
    reason: str


def auto_tables(tables: Sequence[Table]) -> list[DenseTable]:
    """Return the tables whose placement is "auto"."""
    return [t for t in tables if isinstance(t, DenseTable) and t.placement == "auto"]


def choose_placement(tables: Sequence[Table], site: Site) -> Choice:
    """Decide about the tables whose placement is "auto"; arithmetic only, equal on all ranks.

    Args:
        tables: All tables of the job.
        site: Its ranks and bandwidths.
    """
    asked = auto_tables(tables)
    able = [table for table in asked if _can_be_replicated(table)]
    faster = [
        table
        for table in able
        if site.replicated_seconds(table) <= _LEAST_GAIN * site.server_seconds(table)
    ]
    chosen, left = [], _SHARE_OF_ROOM * site.room
    for table in sorted(faster, key=_by_size):
        left -= site.replicated_bytes(table)
        if left < 0:
            break
        chosen.append(table)
    reason = _why(site, asked, able, faster, chosen)
    return Choice(tuple(sorted(table.name for table in chosen)), reason)


def _by_size(table: DenseTable) -> tuple[int, str]:
    return table.n_elements, table.name


def _can_be_replicated(table: DenseTable) -> bool:
    if table.compression is not None or table.pull_compression is not None:
        return False
    try:
        check_replicated(table.consistency, table.optimizer)
    except ConfigError:
        return False
    return True


def _rule_passes(table: DenseTable) -> int:
    """Return how often an optimizer's kernel reads or writes the table: its values, each state, the sum."""
    return 2 + 2 * table.optimizer.n_state + 1


def _why(
    site: Site,
    asked: Sequence[DenseTable],
    able: Sequence[DenseTable],
    faster: Sequence[DenseTable],
    chosen: Sequence[DenseTable],
) -> str:
    """Return one sentence on the choice."""
    head = f"placement = 'auto': {len(chosen)} of {len(asked)} tables replicated"
    if not able:
        return f"{head}: no table has BSP without backup workers, an optimizer of mpips and no compression"
    there = sum(map(site.replicated_seconds, able)) * 1e6
    here = sum(map(site.server_seconds, able)) * 1e6
    times = f"a step is estimated at {there:,.2f} us with replicas, {here:,.2f} us with servers"
    if len(chosen) < len(faster):
        least = sorted(faster, key=_by_size)[len(chosen)]
        return (
            f"{head}, the smallest ones: {times}; replicas of all take more than half of the "
            f"{site.room / 2**20:.0f} MiB free in /dev/shm, so {least.name!r} and larger ones lie on servers"
        )
    return f"{head}: {times}"


def placed(tables: Sequence[Table], replicated: Collection[str]) -> list[Table]:
    """Return the tables, with "auto" replaced: by Replicated() for these names, by "servers" for others."""
    return [
        replace(table, placement=Replicated() if table.name in replicated else "servers")
        if isinstance(table, DenseTable) and table.placement == "auto"
        else table
        for table in tables
    ]
