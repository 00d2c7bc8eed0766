"""Hosts of a run are reached and cleared through the agent of their launcher."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from marked_process import started

from mpips.supervisor import reap
from mpips.supervisor.asking import AskingLimits
from mpips.supervisor.clearing import clear, reach
from mpips.supervisor.host_step import ProcessStep
from mpips.supervisor.hosts import (
    Host,
    HostPool,
)
from mpips.supervisor.launcher import Launcher, environment

OPENMPI = Launcher("/opt/mpirun", "openmpi", "5")
MPICH = Launcher("/opt/mpirun", "mpich", "4")


def test_a_silent_host_is_noticed_and_an_allocation_not_blocked() -> None:
    env = environment(OPENMPI, {"MPIPS_RUN_DIR": "/r"}, {"SLURM_JOB_ID": "7"})
    assert env["SLURM_OVERLAP"] == "1"
    assert env["PRTE_MCA_oob_tcp_keepalive_time"] == "4"
    assert env["MPIPS_RUN_DIR"] == "/r"
    mine = environment(OPENMPI, {}, {"PRTE_MCA_oob_tcp_keepalive_time": "60"})
    assert mine["PRTE_MCA_oob_tcp_keepalive_time"] == "60"


def test_hosts_are_cleared_through_the_agent_of_the_launcher(tmp_path: Path) -> None:
    # The agent is called like ssh, with a host and one command line.
    agent = tmp_path / "agent"
    agent.write_text(
        f'#!/bin/sh\necho "$1" >> {tmp_path}/asked\n[ "$1" = good ] && exec sh -c "$2"\n'
        'echo "No route to host" >&2; exit 255\n'
    )
    agent.chmod(0o700)
    run = tmp_path / "a run's"
    left = started(run, 0)
    region = Path(f"/dev/shm/mpips-{os.geteuid()}-0123456789abcdef-{os.getpid()}")
    region.write_text("x")
    try:
        env = {**os.environ, "PRTE_MCA_plm_ssh_agent": str(agent)}
        failed, memory = clear(["good", "bad"], run, 0, "0123456789abcdef", env=env)
        assert failed == {"bad": "No route to host"}
        assert memory == {"good": reap.LeftMemory(1)}
        assert left.wait(5) == -signal.SIGKILL
        assert not region.exists()
        assert sorted((tmp_path / "asked").read_text().split()) == ["bad", "good"]
    finally:
        left.kill()
        left.wait()
        region.unlink(missing_ok=True)


def test_a_host_that_hangs_is_one_that_does_not_answer(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\nexec sleep 600\n")
    agent.chmod(0o700)
    env = {**os.environ, "PRTE_MCA_plm_ssh_agent": str(agent)}
    limits = AskingLimits(start_s=0.2, pause_s=0.1)
    cleared = clear(["silent"], tmp_path, 0, "", env=env, limits=limits)
    assert cleared.failed == {"silent": "the command did not start within 0.2 s (3 times)"}


def test_a_host_that_answers_late_after_its_start_is_good(tmp_path: Path) -> None:
    # The shell starts from the host's own disk, Python from a slow one.
    agent = tmp_path / "agent"
    agent.write_text(f'#!/bin/sh\nexport PATH={tmp_path}:$PATH\nexec sh -c "$2"\n')
    agent.chmod(0o700)
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec {sys.executable} "$@"\n')
    slow.chmod(0o700)
    env = {**os.environ, "PRTE_MCA_plm_ssh_agent": str(agent)}
    limits = AskingLimits(start_s=0.5, tries=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(slow))
        assert clear(["slow"], tmp_path, 0, "", env=env, limits=limits).failed == {}


def test_a_stopped_agent_leaves_no_child(tmp_path: Path) -> None:
    # A script that is no `exec` of its program: its child must end with it.
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\nsh -c 'echo $$ >> {tmp_path}/pids; exec sleep 600'\n:\n")
    agent.chmod(0o700)
    env = {**os.environ, "PRTE_MCA_plm_ssh_agent": str(agent)}
    clear(["silent"], tmp_path, 0, env=env, limits=AskingLimits(start_s=1.0, tries=1))
    (pid,) = map(int, (tmp_path / "pids").read_text().split())
    deadline = time.monotonic() + 10
    while reap.state_of(pid) not in "ZX" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reap.state_of(pid) in "ZX"


def test_srun_alone_gets_the_signal_that_ends_its_tasks(tmp_path: Path) -> None:
    # Stands in for srun and its child, which ends the tasks when srun has ended.
    srun = tmp_path / "srun"
    srun.write_text(
        f"#!/bin/sh\ntrap 'echo ended > {tmp_path}/srun.end; exit 1' TERM\n"
        f'sh -c \'trap "echo killed > {tmp_path}/child.end" TERM; read x < {tmp_path}/go; '
        f"echo cleaned > {tmp_path}/child.done' &\necho run > {tmp_path}/up\nwait\n"
    )
    srun.chmod(0o700)
    os.mkfifo(tmp_path / "go")
    os.mkfifo(tmp_path / "up")
    with selectors.DefaultSelector() as selector:
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        step = ProcessStep(["srun"], env, selector)
        assert (tmp_path / "up").read_text() == "run\n"
        step.stop()
        while step.ended() is None:
            time.sleep(0.01)
        (tmp_path / "go").write_text("go\n")
    deadline = time.monotonic() + 10
    while not (tmp_path / "child.done").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (tmp_path / "child.done").exists()
    assert not (tmp_path / "child.end").exists()


def test_the_first_agent_of_a_list_is_used() -> None:
    env = {"PRTE_MCA_plm_ssh_agent": "ssh -q : rsh", "SLURM_JOB_ID": "7"}
    assert reach(["n1"], ["true"], env, AskingLimits()) == ["ssh", "-q", "n1", "true"]


def test_slurm_gets_names_with_domains_one_by_one() -> None:
    command = reach(["n1.a", "n2.a", "n3"], ["true"], {"SLURM_JOB_ID": "7"}, AskingLimits())
    assert command[-3:] == ["-w", "n1.a,n2.a,n3", "true"]


@pytest.mark.parametrize("line", ["", "echo 'mpips-answer - {}'", "echo '0: mpips-answer - {}'"])
def test_an_answer_that_cannot_be_read_says_nothing_about_memory(tmp_path: Path, line: str) -> None:
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\n{line}\n")
    agent.chmod(0o700)
    env = {**os.environ, "PRTE_MCA_plm_ssh_agent": str(agent)}
    cleared = clear(["a"], tmp_path, 0, uuid.uuid4().hex, env=env)
    assert cleared == ({"a": "its answer cannot be read"}, {})


@pytest.mark.parametrize("what", ["--forget", "--keep"])
def test_a_late_command_leaves_the_memory_of_a_later_attempt(tmp_path: Path, what: str) -> None:
    token = uuid.uuid4().hex
    path = Path(f"/dev/shm/mpips-{os.geteuid()}-{token}-w0")
    command = [sys.executable, "-I", "-S", reap.__file__, str(tmp_path), "3", what, token]
    path.write_bytes(b"3")
    try:
        for lease in ('{"generation": 4}', '{"generation": ', "[]"):
            (tmp_path / "lease.json").write_text(lease)
            done = subprocess.run(command, capture_output=True, text=True, timeout=30)
            assert done.returncode == 1
            assert "continued meanwhile" in json.loads(done.stdout)["error"]
            assert path.exists()
        (tmp_path / "lease.json").write_text('{"generation": 3}')
        subprocess.run(command, capture_output=True, timeout=30, check=True)
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)


def test_one_srun_clears_all_hosts_of_an_allocation(tmp_path: Path) -> None:
    # Stands in for srun: runs the command for each host of -w, except a lost one.
    srun = tmp_path / "srun"
    srun.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/asked\nwhile [ "$1" != -w ]; do shift; done\n'
        'hosts=$2; shift 2\ncase $hosts in n3) echo "srun: error: Node failure on n3" >&2; exit 1;; esac\n'
        'for host in n1 n2; do SLURMD_NODENAME=$host "$@" & done; wait\n'
        'echo "srun: error: n3: node failure" >&2; exit 1\n'
    )
    srun.chmod(0o700)
    env = {**os.environ, "SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = tmp_path / "run"
    limits = AskingLimits(start_s=5.0, pause_s=0.01)
    failed, memory = clear(["n1", "n2", "n3"], run, 0, uuid.uuid4().hex, env=env, limits=limits)
    assert failed == {"n3": "srun: error: Node failure on n3"}
    assert memory == dict.fromkeys(["n1", "n2"], reap.LeftMemory())
    first, second = (tmp_path / "asked").read_text().splitlines()
    assert " -N 3 -n 3 --ntasks-per-node=1 -w n[1-3] " in first
    assert " -N 1 -n 1 --ntasks-per-node=1 -w n3 " in second


def test_a_host_whose_processes_do_not_end_is_bad_by_its_own_answer(tmp_path: Path) -> None:
    answer = '{"error": "processes [7] did not end"}'
    agent = tmp_path / "agent"
    agent.write_text(f"#!/bin/sh\necho hello\necho 'mpips-answer - {answer}'\nexit 1\n")
    agent.chmod(0o700)
    env = {**os.environ, "PRTE_MCA_plm_ssh_agent": str(agent)}
    assert clear(["a"], tmp_path, 0, env=env).failed == {"a": "processes [7] did not end"}


def test_many_hosts_are_named_in_one_sentence() -> None:
    hosts = HostPool([Host(f"n{i:03d}", 4) for i in range(1, 101)], 320, 20, 2, 0)
    hosts.bad = dict.fromkeys((f"n{i:03d}" for i in range(3, 18)), "no answer")
    notes = hosts.layout().notes
    assert notes == ("n[003-017] are left out: no answer", "spares n[081-095] are used")
    assert hosts.describe(80) == "n[001-080]:4"
