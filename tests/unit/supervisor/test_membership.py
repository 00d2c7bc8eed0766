"""The decision which hosts an elastic run uses: single cases, and random sequences of events."""

from __future__ import annotations

import math
import random

import pytest

from mpips.supervisor.hosts import Host, HostsError, n_workers
from mpips.supervisor.membership import (
    FIRST_RETRY_S,
    LONGEST_RETRY_S,
    OWN,
    PROVEN_S,
    SETTLE_S,
    SHARE,
    Bounds,
    HostChoice,
    Membership,
    Offer,
)


def offer(source: str, *hosts: str, leaves: bool = False, left_s: float = math.inf) -> Offer:
    """An offer of hosts that are written like "a:3"."""
    pairs = (host.split(":") for host in hosts)
    return Offer(source, tuple(Host(name, int(n)) for name, n in pairs), leaves, left_s)


class Scene:
    """A run of one server whose own host a has three slots, so it begins with one worker."""

    def __init__(self, **bounds: int) -> None:
        self.now = 0.0
        self.members = Membership(Bounds(**{"servers": 1, **bounds}))
        self.offers = {OWN: offer(OWN, "a:3")}

    def offer(
        self, source: str, *hosts: str, leaves: bool = False, left_s: float = math.inf
    ) -> None:
        self.offers[source] = offer(source, *hosts, leaves=leaves, left_s=left_s)
        self.look()

    def look(self) -> None:
        self.members.offered(self.now, list(self.offers.values()))

    def drop(self, source: str) -> None:
        del self.offers[source]
        self.look()

    def check(self, **errors: str) -> list[str]:
        due = self.members.to_check(self.now)
        for name in due:
            self.members.checked(self.now, name, errors.get(name, ""), name)
        return due

    def begin(self) -> HostChoice:
        self.look()
        choice = self.members.chosen()
        self.members.began(self.now, choice)
        self.members.at_work(self.now)
        return choice

    def after(self, seconds: float) -> HostChoice | None:
        self.now += seconds
        self.members.at_work(self.now)
        return self.members.wanted(self.now)

    def change(self, choice: HostChoice) -> HostChoice:
        """End the attempt with a checkpoint for a choice, and begin the next one."""
        self.members.asked(self.now)
        self.members.applied(choice)
        self.members.vacated()
        return self.begin()

    def state(self, source: str) -> str:
        return next(state for offer, state, _ in self.members.rows() if offer.source == source)


def names(choice: HostChoice | None) -> list[str]:
    assert choice is not None
    return [host.name for host in choice.hosts]


def test_a_run_begins_with_its_own_hosts_unchecked() -> None:
    scene = Scene()
    choice = scene.begin()
    assert (names(choice), choice.n_ranks) == (["a"], 3)
    assert scene.check() == []
    assert scene.after(1e6) is None
    assert scene.state(OWN) == "in use"


def test_a_joined_host_is_used_once_it_was_reached_and_the_offers_have_settled() -> None:
    scene = Scene()
    scene.begin()
    scene.offer("j", "b:2")
    assert scene.state("j") == "checking"
    assert scene.after(60.0) is None
    assert scene.members.to_check(scene.now) == ["b"]
    assert scene.members.to_check(scene.now) == []  # a check is under way
    scene.members.checked(scene.now, "b", "", "b")
    assert scene.state("j") == "ready"
    assert scene.after(0.0) is None
    wanted = scene.after(SETTLE_S)
    assert (names(wanted), wanted and wanted.n_ranks) == (["a", "b"], 5)
    assert wanted is not None
    assert wanted.why == "b is there"
    assert math.isinf(wanted.left_s)
    choice = scene.change(wanted)
    assert (names(choice), choice.n_ranks) == (["a", "b"], 5)
    assert scene.state("j") == "in use"
    assert scene.after(1e6) is None


def test_two_joins_at_once_are_one_change() -> None:
    scene = Scene()
    scene.begin()
    scene.offer("j", "b:2")
    scene.check()
    assert scene.after(SETTLE_S / 2) is None
    scene.offer("k", "c:1")
    scene.check()
    assert scene.after(SETTLE_S / 2) is None
    assert names(scene.after(SETTLE_S / 2)) == ["a", "b", "c"]


def test_a_run_does_not_grow_beyond_its_workers_and_other_hosts_wait() -> None:
    scene = Scene(max_workers=3)
    scene.begin()
    scene.offer("j", "b:4", "c:4")
    scene.check()
    wanted = scene.after(SETTLE_S)
    assert wanted is not None
    assert (names(wanted), wanted.n_ranks) == (["a", "b"], 5)
    scene.change(wanted)
    assert scene.after(1e6) is None
    # A host that waits replaces one that leaves.
    scene.offer("j", "c:4")
    wanted = scene.after(0.0)
    assert wanted is not None
    assert (names(wanted), wanted.n_ranks) == (["a", "c"], 5)


