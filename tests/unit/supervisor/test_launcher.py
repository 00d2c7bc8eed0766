"""The mpirun that is found, and the output of an attempt."""

from __future__ import annotations

import io
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from simulated_time import SimulatedTime

from mpips.errors import CapabilityError
from mpips.rundir.directory import RunFolder, replace_json
from mpips.rundir.files import Places, RankPlace, StartPoint, Status
from mpips.supervisor import attempt as attempt_module
from mpips.supervisor.attempt import STARTING, Attempt
from mpips.supervisor.launcher import Launcher, environment, find_launcher


def test_a_missing_launcher_is_a_missing_capability(tmp_path: Path) -> None:
    broken = tmp_path / "mpirun"
    broken.write_text("#!/bin/sh\necho strange\n")
    broken.chmod(0o700)
    with pytest.raises(CapabilityError, match=r"belongs to neither .* 'strange'"):
        find_launcher({"PATH": str(tmp_path)}, tmp_path)
    with pytest.raises(CapabilityError, match="there is no mpirun"):
        find_launcher({"PATH": str(tmp_path / "none")}, tmp_path)


def test_the_mpirun_of_the_environment_comes_before_others(tmp_path: Path) -> None:
    found = {}
    for name in ("site", "venv/bin"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        program = folder / "mpirun"
        program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.0'\n")
        program.chmod(0o700)
        found[name] = str(program)
    env = {"PATH": str(tmp_path / "site")}
    # A folder is an environment by its pyvenv.cfg: without one this is the system's own mpirun.
    assert find_launcher(env, tmp_path / "venv").path == found["site"]
    (tmp_path / "venv/pyvenv.cfg").touch()
    assert find_launcher(env, tmp_path / "venv").path == found["venv/bin"]


def test_an_mpirun_that_is_a_script_finds_the_programs_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "venv/bin"
    folder.mkdir(parents=True)
    (tmp_path / "venv/pyvenv.cfg").touch()
    for name, text in (("mpirun", "exec mpiexec.hydra"), ("mpiexec.hydra", "echo 'Intel(R) MPI'")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o700)
    # The virtual environment is not active.
    launcher = find_launcher({"PATH": "/usr/bin:/bin"}, tmp_path / "venv")
    assert launcher.kind == "mpich"
    env = environment(launcher, {}, {"PATH": "/usr/bin:/bin"})
    assert env["PATH"] == f"/usr/bin:/bin:{folder}"
    done = subprocess.run([launcher.path], env=env, capture_output=True, text=True)
    assert done.stdout == "Intel(R) MPI\n"


@pytest.mark.parametrize("given", [{}, {"HOME": ""}])
def test_an_attempt_has_a_home_also_where_the_supervisor_has_none(given: dict[str, str]) -> None:
    launcher = Launcher("/usr/bin/mpirun", "openmpi", "5")
    found = environment(launcher, {}, {"PATH": "/usr/bin:/bin", **given})
    assert found["HOME"] == pwd.getpwuid(os.getuid()).pw_dir
    assert environment(launcher, {}, {"PATH": "/bin", "HOME": "/else"})["HOME"] == "/else"


@pytest.mark.parametrize("copied", [True, False])
def test_output_of_ranks_passes_through_a_supervisor_that_draws(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    run = RunFolder.create(tmp_path, "job")
    run.attempt(0).mkdir(parents=True)
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    command = [sys.executable, "-c", "print('one'); print('two')"]
    attempt = Attempt(run, 0, command, os.environ, str(tmp_path), copy_stdout=copied)
    deadline = time.monotonic() + 30
    while not attempt.wait(0.05):
        assert time.monotonic() < deadline
    assert attempt.close().code == 0
    direct = capfd.readouterr().out
    assert (shown.getvalue(), direct) == (("one\ntwo\n", "") if copied else ("", "one\ntwo\n"))


def test_the_start_of_an_attempt_is_what_its_scheduler_wrote(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "job")
    run.attempt(1).mkdir(parents=True)
    place = RankPlace(rank=0, role="scheduler", host="elsewhere", pid=1)
    first = Status(state=STARTING, generation=1, time_s=0.0)
    start = StartPoint(source="memory", step=27)
    attempt = Attempt(run, 1, ["true"], os.environ, str(tmp_path))
    try:
        run.write_status(first)
        assert attempt.look() is None
        # The scheduler has replaced one of its two files.
        replace_json(run.places_file, Places(generation=1, ranks=(place,)))
        assert attempt.look() is None
        run.write_status(
            msgspec.structs.replace(first, state="running", start=start, ranks=(place,))
        )
        seen = attempt.look()
        assert seen is not None
        assert seen.start == start
    finally:
        attempt.kill()
        attempt.close()


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ranks of this host that a signal stops."""
    ranks: set[int] = set()
    monkeypatch.setattr(attempt_module, "is_suspended", lambda pid: pid - 100 in ranks)
    monkeypatch.setattr(attempt_module, "is_here", lambda host: host == "here")
    monkeypatch.setattr(attempt_module, "is_dead", lambda pid: False)
    monkeypatch.setattr(Attempt, "_is_mine", lambda self, pid: True)
    monkeypatch.setattr(Attempt, "_watch", lambda self, rank, pid: None)
    return ranks


def looking(tmp_path: Path) -> Attempt:
    """Return an attempt of three ranks on this host."""
    run = RunFolder.create(tmp_path, "job")
    run.attempt(0).mkdir(parents=True)
    ranks = tuple(RankPlace(rank=r, role="worker", host="here", pid=100 + r) for r in range(3))
    attempt = Attempt(run, 0, ["sleep", "60"], os.environ, str(tmp_path))
    run.write_status(Status(state="running", generation=0, time_s=0.0, ranks=ranks))
    replace_json(run.places_file, Places(generation=0, ranks=ranks))
    return attempt


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_rank_that_was_stopped_is_known_behind_an_end_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: set[int], is_killed: bool
) -> None:
    time_of_test = SimulatedTime(monkeypatch)
    attempt = looking(tmp_path)
    monkeypatch.setattr(attempt_module, "reap", lambda *_: time_of_test.suspend(6.0))
    stopped.add(1)
    assert attempt.look() is not None
    if is_killed:
        attempt.kill()
    else:
        attempt.signal(signal.SIGKILL)
        while not attempt.wait(0.02):
            pass
    assert attempt.close().stopped.keys() == {1}


@pytest.mark.parametrize("others", ["run", "suspended", "unknown"])
def test_a_rank_that_is_stopped_by_itself_is_known_behind_a_pause_of_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: set[int], others: str
) -> None:
    time_of_test = SimulatedTime(monkeypatch)
    attempt = looking(tmp_path)
    monkeypatch.setattr(attempt_module, "reap", lambda *_: None)
    for rank in (2, 1):
        stopped.add(rank)
        attempt.look()
    time_of_test.suspend(30.0)
    if others == "suspended":
        stopped.add(0)
    if others != "unknown":
        attempt.look()
    attempt.kill()
    expected = {"run": [2, 1], "suspended": [0], "unknown": []}[others]
    # The one that was stopped first comes first.
    assert list(attempt.close().stopped) == expected
