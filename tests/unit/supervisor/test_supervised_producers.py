"""Programs of [producers] beside attempts of a fake launcher: who ends when the other one does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processes
import program_rig
import pytest
from producers_rig import shell
from supervisor_rig import Case

from mpips.config.schema import load_config
from mpips.rundir.producers import MEMBER_OF, MemberRecord, queue_name, read_producers
from mpips.supervisor.launcher import Launcher
from mpips.supervisor.plan import SupervisionPlan, make_run

Make = Callable[..., Case]
WAIT = "while :; do sleep 0.02; done"


@pytest.fixture
def beside(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a run with a program in the shell, whose queue is served."""
    monkeypatch.chdir(tmp_path)
    workers = []

    def make(program: str, **options: Any) -> Case:
        job = [("task", "mlp"), ("data.train", "digits"), ("cluster.timeout_s", 30.0)]
        producers = {"command": shell(program), "end_s": 20.0, **options}
        case.config = load_config(None, [*job, ("producers", producers)])
        case.run_folder = make_run(case.config, tmp_path, "beside")
        workers.append(program_rig.serve(queue_name(case.run_folder.info().token)))
        return case

    yield make
    for worker in workers:
        worker.unlink()
    assert not processes.marked(f"{MEMBER_OF}={case.run_folder.path}")


def member(case: Case) -> MemberRecord:
    record = read_producers(case.run_folder)
    assert record is not None
    return record.members[0]


def test_programs_end_with_the_run(beside: Make) -> None:
    case = beside(f"trap '' TERM; touch started; {WAIT}", end_s=0.2)
    assert case.run({"awaits": "started", "finish": True}) == 0
    assert (case.state, member(case).state) == ("done", "stopped")


def test_programs_go_on_while_the_ranks_start_again(beside: Make) -> None:
    case = beside(f"touch started; {WAIT}", end_s=0.2)
    assert case.run({"awaits": "started", "code": 1}, {"finish": True}) == 0
    assert case.attempts == 2
    assert member(case).starts == 1


def test_a_failure_of_programs_lets_the_ranks_write_a_checkpoint(beside: Make) -> None:
    case = beside("echo 'no mesh'; exit 3", on_failure="end")
    assert case.run({"leaves": True, "sleep": 60, "beats": True}) == 1
    assert (case.attempts, case.state) == (1, "failed")
    end = case.printed[-1]
    assert end.startswith(
        "mpips run: failed, since member 0 of the producers ended with exit code 3 on "
    )
    assert "it printed last: no mesh" in end
    assert end.endswith(f"continue with: mpips run {case.run_folder.path}")
    status = case.run_folder.status()
    assert status is not None
    assert "exit code 3" in status.message


def test_a_failure_of_programs_between_attempts_ends_the_run(
    beside: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The ranks fail once the program has begun; it fails while the next attempt is prepared.
    case = beside(
        "touch started; until [ -e ended ]; do sleep 0.01; done; exit 3", on_failure="end"
    )
    monkeypatch.setattr("mpips.supervisor.restarts.FIRST_PAUSE_S", 60.0)
    monkeypatch.setattr("random.uniform", lambda low, high: high)

    class Printed(list[str]):
        def append(self, text: str) -> None:
            super().append(text)
            if "another start in 60 s" in text:
                Path("ended").touch()

    case.printed = Printed()
    assert case.run({"awaits": "started", "mute": True, "signal": 9}) == 1
    assert (case.attempts, case.state) == (1, "failed")
    assert "failed, since member 0 of the producers ended with exit code 3" in case.printed[-1]


def test_an_interrupted_run_asks_its_programs_to_end_with_its_ranks(beside: Make) -> None:
    case = beside(f"trap 'echo saved; exit 0' TERM; kill -TERM {os.getpid()}; {WAIT}")
    assert case.run({"leaves": True, "sleep": 60, "beats": True, "grace_s": 30.0}) == 75
    assert (case.state, member(case).state) == ("preempted", "stopped")
    assert "SIGTERM: wrote checkpoint" in case.text
    assert (case.run_folder.path / "producers/member-0.log").read_text().endswith("saved\n")


def test_ranks_and_programs_get_the_name_of_the_queues(beside: Make) -> None:
    case = beside("exit 0")
    plan = SupervisionPlan(
        case.run_folder, case.config, case.pool, Launcher("m", "openmpi", "5"), 0
    )
    assert plan.environment(0)["MPIPS_STREAM"] == queue_name(case.run_folder.info().token)
    assert "MPIPS_STREAM" in plan.command(0, case.pool.layout(), Path("hostfile"))
