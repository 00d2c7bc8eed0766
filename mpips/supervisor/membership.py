"""The decision which hosts an elastic run uses: a state machine without processes, files and clocks.

Sources offer hosts: the list or the hostfile of `mpips run`, its allocation, and every `mpips join`. Each
host is in one of these states:

    checking      new, not reached yet                         unreachable   asked again after a pause
    ready         reachable; used if the job needs it          used          the attempt has ranks there

A host leaves when its source wants it back (`leaves`) or is gone. The caller passes in what it observes
(`offered`, `checked`, `began`, `at_work`, `lost`, `applied`, `vacated`), with the time in seconds from any
origin, and asks what to do:

    wanted   While an attempt is at work: another choice of hosts, if the attempt should end for it. It should
             end at once when a used host leaves or the user has asked for another size; to grow, when the
             offers have not changed for SETTLE_S and the changes before have cost less than a tenth of the
             time.
    chosen   Between attempts: the hosts of the next one. After a failure it keeps the hosts and the number of
             ranks where it can, since only as many ranks on the same hosts can continue in the memory of the
             job. A host that leaves is then still used, and the attempt ends for it later. After an end with
             a checkpoint for another choice (`applied`) it is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from mpips.errors import ConfigError
from mpips.monitor.progress import plural
from mpips.mpi.roles import check_servers, default_servers
from mpips.rundir.members import MemberState
from mpips.supervisor.host_names import be, compact
from mpips.supervisor.hosts import Host, HostsError, n_workers

SETTLE_S = 1.0  # s without a new host after which a run grows: several joins are one change
SHARE = 10.0  # times the pause of the last change for which a run does not grow again
FIRST_RETRY_S = (
    5.0  # s after which a host that was lost or not reached is checked again; doubled each time
)
LONGEST_RETRY_S = 300.0
PROVEN_S = 30.0  # s at work after which a failure on a new host is no reason to leave it out
OWN = "hosts"  # the source of the run's own hosts


class Offer(msgspec.Struct, frozen=True):
    """Hosts that a source lends to a run.

    Attributes:
        source: `OWN`, or the name of a join.
        hosts: The hosts with their slots.
        leaves: The source wants them back.
        left_s: Seconds until they are gone; inf: no limit is known.
        refused: Why they cannot be used, or "".
    """

    source: str
    hosts: tuple[Host, ...]
    leaves: bool = False
    left_s: float = math.inf
    refused: str = ""


class Bounds(msgspec.Struct, frozen=True):
    """The numbers of workers and servers that a run may have.

    Attributes:
        servers: Number of servers; 0: mpips chooses it.
        min_workers: Least number of workers; 0: one.
        max_workers: Greatest number of workers; 0: no limit.
    """

    servers: int = 0
    min_workers: int = 0
    max_workers: int = 0

    def most_ranks(self, slots: int, n_hosts: int) -> int:
        """Return the number of ranks for so many slots on so many hosts; 0: too few."""
        # At most a quarter of the ranks, or one on each host, are servers by default.
        limit = 2 * self.max_workers + max(self.servers, n_hosts) + 2 if self.max_workers else slots
        for n in range(min(slots, limit), 0, -1):
            workers = n_workers(n, self.servers, n_hosts)
            if not self.max_workers or workers <= self.max_workers:
                return n if self._is_possible(n, n_hosts) else 0
        return 0

    def _is_possible(self, n_ranks: int, n_hosts: int) -> bool:
        servers = self.servers or default_servers(n_ranks, max(n_hosts, 1))
        try:
            check_servers(servers, n_ranks)
        except ConfigError:
            return False
        return n_workers(n_ranks, self.servers, n_hosts) >= max(self.min_workers, 1)


class HostChoice(msgspec.Struct, frozen=True):
    """Hosts and ranks of an attempt.

    Attributes:
        hosts: The hosts, none without a rank; empty: too few are left, so the run must wait for others.
        n_ranks: Number of ranks; 0 without hosts.
        servers: Number of servers; 0: mpips chooses it.
        why: A sentence for people.
        left_s: Seconds until a host of the present attempt is gone; inf: none leaves, or no limit is known.
    """

    hosts: tuple[Host, ...]
    n_ranks: int
    servers: int = 0
    why: str = ""
    left_s: float = math.inf


class _Place:
    """One host. Attributes are changed by `Membership` only.

    Attributes:
        host: The host with the slots that are offered now.
        source: Name of the source.
        reachable: It was reached, or is one of the first hosts and no attempt has lost it.
        asked: A check is under way.
        retry_at: Time of the next check.
        retry_s: Seconds from the next failure to the check after it.
        used: Slots that the present attempt uses; 0: none.
        order: Position of the host in the present attempt.
        proven: The job was at work for `PROVEN_S` with a rank there.
        leaves: The source wants it back.
        gone: The source no longer offers it.
        left_s: As in `Offer`.
        cause: Why it is not reachable, or "".
    """

    def __init__(self, host: Host, source: str, now: float, reachable: bool) -> None:
        self.host, self.source = host, source
        self.reachable = self.proven = reachable
        self.asked = False
        self.retry_at, self.retry_s = now, FIRST_RETRY_S
        self.used = self.order = 0
        self.leaves = self.gone = False
        self.left_s = math.inf
        self.cause = ""

    @property
    def must_leave(self) -> bool:
        return self.leaves or self.gone or self.host.slots < self.used


class Membership:
    """The hosts of an elastic run. See the module.

    Attributes:
        n_ranks: Ranks of the present attempt, or of the last one; 0: none has begun.
        refusals: Why the offers of some sources are refused, by source.
    """

    def __init__(self, bounds: Bounds) -> None:
        """Take `bounds`; no host is offered yet."""
        self.n_ranks = 0
        self.refusals: dict[str, str] = {}
        self._bounds = bounds
        self._places: dict[str, _Place] = {}
        self._names: dict[str, str] = {}  # name of a place by the host's own name
        self._offers: tuple[Offer, ...] = ()
        self._servers = bounds.servers  # of the present attempt, as in `Bounds`
        self._applied: HostChoice | None = None  # the attempt has ended for it with a checkpoint
        self._settled_at = -math.inf  # time from which the run may grow
        self._rest_until = -math.inf  # before that it does not grow: the last change took long
        self._asked_at: float | None = None
        self._at_work_since: float | None = None
        self._resized = False  # the user has asked for another size

    # Events.

    def bound(self, bounds: Bounds) -> None:
        """Change the bounds: the user asks for another size."""
        self._bounds, self._resized = bounds, True

    def fits(self, bounds: Bounds) -> HostChoice:
        """Return the choice that these bounds would lead to; without hosts, if they cannot be met."""
        return self._choose(self._staying(), bounds)

    @property
    def bounds(self) -> Bounds:
        """The bounds."""
        return self._bounds

    def offered(self, now: float, offers: Sequence[Offer]) -> None:
        """Take the offers of all sources; what an earlier call had and this one does not have is gone.

        A host that two sources offer belongs to the first of them, and the offer of the other one is refused
        as a whole.

        Args:
            now: The time.
            offers: The offers.
        """
        self._offers = tuple(offers)
        there: set[str] = set()
        known = {offer.source for offer in offers}
        self.refusals = {s: why for s, why in self.refusals.items() if s in known}
        for offer in offers:
            if offer.source in self.refusals:
                continue
            if why := self._clash(offer, known):
                self.refusals[offer.source] = why
                continue
            for host in offer.hosts:
                there.add(host.name)
                self._take(now, host, offer)
        for name, place in self._places.items():
            place.gone = name not in there
        self._forget()

    def _clash(self, offer: Offer, known: set[str]) -> str:
        """Return why an offer must be refused; "" if it can be taken."""
        if offer.refused:
            return offer.refused
        for host in offer.hosts:
            place = self._places.get(host.name)
            if place is not None and place.source != offer.source and place.source in known:
                whose = "its own hosts" if place.source == OWN else f"the hosts of {place.source}"
                return f"{host.name} is one of {whose} already: join with other hosts"
        return ""

    def _take(self, now: float, host: Host, offer: Offer) -> None:
        place = self._places.get(host.name)
        if place is None or (place.source != offer.source and not place.used):
            # The run's own hosts are asked before its first attempt in any case.
            is_first = offer.source == OWN and not self.n_ranks
            place = self._places[host.name] = _Place(host, offer.source, now, is_first)
        if host.slots > place.host.slots:
            self._settled_at = now + SETTLE_S
        place.host, place.source = host, offer.source
        place.leaves, place.left_s = offer.leaves, offer.left_s

    def _forget(self) -> None:
        """Remove the hosts that leave and that no attempt uses."""
        for name in [n for n, p in self._places.items() if not p.used and (p.leaves or p.gone)]:
            del self._places[name]
        self._names = {own: name for own, name in self._names.items() if name in self._places}

    def to_check(self, now: float) -> list[str]:
        """Return the hosts that must be checked now; each is returned once until `checked` is called."""
        due = [
            name
            for name, place in self._places.items()
            if not (place.reachable or place.asked or place.used or place.must_leave)
            and now >= place.retry_at
        ]
        for name in due:
            self._places[name].asked = True
        return due

    def checked(self, now: float, name: str, error: str, own_name: str = "") -> None:
        """Take the result of a check.

        Args:
            now: The time.
            name: The host.
            error: Why it cannot be used; "": it can.
            own_name: Name that the host has itself: two names of one host must not count twice.
        """
        place = self._places.get(name)
        if place is None:
            return
        place.asked = False
        if not error and (other := self._other_name(name, own_name)):
            error = f"it is {other} under another name"
        if error:
            self.lost(now, name, error)
            return
        if own_name:
            self._names[own_name] = name
        place.reachable, place.cause = True, ""
        self._settled_at = now + SETTLE_S

    def _other_name(self, name: str, own_name: str) -> str:
        """Return the name under which another source, or this one, has the same host; "" without one."""
        for other in (self._names.get(own_name, ""), own_name):
            if other and other != name and other in self._places:
                return other
        # A host may know its name without a domain.
        return next((n for n in self._places if n != name and n.partition(".")[0] == own_name), "")

    def lost(self, now: float, name: str, cause: str) -> None:
        """Note that a host cannot be reached, or was lost in an attempt; it is checked again later."""
        place = self._places.get(name)
        if place is None:
            return
        place.reachable, place.cause = False, cause
        place.used = 0
        place.retry_at = now + place.retry_s
        place.retry_s = min(2.0 * place.retry_s, LONGEST_RETRY_S)
        self._forget()

    def failed(self, now: float, name: str, cause: str) -> None:
        """Note that a rank on a host was the first to fail; a new host is left out for a while."""
        place = self._places.get(name)
        if place is not None and not place.proven:
            self.lost(now, name, cause)

    def began(self, now: float, choice: HostChoice) -> None:
        """Note that an attempt has begun with a choice."""
        for place in self._places.values():
            place.used = 0
        for order, host in enumerate(choice.hosts):
            if host.name in self._places:
                self._places[host.name].used = host.slots
                self._places[host.name].order = order
        self.n_ranks, self._servers = choice.n_ranks, choice.servers
        self._applied, self._at_work_since = None, None
        self._forget()

    def at_work(self, now: float) -> None:
        """Note that the ranks of the attempt are at work. May be called again and again."""
        if self._at_work_since is None:
            self._at_work_since = now
            if self._asked_at is not None:
                self._rest_until = now + SHARE * (now - self._asked_at)
                self._asked_at = None
        if now - self._at_work_since >= PROVEN_S:
            for place in self._places.values():
                if place.used:
                    place.proven, place.retry_s = True, FIRST_RETRY_S

    def asked(self, now: float) -> None:
        """Note that the attempt was asked to end for a choice of `wanted`. May be called again and again."""
        if self._asked_at is None:
            self._asked_at = now

    def applied(self, choice: HostChoice) -> None:
        """Note that the attempt has ended with a checkpoint of all its work, for a choice of `wanted`."""
        self._applied = choice

    def vacated(self) -> None:
        """Note that no attempt uses any host, and that those of the last one were cleared."""
        for place in self._places.values():
            place.used = 0
        self._forget()

    # Decisions.

    def wanted(self, now: float) -> HostChoice | None:
        """Return another choice of hosts if the attempt, which is at work, should end for it; else None."""
        leaving = [p for p in self._places.values() if p.used and p.must_leave]
        choice = self._choose(self._staying(), self._bounds)
        if leaving:
            names = sorted(p.host.name for p in leaving)
            # A host that is gone already gives no time.
            left_s = min(0.0 if p.gone else p.left_s for p in leaving)
            return msgspec.structs.replace(
                choice, why=f"{compact(names)} leave{'s' * (len(names) == 1)}", left_s=left_s
            )
        if self._resized:
            self._resized = False
            self._settled_at = self._rest_until = -math.inf
        if choice.hosts and (
            self._bounds.servers != self._servers or choice.n_ranks < self.n_ranks
        ):
            return msgspec.structs.replace(choice, why="another size was requested")
        if choice.n_ranks <= self.n_ranks or now < max(self._settled_at, self._rest_until):
            return None
        new = [host.name for host in choice.hosts if not self._places[host.name].used]
        return msgspec.structs.replace(
            choice, why=f"{be(new)} there" if new else "more slots are there"
        )

    def chosen(self) -> HostChoice:
        """Return the hosts of the next attempt.

        Raises:
            HostsError: Too few hosts are left.
        """
        if self._applied is not None:
            choice = self._applied
            staying = {place.host.name: place.host.slots for place in self._staying()}
            if not choice.hosts or any(staying.get(h.name, 0) < h.slots for h in choice.hosts):
                choice = self._choose(self._staying(), self._bounds)
        else:
            choice = self._continued()
        if choice.hosts:
            return choice
        raise HostsError(self._too_few())

    def _continued(self) -> HostChoice:
        """Return the choice after a failure, or of the first attempt."""
        used = [p for p in self._places.values() if p.used and p.reachable and not p.gone]
        used.sort(key=lambda place: place.order)
        places = [*used, *(p for p in self._staying() if not p.used)]
        if not self.n_ranks:
            return self._choose(places, self._bounds)
        # A request for other numbers of workers and servers waits for the next checkpoint.
        bounds = msgspec.structs.replace(self._bounds, servers=self._servers, max_workers=0)
        return self._choose(places, bounds, self.n_ranks)

    def _staying(self) -> list[_Place]:
        """Return the places that a new attempt may use, those of the present one first."""
        found = [p for p in self._places.values() if p.reachable and not p.leaves and not p.gone]
        return sorted(found, key=lambda place: (not place.used, place.order))

    def _choose(self, places: Iterable[_Place], bounds: Bounds, most: int = 0) -> HostChoice:
        """Return the choice of the first of these places that are needed.

        Args:
            places: The places.
            bounds: The bounds.
            most: Most ranks; 0: no limit.
        """
        hosts = [place.host for place in places]
        slots = sum(host.slots for host in hosts)
        n = bounds.most_ranks(min(slots, most or slots), len(hosts))
        if not n:
            return HostChoice((), 0)
        taken: list[Host] = []
        while sum(host.slots for host in taken) < n:
            taken.append(hosts[len(taken)])
        # The default number of servers depends on the number of hosts.
        fewer = bounds.most_ranks(n, len(taken))
        found = HostChoice(tuple(taken), fewer) if fewer else HostChoice(tuple(hosts), n)
        return msgspec.structs.replace(found, servers=bounds.servers)

    def _too_few(self) -> str:
        """Return the sentence of a run that has too few hosts."""
        good = self._staying()
        slots = sum(place.host.slots for place in good)
        workers = max(n_workers(slots, self._bounds.servers, len(good)), 0) if slots else 0
        bad = [
            f"; {be([p.host.name])} left out: {p.cause}"
            for p in self._places.values()
            if not p.reachable and p.cause
        ]
        return (
            f"{plural(len(good), 'host')} with {plural(slots, 'slot')} are left, enough for "
            f"{plural(workers, 'worker')}; {max(self._bounds.min_workers, 1)} are needed: bring hosts back, "
            f"lend others with mpips join, or lower --min-workers{''.join(bad)}"
        )

    # State for people and for joins.

    @property
    def used(self) -> list[str]:
        """Names of the hosts that the present attempt uses."""
        return [name for name, place in self._places.items() if place.used]

    @property
    def is_leaving(self) -> bool:
        """True if a host that the attempt uses must leave."""
        return any(p.used and p.must_leave for p in self._places.values())

    def rows(self) -> list[tuple[Offer, MemberState, str]]:
        """Return every offer with its state as in `MemberRow`, and a sentence or ""."""
        return [(offer, *self._state_of(offer)) for offer in self._offers]

    def _state_of(self, offer: Offer) -> tuple[MemberState, str]:
        if offer.source in self.refusals:
            return "refused", self.refusals[offer.source]
        mine = [p for p in self._places.values() if p.source == offer.source]
        if any(p.used for p in mine):
            return ("leaving" if offer.leaves else "in use"), ""
        if offer.leaves:
            return "left", ""
        causes = [f"{p.host.name}: {p.cause}" for p in mine if not p.reachable and p.cause]
        if any(p.reachable for p in mine):
            return "ready", "; ".join(causes)
        return ("unreachable" if causes else "checking"), "; ".join(causes)