def test_growth_waits_until_changes_cost_little_and_leaving_does_not() -> None:
    scene = Scene()
    scene.begin()
    scene.offer("j", "b:2")
    scene.check()
    wanted = scene.after(SETTLE_S)
    assert wanted is not None
    scene.members.asked(scene.now)
    scene.now += 4.0
    scene.members.asked(scene.now)  # once more while it ends: the first time counts
    scene.change(wanted)
    scene.offer("k", "c:2")
    scene.check()
    assert scene.after(4.0 * SHARE - 0.1) is None
    wanted = scene.after(0.2)
    assert names(wanted) == ["a", "b", "c"]
    scene.offer("j", "b:2", leaves=True, left_s=30.0)
    wanted = scene.after(0.0)
    assert wanted is not None
    assert (names(wanted), wanted.why, wanted.left_s) == (["a", "c"], "b leaves", 30.0)


def test_a_source_has_its_hosts_back_when_no_attempt_uses_them() -> None:
    scene = Scene()
    scene.begin()
    scene.offer("j", "b:2", "c:1")
    scene.check()
    wanted = scene.after(SETTLE_S)
    assert wanted is not None
    scene.change(wanted)
    scene.offer("j", "b:2", "c:1", leaves=True)
    assert scene.state("j") == "leaving"
    wanted = scene.after(0.0)
    assert wanted is not None
    assert wanted.why == "b,c leave"
    scene.members.asked(scene.now)
    scene.members.applied(wanted)
    assert scene.state("j") == "leaving"  # its hosts are not cleared yet
    scene.members.vacated()
    assert scene.state("j") == "left"
    assert names(scene.begin()) == ["a"]
    # One that leaves before it was used is free at once.
    scene.offer("k", "d:2")
    scene.check()
    scene.offer("k", "d:2", leaves=True)
    assert scene.state("k") == "left"
    assert scene.after(SETTLE_S) is None


def test_a_source_that_vanishes_takes_its_hosts_along() -> None:
    scene = Scene()
    scene.begin()
    scene.offer("j", "b:2")
    scene.check()
    wanted = scene.after(SETTLE_S)
    assert wanted is not None
    scene.change(wanted)
    scene.drop("j")
    wanted = scene.after(0.0)
    assert wanted is not None
    assert (names(wanted), wanted.left_s) == (["a"], 0.0)
    # If the attempt fails before it could end, the next one does without them, too.
    assert names(scene.begin()) == ["a"]


def test_a_host_that_is_lent_again_while_it_is_used_stays() -> None:
    scene = Scene()
    scene.begin()
    scene.offer("j", "b:2")
    scene.check()
    wanted = scene.after(SETTLE_S)
    assert wanted is not None
    scene.change(wanted)
    scene.drop("j")
    scene.offer("j2", "b:2")
    assert scene.after(1e6) is None
    assert scene.state("j2") == "in use"


def test_after_a_failure_the_ranks_stay_where_their_memory_is() -> None:
    scene = Scene()
    scene.begin()
    scene.offer("j", "b:2")
    scene.check()
    wanted = scene.after(SETTLE_S)
    assert wanted is not None
    scene.change(wanted)
    scene.offer("j", "b:2", leaves=True)
    scene.offer("k", "c:4")
    scene.check()
    # A rank died: b is leaving but still there, and c must wait for a change with a checkpoint.
    choice = scene.begin()
    assert (names(choice), choice.n_ranks) == (["a", "b"], 5)
    assert names(scene.after(0.0)) == ["a", "c"]


def test_a_lost_host_is_replaced_left_out_and_checked_again() -> None:
    scene = Scene()
    scene.offers[OWN] = offer(OWN, "a:3", "b:2")
    scene.begin()
    scene.offer("j", "c:2")
    scene.check()
    scene.members.lost(scene.now, "b", "it is down")
    choice = scene.begin()
    assert (names(choice), choice.n_ranks) == (["a", "c"], 5)
    assert scene.check() == []
    scene.now += FIRST_RETRY_S
    assert scene.check(b="no answer") == ["b"]
    scene.now += FIRST_RETRY_S
    assert scene.check() == []
    scene.now += FIRST_RETRY_S
    assert scene.check() == ["b"]
    assert names(scene.after(SETTLE_S)) == ["a", "c", "b"]
    scene.offer("j", "c:2", leaves=True)
    for _ in range(20):
        scene.members.lost(scene.now, "b", "it is down")
    scene.now += LONGEST_RETRY_S
    assert scene.check() == ["b"]


