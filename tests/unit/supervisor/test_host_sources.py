"""Sources of hosts of an elastic run, and hosts of other Slurm jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest

from mpips.rundir.directory import RunFolder
from mpips.rundir.members import JoinFolder, JoinRecord
from mpips.supervisor import host_sources, slurm_agent
from mpips.supervisor.host_sources import AllocationHosts, HostfileHosts, HostQuestion, JoinedHosts
from mpips.supervisor.hosts import Host


def test_a_changed_hostfile_is_read_and_a_damaged_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_sources, "_HOSTFILE_S", 0.0)
    path, told = tmp_path / "hosts", []
    path.write_text("a slots=3\nb\n")
    source = HostfileHosts(path, told.append)
    assert source.hosts() == (Host("a", 3), Host("b", 1))
    path.write_text("a slots=x\n")
    assert source.hosts() == source.hosts() == (Host("a", 3), Host("b", 1))
    assert len(told) == 1
    assert "line 1: 'a:x' is not a host" in told[0]
    path.unlink()
    assert source.hosts() == (Host("a", 3), Host("b", 1))
    path.write_text("c:2\n")
    assert source.hosts() == (Host("c", 2),)


def answers(source: AllocationHosts) -> Iterator[tuple[Host, ...]]:
    while True:
        yield source.hosts()
        time.sleep(0.01)


def test_a_changed_allocation_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_sources, "_ALLOCATION_S", 0.0)
    listed = tmp_path / "listed"
    listed.write_text("n[1-2]\n")
    for name, text in {
        "squeue": f'[ "$3" = 17 ] && cat {listed}',
        "scontrol": 'case "$3" in "n[1-2]") echo n1; echo n2;; "n[1-3]") echo n1; echo n2; echo n3;; esac',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    monkeypatch.setenv("PATH", env["PATH"])
    source = AllocationHosts("17", [Host("n1", 4), Host("n2", 4)], env)
    two = (Host("n1", 4), Host("n2", 4))
    assert source.hosts() == two
    listed.write_text("n[1-3]\n")
    until = time.monotonic() + 20
    assert any(h == (*two, Host("n3", 4)) or time.monotonic() > until for h in answers(source))
    assert source.hosts() == (*two, Host("n3", 4))
    # An answer that fails changes nothing.
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    for _ in range(20):
        assert source.hosts() == (*two, Host("n3", 4))
        time.sleep(0.01)
    source.end()


def test_a_question_has_a_time_limit_and_ends_with_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_sources, "_ANSWER_S", 0.2)
    question = HostQuestion(["sh", "-c", "sleep 600; echo late"], os.environ)
    assert answered(question) == ("", "no answer within 0.2 s")
    missing = HostQuestion(["/no/such/program"], os.environ)
    assert missing.answer() == ("", "/no/such/program cannot be started: No such file or directory")
    monkeypatch.setattr(host_sources, "_ANSWER_S", 60.0)
    failing = HostQuestion(["sh", "-c", "echo first >&2; echo why >&2; exit 3"], os.environ)
    assert answered(failing) == ("", "why")
    # A process that it leaves has its output open.
    leaving = HostQuestion(["sh", "-c", "sleep 5 & echo here"], os.environ)
    began = time.monotonic()
    assert answered(leaving) == ("here\n", "")
    assert time.monotonic() - began < 4.0
    stopped = HostQuestion(["sleep", "600"], os.environ)
    stopped.end()


def answered(question: HostQuestion) -> tuple[str, str]:
    found: list[tuple[str, str]] = []

    def is_there() -> bool:
        answer = question.answer()
        found.extend([answer] if answer is not None else [])
        return bool(found)

    assert processes.until(is_there, 10.0)
    return found[0]


class Clock:
    """The running time of this process, as the test sets it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(host_sources, "running_s", lambda: self.now)
        patch.setattr(host_sources, "is_over", lambda since, limit_s: self.now - since >= limit_s)


