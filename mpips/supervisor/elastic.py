"""An elastic run: the hosts that it has, observed while it runs, and the changes of size that follow.

`membership.py` decides; this module observes the sources of hosts (`host_sources.py`), checks new hosts,
writes members.json, and turns a decision into a change of size like that of `mpips scale`. If too few hosts
stay for `min_workers`, the attempt ends with a checkpoint, and the run waits for others.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from mpips.config.launching import RunConfig
from mpips.config.schema import JobConfig
from mpips.errors import ConfigError
from mpips.monitor.progress import plural
from mpips.mpi.roles import check_servers
from mpips.process.patience import running_s
from mpips.rundir.directory import replace_json
from mpips.rundir.members import MemberRow, Members, MemberState, members_file
from mpips.rundir.requests import JobSize
from mpips.supervisor import slurm_agent
from mpips.supervisor.host_names import compact
from mpips.supervisor.host_sources import (
    AllocationHosts,
    FixedHosts,
    HostChecks,
    HostfileHosts,
    JoinedHosts,
    OwnHosts,
    offer_of,
)
from mpips.supervisor.hosts import (
    Host,
    HostPool,
    HostsError,
    is_here,
    n_workers,
    parse_hosts,
    slurm_hosts,
)
from mpips.supervisor.launcher import cores
from mpips.supervisor.membership import OWN, Bounds, HostChoice, Membership, Offer
from mpips.supervisor.plan import SupervisionPlan
from mpips.supervisor.scaling import Change, why_by_file

_OWN_LOOK_S = 0.4  # seconds between two looks at the sources
_NEAR_S = 10.0  # seconds by which the end of a time limit may change without a new members.json
_URGENT = 1 / 3  # part of the time until a host is gone that a change may wait for prepared ranks
# Sentences for people on what becomes of a join.
_WORDS = {
    "ready": "{} can be used, and will be when the run needs more hosts or has lost one",
    "in use": "{} is in use",
    "leaving": "{} leaves: the job ends there first",
    "left": "{} is free again",
    "unreachable": "{} cannot be used: {}",
    "refused": "{} is refused: {}",
}


def bounds_of(config: JobConfig) -> Bounds:
    """Return the bounds of an elastic run."""
    return Bounds(config.cluster.servers, config.run.min_workers, config.run.max_workers)


def check_options(options: RunConfig) -> None:
    """Refuse options that contradict an elastic run.

    Raises:
        ConfigError: Names the option and what to give instead.
    """
    if options.spares:
        raise ConfigError(
            f"spares = {options.spares} applies only to a run that is not elastic: an elastic run uses all "
            "hosts up to max_workers, and those beyond it replace others; leave --spares out"
        )
    if options.max_workers and options.min_workers > options.max_workers:
        raise ConfigError(
            f"min_workers = {options.min_workers} is greater than max_workers = {options.max_workers}"
        )


def own_hosts(
    options: RunConfig, tell: Callable[[str], None] = lambda text: None
) -> tuple[OwnHosts, bool]:
    """Return the hosts that the options of an elastic run name; True: these are only this machine.

    Args:
        options: The options.
        tell: Receives lines for people while the run goes on.

    Raises:
        ConfigError: They cannot be read, or contradict each other.
    """
    check_options(options)
    if options.hosts:
        found: OwnHosts = FixedHosts(parse_hosts(options.hosts))
    elif options.hostfile:
        found = HostfileHosts(Path(options.hostfile), tell)
    elif hosts := slurm_hosts():
        found = AllocationHosts(os.environ["SLURM_JOB_ID"], hosts, os.environ)
    else:
        # The ranks of this machine; those of joins come in addition.
        n = options.ranks or max(3, cores() + 1)
        return FixedHosts([Host(socket.gethostname(), n)]), True
    if options.ranks:
        raise ConfigError(
            f"ranks = {options.ranks}: an elastic run has one rank for each slot of its hosts; leave --ranks "
            "out, and bound the run by max_workers"
        )
    return found, False


def first_pool(config: JobConfig) -> HostPool:
    """Return the hosts and ranks with which an elastic run begins, if all its hosts answer.

    Raises:
        ConfigError: They cannot be read, or have too few slots for a worker.
    """
    own, is_only_here = own_hosts(config.run)
    bounds = replace(bounds_of(config), min_workers=0)
    membership = Membership(bounds)
    membership.offered(0.0, [Offer(OWN, own.hosts())])
    try:
        choice = membership.chosen()
    except HostsError:
        hosts = own.hosts()
        n = sum(host.slots for host in hosts)
        check_servers(bounds.servers or 1, n)
        raise ConfigError(
            f"{plural(n, 'slot')} on {plural(len(hosts), 'host')}: too few for a job"
        ) from None
    return _pool(choice, is_only_here)


def _pool(choice: HostChoice, is_only_here: bool) -> HostPool:
    """Return the pool of a choice. `is_only_here`: the options of the run name no host."""
    alone = is_only_here and len(choice.hosts) == 1 and is_here(choice.hosts[0].name)
    hosts = () if alone else choice.hosts
    return HostPool(hosts, choice.n_ranks, 0, choice.servers, 0)


class Elastic:
    """The hosts of an elastic run. Main thread only.

    Attributes:
        is_vacating: The attempt was asked to end because too few hosts stay.
    """

    def __init__(
        self,
        plan: SupervisionPlan,
        tell: Callable[[str], None],
        refuse: Callable[[int, str], None],
    ) -> None:
        """Observe the hosts of `plan`, whose run is elastic.

        Args:
            plan: The plan.
            tell: Prints a line for people.
            refuse: Takes the generation and why a request for another size is refused.

        Raises:
            ConfigError: The hosts cannot be read.
        """
        self._plan, self._tell, self._refuse = plan, tell, refuse
        self._own, self._is_only_here = own_hosts(plan.config.run, tell)
        self._membership = Membership(bounds_of(plan.config))
        self._joins = JoinedHosts(plan.run)
        self._checks = HostChecks(plan.run)
        self._jobs: dict[str, str] = {}  # Slurm job by host, of joins
        self._proposed: HostChoice | None = None
        self._next = HostChoice((), 0)  # of the last `pool`
        self._former: tuple[str, ...] = ()
        self._looked_at = -math.inf
        self._since: dict[str, float] = {}  # Unix time by source
        self._printed: dict[str, MemberState] = {}  # by source
        self._published: Members | None = None
        self.is_vacating = False
        options = plan.config.run
        most = options.max_workers or "any number of"
        tell(
            f"mpips run: elastic, {max(options.min_workers, 1)} to {most} workers; lend hosts with: mpips "
            f"join {plan.run.path}"
        )
        self.look()

    # Observations.

    def look(self, at_once: bool = False) -> None:
        """Observe all sources and start checks of new hosts, at most every `_OWN_LOOK_S`. Not blocking.

        Args:
            at_once: Even if it has just done so.
        """
        now = running_s()
        if now - self._looked_at < _OWN_LOOK_S and not at_once:
            return
        self._looked_at = now
        offers = [Offer(OWN, self._own.hosts())]
        records = self._joins.read()
        for name, record in records.items():
            offers.append(offer_of(name, record, self._why_not(record.job)))
        self._membership.offered(now, offers)
        known = {*self._membership.used, *self._former}
        self._jobs = {host: job for host, job in self._jobs.items() if host in known}
        for name, record in records.items():
            if name not in self._membership.refusals and record.job:
                self._jobs.update({host: record.job for host, _ in record.hosts})
        for name, (own_name, error) in self._checks.answers().items():
            self._membership.checked(now, name, error, own_name)
        for name in self._membership.to_check(now):
            self._checks.start(name, self._environment())
        self._publish()

    def _why_not(self, job: str) -> str:
        """Return why hosts of a Slurm job cannot be used; "": they can."""
        try:
            slurm_agent.environment({"": job}, os.environ)
        except ValueError as error:
            return str(error)
        return ""

    def _all_jobs(self) -> dict[str, str]:
        """Return the Slurm job of each host, if a join has lent hosts of another one; else {}."""
        if not self._jobs:
            return {}
        own = os.environ.get("SLURM_JOB_ID", "")
        mine = {host.name: own for host in self._own.hosts()} if own else {}
        return {**mine, **self._jobs}

    def _environment(self) -> dict[str, str]:
        return slurm_agent.environment(self._all_jobs(), os.environ)

    def _publish(self) -> None:
        """Write members.json if it would differ, and print what has become of joins."""
        rows = []
        for offer, state, cause in self._membership.rows():
            since_s = self._since.setdefault(offer.source, time.time())
            until_s = None if math.isinf(offer.left_s) else time.time() + offer.left_s
            names = tuple(host.name for host in offer.hosts)
            slots = sum(host.slots for host in offer.hosts)
            rows.append(
                MemberRow(
                    source=offer.source,
                    hosts=names,
                    slots=slots,
                    state=state,
                    since_s=since_s,
                    until_s=until_s,
                    cause=cause,
                )
            )
            self._print(offer.source, f"{compact(names)} ({plural(slots, 'slot')})", state, cause)
        self._since = {row.source: row.since_s for row in rows}
        members = Members(n_ranks=self._membership.n_ranks, rows=tuple(rows))
        if self._published is not None and _is_same(members, self._published):
            return
        try:
            replace_json(members_file(self._plan.run), members)
        except OSError:
            # A full disk: it is written at one of the next looks.
            return
        self._published = members

    def _print(self, source: str, hosts: str, state: MemberState, cause: str) -> None:
        before = self._printed.get(source)
        self._printed[source] = state
        if state != before and source != OWN and state in _WORDS:
            self._tell("mpips run: " + _WORDS[state].format(hosts, cause))

    # Attempts.

    def pool(self) -> HostPool:
        """Return the hosts and ranks of the next attempt.

        Raises:
            HostsError: Too few hosts are left.
        """
        choice = self._membership.chosen()
        pool = self._pool_of(choice)
        self._next, self._former = choice, pool.former
        return pool

    def _pool_of(self, choice: HostChoice) -> HostPool:
        pool = _pool(choice, self._is_only_here)
        names = {host.name for host in choice.hosts}
        before = (*self._former, *self._membership.used)
        pool.former = tuple(dict.fromkeys(name for name in before if name not in names))
        pool.jobs = self._all_jobs()
        return pool

    def unreachable(self, failed: dict[str, str]) -> bool:
        """Note which hosts of the next attempt did not answer; return True if another choice is needed."""
        for name, why in failed.items():
            self._membership.lost(running_s(), name, why)
        self._former = ()
        return any(host.name in failed for host in self._next.hosts)

    def began(self) -> None:
        """Note that an attempt has begun on the hosts of the last `pool`."""
        self._membership.began(running_s(), self._next)
        self._proposed, self.is_vacating = None, False
        self._publish()

    def failed(self, host: str, cause: str, is_lost: bool) -> None:
        """Note that an attempt has failed.

        Args:
            host: The host of the failure; "": unknown.
            cause: The cause.
            is_lost: The host itself was lost, not only a rank on it.
        """
        if is_lost and not is_here(host):
            self._membership.lost(running_s(), host, cause)
        elif host:
            self._membership.failed(running_s(), host, cause)

    @property
    def is_leaving(self) -> bool:
        """True if a host that the attempt uses must leave."""
        return self._membership.is_leaving

    def applied(self) -> None:
        """Note that the attempt has ended with a checkpoint, for another choice or since hosts leave."""
        self._membership.applied(self._proposed or HostChoice((), 0))

    def vacated(self) -> None:
        """Note that what the last attempt left on its hosts was ended."""
        self._membership.vacated()
        self._publish()

    # Changes of size.

    def request(self, generation: int, shape: JobSize) -> None:
        """Take a request of `mpips scale`: its numbers bound the run from now on."""
        options = self._plan.config.run
        if options.script and shape.servers:
            self._refuse(generation, f"{options.script} chooses the number of servers")
            return
        workers = n_workers(shape.ranks, shape.servers, len(self._membership.used))
        bounds = replace(self._membership.bounds, servers=shape.servers, max_workers=workers)
        if workers < bounds.min_workers:
            why = f"{plural(workers, 'worker')}: the run has min_workers = {bounds.min_workers}"
            self._refuse(generation, why)
            return
        if self._membership.fits(bounds).n_ranks < shape.ranks:
            self._refuse(
                generation,
                f"{plural(shape.ranks, 'rank')} with {plural(shape.servers, 'server')} do not fit on the "
                "hosts of the run: lend others with mpips join first",
            )
            return
        self._membership.bound(bounds)

    def decide(self) -> Change | HostChoice | None:
        """Return a change that the attempt, which is at work, should end for; None: none that is new.

        Returns:
            A change, or a choice without hosts: the attempt should end although too few hosts stay.
        """
        now = running_s()
        self._membership.at_work(now)
        choice = self._membership.wanted(now)
        if choice is None or self.is_vacating:
            return None
        if self._proposed is not None and _key(choice) == _key(self._proposed):
            return None
        self._proposed = choice
        if not choice.hosts:
            self.is_vacating = True
            self._tell(f"mpips run: {choice.why}: too few hosts stay, the job waits for others")
            return choice
        self._tell(
            f"mpips run: {choice.why}: the job continues with {plural(choice.n_ranks, 'rank')}"
        )
        pool = self._pool_of(choice)
        config = self._plan.config
        config = replace(
            config,
            run=replace(config.run, max_workers=self._membership.bounds.max_workers, elastic=True),
            cluster=replace(config.cluster, servers=choice.servers),
        )
        shape = JobSize(ranks=choice.n_ranks, servers=choice.servers)
        layout = pool.layout()
        by_file = why_by_file(self._plan, layout)
        return Change(shape, config, pool, layout, by_file, choice.left_s * _URGENT)

    def asked(self) -> None:
        """Note that the attempt was asked to end for the change of `decide`."""
        self._membership.asked(running_s())

    @property
    def is_stale(self) -> bool:
        """True if the proposed change is no longer wanted, so that it must not be made."""
        return self._proposed is not None and self._membership.wanted(running_s()) is None

    def forget(self) -> None:
        """Forget the proposed change."""
        self._proposed = None

    def end(self) -> None:
        """End the checks, and give all hosts back; the run has ended."""
        self._checks.end()
        self._own.end()


def _key(choice: HostChoice) -> tuple[int, tuple[Host, ...]]:
    return choice.n_ranks, choice.hosts


def _is_same(a: Members, b: Members) -> bool:
    """Return True if two contents of members.json differ at most by seconds of ends of time limits."""

    def plain(members: Members) -> Members:
        return replace(members, rows=tuple(replace(row, until_s=None) for row in members.rows))

    def ends(members: Members) -> list[float]:
        return [math.inf if row.until_s is None else row.until_s for row in members.rows]

    near = all(x == y or abs(x - y) < _NEAR_S for x, y in zip(ends(a), ends(b), strict=False))
    return plain(a) == plain(b) and near
