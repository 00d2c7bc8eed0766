"""Changes of the size of a run: which are refused, and in which order the others take place."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import Contents
from click.testing import CliRunner
from supervisor_rig import Background, Case

from mpips.cli.scale import Count, changed, numbers
from mpips.cli.scale import command as scale
from mpips.config.schema import load_config
from mpips.errors import ConfigError
from mpips.mpi.failure_report import EXCHANGED, LEAVING
from mpips.mpi.started import Started, started_file
from mpips.recovery.exchange import Exchange, remove_exchange
from mpips.rundir.directory import replace_json
from mpips.rundir.files import RankPlace
from mpips.rundir.requests import BY_FILE, SCALE, SCALE_IN_MEMORY, JobSize, RequestFolder
from mpips.supervisor.hosts import Host, HostPool, Layout
from mpips.supervisor.launcher import Launcher
from mpips.supervisor.plan import SupervisionPlan, make_run
from mpips.supervisor.scaling import Scaling, change_of
from mpips.transport.region import SHM, new_name, own_segments, persistent, unlink_job


def plan_of(folder: Path, pool: HostPool, **keys: object) -> SupervisionPlan:
    """The plan of a run of the digits."""
    job = [
        ("task", "mlp"),
        ("data.train", "digits"),
        *((k.replace("__", "."), v) for k, v in keys.items()),
    ]
    config = load_config(None, job)
    run = make_run(config, folder, "job")
    return SupervisionPlan(run, config, pool, Launcher("none", "openmpi", ""), 3)


class Standbys:
    """Standby launches that start and are ready when the test says so."""

    def __init__(self) -> None:
        self.started: list[tuple[int, Layout, int]] = []
        self.is_starting = False

    def start(
        self, plan: SupervisionPlan, generation: int, layout: Layout, record: Started
    ) -> None:
        self.started.append((generation, layout, plan.config.cluster.servers))
        self.is_starting = True


class Asked:
    """An attempt that notes for what it was asked to leave."""

    def __init__(self) -> None:
        self.why: list[str] = []

    def ask_to_leave(self, why: str) -> None:
        self.why.append(why)


class Scene:
    """A scaling of a run of four ranks, one of them a server."""

    def __init__(self, folder: Path, **keys: object) -> None:
        self.plan = plan_of(folder, HostPool([], 4, 0, 1, 0), **keys)
        self.standbys, self.attempt = Standbys(), Asked()
        self.refused: list[tuple[int, str]] = []
        self.scaling = Scaling(
            self.plan,
            self.standbys,  # type: ignore[arg-type]
            lambda generation, why: self.refused.append((generation, why)),
        )
        self.plan.run.attempt(0).mkdir(parents=True)
        self.scaling.begin()

    def recorded(self) -> Scene:
        replace_json(started_file(self.plan.run, 0, 0), Started(modules={}, environment={}))
        return self

    def tick(self, *shapes: JobSize) -> None:
        self.scaling.tick(0, self.attempt, list(shapes))  # type: ignore[arg-type]


def test_an_attempt_is_asked_to_leave_when_the_new_ranks_wait(tmp_path: Path) -> None:
    scene = Scene(tmp_path).recorded()
    scene.tick()
    assert not scene.standbys.started
    scene.tick(JobSize(ranks=6, servers=2))
    scene.tick()
    assert scene.standbys.started == [(0, Layout(6), 2)]
    assert not scene.attempt.why
    assert not scene.scaling.is_asked
    scene.standbys.is_starting = False
    scene.tick()
    scene.tick()
    assert scene.attempt.why == [SCALE_IN_MEMORY]
    assert scene.scaling.is_asked
    # The run keeps its size until the attempt has ended.
    assert (scene.plan.pool.n_ranks, scene.plan.config.run.ranks) == (4, 0)
    scene.scaling.apply()
    assert scene.plan.pool.n_ranks == 6
    assert (scene.plan.config.run.ranks, scene.plan.config.cluster.servers) == (6, 2)
    scene.scaling.begin()
    scene.tick()
    assert scene.attempt.why == [SCALE_IN_MEMORY]


def test_a_change_is_tried_again_by_the_next_attempt(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.tick(JobSize(ranks=5, servers=1))
    assert scene.attempt.why == [SCALE_IN_MEMORY]  # without a record there is no launch to wait for
    scene.scaling.begin()
    assert not scene.scaling.is_asked
    scene.tick()
    assert scene.attempt.why == [SCALE_IN_MEMORY, SCALE_IN_MEMORY]


def test_the_last_of_several_requests_counts(tmp_path: Path) -> None:
    scene = Scene(tmp_path).recorded()
    scene.tick(JobSize(ranks=6, servers=2), JobSize(ranks=5, servers=1))
    scene.tick(JobSize(ranks=7, servers=1))
    assert [layout.n_ranks for _, layout, _ in scene.standbys.started] == [5, 7]
    assert scene.scaling.apply().shape == JobSize(ranks=7, servers=1)


def test_new_ranks_that_do_not_come_are_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path).recorded()
    scene.tick(JobSize(ranks=6, servers=2))
    assert not scene.attempt.why
    monkeypatch.setattr("mpips.supervisor.scaling._STARTS_S", 0.0)
    scene.tick()
    assert scene.attempt.why == [SCALE_IN_MEMORY]


def test_without_standby_launches_nothing_is_started(tmp_path: Path) -> None:
    scene = Scene(tmp_path, run__standby=False).recorded()
    scene.tick(JobSize(ranks=6, servers=2))
    assert not scene.standbys.started
    assert scene.attempt.why == [SCALE_IN_MEMORY]


def test_ranks_on_another_host_get_a_file(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    here = os.uname().nodename
    scene.plan.pool = HostPool([Host(here, 6)], 4, 0, 1, 0)
    assert change_of(scene.plan, JobSize(ranks=6, servers=2)).by_file == ""
    scene.plan.pool = HostPool([Host(here, 4), Host("b", 4)], 4, 0, 1, 0)
    change = change_of(scene.plan, JobSize(ranks=6, servers=2))
    assert change.by_file == "the new size has ranks on another host, b"
    scene.tick(JobSize(ranks=6, servers=2))
    assert scene.attempt.why == [SCALE]


def test_without_memory_that_outlives_a_launch_there_is_a_file(tmp_path: Path) -> None:
    scene = Scene(tmp_path, redundancy__warm=False)
    scene.tick(JobSize(ranks=6, servers=2))
    assert scene.attempt.why == [SCALE]
    assert scene.scaling.apply().by_file.endswith("(redundancy.warm = false)")


HOSTS = HostPool([Host("a", 3), Host("b", 3)], 4, 0, 1, 0)


@pytest.mark.parametrize(
    ("shape", "keys", "text"),
    [
        (JobSize(ranks=7, servers=1), {}, "7 ranks on hosts with 6 slots"),
        (JobSize(ranks=4, servers=3), {}, "servers = 3 is too many for 4 ranks: use 1 or 2"),
        (
            JobSize(ranks=5, servers=2),
            {"run__script": "s.py", "task": ""},
            "s.py chooses the number of servers",
        ),
    ],
)
def test_an_impossible_size_is_refused_in_a_sentence(
    tmp_path: Path, shape: JobSize, keys: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        change_of(plan_of(tmp_path, HOSTS, **keys), shape)


def test_a_refused_size_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.tick(JobSize(ranks=4, servers=3))
    assert scene.refused[0][0] == 0
    assert "servers = 3 is too many" in scene.refused[0][1]
    assert not scene.attempt.why


def test_counts_and_changes() -> None:
    assert [changed(3, count, "workers") for count in (None, "5", "+2", "-2")] == [3, 5, 5, 1]
    with pytest.raises(ConfigError, match=r"--workers -3: the job has 3 workers; at least 1"):
        changed(3, "-3", "workers")
    with pytest.raises(ConfigError, match=r"--servers 0: the job has 3 servers"):
        changed(3, "0", "servers")
    assert Count().convert("+2", None, None) == "+2"
    roles = ["scheduler + server 0", "server 1", "worker 0"]
    places = tuple(RankPlace(rank=i, role=r, host="h", pid=1) for i, r in enumerate(roles))
    assert numbers(places) == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--workers", "many"], 2, "'many' is neither a number nor a change such as +2 or -1"),
        ([], 2, "give --workers, --servers or both"),
        (["--workers", "+1"], 1, "is not at work"),
    ],
)
def test_wrong_uses_are_refused_by_the_command(
    case: Case, arguments: list[str], code: int, text: str
) -> None:
    result = CliRunner().invoke(scale, [str(case.run_folder.path), *arguments])
    assert result.exit_code == code
    assert text in result.output + str(result.exception)


def test_a_request_carries_the_size_to_the_supervisor(case: Case) -> None:
    table = [{"rank": 0, "role": "scheduler", "host": "h", "pid": 1}]
    with Background(case, ranks=table, sleep=2) as other:
        RequestFolder(case.run_folder).make("scale", JobSize(ranks=9, servers=8))
        other.process.wait(20)
        assert (
            "mpips run: another size is refused: servers = 8 is too many for 9 ranks"
            in other.text()
        )
    [event] = [event for event in case.run_folder.events() if event.event == "not scaled"]
    assert "servers = 8 is too many" in event.cause


@pytest.fixture
def exchange(case: Case) -> Iterator[Path]:
    """The exchange of a run, at step 77, beside memory of the old size."""
    token = persistent(case.run_folder.info().token)
    folder = Path(Exchange(token).open())
    Contents().write(folder, 77)
    (SHM / new_name(token, "s0-mark")).write_bytes(b"1")
    yield folder
    remove_exchange(token)
    unlink_job(token)


def parts_of(case: Case) -> list[str]:
    return [part for part, _ in own_segments(persistent(case.run_folder.info().token))]


@pytest.mark.parametrize("asked", [True, False])
def test_the_exchange_outlives_its_attempt_and_the_end_of_the_supervisor(
    case: Case, exchange: Path, asked: bool
) -> None:
    table = [{"rank": 0, "role": "scheduler", "host": "h", "pid": 1}]
    words = [{"kind": EXCHANGED, "exit_code": 75}]
    act = {"ranks": table, "sleep": 2, "ignore": [signal.SIGUSR1], "words": words, "code": 75}
    with Background(case, **act) as other:
        if asked:
            RequestFolder(case.run_folder).make("scale", JobSize(ranks=5, servers=2))
        assert other.process.wait(30) == 75
        text = other.text()
    line = "mpips run: 5 ranks from step 77 on, from shared memory"
    assert (line in text, case.attempts) == ((True, 2) if asked else (False, 1))
    # The last attempt has left without a request: a supervisor that starts none removes nothing.
    assert "wrote checkpoint" not in text
    assert f"in /dev/shm of {os.uname().nodename}" in text
    assert list(exchange.glob("step-*77"))
    # Memory of the old size is removed for the new one only.
    assert parts_of(case) == ([] if asked else ["s0-mark"])
    sources = [e.source for e in case.run_folder.events() if e.event == "scaled"]
    assert sources == (["shared memory"] if asked else [])


def test_a_file_in_place_of_the_exchange_has_its_reason(case: Case) -> None:
    table = [{"rank": 0, "role": "scheduler", "host": "h", "pid": 1}]
    message = f"mpips scale: wrote checkpoint step-3{BY_FILE}there is too little memory"
    words = [{"kind": LEAVING, "exit_code": 75, "message": message}]
    act = {"ranks": table, "sleep": 2, "ignore": [signal.SIGUSR1], "words": words, "code": 75}
    with Background(case, **act) as other:
        RequestFolder(case.run_folder).make("scale", JobSize(ranks=5, servers=2))
        assert other.process.wait(30) == 75
        assert "on, from a checkpoint, since there is too little memory" in other.text()


@pytest.mark.parametrize(("kind", "attempts"), [(LEAVING, 2), ("SystemExit", 1)])
def test_only_an_end_with_a_checkpoint_is_followed_by_the_new_size(
    case: Case, kind: str, attempts: int
) -> None:
    # A program may exit with 75 by itself, and memory then has updates that no checkpoint has.
    table = [{"rank": 0, "role": "scheduler", "host": "h", "pid": 1}]
    words = [{"kind": kind, "exit_code": 75}]
    act = {"ranks": table, "sleep": 2, "ignore": [signal.SIGUSR1], "words": words, "code": 75}
    with Background(case, **act) as other:
        RequestFolder(case.run_folder).make("scale", JobSize(ranks=5, servers=2))
        assert other.process.wait(30) == 75
        assert ("mpips run: 5 ranks from step" in other.text()) == (attempts == 2)
    assert case.attempts == attempts
    config = load_config(str(case.run_folder.config_file), [])
    assert config.run.ranks == (5 if attempts == 2 else 0)
