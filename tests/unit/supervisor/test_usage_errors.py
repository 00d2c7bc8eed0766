"""Scripts that end with exit code 2 before their job, as argparse ends them: reports, and what follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import processes
import pytest
from supervisor_rig import Case

from mpips.mpi.failure_report import USAGE, FailureReport
from mpips.rundir.directory import GENERATION, RUN_DIR, RunFolder
from mpips.rundir.files import RankPlace, Status
from mpips.supervisor.attempt import Ended
from mpips.supervisor.verdict import CONFIG, CRASHED, judge, read_reports

PARSER = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--n", required=True)
parser.parse_args()
"""
# Notes how many reports there are when the rank ends.
AT_END = """
import atexit, os, pathlib
def note():
    run = pathlib.Path(os.environ["MPIPS_RUN_DIR"])
    found = list((run / "logs" / "attempt-0").glob("words-*.json"))
    (run / ("at-end-" + os.environ["OMPI_COMM_WORLD_RANK"])).write_text(f"{len(found)} reports")
atexit.register(note)
"""
# A rank of a run, with a longer wait for the other ranks than any test takes.
RANK = """
from mpips.mpi import failure_report
failure_report._OTHERS_S = 600.0
from mpips.supervisor import script
script.main()
"""
STATUS = Status(
    state="running",
    generation=0,
    time_s=1.0,
    ranks=(RankPlace(rank=0, role="worker 0", host="node1", pid=100),),
)
LAST = "a.py: error: the following arguments are required: --n"


def words(rank: int, **fields: Any) -> dict[str, Any]:
    """Return the report of a rank whose script ended with a usage error."""
    message = "the script ended with exit code 2 before its job, as after a usage error"
    return {"rank": rank, "about": rank, "kind": USAGE, "message": message, "exit_code": 2} | fields


def reported(folder: Path, *given: dict[str, Any]) -> Path:
    """Write reports into the folder of an attempt."""
    for i, fields in enumerate(given):
        full = {"host": "node1", "pid": 100 + i, "time_s": 1.0 + i} | fields
        (folder / f"words-{i}.json").write_text(json.dumps(full))
    return folder


@pytest.mark.parametrize(
    ("given", "status", "kind", "code"),
    [
        ((words(0), words(1), words(2)), None, CONFIG, 2),
        # One rank was ended before it could report, or would have gone on.
        ((words(0), words(1)), None, CRASHED, 1),
        # The arguments may be wrong on the host of one rank alone.
        ((words(0), words(1), words(2, kind="OSError", exit_code=1)), None, CRASHED, 1),
        # A rank was at work: the script has had its arguments.
        ((words(0), words(1), words(2)), STATUS, CRASHED, 1),
        # A rank that fails as a consequence of another one is no rank with a usage error.
        ((words(0), words(1), words(2, secondary=True)), None, CRASHED, 1),
    ],
)
def test_code_2_of_all_ranks_before_the_work_is_a_usage_error(
    tmp_path: Path, given: tuple[dict[str, Any], ...], status: Status | None, kind: str, code: int
) -> None:
    verdict = judge(Ended(2, 7, 1.0, "", status=status), False, reported(tmp_path, *given), 3)
    assert (verdict.kind, verdict.exit_code) == (kind, code)


@pytest.mark.parametrize("kind", [USAGE, "ExitedError"])
def test_the_reason_of_an_exit_is_the_end_of_the_log(tmp_path: Path, kind: str) -> None:
    said = words(0)["message"] if kind == USAGE else "the script called sys.exit(2)"
    given = words(0, kind=kind, message=said)
    (tmp_path / "rank-0.log").write_text("early\n" + "x\n" * 11 + LAST + "\n")
    verdict = judge(Ended(2, 7, 1.0, ""), False, reported(tmp_path, given), 1)
    assert verdict.death is not None
    assert verdict.death.details.splitlines()[-1] == LAST
    assert "early" not in verdict.death.details
    # An error of mpips is one sentence, which the log repeats.
    other = reported(tmp_path, words(0, kind="ConfigError", message="bad"))
    found = judge(Ended(2, 7, 1.0, ""), False, other, 1).death
    assert found is not None
    assert found.details == ""


def test_a_usage_error_of_all_ranks_is_no_failure_to_restart_from(case: Case) -> None:
    script = {"words": [words(rank) for rank in range(4)], "mute": True, "code": 2}
    assert case.run({**script, "log": {"0": f"usage: a.py\n{LAST}\n"}}, {"finish": True}) == 2
    assert case.attempts == 1
    assert case.text.count(LAST) == 1
    assert "none: a configuration error fails every attempt alike" in case.text
    assert case.state == "failed"


def test_a_usage_error_of_some_ranks_is_followed_by_a_restart(case: Case) -> None:
    script = {"words": [words(rank) for rank in range(3)], "mute": True, "code": 2}
    assert case.run(script, {"finish": True}) == 0
    assert case.attempts == 2


def rank_of(run: RunFolder, rank: int, size: int, script: Path) -> subprocess.Popen[str]:
    """Start a rank of the first attempt of a run."""
    launched = {"OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_RANK": str(rank)}
    env = os.environ | launched | {RUN_DIR: str(run.path), GENERATION: "0"}
    command = [sys.executable, "-c", RANK, str(script)]
    return subprocess.Popen(command, env=env, text=True, stderr=subprocess.PIPE)


def run_of(folder: Path, text: str) -> tuple[RunFolder, Path]:
    """Return a new run directory and a script."""
    run = RunFolder.create(folder, "job")
    run.attempt(0).mkdir()
    script = folder / "script.py"
    script.write_text(text)
    return run, script


def test_ranks_with_a_usage_error_wait_for_the_reports_of_each_other(tmp_path: Path) -> None:
    run, script = run_of(tmp_path, AT_END + PARSER)
    with rank_of(run, 0, 2, script) as first:
        try:
            assert processes.until((run.attempt(0) / "words-0.json").exists, 60.0)
            with rank_of(run, 1, 2, script) as second:
                assert second.wait(60) == first.wait(60) == 2
        finally:
            first.kill()
        assert first.stderr is not None
        assert "the following arguments are required: --n" in first.stderr.read()
    # The other rank did not exist when the first one had reported.
    assert (run.path / "at-end-0").read_text() == "2 reports"
    found = read_reports(run.attempt(0))
    assert [report.kind for report in found] == [USAGE, USAGE]
    assert judge(Ended(2, 7, 1.0, ""), False, run.attempt(0), 2).kind == CONFIG
    assert "--n" in (run.attempt(0) / "rank-1.log").read_text()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('2')", 1),
        ("import mpips, sys; mpips.init(); sys.exit(2)", 2),
        ("import os, sys\nif os.fork() == 0: sys.exit(2)\nos.wait(); sys.exit(3)", 3),
    ],
    ids=["another code", "a message", "behind init", "a child"],
)
def test_other_ends_are_no_usage_errors(tmp_path: Path, text: str, code: int) -> None:
    run, script = run_of(tmp_path, text)
    with rank_of(run, 0, 1, script) as rank:
        assert rank.wait(60) == code
    found: list[FailureReport] = read_reports(run.attempt(0))
    assert USAGE not in [report.kind for report in found]