def test_a_join_lives_by_its_renewals_whatever_the_clocks_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    run = RunFolder(tmp_path)
    folder, joins = JoinFolder(run), JoinedHosts(run)
    record = JoinRecord(hosts=(("b", 2),), host="b", pid=1)

    def renew(n: int) -> None:
        folder.write("j", JoinRecord(hosts=(("b", 2),), host="b", pid=1, renewals=n))
        # A host whose clock is an hour behind.
        past = time.time() - 3600
        os.utime(folder.path / "j.json", (past, past))

    folder.write("j", record)
    assert joins.read() == {}  # it may have been left by a dead join
    renew(1)
    assert set(joins.read()) == {"j"}
    for n in range(2, 30):
        clock.now += 19.0
        renew(n)
        assert set(joins.read()) == {"j"}
    clock.now += 20.0
    assert joins.read() == {}
    assert folder.read() == {}
    assert joins.read() == {}
    # It was only suspended: its next renewals lend the hosts again.
    renew(99)
    assert joins.read() == {}
    renew(100)
    assert set(joins.read()) == {"j"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"hosts": [], "host": "b", "pid": 1}',
        '{"hosts": [["-x", 1]], "host": "b", "pid": 1}',
        '{"hosts": [["b", 0]], "host": "b", "pid": 1}',
        '{"hosts": [["b", 1]], "host": "b", "pid": 1, "job": "1; reboot"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_record_of_a_join_is_left_out(tmp_path: Path, text: str) -> None:
    folder = JoinFolder(RunFolder(tmp_path))
    folder.write("good", JoinRecord(hosts=(("b", 2),), host="b", pid=1))
    (folder.path / "bad.json").write_text(text)
    (folder.path / "link.json").symlink_to(folder.path / "good.json")
    (folder.path / ".good.json-12").write_text("{}")
    os.mkfifo(folder.path / "pipe.json")
    assert set(folder.read()) == {"good"}


# Hosts of other Slurm jobs.

JOBS = {"a": "7", "b": "17", "c": ""}


def test_mpirun_reaches_hosts_of_other_jobs_by_an_agent_and_its_own_as_before() -> None:
    env = {"PATH": "/bin", "SLURM_JOB_ID": "7", "SLURM_NODELIST": "a", "SLURM_CONF": "/etc/s"}
    assert slurm_agent.environment({"a": "7", "c": ""}, env) == env
    found = slurm_agent.environment(JOBS, env)
    assert {k for k in found if k.startswith("SLURM_")} == {"SLURM_CONF"}
    assert found[slurm_agent.JOBS] == "a=7,b=17"
    agents = {found[name] for name in slurm_agent.AGENTS}
    assert agents == {f"{sys.executable} {Path(slurm_agent.__file__).resolve()}"}
    assert slurm_agent.argv_of("c", ["echo", "x"], found)[0] == "ssh"
    argv = slurm_agent.argv_of("b", ["echo", "$X"], found)
    assert argv[0] == "srun"
    assert "--jobid=17" in argv
    assert argv[argv.index("-w") + 1] == "b"
    assert argv[-2] == "-c"
    assert argv[-1].endswith("; echo $X")
    outer = slurm_agent.environment(JOBS, {**env, "PRTE_MCA_plm_ssh_agent": "my agent : rsh"})
    assert slurm_agent.argv_of("c", ["x"], outer) == ["my", "agent", "c", "x"]


def test_a_path_that_no_agent_can_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/my files/python")
    with pytest.raises(ValueError, match="mpirun accepts no agent whose path has spaces"):
        slurm_agent.environment(JOBS, {})


def test_a_command_in_another_job_sees_no_variables_of_its_step() -> None:
    command = slurm_agent.argv_of(
        "b", ["echo ${SLURM_PROCID-none} $PATH"], {slurm_agent.JOBS: "b=1"}
    )
    done = subprocess.run(
        command[command.index("/bin/sh") :],
        env={"SLURM_PROCID": "3", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["none", os.environ["PATH"]]
