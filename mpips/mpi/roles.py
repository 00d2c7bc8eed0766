"""The roles of ranks: one scheduler, some servers, the rest workers. Pure arithmetic, no MPI."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mpips.config.options import TRANSPORTS
from mpips.errors import ConfigError
from mpips.terminal.table import text_table

SCHEDULER = "scheduler"
SERVER = "server"
WORKER = "worker"
_MOST_ROWS = 64  # ranks that a table of roles names


@dataclass(frozen=True)
class Assignment:
    """The roles of all ranks.

    Attributes:
        node_of: Node index of each rank.
        node_names: Host name of each node.
        scheduler: Rank of the scheduler. With two ranks it is also the server.
        servers: Ranks of the servers, by server index.
        workers: Ranks of the workers, by worker index.
    """

    node_of: tuple[int, ...]
    node_names: tuple[str, ...]
    scheduler: int
    servers: tuple[int, ...]
    workers: tuple[int, ...]

    @cached_property
    def server_of(self) -> Mapping[int, int]:
        """The server index of each rank that is a server, by rank."""
        return {rank: server for server, rank in enumerate(self.servers)}

    @cached_property
    def worker_of(self) -> Mapping[int, int]:
        """The worker index of each rank that is a worker, by rank."""
        return {rank: worker for worker, rank in enumerate(self.workers)}

    def local_worker(self, rank: int) -> int:
        """Return how many workers of lower index the node of a rank has."""
        before = self.workers[: self.worker_of[rank]]
        return sum(self.node_of[other] == self.node_of[rank] for other in before)

    def near_workers(self, transport: str) -> list[tuple[int, ...]]:
        """Return, for each server, the indices of the workers that use its shared memory, ascending.

        Servers of one node have the same tuple. So the result is no longer than servers and workers together.
        """
        if not TRANSPORTS[transport].shares_memory:
            return [()] * len(self.servers)
        on_node: dict[int, list[int]] = defaultdict(list)
        for worker, rank in enumerate(self.workers):
            on_node[self.node_of[rank]].append(worker)
        near = {node: tuple(workers) for node, workers in on_node.items()}
        return [near.get(self.node_of[rank], ()) for rank in self.servers]

    def roles_of(self, rank: int) -> str:
        """Return the roles of a rank as text, such as "worker 2" or "scheduler + server 0"."""
        names = [SCHEDULER] if rank == self.scheduler else []
        if rank in self.server_of:
            names.append(f"{SERVER} {self.server_of[rank]}")
        if rank in self.worker_of:
            names.append(f"{WORKER} {self.worker_of[rank]}")
        return " + ".join(names)

    def describe(self) -> str:
        """Return a table of roles, ranks and nodes as text; of many ranks only the first are named."""
        rows = [("role", "rank", "node")]
        for rank, node in enumerate(self.node_of[:_MOST_ROWS]):
            rows.append((self.roles_of(rank), str(rank), self.node_names[node]))
        lines = text_table(rows, right=[1])
        if len(self.node_of) > _MOST_ROWS:
            lines.append(
                f"and {len(self.node_of) - _MOST_ROWS:,} more ranks: in all {len(self.servers):,} servers "
                f"and {len(self.workers):,} workers on {len(self.node_names):,} nodes"
            )
        return "\n".join(lines)


def default_servers(size: int, n_nodes: int) -> int:
    """Return the default number of servers.

    It is a quarter of the ranks, at least one, and at least one for each node where a node has three ranks or
    more on average.
    """
    if size < 4:
        return 1
    quarter = max(1, (size - 1) // 4)
    return min(max(quarter, n_nodes if size >= 3 * n_nodes else 1), size - 2)


def check_servers(n_servers: int, size: int) -> None:
    """Raise ConfigError if a number of servers leaves no worker.

    Raises:
        ConfigError: `n_servers` does not fit `size` ranks.
    """
    most = 1 if size <= 2 else size - 2
    if not 1 <= n_servers <= most:
        use = {1: "1", 2: "1 or 2"}.get(most, f"1 to {most}")
        wrong = "many" if n_servers > most else "few"
        raise ConfigError(
            f"servers = {n_servers} is too {wrong} for {size} ranks: use {use} "
            "(one rank is the scheduler, at least one must be a worker)"
        )


def shares(counts: Sequence[int], n_servers: int) -> list[int]:
    """Return the number of servers of each node, in proportion to its ranks and never more than its ranks.

    Remainders are distributed by the largest-remainder method; ties go to the lower node.

    Args:
        counts: Number of ranks of each node that may be servers.
        n_servers: Number of servers, at most the sum of `counts`.
    """
    total = sum(counts)
    exact = [n_servers * c / total for c in counts]
    got = [min(int(e), c) for e, c in zip(exact, counts, strict=True)]
    # The whole parts leave out less than one server per node, so one round is enough but for rounding errors.
    missing = n_servers - sum(got)
    order = sorted(range(len(counts)), key=lambda i: (got[i] - exact[i], i))
    while missing:
        for i in order:
            if missing and got[i] < counts[i]:
                got[i] += 1
                missing -= 1
    return got


def alone(node_name: str) -> Assignment:
    """Return the roles of a job of one rank, which has all of them."""
    return Assignment((0,), (node_name,), 0, (0,), (0,))


def assign(node_of: Sequence[int], node_names: Sequence[str], n_servers: int | None) -> Assignment:
    """Return the roles of all ranks, with servers on all nodes in proportion to their ranks.

    Args:
        node_of: Node index of each rank, at least two ranks.
        node_names: Host name of each node.
        n_servers: Number of servers, or None for the default.

    Raises:
        ConfigError: `n_servers` does not fit the number of ranks.
    """
    size = len(node_of)
    n = default_servers(size, len(node_names)) if n_servers is None else n_servers
    check_servers(n, size)
    if size == 2:
        return Assignment(tuple(node_of), tuple(node_names), 0, (0,), (1,))
    # Make the lowest ranks of each node servers. Rank 0 is the scheduler.
    free: list[list[int]] = [[] for _ in node_names]
    for rank in range(1, size):
        free[node_of[rank]].append(rank)
    servers: list[int] = []
    for ranks, count in zip(free, shares([len(f) for f in free], n), strict=True):
        servers += ranks[:count]
    servers.sort()
    chosen = set(servers)
    workers = tuple(r for r in range(1, size) if r not in chosen)
    return Assignment(tuple(node_of), tuple(node_names), 0, tuple(servers), workers)
