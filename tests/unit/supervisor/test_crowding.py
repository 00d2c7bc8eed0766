"""After the loss of a host all ranks come back on the others, until open clocks have ended, or fewer do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpips.config.schema import load_config
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import RankPlace
from mpips.rundir.requests import JobSize
from mpips.supervisor.crowding import Crowding
from mpips.supervisor.hosts import Host, HostPool, Layout
from mpips.supervisor.launcher import Launcher, build
from mpips.supervisor.plan import SupervisionPlan
from mpips.supervisor.scaling import Scaling

HOSTS = [Host("a", 4), Host("b", 2), Host("c", 2)]
LEFT = {"c": "lost"}


class NoStandbys:
    """No standby launch."""


def plan_of(folder: Path, **options: object) -> SupervisionPlan:
    job = [
        ("task", "mlp"),
        ("data.train", "digits"),
        ("cluster.servers", 2),
        ("run.min_workers", 1),
    ]
    config = load_config(None, [*job, *options.items()])
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
        self.scaling = Scaling(plan, NoStandbys(), lambda generation, why: None)  # type: ignore[arg-type]
        self.crowding = Crowding(plan, self.scaling, env)

    def choose(self, bad: dict[str, str] = LEFT) -> Layout:
        self.plan.pool.bad = bad
        return self.crowding.choose(self.plan.pool.layout())

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
    case.crowding.begin()
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
    case.crowding.begin()
    # The attempt fails, and the host is back.
    case.crowding.ended(places())
    case.choose({})
    case.crowding.begin()
    assert case.change is None
    case.choose()
    case.crowding.begin()
    asked = msgspec.structs.replace(case.change)
    case.scaling.propose(asked)
    case.choose({})
    case.crowding.begin()
    assert case.change is asked


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
    case.crowding.begin()
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
