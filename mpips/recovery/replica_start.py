"""The start of a launch with partners: find the memory to continue in, and make the copies.

All of it runs at start-up. Every launch makes its copies from its servers, byte for byte, before any worker
writes. The copies of the launch before are removed only when all new copies are marked, so a launch that
fails during its start-up loses nothing. For this time the copies take twice their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mpips.errors import ConfigError, MpipsError, RegionError
from mpips.recovery import replica_memory
from mpips.recovery.mirror import Incoming, Mirror, Outgoing
from mpips.recovery.replica import find_partners
from mpips.recovery.replica_memory import CallGuard, Held, copy_set, own_set
from mpips.server.server import Server

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpips.mpi.roles import Assignment


class Source(NamedTuple):
    """The set in which a server continues, and a rank that can read it."""

    rank: int
    held: Held


def choose(
    found: Sequence[Sequence[Held]], assignment: Assignment, since: int
) -> list[Source] | str:
    """Return the source of each server's memory, or the reason for which a server has none. Pure arithmetic.

    A server's own set goes before a copy, because a copy may lack records that the server has not consumed.
    A set on the server's node goes before one that must be moved. Then the newest goes first.

    Args:
        found: Complete sets on the node of each rank.
        assignment: Roles and nodes of this launch.
        since: Generation number of the last launch that completed its start-up; older memory is stale.
    """
    a = assignment
    chosen = []
    for i, server in enumerate(a.servers):
        sources = [
            Source(rank, held)
            for rank, sets in enumerate(found)
            for held in sets
            if held.server == i and held.generation >= since
        ]
        if not sources:
            return f"the memory of server {i} is gone, and there is no copy of it on these hosts"

        def rank_of(source: Source, node: int = a.node_of[server]) -> tuple[bool, bool, int, int]:
            away = a.node_of[source.rank] != node
            return source.held.is_copy, away, -source.held.generation, source.rank

        chosen.append(min(sources, key=rank_of))
    return chosen


def bring(
    sources: Sequence[Source],
    assignment: Assignment,
    comm: MPI.Intracomm,
    token: str,
    guard: CallGuard,
) -> None:
    """Bring every server's set to the server's node, under the name of its own set.

    Collective over `comm`, blocking.

    Raises:
        RegionError: A set cannot be read (raised on both ranks of the move), or there is no room for it
            (raised on the receiver).
    """
    a, errors = assignment, []
    for i, (source, server) in enumerate(zip(sources, a.servers, strict=True)):
        name, held = own_set(i), source.held
        near = a.node_of[source.rank] == a.node_of[server]
        try:
            if near and held.name != name and comm.rank == server:
                replica_memory.link(token, held.name, name)
            elif not near and comm.rank == source.rank:
                replica_memory.send(comm, server, token, held.name, True, guard)
            elif not near and comm.rank == server:
                replica_memory.receive(comm, source.rank, token, name, guard)
        except RegionError as error:
            # Continue with the other moves: other ranks wait for them.
            errors.append(error)
    if errors:
        raise errors[0]


class Partnership:
    """The partners of one launch, on each rank of the job.

    Attributes:
        of: Index of the partner, by index of the server; only for servers that have one.
        notes: Messages for the user.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        assignment: Assignment,
        token: str,
        generation: int,
        guard: CallGuard,
        has_partners: bool,
    ) -> None:
        """Find the partners. Not collective.

        Args:
            comm: Communicator of the job's ranks on which nothing else uses the tags.
            assignment: Roles and nodes of this launch.
            token: Token of the run.
            generation: Generation number of this launch.
            guard: Context in which a call that never returns ends the process.
            has_partners: Servers have partners, where there is another host.

        Raises:
            ConfigError: Servers are on one node only, and this is the first launch of the run.
        """
        self._comm = comm
        self._a = assignment
        self._token = token
        self._generation = generation
        self._guard = guard
        self._sources: list[Source] = []
        self.notes: list[str] = []
        nodes = [assignment.node_of[rank] for rank in assignment.servers]
        self.of = find_partners(nodes) if has_partners else {}
        if has_partners and len(self.of) < len(nodes):
            if generation == 0:
                host = assignment.node_names[nodes[0]]
                raise ConfigError(
                    f"redundancy.partner = true, but every server is on {host}: partners need servers on "
                    "two hosts at least; give more hosts (--hosts) or more servers (--servers)"
                )
            self.notes.append("the servers have no partners: there is none on another host")

    def held(self) -> list[list[int | str]]:
        """Return the complete sets on this node as lists of server, generation and name. Not collective."""
        return [list(held) for held in replica_memory.held(self._token)]

    def choose(self, found: Sequence[Sequence[Sequence[int | str]]], since: int) -> str:
        """Choose the source of each server's memory; return why this is impossible, or "". Not collective.

        Args:
            found: Results of `held` on all ranks.
            since: Generation number of the last launch that completed its start-up.
        """
        sets = [[Held(int(s), int(g), str(name)) for s, g, name in row] for row in found]
        chosen = choose(sets, self._a, since)
        if isinstance(chosen, str):
            return chosen
        self._sources = chosen
        return ""

    def bring(self) -> None:
        """Bring the chosen sets to their servers' nodes, see the function `bring`. Collective, blocking."""
        bring(self._sources, self._a, self._comm, self._token, self._guard)

    @property
    def copied(self) -> list[int]:
        """Servers that continue from their partner's copy, by index."""
        return [i for i, source in enumerate(self._sources) if source.held.is_copy]

    def tell(self, behind: Mapping[int, int]) -> None:
        """Add notes about the sources of the memory.

        Args:
            behind: For each server in `copied`, the greatest number of clocks that it lacks of a worker.
        """
        a = self._a
        for i, source in enumerate(self._sources):
            host = a.node_names[a.node_of[source.rank]]
            if source.held.is_copy:
                back = behind[i]
                self.notes.append(
                    f"server {i} continues from its partner's copy on {host}; "
                    f"workers go back by {back} clock{'' if back == 1 else 's'}"
                )
            elif a.node_of[source.rank] != a.node_of[a.servers[i]]:
                self.notes.append(f"server {i} continues from its memory, moved here from {host}")

    def make_copies(self, make: Callable[[int, str], Server]) -> list[tuple[int, Server]]:
        """Send this server's set to its partner, and receive the sets of servers whose partner this is.

        Collective, blocking.

        Args:
            make: Attaches the copy of a server to the set of this name.

        Returns:
            Index and copy of each server whose partner this is.

        Raises:
            MpipsError: A copy cannot be made.
        """
        servers, copies = self._a.servers, []
        errors: list[MpipsError] = []
        # Copy in the same order on all ranks, even servers first, so that more copies run at the same time.
        for i in sorted(self.of, key=lambda i: (i % 2, i)):
            source, target = servers[i], servers[self.of[i]]
            name = copy_set(i, self._generation)
            try:
                if self._comm.rank == source:
                    replica_memory.send(
                        self._comm, target, self._token, own_set(i), False, self._guard
                    )
                elif self._comm.rank == target:
                    replica_memory.receive(self._comm, source, self._token, name, self._guard)
                    copies.append((i, make(i, name)))
            except MpipsError as error:
                # Continue with the other copies: other ranks wait for them.
                errors.append(error)
        if errors:
            raise errors[0]
        return copies

    def mirror(self, server: Server, copies: Sequence[tuple[int, Server]]) -> Mirror | None:
        """Return the mirror of this server's records; None if there are no partners. Not collective."""
        if not self.of:
            return None
        ranks = self._a.servers
        partner = self.of.get(server.index, -1)
        outgoing = None
        if partner >= 0:
            outgoing = Outgoing(server, self._comm, ranks[partner])
        incoming = [Incoming(copy, self._comm, ranks[i]) for i, copy in copies]
        return Mirror(outgoing, incoming, server, partner)

    def mark(self, server: Server | None) -> None:
        """Mark the sets of this rank as complete. Not collective.

        Args:
            server: This rank's server, if any.

        Raises:
            RegionError: /dev/shm is full.
        """
        if server is None:
            return
        for name in self._mine(server.index):
            replica_memory.mark(self._token, name, self._generation)

    def clean(self) -> None:
        """Remove sets from this node that no later launch needs. Not collective; call it once all are marked.

        The lowest rank of each node does it.
        """
        a, rank = self._a, self._comm.rank
        node = a.node_of[rank]
        if a.node_of.index(node) != rank:
            return
        here = [i for i, server in enumerate(a.servers) if a.node_of[server] == node]
        replica_memory.remove_all_but(self._token, {name for i in here for name in self._mine(i)})

    def _mine(self, index: int) -> list[str]:
        """Return the names of the sets on a server's rank: its own, and its copies of other servers."""
        copies = [i for i, partner in self.of.items() if partner == index]
        return [own_set(index), *(copy_set(i, self._generation) for i in copies)]
