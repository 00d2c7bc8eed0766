"""After the loss of a host all ranks come back on the others, until open clocks have ended, or fewer do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from supervisor_rig import Case as SupervisedCase

from mpips.config.schema import load_config
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import RankPlace
from mpips.rundir.requests import JobSize
from mpips.supervisor import attempt
from mpips.supervisor.attempt import Ended
from mpips.supervisor.crowding import Crowding
from mpips.supervisor.hosts import Host, HostPool, Layout
from mpips.supervisor.launcher import Launcher, build
from mpips.supervisor.plan import SupervisionPlan
from mpips.supervisor.scaling import Scaling, change_of
from mpips.supervisor.stopping import Signals
from mpips.supervisor.supervise import Supervisor
from mpips.supervisor.verdict import PREEMPTED, Verdict

HOSTS = [Host("a", 4), Host("b", 2), Host("c", 2)]
LEFT = {"c": "lost"}
JOB = [
    ("task", "mlp"),
    ("data.train", "digits"),
    ("cluster.servers", 2),
    ("run.min_workers", 1),
]


class NoStandbys:
    """No standby launch."""


def plan_of(folder: Path, **options: object) -> SupervisionPlan:
    config = load_config(None, [*JOB, *options.items()])
    pool = HostPool(HOSTS, 8, 0, config.cluster.servers, 1)
    launcher = Launcher("/opt/mpirun", "openmpi", "5")
    return SupervisionPlan(RunFolder(folder), config, pool, launcher, 3)


def places(servers: tuple[str, ...] = ("a", "b"), workers: str = "aabcc") -> list[RankPlace]:
    """The scheduler is on host a."""
    hosts = [("scheduler", "a")]
    hosts += [(f"server {i}", host) for i, host in enumerate(servers)]
    hosts += [(f"worker {i}", host) for i, host in enumerate(workers)]
    return [RankPlace(rank=r, role=role, host=h, pid=9) for r, (role, h) in enumerate(hosts)]


class Case:
    """The decision of a plan, and the change that it proposes."""

    def __init__(self, plan: SupervisionPlan, **env: str) -> None:
        self.plan = plan
        self.refused: list[tuple[int, str]] = []
        self.scaling = Scaling(plan, NoStandbys(), lambda *answer: self.refused.append(answer))  # type: ignore[arg-type]
        self.crowding = Crowding(plan, self.scaling, env)

    def choose(self, bad: dict[str, str] = LEFT) -> Layout:
        self.plan.pool.bad = bad
        return self.crowding.choose(self.plan.pool.layout())

    def fail(self, found: Sequence[RankPlace], in_vain: bool = False) -> bool:
        """Let an attempt fail without host c; return True if the next one is crowded."""
        self.crowding.ended(found, in_vain)
        layout = self.choose()
        self.crowding.begin(0)
        return layout.is_crowded

    @property
    def change(self) -> Any:
        return self.scaling._change


def test_all_ranks_come_back_and_the_job_then_changes_to_what_the_slots_allow(
    tmp_path: Path,
) -> None:
    case = Case(plan_of(tmp_path))
    case.crowding.ended(places())
    layout = case.choose()
    assert (layout.n_ranks, layout.hosts) == (8, (Host("a", 5), Host("b", 3)))
    assert layout.notes[-1] == "8 ranks on the slots of 6 first, to continue in memory"
    command = build(case.plan.launcher, layout, {}, tmp_path / "hosts", [], ["prog"])
    assert command[:3] == ["/opt/mpirun", "-n", "8"]
    assert command[-4:] == ["--oversubscribe", "--bind-to", "none", "prog"]
    assert case.change is None
    case.crowding.begin(0)
    assert case.change.shape == JobSize(ranks=6, servers=2)
    assert case.change.layout == case.plan.pool.layout()
    assert case.change.by_file == "the new size has ranks on another host, a"
    # The run keeps its size, for a host that comes back.
    assert case.change.config is case.plan.config
    assert case.change.pool is case.plan.pool
    # After the change no rank must come back.
    case.crowding.ended()
    assert case.choose() == case.plan.pool.layout()
    assert not case.choose().is_crowded


def test_a_change_that_was_not_made_is_forgotten_and_one_of_the_user_stays(tmp_path: Path) -> None:
    case = Case(plan_of(tmp_path))
    case.crowding.ended(places())
    case.choose()
    case.crowding.begin(0)
    # The attempt fails, and the host is back.
    case.crowding.ended(places())
    case.choose({})
    case.crowding.begin(0)
    assert case.change is None
    case.choose()
    case.crowding.begin(0)
    asked = msgspec.structs.replace(case.change)
    case.scaling.propose(asked)
    case.choose({})
    case.crowding.begin(0)
    assert case.change is asked


def test_a_pending_request_of_the_user_is_the_size_that_ends_crowding(tmp_path: Path) -> None:
    case = Case(plan_of(tmp_path))
    shape = JobSize(ranks=5, servers=1)
    pending = change_of(case.plan, shape)
    assert pending.layout.hosts[-1].name == "c"
    case.scaling.propose(pending)
    assert case.fail(places())
    # It is planned for the hosts that are left, and stays if the crowded attempt fails.
    for _ in range(2):
        assert case.change.shape == shape
        assert case.change.layout.hosts == (Host("a", 4), Host("b", 2))
        assert not case.change.layout.is_crowded
        assert case.fail(places(workers="aabba"))
    assert not case.refused


def test_a_pending_request_that_is_impossible_on_the_hosts_that_are_left_is_refused(
    tmp_path: Path,
) -> None:
    case = Case(plan_of(tmp_path))
    case.scaling.propose(change_of(case.plan, JobSize(ranks=8, servers=6)))
    case.crowding.ended(places())
    case.choose()
    case.crowding.begin(7)
    assert case.change.shape == JobSize(ranks=6, servers=2)
    [(generation, why)] = case.refused
    assert generation == 7
    assert "2 of 3 hosts are left" in why


def test_hosts_on_which_crowding_was_in_vain_are_not_crowded_again(tmp_path: Path) -> None:
    case = Case(plan_of(tmp_path))
    # That an attempt without crowding was in vain says nothing about it.
    assert case.fail(places(), in_vain=True)
    assert case.fail(places(workers="aabba"), in_vain=False)
    assert not case.fail(places(workers="aabba"), in_vain=True)
    # Nor does the attempt that follows, with all ranks, on hosts that are back.
    assert not case.fail(places(), in_vain=False)
    # Other hosts have other memory.
    case.crowding.ended(places(workers="aabbb"))
    assert not case.choose({"b": "lost"}).is_crowded  # its server's memory is lost
    case.plan.config = load_config(None, [*JOB, ("redundancy.partner", True)])
    assert case.choose({"b": "lost"}).is_crowded
    # They were crowded last, and not in vain.
    assert case.fail(places(), in_vain=False)


def test_the_attempt_after_a_change_of_the_size_is_not_crowded(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    supervisor = Supervisor(plan, Signals(), lambda text: None)
    supervisor._crowding.ended(places())
    plan.pool.bad = LEFT
    assert supervisor._crowding.choose(plan.pool.layout()).is_crowded
    supervisor._crowding.begin(1)
    supervisor._conclusion = SimpleNamespace(scaled=lambda *args: None)  # type: ignore[assignment]
    supervisor._scale(1, Ended(75, 1, 1.0, ""), Verdict(PREEMPTED, 75))
    assert not supervisor._crowding.choose(plan.pool.layout()).is_crowded


@pytest.mark.parametrize("out_of_memory", [False, True])
def test_an_attempt_is_in_vain_without_progress_or_if_memory_runs_out(
    case: SupervisedCase, monkeypatch: pytest.MonkeyPatch, out_of_memory: bool
) -> None:
    seen: list[tuple[int, bool]] = []

    def ended(self: Crowding, places: Sequence[RankPlace] = (), in_vain: bool = False) -> None:
        seen.append((len(places), in_vain))

    monkeypatch.setattr(Crowding, "ended", ended)
    kills = itertools.count()
    monkeypatch.setattr(attempt, "memory_kills", lambda: next(kills) if out_of_memory else 0)
    failing = {"code": 1, "words": [{}], "recoverable": 5}
    assert case.run(failing, failing, {"finish": True}) == 0
    assert seen == [(1, out_of_memory), (1, True)]


def elastic(folder: Path) -> Case:
    return Case(plan_of(folder, **{"run.elastic": True}))


def cold(folder: Path) -> Case:
    return Case(plan_of(folder, **{"redundancy.warm": False}))


def in_slurm(folder: Path) -> Case:
    return Case(plan_of(folder), SLURM_JOB_ID="7")


@pytest.mark.parametrize("make", [elastic, cold, in_slurm])
def test_runs_that_cannot_continue_so_have_fewer_ranks_at_once(tmp_path: Path, make: Any) -> None:
    case = make(tmp_path)
    case.crowding.ended(places())
    assert case.choose() == case.plan.pool.layout()
    case.crowding.begin(0)
    assert case.change is None


@pytest.mark.parametrize(
    ("found", "options", "is_crowded"),
    [
        # The memory of a server was on the lost host.
        (places(("a", "c"), "aabbc"), {}, False),
        (places(("a", "c"), "aabbc"), {"redundancy.partner": True}, True),
        # No rank was at work, or fewer than now are possible, as after an attempt without the host.
        ([], {}, False),
        (places(workers="aab"), {}, False),
        # With two hosts mpips chooses as many servers, or others.
        (places(("a", "b"), "aabcc"), {"cluster.servers": 0}, True),
        (places(("a", "b", "b"), "aacc"), {"cluster.servers": 0}, False),
    ],
)
def test_it_needs_the_memory_of_all_servers_and_their_number(
    tmp_path: Path, found: list[RankPlace], options: dict[str, object], is_crowded: bool
) -> None:
    case = Case(plan_of(tmp_path, **options))
    case.crowding.ended(found)
    assert case.choose().is_crowded == is_crowded
    # All hosts are there.
    assert not case.choose({}).is_crowded