def test_too_few_hosts_end_the_attempt_and_the_run_waits() -> None:
    scene = Scene(min_workers=2)
    scene.offers[OWN] = offer(OWN, "a:3", "b:2")
    scene.begin()
    scene.offer(OWN, "a:3")
    wanted = scene.after(0.0)
    assert wanted is not None
    assert (wanted.hosts, wanted.n_ranks, wanted.why) == ((), 0, "b leaves")
    scene.members.applied(wanted)
    scene.members.vacated()
    with pytest.raises(
        HostsError, match=r"1 host with 3 slots are left, enough for 1 worker; 2 are"
    ) as e:
        scene.members.chosen()
    assert "lend others with mpips join, or lower --min-workers" in str(e.value)
    scene.offer("j", "c:1")
    scene.check(c="no route to host")
    with pytest.raises(HostsError, match=r"; c is left out: no route to host"):
        scene.members.chosen()
    scene.now += FIRST_RETRY_S
    scene.check()
    assert names(scene.begin()) == ["a", "c"]


def test_a_choice_that_lost_a_host_meanwhile_is_made_again() -> None:
    scene = Scene()
    scene.begin()
    scene.offer("j", "b:2")
    scene.offer("k", "c:2")
    scene.check()
    wanted = scene.after(SETTLE_S)
    assert wanted is not None
    scene.members.applied(wanted)
    scene.members.vacated()
    scene.drop("j")
    choice = scene.begin()
    assert (names(choice), choice.n_ranks) == (["a", "c"], 5)


@pytest.mark.parametrize("proven", [False, True])
def test_a_new_host_on_which_the_first_rank_failed_is_left_out_for_a_while(proven: bool) -> None:
    scene = Scene()
    scene.begin()
    scene.offer("j", "b:2")
    scene.check()
    wanted = scene.after(SETTLE_S)
    assert wanted is not None
    scene.change(wanted)
    scene.after(PROVEN_S if proven else PROVEN_S / 2)
    scene.members.failed(scene.now, "b", "killed")
    scene.members.failed(scene.now, "a", "killed")  # the run's own hosts are never new
    assert names(scene.begin()) == (["a", "b"] if proven else ["a"])


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["a:2"], "a is one of its own hosts already: join with other hosts"),
        (["c:1", "b:2"], "b is one of the hosts of j already: join with other hosts"),
    ],
)
def test_a_host_that_is_there_already_is_refused_with_its_offer(
    hosts: list[str], text: str
) -> None:
    scene = Scene()
    scene.begin()
    scene.offer("j", "b:2")
    scene.offer("k", *hosts)
    assert scene.state("k") == "refused"
    assert scene.members.refusals == {"k": text}
    assert scene.check() == ["b"]
    scene.drop("k")
    assert not scene.members.refusals


@pytest.mark.parametrize("own_name", ["a", "b.site"])
def test_two_names_of_one_host_count_once(own_name: str) -> None:
    scene = Scene()
    scene.begin()
    scene.offer("j", "b.site:2")
    scene.check()
    scene.offer("k", "alias:2")
    scene.members.to_check(scene.now)
    scene.members.checked(scene.now, "alias", "", own_name)
    assert scene.state("k") == "unreachable"
    assert scene.members.rows()[-1][2] == f"alias: it is {own_name} under another name"


def test_a_host_that_calls_itself_without_its_domain_is_the_same() -> None:
    scene = Scene()
    scene.offers[OWN] = offer(OWN, "a.site:3")
    scene.begin()
    scene.offer("j", "a-ib:2")
    scene.members.to_check(scene.now)
    scene.members.checked(scene.now, "a-ib", "", "a")
    assert scene.members.rows()[-1][2] == "a-ib: it is a.site under another name"


def test_fewer_slots_of_a_used_host_are_a_change_and_more_are_growth() -> None:
    scene = Scene()
    scene.begin()
    scene.offer(OWN, "a:4")
    wanted = scene.after(SETTLE_S)
    assert wanted is not None
    assert (wanted.n_ranks, wanted.why) == (4, "more slots are there")
    scene.change(wanted)
    scene.offer(OWN, "a:3")
    wanted = scene.after(0.0)
    assert wanted is not None
    assert wanted.n_ranks == 3


def test_a_requested_size_bounds_the_run_after_the_next_checkpoint() -> None:
    scene = Scene()
    scene.offers[OWN] = offer(OWN, "a:4", "b:4")
    assert scene.begin().n_ranks == 8
    bounds = Bounds(servers=2, max_workers=3)
    assert scene.members.fits(bounds).n_ranks == 6
    assert scene.members.bounds.servers == 1
    scene.members.bound(bounds)
    # A failure before the change continues with the old numbers, in memory.
    again = scene.begin()
    assert (again.n_ranks, again.servers) == (8, 1)
    wanted = scene.after(0.0)
    assert wanted is not None
    assert (wanted.n_ranks, wanted.servers, wanted.why) == (6, 2, "another size was requested")
    scene.change(wanted)
    assert scene.after(1e6) is None
    # More is taken at once, too, without a pause after the last change.
    scene.members.bound(Bounds(servers=2, max_workers=4))
    wanted = scene.after(0.0)
    assert wanted is not None
    assert wanted.n_ranks == 7
    assert scene.members.fits(Bounds(servers=9)).hosts == ()


