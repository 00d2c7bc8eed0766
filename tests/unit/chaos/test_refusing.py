"""What is refused before anything happens, each in one sentence with the way out."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from run_files import RunFiles

from mpips.chaos import refusing
from mpips.chaos.observing import Observation
from mpips.chaos.schedule import FaultChoice, make_schedule
from mpips.config.schema import load_config
from mpips.errors import ConfigError
from mpips.rundir.files import RankPlace

ROLES = ("scheduler", "server 0", "worker 0")
SEEN = Observation(
    0.0,
    True,
    "running",
    restarts=2,
    places=tuple(RankPlace(rank=r, role=role, host="node1", pid=9) for r, role in enumerate(ROLES)),
)


def test_runs_of_others_and_ended_runs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(tmp_path)
    files.state("running", released=False)
    refusing.refuse_run(files.run)
    files.state("done", released=True)
    with pytest.raises(ConfigError, match=r"job is not running \(done\)"):
        refusing.refuse_run(files.run)
    files.state("running", released=False)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="only into runs of your own"):
        refusing.refuse_run(files.run)


def test_one_command_at_a_time_disturbs_a_run(tmp_path: Path) -> None:
    run = RunFiles(tmp_path).run
    with (
        refusing.only_one(run),
        pytest.raises(ConfigError, match="another mpips chaos disturbs this run"),
        refusing.only_one(run),
    ):
        pass
    with refusing.only_one(run):
        pass


def test_a_run_elsewhere_is_refused_and_its_hosts_are_named(tmp_path: Path) -> None:
    run = RunFiles(tmp_path).run
    choices = [FaultChoice(kind="kill", roles=("any",))]
    with pytest.raises(ConfigError, match="they are on node1: start mpips chaos there") as error:
        refusing.refuse_place(run, SEEN, choices)
    assert socket.gethostname() in str(error.value)


def test_a_role_that_is_not_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFiles(tmp_path).run
    monkeypatch.setattr(refusing, "pids_of_ranks", lambda *of: {0: 100, 2: 102})
    refusing.refuse_place(run, SEEN, [FaultChoice(kind="kill", roles=("any", "worker"))])
    with pytest.raises(
        ConfigError, match="has no server on this machine; it has scheduler, worker 0"
    ):
        refusing.refuse_place(run, SEEN, [FaultChoice(kind="kill", roles=("server",))])


def test_a_schedule_that_would_use_up_the_restarts_is_refused(tmp_path: Path) -> None:
    run = RunFiles(tmp_path).run
    config = load_config(None, [("task", "fm"), ("data.train", "x"), ("run.max_restarts", 6)])
    kills = make_schedule(
        [FaultChoice(kind="kill", roles=("any",))], 1, 10.0, 40.0, intervals="fixed"
    )
    assert refusing.restarts_needed(kills) == 4
    refusing.refuse_restarts(run, config, SEEN, kills)
    more = SEEN._replace(restarts=3)
    with pytest.raises(
        ConfigError, match=r"ends 4 attempts, and the run has 3 restarts left; .* --max-restarts 8"
    ):
        refusing.refuse_restarts(run, config, more, kills)
    pauses = make_schedule([FaultChoice(kind="pause", roles=("any",))], 1, 10.0, 40.0)
    refusing.refuse_restarts(run, config, more, pauses)


def test_a_kind_that_is_impossible_is_refused_with_its_reason() -> None:
    class Impossible:
        name = "partition"
        hits_process = False

        def why_not(self, seen: Observation) -> str:
            return "--partition needs root"

    with pytest.raises(ConfigError, match="--partition needs root"):
        refusing.refuse_kinds({"partition": Impossible()}, SEEN)  # type: ignore[dict-item]
