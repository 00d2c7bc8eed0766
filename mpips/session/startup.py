"""Start-up of a job: checks, memory to continue in, regions, window and channels. Collective throughout.

    ranks compare tables and options, and decide about placement = "auto" and codecs
    servers take over the memory of the previous launch, or
        ranks choose a checkpoint, and servers make regions
    communicators: control plane, workers, servers
    window, channels, staging memory
    replicas on other nodes

Every step ends on all ranks alike: an error of one rank is raised on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from mpips.errors import ConfigError, MpipsError, RegionError
from mpips.model.build import this_build
from mpips.model.grouping import Groups, grouped_rows, grouped_tables
from mpips.model.job_tables import fingerprint
from mpips.model.served import local_tables, served
from mpips.model.stages import for_workers
from mpips.model.table import Table, replicated_tables
from mpips.mpi.one_rank import OneRank
from mpips.recovery.memory import FORMAT
from mpips.recovery.replica import check_tables
from mpips.server.durability import Durability, backup_workers
from mpips.server.storage_files import check_folders
from mpips.session.buffers import decide_shares
from mpips.session.expected_rows import check_room
from mpips.session.initial_values import InitialValues, send_values
from mpips.session.own_link import OwnLink
from mpips.session.parts import Parts
from mpips.session.placing import place_auto
from mpips.session.shutdown import release
from mpips.session.storage_options import refuse_combinations
from mpips.transport.region import Regions, attach, persistent, staging_part, sweep
from mpips.worker.buffers import JobBuffers
from mpips.worker.image.start import take_over
from mpips.worker.parts import PARTS
from mpips.worker.replicated.memory import native_rules, node_layout

if TYPE_CHECKING:
    from pathlib import Path

    from mpips.config.options import SessionOptions
    from mpips.model.placement import Placement
    from mpips.mpi.cluster import Cluster
    from mpips.mpi.one_rank import Ranks
    from mpips.recovery.node_tables import NodeTables
    from mpips.recovery.saving import Saving, SavingPlan
    from mpips.recovery.takeover import Takeover
    from mpips.rundir.directory import Supervised
    from mpips.server.server import Server
    from mpips.session.links import Links


def start_up(
    ranks: Ranks,
    tables: Sequence[Table],
    options: SessionOptions,
    plan: SavingPlan,
    run: Supervised | None,
    warm: bool,
    has_partners: bool,
    idle: Callable[[], bool],
    initial: InitialValues | None = None,
) -> Parts:
    """Make this rank's parts of a job. Collective; blocks.

    Args:
        ranks: All ranks.
        tables: All tables of the job; the same on every rank.
        options: Options of the session; the same on every rank.
        plan: Folder for checkpoints, and the checkpoint to start from if the job cannot continue in memory.
        run: The supervised run of which this launch is an attempt.
        warm: Its servers leave their memory to the next launch and take over that of the previous one.
        has_partners: Servers have replicas on other nodes, where there are any.
        idle: Called by a worker while it waits until a server receives a message; on the only rank of a job
            whenever its server has consumed records, and returns True if it may consume more.
        initial: Initial values of dense tables, of which those on the rank of worker 0 count. None on
            all ranks: tables have those of their `init`.

    Raises:
        MpipsError: The first error of any rank; all ranks raise it.
    """
    # The memory of a job of one rank is that of its process, which no launch and no other node has.
    alone = isinstance(ranks, OneRank)
    warm, has_partners = warm and run is not None and not alone, has_partners and not alone

    # Decide with all ranks about tables and groups.
    if not isinstance(ranks, OneRank):
        _check_equal(ranks, tables, options)
    tables = for_workers(tables, len(ranks.assignment.workers))
    tables, groups, subgroups, notes = place_auto(ranks, tables, options, run, warm)
    # Memory of a launch that decided otherwise is not that of these tables, and other groups would repeat
    # other pushes.
    is_stored = warm or options.node_buffers_mib is not None
    prints = job_fingerprint(tables, options, groups) if is_stored else ""
    declared = tables
    local, tables = local_tables(tables), served(tables, len(ranks.assignment.workers))
    if warm:
        ranks.token = persistent(ranks.token)
    refuse_combinations(tables, plan.draft(), run, has_partners)
    if has_partners:
        _check_partners(tables, warm)

    # Place the tables on servers with buffers of equal sizes.
    a = ranks.assignment
    buffers = JobBuffers(declared, tables, options, a, (groups, subgroups), has_partners)
    if alone or options.node_buffers_mib is None:
        shares = buffers.shares()
    else:
        shares, more = decide_shares(ranks, buffers, run, prints)
        # Memory of a launch with other sizes is not that of this one.
        prints, notes = f"{prints} {shares}", notes + more
    placement = shares.place(
        tables, len(a.servers), len(a.workers), a.near_workers(options.transport)
    )

    # Make the parts.
    if not alone:
        sweep(spare=ranks.token)
    parts = Parts(
        ranks=ranks,
        options=options,
        declared=declared,
        tables=list(tables),
        run=run,
        warm=warm,
        has_partners=has_partners,
        placement=placement,
        shares=shares,
        regions=Regions(ranks.token, shared=not alone, supervised=run is not None),
        links=_links(
            ranks,
            options,
            placement,
            tables,
            run.generation if warm and run is not None else 0,
            idle,
        ),
        saving=plan.draft(),
        notes=notes,
        local=local,
        groups=groups,
        subgroups=subgroups,
        grouped_tables=grouped_tables(declared) if groups else {},
        grouped_rows=grouped_rows(declared, options.sums_rows) if groups else {},
    )
    _connect(parts, plan, prints, initial)
    return parts


def _connect(parts: Parts, plan: SavingPlan, prints: str, initial: InitialValues | None) -> None:
    """Run the steps that fill `parts`; release what they have made if one fails. Collective; blocks."""
    try:
        _StartUp(parts, plan, prints, initial).connect()
    except MpipsError:
        release(parts, for_good=False)
        raise
    except BaseException:
        parts.regions.leave()
        raise


def _links(
    ranks: Ranks,
    options: SessionOptions,
    placement: Placement,
    tables: Sequence[Table],
    generation: int,
    idle: Callable[[], bool],
) -> Links | OwnLink:
    if isinstance(ranks, OneRank):
        return OwnLink(options, placement, tables, idle)
    from mpips.session.links import Links

    skips_clocks = backup_workers(tables) > 0
    return Links(ranks, options, placement, tables, skips_clocks, generation, idle)


def job_fingerprint(tables: Sequence[Table], options: SessionOptions, groups: Groups = ()) -> str:
    """Return a checksum of tables and options, and of groups, which may depend on the nodes of workers.

    Subgroups are those that the options list.
    """
    text = msgspec.json.encode(options).decode()
    return fingerprint(list(tables), f"{text} {groups}" if groups else text)


def _check_equal(cluster: Cluster, tables: Sequence[Table], options: SessionOptions) -> None:
    """Compare the mpips, the tables and the options of all ranks. Collective."""
    mine = job_fingerprint(tables, options)
    here = [str(this_build()), this_build().version, FORMAT]
    rows = cluster.agree("comparing the ranks' tables", lambda: [mine, *here])
    # One version may be built several times, so its commits need not be equal.
    odd = next((r for r, row in enumerate(rows) if row[2:] != rows[0][2:]), None)
    if odd is not None:
        raise ConfigError(
            f"rank {odd} runs {rows[odd][1]} and rank 0 {rows[0][1]}: install the same on every host"
        )
    prints = [row[0] for row in rows]
    other = next((r for r, p in enumerate(prints) if p != prints[0]), None)
    if other is not None:
        raise ConfigError(
            f"rank {other} has other tables or options than rank 0: pass the same to every rank"
        )


def _check_partners(tables: Sequence[Table], warm: bool) -> None:
    if not warm:
        raise ConfigError(
            "redundancy.partner = true needs memory that outlives a launch: start the job with `mpips run` "
            "and leave redundancy.warm = true"
        )
    check_tables(tables)


class _StartUp:
    """The steps that fill `Parts`."""

    def __init__(
        self,
        parts: Parts,
        plan: SavingPlan,
        prints: str,
        initial: InitialValues | None,
    ) -> None:
        """`prints`: fingerprint of tables and options; `initial`: see `start_up`."""
        self._initial = initial
        self._parts = parts
        self._plan = plan
        self._prints = prints

    def connect(self) -> None:
        """Run all steps, in order."""
        p, c = self._parts, self._parts.ranks
        takeover = self._take_over() if p.warm else None
        if takeover is None:
            p.saving = self._choose()
        if p.saving.is_exchange:
            p.notes.append("the job continues in another size from the tables in shared memory")
        c.agree("making the regions", self._make_regions, lengthy=True)
        if self._initial is not None and not p.saving.places and p.saving.start is None:
            send_values(c, p.tables, p.placement, self._initial, p.server)
        if p.warm and p.server is not None and not p.server.durability.warm:
            p.server.begin_journal()
        if not isinstance(c, OneRank):
            self._connect_ranks(c)
        for part in PARTS:
            part.connect(p)
        if isinstance(p.links, OwnLink):
            assert p.server is not None
            assert p.staging is not None
            p.links.open(p.server, p.staging, saves=p.saving.folder is not None)
        else:
            staging = None if p.has_partners else self._staging_part
            p.links.open(p.server, p.at, staging, p.oversubscribed)
        p.notes += p.links.notes
        if takeover is not None and p.partnership is not None:
            p.mirror = takeover.join(p.server)
            p.notes += p.partnership.notes

    def _take_over(self) -> Takeover:
        """Decide with all ranks whether the job continues in memory; else choose a checkpoint. Collective."""
        from mpips.recovery.replica_start import Partnership
        from mpips.recovery.takeover import Takeover

        p, c = self._parts, self._parts.cluster
        assert p.run is not None
        comm = c.duplicate("connecting the partners")
        p.comms.append(comm)
        p.partnership = Partnership(
            comm, c.assignment, c.token, p.generation, c.watchdog.guard, p.has_partners
        )
        takeover = Takeover(
            c,
            p.run,
            p.partnership,
            self._prints,
            lambda clocks_before: self._make_server(True, clocks_before),
            self._make_copy,
            p.skips_clocks,
            lambda worker, clock, memory: take_over(p, worker, clock, memory),
            self._node_tables(),
        )
        p.saving = takeover.choose(p.saving, self._choose)
        p.server, p.at, p.cold = takeover.server, takeover.at, takeover.cold
        if p.cold:
            p.worker_memory = None
        return takeover

    def _node_tables(self) -> NodeTables | None:
        p = self._parts
        if found := replicated_tables(p.tables):
            from mpips.recovery.node_tables import NodeTables

            layout = node_layout(found, len(p.cluster.assignment.workers), durable=True)
            rules = native_rules(found, [0] * len(found))
            p.node_tables = NodeTables(p.cluster, p.regions, p.generation, layout, rules)
        return p.node_tables

    def _choose(self, exchange: Path | None = None) -> Saving:
        self._parts.ranks.arrive("looking for a checkpoint")
        return self._plan.choose(exchange)

    def _connect_ranks(self, c: Cluster) -> None:
        """Make the communicators of the control plane, of workers and of servers. Collective."""
        from mpi4py import MPI

        p = self._parts
        p.control_comm = c.duplicate("connecting the control plane")
        p.comms.append(p.control_comm)
        if len(c.assignment.workers) > 1:
            p.tree_comm = c.duplicate("connecting the workers")
            p.comms.append(p.tree_comm)
        color = MPI.UNDEFINED if c.server is None else 0
        c.arrive("connecting the servers")
        with c.watchdog.guard("start-up (connecting the servers)"):
            servers = c.comm.Split(color, c.server or 0)
        if isinstance(servers, MPI.Intracomm) and c.server is not None:
            p.comms.append(servers)
            p.server_comm = servers

    def _make_regions(self) -> None:
        p, c = self._parts, self._parts.ranks
        if c.server is not None and p.server is None:
            self._check_room()
            p.server = self._make_server(False, p.saving.steps_before)
            if p.saving.start is not None:
                from mpips.recovery.restore import restore

                restore(p.server, p.placement, p.tables, p.saving.start)
        if c.worker is not None and not p.has_partners:
            p.staging = p.regions.create_sparse(self._staging_part(c.worker), p.shares.staging)

    def _check_room(self) -> None:
        """Refuse expected rows for which the memory of this node is too small."""
        p, c = self._parts, self._parts.ranks
        # Later launches may still have the tables of an earlier one in shared memory.
        if p.generation:
            return
        node_of, assigned = c.assignment.node_of, c.assignment.servers
        here = sum(node_of[rank] == node_of[c.rank] for rank in assigned)
        copies = 2 if p.has_partners else 1
        check_room(p.tables, len(assigned), copies * here, shared=not isinstance(c, OneRank))
        check_folders(p.tables, len(assigned), here)

    def _staging_part(self, worker: int) -> str:
        p = self._parts
        return staging_part(worker, p.generation) if p.warm else f"w{worker}"

    def _make_server(self, warm: bool, clocks_before: int) -> Server:
        p = self._parts
        index = p.ranks.server
        assert index is not None
        return self._server(index, Durability(p.generation, p.warm, warm), clocks_before)

    def _make_copy(self, index: int, name: str) -> Server:
        """Return the replica of another server, made from memory of this name."""
        p = self._parts
        durability = Durability(p.generation, journal=True, warm=True, name=name)
        copy = self._server(index, durability, p.saving.steps_before)
        copy.finish_recovery(lambda w, g: attach(p.cluster.token, staging_part(w, g), 0))
        return copy

    def _server(self, index: int, durability: Durability, clocks_before: int) -> Server:
        from mpips.server.server import Server

        p = self._parts
        try:
            return Server(
                index,
                p.tables,
                p.placement,
                p.regions,
                p.options.seed,
                p.oversubscribed,
                p.links.progress,
                durability,
                clocks_before,
            )
        except RegionError as error:
            if durability.warm or isinstance(p.ranks, OneRank):
                raise
            raise RegionError(f"{error}. {self._need_here(durability)}") from None

    def _need_here(self, durability: Durability) -> str:
        """Return what all servers of this node need of /dev/shm before their first row, for an error."""
        from mpips.server.server import first_bytes

        p, t = self._parts, self._parts.cluster.topology
        node = t.node_of[p.cluster.rank]
        here = [s for s, rank in enumerate(p.cluster.assignment.servers) if t.node_of[rank] == node]
        need = sum(first_bytes(p.placement.layouts[s], p.tables, durability.journal) for s in here)
        return (
            f"The servers of {t.node_names[node]} ({len(here)}) need {need / 2**20:,.1f} MiB of /dev/shm in "
            "all before their first row"
        )
