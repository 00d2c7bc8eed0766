"""Groups of workers whose updates of dense tables and rows are summed before they are sent to servers.

With several workers on a node and servers elsewhere, each update of a table would cross the network once for
each worker. A group sums them first, so they cross it once (mpips.worker.groups.tables). This is the
two-level aggregation of BytePS (Jiang et al., "A Unified Architecture for Accelerating Distributed DNN
Training in Heterogeneous GPU/CPU Clusters", OSDI 2020), with servers in place of its summation services.

Two levels. A group may have subgroups, such as the workers of each node of a rack. A subgroup adds its
updates up first, and the group adds up the sums of its subgroups and the updates of its other workers. So
each update crosses the network between nodes of a rack once for a subgroup, and the network between racks
once for a group.

Bits. The servers add the sums of groups, and the updates of workers in no group, in the order of the lowest
worker of each that has not finished. A group also adds the sums of its subgroups and the updates of its
other workers in this order, and a subgroup adds updates in the order of its workers. So the bits of a result
depend on the groups and subgroups alone, not on transports, timing, restarts, or on where workers run.

SSP and ASP. There a server applies each push by itself, so a sum takes the place of several steps of the
optimizer. Both give the same values, up to rounding, if a step is linear in the update and independent of the
values and of its number: w -= lr u. That is SGD without weight decay, which also depends on w, and without
clip_value. No policy but Accept is independent of the number of updates. Other tables under SSP and ASP are
pushed by each worker, beside those that the group sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mpips.errors import ConfigError
from mpips.model.consistency import ASP, BSP, SSP, Accept, Consistency
from mpips.model.optimizer import SGD, Optimizer
from mpips.model.served import is_local
from mpips.model.table import DenseTable, EmbeddingTable, Table

if TYPE_CHECKING:
    from mpips.model.auto_placement import Site
    from mpips.model.python_rule import PythonRule

Groups = tuple[tuple[int, ...], ...]  # workers of each group, ascending; none is in two
# Groups as users list them: workers, or lists of workers that are subgroups.
ListedGroups = Sequence[Sequence[int | Sequence[int]]]

_LEAST_GAIN = 0.9  # estimates are rough: a smaller gain does not count


def can_sum(consistency: Consistency, optimizer: Optimizer | PythonRule) -> bool:
    """Return True if one push of a sum has the effect of a push of each update."""
    if isinstance(consistency, BSP):
        return consistency.backup == 0
    return (
        isinstance(consistency, SSP | ASP)
        and isinstance(consistency.policy, Accept)
        and isinstance(optimizer, SGD)
        and optimizer.weight_decay == 0
        and optimizer.clip_value == 0
    )


def grouped_tables(tables: Sequence[Table]) -> dict[int, DenseTable]:
    """Return the tables whose updates groups can sum, by their index: dense ones on servers; see `can_sum`.

    Groups count the clocks of workers. Beside tables under LocalSGD or DiLoCo a clock of the servers is an
    outer step, and backup workers let a worker skip clocks: there, no table under SSP or ASP is summed.

    `tables` are those that the program has declared, before `mpips.model.served.served`.
    """
    counted = not any(
        is_local(t) or (isinstance(t.consistency, BSP) and t.consistency.backup) for t in tables
    )
    return {
        i: table
        for i, table in enumerate(tables)
        if isinstance(table, DenseTable)
        and not table.is_replicated
        and not is_local(table)
        and can_sum(table.consistency, table.optimizer)
        and (counted or isinstance(table.consistency, BSP))
    }


def grouped_rows(tables: Sequence[Table], sums_rows: bool) -> dict[int, EmbeddingTable]:
    """Return the embedding tables whose rows groups can sum, by their index: under BSP, without storage.

    Args:
        tables: The tables of the job.
        sums_rows: False where `cluster.group_rows_mib = 0`, so that groups sum none.
    """
    return {
        i: table
        for i, table in enumerate(tables)
        if isinstance(table, EmbeddingTable)
        and isinstance(table.consistency, BSP)
        and table.consistency.backup == 0
        and table.storage is None
        and sums_rows
    }


def node_groups(worker_nodes: Sequence[int]) -> Groups:
    """Return the workers of each node that has several."""
    found: dict[int, list[int]] = {}
    for worker, node in enumerate(worker_nodes):
        found.setdefault(node, []).append(worker)
    return tuple(tuple(group) for group in found.values() if len(group) > 1)


def listed_groups(groups: ListedGroups, n_workers: int) -> tuple[Groups, Groups]:
    """Return groups that the user has listed, and their subgroups, each sorted.

    Groups and subgroups of one worker are left out, and so is a subgroup that is its whole group.

    Raises:
        ConfigError: A worker does not exist or is listed twice.
    """
    found: list[tuple[int, ...]] = []
    subgroups: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for group in groups:
        parts = [(part,) if isinstance(part, int) else tuple(sorted(part)) for part in group]
        workers = [worker for part in parts for worker in part]
        for worker in workers:
            _check_listed(worker, n_workers, seen)
        if len(workers) > 1:
            found.append(tuple(sorted(workers)))
            subgroups += [part for part in parts if 1 < len(part) < len(workers)]
    return tuple(sorted(found)), tuple(sorted(subgroups))


def _check_listed(worker: int, n_workers: int, seen: set[int]) -> None:
    """Raise ConfigError for a worker that does not exist or is in `seen`; else add it there."""
    if not 0 <= worker < n_workers:
        raise ConfigError(
            f"cluster.topology: there is no worker {worker}; the job has workers 0 to {n_workers - 1}"
        )
    if worker in seen:
        raise ConfigError(f"cluster.topology: worker {worker} is in two groups, or twice in one")
    seen.add(worker)


def units(group: Sequence[int], subgroups: Groups) -> tuple[tuple[int, ...], ...]:
    """Return the subgroups of a group and its other workers, one by one, in the order of their lowest worker.

    Args:
        group: Workers of a group.
        subgroups: Subgroups of all groups.
    """
    of = {worker: subgroup for subgroup in subgroups for worker in subgroup}
    return tuple(dict.fromkeys(of.get(worker, (worker,)) for worker in group))


def described(group: Sequence[int], subgroups: Groups) -> str:
    """Return the workers of a group for people: "0 1 2", or "0 1 + 2 3" where it has subgroups."""
    found = units(group, subgroups)
    between = " " if all(len(unit) == 1 for unit in found) else " + "
    return between.join(" ".join(map(str, unit)) for unit in found)


def check_grouped(
    tables: Mapping[int, DenseTable], rows: Mapping[int, EmbeddingTable], topology: str
) -> None:
    """Raise ConfigError if there is no table whose updates groups could sum.

    Args:
        tables: The dense tables whose updates groups can sum.
        rows: The embedding tables whose rows they can sum.
        topology: The option, for the message.
    """
    if not tables and not rows:
        raise ConfigError(
            f"cluster.topology = {topology}: the job has no table whose updates groups can sum: dense, on "
            "servers, under BSP without backup workers, or under SSP or ASP with policy accept and SGD "
            "without weight_decay and clip_value; or rows under BSP without backup workers, with "
            "cluster.group_rows_mib above 0; use topology = 'flat'"
        )


def choose_groups(tables: Mapping[int, DenseTable], site: Site) -> tuple[Groups, str]:
    """Decide for topology = "auto"; arithmetic only, equal on all ranks.

    Without a table under BSP there are no groups: workers would wait for each other where no table needs it.
    Compares, for the node that takes longest, the time in which its workers' updates travel to servers of
    other nodes and values come back, with and without groups. A group adds a pass of each update through
    memory, a part of the sum, and a copy of the values. Rows of embedding tables do not count: how many a
    clock has is not known before.

    Args:
        tables: The tables whose updates groups can sum.
        site: The ranks of the job and the bandwidths between them.

    Returns:
        The groups, () for none; and one sentence, for people.
    """
    if tables and not any(isinstance(table.consistency, BSP) for table in tables.values()):
        return (), (
            "topology: flat, since clock() would wait for other workers in a job without a dense table under "
            "BSP; topology = 'node' makes groups"
        )
    if not tables:
        return (), (
            "topology: flat, since 'auto' decides by dense tables and the job has none that groups can sum; "
            "topology = 'node' makes groups"
        )
    groups = node_groups(site.worker_nodes)
    if not groups or site.network_rate == float("inf"):
        return (
            (),
            "topology: flat, since no node with several workers sends updates to another node",
        )
    n_bytes = 4.0 * sum(table.n_elements for table in tables.values())
    flat = n_bytes * max(_sent(site, n, n, here) / site.network_rate for n, here in site.per_node)
    summed = n_bytes * max(
        _sent(site, n, 1, here) / site.network_rate + _passes(n) / site.memory_rate
        for n, here in site.per_node
    )
    times = f"{1e3 * summed:.3g} ms a clock with groups, {1e3 * flat:.3g} ms without (estimated)"
    if summed > _LEAST_GAIN * flat:
        return (), f"topology: flat: {times}"
    return groups, f"topology: node: {times}"


def _sent(site: Site, n_workers: int, n_senders: int, n_servers: int) -> float:
    """Return how often a node's link carries each value of a table in one direction."""
    if n_workers == 0:
        return 0.0
    return n_senders * (1 - n_servers / len(site.server_nodes))


def _passes(n_workers: int) -> float:
    """Return the passes over memory that a group of a node's workers adds for each value."""
    if n_workers < 2:
        return 0.0
    return 2 + (n_workers + 1) / n_workers + 2
