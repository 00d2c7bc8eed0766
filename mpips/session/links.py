"""The connections between workers and servers of one job: window, messages, channels, staging memory.

All ranks make them together at start-up and free them together at shutdown. In between each rank uses its
own end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from mpips.config.options import TRANSPORTS, SessionOptions
from mpips.recovery.takeover import resume
from mpips.transport.connect import Connector
from mpips.transport.p2p_service import P2pService
from mpips.transport.region import attach
from mpips.transport.rma import gets_need_target, make_window
from mpips.worker.paths import path_names

if TYPE_CHECKING:
    from mpips.model.placement import Placement
    from mpips.model.table import Table
    from mpips.mpi.cluster import Cluster
    from mpips.recovery.memory import At
    from mpips.server.server import Server
    from mpips.transport.channel import Channel


class MpiProgress:
    """The progress of MPI on a server: its core calls this object, since windows over a network need it.

    The object has no reference to the job. Python's collector of cycles does not see the references of a
    core, so a reference from here back to the server would keep the server's memory.

    Attributes:
        service: Serves messages of remote workers; None until there are channels.
        remote: True if there are remote workers.
    """

    def __init__(self) -> None:
        """Make it without any connection."""
        self.service: P2pService | None = None
        self.remote = False

    def __call__(self) -> int:
        """Serve messages; return their number."""
        return self.service.poll() if self.remote and self.service is not None else 0


class Links:
    """This rank's ends of the connections. Opening and closing is collective over the cluster's ranks.

    Attributes:
        channels: On a worker, one channel for each server.
        transports: Number of pairs of worker and server by the name of their transport.
        paths: Number of workers by the name of a path that their dense updates take (mpips.worker.paths).
        pairs: For each worker the name of the transport to each server.
        notes: Sentences for the user about the choice of transports, one for each reason.
        progress: Progress of MPI for this rank's server.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: SessionOptions,
        placement: Placement,
        tables: Sequence[Table],
        skips_clocks: bool,
        generation: int,
        idle: Callable[[], object],
    ) -> None:
        """Open nothing yet.

        Args:
            cluster: All ranks.
            options: Options of the job.
            placement: Shards of each server.
            tables: All tables of the job.
            skips_clocks: There are backup workers, so a worker may skip clocks.
            generation: Generation number of this launch.
            idle: Called by a worker while it waits until a server receives a message.
        """
        self._cluster = cluster
        self._options = options
        self._placement = placement
        self._tables = tables
        self._skips_clocks = skips_clocks
        self._generation = generation
        self._idle = idle
        self._window: MPI.Win | None = None
        self._gets_need_target = False
        self._comm: MPI.Intracomm | None = None
        self.channels: list[Channel] = []
        self.transports: dict[str, int] = {}
        self.pairs: list[list[str]] = []
        self.paths: dict[str, int] = {}
        self.notes: list[str] = []
        self.progress = MpiProgress()

    def open(
        self,
        server: Server | None,
        at: Sequence[At],
        staging: Callable[[int], str] | None,
        oversubscribed: bool,
    ) -> None:
        """Connect all workers with all servers. Collective; blocks.

        Args:
            server: This rank's server, or None.
            at: On a worker, its position at each server, if the job continues in memory; else empty.
            staging: Returns the name of a worker's staging memory; None: workers have none.
            oversubscribed: There are more ranks than cores on this node.

        Raises:
            MpipsError: The first error of any rank; all ranks raise it.
        """
        c = self._cluster
        region = server.region if server is not None else None
        memory = region.view(0, region.n_bytes, True) if region is not None else None
        if TRANSPORTS[self._options.transport].needs_window:
            c.arrive("making the MPI window")
            with c.watchdog.guard("making the MPI window"):
                self._window = make_window(c.comm, memory)
        self._comm = comm = c.duplicate("connecting workers and servers")
        if self._window is not None and (pair := self._apart()) is not None:
            c.arrive("trying the MPI window")
            with c.watchdog.guard("trying the MPI window"):
                self._gets_need_target = gets_need_target(comm, self._window, *pair)
        rows = c.agree(
            "connecting workers and servers", lambda: self._connect(comm, at, oversubscribed)
        )
        found = [rows[rank] for rank in c.assignment.workers]
        counts: Counter[str] = Counter()
        paths: Counter[str] = Counter()
        for row in found:
            counts.update(row["transports"])
            paths.update(row["paths"])
        self.transports, self.paths = dict(counts), dict(paths)
        self.pairs = [row["pairs"] for row in found]
        self.notes = _notes(row["notes"] for row in found)
        apart = [row["apart"] for row in found]
        c.agree(
            "attaching the workers' staging memory",
            lambda: self._attach(comm, server, staging, apart),
        )

    def _apart(self) -> tuple[int, int] | None:
        """Return ranks of a worker and of a server that use the window, on different nodes if possible."""
        a = self._cluster.assignment
        pairs = [(worker, server) for worker in a.workers for server in a.servers]
        apart = next(((w, s) for w, s in pairs if a.node_of[w] != a.node_of[s]), None)
        if apart is None and not TRANSPORTS[self._options.transport].shares_memory:
            return pairs[0]
        return apart

    def _connect(
        self, comm: MPI.Intracomm, at: Sequence[At], oversubscribed: bool
    ) -> dict[str, Any]:
        """Make a worker's channels.

        Returns:
            "transports": number of servers by transport. "pairs": transport to each server. "paths": names
            of the paths of dense updates. "apart": servers that share a node with the worker, but no memory.
            "notes": see Connector. {} on other ranks.
        """
        c, a = self._cluster, self._cluster.assignment
        if c.worker is None:
            return {}
        apart = []
        connector = Connector(
            worker=c.worker,
            name=c.name_of(c.rank),
            transport=self._options.transport,
            token=c.token,
            window=self._window,
            gets_need_target=self._gets_need_target,
            p2p_comm=comm,
            n_workers=len(a.workers),
            n_tables=len(self._tables),
            checksums=self._options.checksums,
            oversubscribed=oversubscribed,
            timeout_s=self._options.timeout_s,
            guard=c.watchdog.guard,
            idle=self._idle,
            gate=c.gate,
            generation=self._generation,
        )
        for s, rank in enumerate(a.servers):
            same = a.node_of[rank] == a.node_of[c.rank]
            layout = self._placement.layouts[s]
            channel = connector.connect(s, c.name_of(rank), rank, same, layout)
            if at:
                resume(channel, at[s], self._skips_clocks)
            self.channels.append(channel)
            if same and not TRANSPORTS[channel.name].shares_memory:
                apart.append(s)
        counts = Counter(channel.name for channel in self.channels)
        return {
            "transports": counts,
            "pairs": [channel.name for channel in self.channels],
            "paths": path_names(self.channels, self._tables, self._placement),
            "apart": apart,
            "notes": connector.notes,
        }

    def _attach(
        self,
        comm: MPI.Intracomm,
        server: Server | None,
        staging: Callable[[int], str] | None,
        apart: Sequence[Sequence[int]],
    ) -> None:
        """On a server: attach the staging memory of the workers that share memory with it.

        Args:
            comm: Communicator of messages.
            server: This rank's server, or None.
            staging: Returns the name of a worker's staging memory; None: workers have none.
            apart: For each worker the servers of its node with which it shares no memory.
        """
        if server is None:
            return
        c, a, layout = self._cluster, self._cluster.assignment, server.layout
        mailboxes = {}
        for w, rank in enumerate(a.workers):
            start = layout.mailbox_offset(w)
            stop = start + layout.geometry.mailbox_bytes + layout.area_bytes(w)
            mailboxes[rank] = (start, stop)
            if a.node_of[rank] != a.node_of[c.rank] or server.index in apart[w]:
                self.progress.remote = True
            elif staging is not None:
                server.core.set_staging(w, attach(c.token, staging(w), 0))
        view = server.region.view(0, server.region.n_bytes, True)
        self.progress.service = P2pService(
            comm, view, mailboxes, layout.geometry.answer_bytes, c.watchdog.guard
        )

    def describe(self) -> str:
        """Return the transports and the number of pairs that use each, for people."""
        pairs = ", ".join(
            f"{n} for {k} pair{'s' if k != 1 else ''}" for n, k in sorted(self.transports.items())
        )
        return f"transport: {pairs}"

    def close(self) -> None:
        """Free window and communicator. Collective, also after `open` has failed."""
        if self._window is not None:
            self._window.Unlock_all()
            self._window.Free()
        if self._comm is not None:
            self._comm.Free()
        self._window = self._comm = None
        self.channels.clear()
        self.progress.service = None


def _notes(of_workers: Iterable[Mapping[str, tuple[str, int]]]) -> list[str]:
    """Return one sentence for each reason, with the number of other pairs that have the same reason."""
    found: dict[str, tuple[str, int]] = {}
    for notes in of_workers:
        for reason, (sentence, n) in notes.items():
            first, before = found.get(reason, (sentence, 0))
            found[reason] = (first, before + n)
    return [
        sentence if n == 1 else f"{sentence} (and {n - 1} more pair{'s' if n > 2 else ''})"
        for sentence, n in found.values()
    ]
