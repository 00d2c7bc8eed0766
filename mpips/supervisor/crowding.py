"""A restart in memory on fewer hosts: all ranks on the hosts that are left, until the job has fewer.

Memory of a job has the shape of the launch that left it: one ring for each worker at each server. A worker
that was killed may have sent a part of the pushes of its clock. Under SSP and ASP servers have applied them,
so the clock can neither be dropped nor be counted as whole, and no other worker can send the rest: only the
same worker, started again, makes the same pushes, of which servers count those that they lack
(mpips.recovery.memory). So where a host is lost and no other one takes its place, the next attempt has as
many ranks as before on the hosts that are left, more than their slots. It continues in memory like any other
restart. As soon as it is at work, the supervisor changes its size to what the slots allow, as for
`mpips scale`: all workers, the restarted ones too, end a clock, the cut is taken, and the next launch divides
the rest of the epoch among its workers. Every update and every sample therefore count exactly once, under
every consistency, and nothing but the clock at hand is done on crowded hosts.

If a request of the user for another size had not taken place when the host was lost, and is possible on the
hosts that are left, the attempt changes to that size at once.

Nothing of it is needed where the memory cannot survive: a server was on the lost host and has no partner.
Then the next attempt starts from the newest checkpoint, with fewer workers at once. So it does if an attempt
on crowded hosts fails before it is at work, for want of memory, for example, and if it fails at work without
progress or when a process was killed for want of memory: on the same hosts the next one would fail alike,
until the run is given up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpips.mpi.roles import default_servers
from mpips.rundir.files import RankPlace
from mpips.rundir.requests import JobSize
from mpips.supervisor.hosts import Layout
from mpips.supervisor.launcher import in_allocation
from mpips.supervisor.plan import SupervisionPlan
from mpips.supervisor.scaling import Change, Scaling, why_by_file


class Crowding:
    """Decides whether an attempt has more ranks than slots. Main thread only."""

    def __init__(self, plan: SupervisionPlan, scaling: Scaling, env: Mapping[str, str]) -> None:
        """Decide for the attempts of a plan.

        Args:
            plan: The plan.
            scaling: Changes the size of an attempt on crowded hosts.
            env: Environment of the supervisor.
        """
        self._plan = plan
        self._scaling = scaling
        # Batch systems start no more ranks than they have granted.
        self._may = not (plan.config.run.is_elastic or in_allocation(env))
        self._places: Sequence[RankPlace] = ()  # of the failed attempt; empty: none was at work
        self._fewer: Layout | None = None  # ranks and hosts without crowding, of the next attempt
        self._in_vain: Layout | None = (
            None  # `_fewer` of the last crowded attempt, if that was in vain
        )
        self._proposed: Change | None = None

    def ended(self, places: Sequence[RankPlace] = (), in_vain: bool = False) -> None:
        """Note that an attempt has ended.

        Args:
            places: Its ranks, if it has failed at work; else none.
            in_vain: It has failed without progress, or for want of memory.
        """
        self._places = places
        if self._fewer is not None:
            self._in_vain = self._fewer if in_vain else None

    def choose(self, layout: Layout) -> Layout:
        """Return the ranks and hosts of the next attempt.

        Args:
            layout: Those of the slots that are left.
        """
        self._fewer = None
        is_tried = self._in_vain is not None and self._in_vain.hosts == layout.hosts
        if not self._may or is_tried or not self._can_continue(layout):
            return layout
        self._fewer = layout
        return self._plan.pool.crowded(layout)

    def _can_continue(self, layout: Layout) -> bool:
        """Return True if the memory of the failed attempt may be there, for as many ranks only."""
        plan, n = self._plan, len(self._places)
        if not layout.n_ranks < n == plan.pool.n_ranks or not plan.config.redundancy.warm:
            return False
        servers = [place.host for place in self._places if place.role.startswith("server")]
        wanted = plan.config.cluster.servers or default_servers(n, len(layout.hosts))
        if len(servers) != wanted:
            return False
        left = {host.name for host in layout.hosts}
        return plan.config.redundancy.partner or left.issuperset(servers)

    def begin(self, generation: int) -> None:
        """Let the attempt that begins change its size as soon as it is at work, if its hosts are crowded.

        Args:
            generation: Its generation number.
        """
        if self._proposed is not None:
            self._scaling.withdraw(self._proposed)
            self._proposed = None
        # Otherwise the change is a request of the user, whose layout has no more ranks than slots either.
        if self._fewer is None or self._scaling.retry(generation):
            return
        plan, fewer = self._plan, self._fewer
        shape = JobSize(ranks=fewer.n_ranks, servers=plan.config.cluster.servers)
        # The size of the run stays, for hosts that come back.
        by_file = why_by_file(plan, fewer)
        self._proposed = Change(shape, plan.config, plan.pool, fewer, by_file)
        self._scaling.propose(self._proposed)