@pytest.mark.parametrize("servers", [0, 1, 3])
@pytest.mark.parametrize("n_hosts", [1, 2, 5])
@pytest.mark.parametrize("most", [0, 1, 2, 7])
@pytest.mark.parametrize("least", [0, 1, 3])
def test_numbers_of_ranks_obey_their_bounds(
    servers: int, n_hosts: int, most: int, least: int
) -> None:
    bounds = Bounds(servers, min(least, most) if most else least, most)
    for slots in range(1, 40):
        n = bounds.most_ranks(slots, n_hosts)
        fitting = [
            m
            for m in range(1, slots + 1)
            if (not servers or servers <= max(m - 2, 1))
            and max(bounds.min_workers, 1) <= n_workers(m, servers, n_hosts) <= (most or math.inf)
        ]
        assert n in ({0} if not fitting else set(fitting))
        if most and n:
            assert n == max(fitting)


SOURCES = {"j": ("b:2", "c:1"), "k": ("d:4",), "l": ("b:3",), "m": ("e:1", "a:1")}


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_a_choice_has_only_hosts_that_are_there(seed: int) -> None:
    rng = random.Random(seed)
    least, most = rng.choice([(0, 0), (1, 3), (2, 4)])
    scene = Scene(min_workers=least, max_workers=most)
    lost: set[str] = set()
    scene.look()
    present: HostChoice | None = None
    for _ in range(300):
        scene.now += rng.choice([0.0, 0.3, 1.0, 7.0])
        event = rng.choice(
            ["join", "leave", "vanish", "check", "lose", "fail", "end", "end", "own"]
        )
        source = rng.choice([*SOURCES])
        if event == "join":
            scene.offer(source, *SOURCES[source])
        elif event == "leave" and source in scene.offers:
            scene.offer(source, *SOURCES[source], leaves=True)
        elif event == "vanish" and source in scene.offers:
            scene.drop(source)
        elif event == "own":
            scene.offer(OWN, *rng.choice([("a:3",), ("a:3", "f:2"), ("a:2",), ("f:4",)]))
        elif event == "check":
            for name in scene.members.to_check(scene.now):
                error = rng.choice(["", "", "down"])
                scene.members.checked(scene.now, name, error, name)
                lost = lost - {name} if not error else lost | {name}
        elif event == "lose" and present is not None:
            name = rng.choice(present.hosts).name
            scene.members.lost(scene.now, name, "down")
            lost.add(name)
            present = None
        elif event == "fail":
            present = None
        if present is not None:
            scene.members.at_work(scene.now)
            wanted = scene.members.wanted(scene.now)
            if wanted is not None and event == "end":
                verify(scene, wanted, lost, leaving=False)
                scene.members.asked(scene.now)
                scene.members.applied(wanted)
                scene.members.vacated()
                present = None
        if present is None:
            before = set(scene.members.used)
            try:
                present = scene.members.chosen()
            except HostsError:
                scene.members.vacated()
                continue
            verify(scene, present, lost, leaving=True, used=before)
            scene.members.began(scene.now, present)
            assert scene.members.used == [n for n in scene.members.used if n in names(present)]
    # What remains when all go is a free host for each of them.
    for source in [*scene.offers]:
        scene.offer(source, *SOURCES.get(source, ("a:3",)), leaves=True)
    scene.members.vacated()
    assert {scene.state(s) for s in scene.offers} <= {"left", "refused"}


def verify(
    scene: Scene,
    choice: HostChoice,
    lost: set[str],
    leaving: bool,
    used: set[str] = frozenset(),  # type: ignore[assignment]
) -> None:
    """Check a choice: its hosts are offered with as many slots, none is lost, and the bounds hold."""
    bounds = scene.members.bounds
    if not choice.hosts:
        assert choice.n_ranks == 0
        return
    there: dict[str, int] = {}
    for source in scene.offers.values():
        if source.source in scene.members.refusals:
            continue
        for host in source.hosts:
            if not source.leaves or (leaving and host.name in used):
                there[host.name] = host.slots
    assert len(set(names(choice))) == len(choice.hosts)
    for host in choice.hosts:
        assert there[host.name] == host.slots
        assert host.name not in lost
    slots = sum(host.slots for host in choice.hosts)
    assert choice.n_ranks <= slots
    workers = n_workers(choice.n_ranks, choice.servers, len(choice.hosts))
    assert workers >= max(bounds.min_workers, 1)
    assert not bounds.max_workers or workers <= bounds.max_workers
