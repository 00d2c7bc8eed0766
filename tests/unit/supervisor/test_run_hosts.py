"""Hosts of a run: read, choose and reach them, and end what is left of earlier attempts on them."""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from mpips.errors import ConfigError
from mpips.supervisor import reap
from mpips.supervisor.asking import AskingLimits
from mpips.supervisor.clearing import clear, reach
from mpips.supervisor.host_step import ProcessStep
from mpips.supervisor.hosts import (
    Host,
    HostPool,
    HostsError,
    Layout,
    n_workers,
    parse_hosts,
    read_hostfile,
    slurm_hosts,
)
from mpips.supervisor.launcher import Launcher, build, environment, write_hostfile

OPENMPI = Launcher("/opt/mpirun", "openmpi", "5")
MPICH = Launcher("/opt/mpirun", "mpich", "4")


def test_hosts_are_read_from_text_and_from_both_kinds_of_hostfile(tmp_path: Path) -> None:
    wanted = [Host("node1", 4), Host("node-2.site", 0)]
    assert parse_hosts("node1:4, node-2.site") == wanted
    path = tmp_path / "hosts"
    path.write_text("# mine\nnode1 slots=4 max_slots=8\n\nnode-2.site  # the other\n")
    assert read_hostfile(path) == wanted
    path.write_text("node1:4\nnode-2.site\n")
    assert read_hostfile(path) == wanted


@pytest.mark.parametrize("text", ["", " , ", "a:0", "a:-1", "a b", "-x:2", "$(id):1", "a:1,a:2"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_hosts(text)


def test_hosts_of_an_allocation_come_from_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$3" = "n[1-3]" ] && printf "n1\\nn2\\nn3\\n"\n')
    scontrol.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "4(x2),2"}
    assert slurm_hosts(env) == [Host("n1", 4), Host("n2", 4), Host("n3", 2)]
    assert slurm_hosts({}) == []


def pool(spares: int = 1, min_workers: int = 0, n: int = 8) -> HostPool:
    return HostPool([Host(f"n{i}", 4) for i in range(3)], n, spares, 2, min_workers)


def test_spares_wait_until_a_host_is_bad() -> None:
    hosts = pool()
    assert [h.name for h in hosts.layout().hosts] == ["n0", "n1"]
    hosts.bad = {"n1": "no answer"}
    layout = hosts.layout()
    assert [h.name for h in layout.hosts] == ["n0", "n2"]
    assert layout.n_ranks == 8
    assert layout.notes == ("n1 is left out: no answer", "spare n2 is used")
    # The host answers again, so it is used again.
    hosts.bad = {}
    assert [h.name for h in hosts.layout().hosts] == ["n0", "n1"]


def test_fewer_workers_only_where_that_is_allowed() -> None:
    hosts = pool()
    hosts.bad = {"n1": "gone", "n2": "gone"}
    with pytest.raises(HostsError, match="enough for 1 worker; 5 are needed"):
        hosts.layout()
    hosts = pool(min_workers=1)
    hosts.bad = {"n1": "gone", "n2": "gone"}
    layout = hosts.layout()
    assert layout.n_ranks == 4
    assert layout.notes[-1] == "1 worker instead of 5"
    hosts.bad = dict.fromkeys(hosts.names, "gone")
    with pytest.raises(HostsError, match="0 of 3 hosts are left"):
        hosts.layout()


def test_a_suspect_is_spared_while_others_do(tmp_path: Path) -> None:
    hosts = pool()
    hosts.suspects = {"n0": "the daemon did not start"}
    layout = hosts.layout()
    assert [h.name for h in layout.hosts] == ["n1", "n2"]
    assert "n0 is left out: the daemon did not start" in layout.notes
    # A suspect is used if fewer workers were the alternative.
    hosts.bad = {"n1": "gone"}
    assert [h.name for h in hosts.layout().hosts] == ["n0", "n2"]


def test_slots_that_are_not_given_are_shared_out() -> None:
    hosts = HostPool([Host("a"), Host("b"), Host("c")], 5, 1, 0, 0)
    assert [h.slots for h in hosts.layout().hosts] == [3, 3]
    with pytest.raises(ConfigError, match="6 ranks on hosts with 4 slots"):
        HostPool([Host("a", 2), Host("b", 2)], 6, 0, 0, 0)
    with pytest.raises(ConfigError, match="at least one host must work"):
        HostPool([Host("a", 2)], 2, 1, 0, 0)
    with pytest.raises(ConfigError, match="min_workers = 4"):
        HostPool([], 5, 0, 2, 4)


@pytest.mark.parametrize(
    ("ranks", "servers", "workers"), [(1, 0, 1), (2, 1, 1), (5, 2, 2), (9, 0, 6)]
)
def test_workers_of_a_job(ranks: int, servers: int, workers: int) -> None:
    assert n_workers(ranks, servers, 1) == workers


def test_commands_of_both_launchers(tmp_path: Path) -> None:
    layout = Layout(4, (Host("a", 2), Host("b", 2)))
    path = tmp_path / "hostfile"
    env = {"MPIPS_RUN_DIR": "/r", "HOME": "/h", "OMP_NUM_THREADS": "1"}
    command = build(OPENMPI, layout, env, path, ["--x"], ["prog"])
    assert command[:5] == ["/opt/mpirun", "-n", "4", "--hostfile", str(path)]
    assert command[-2:] == ["--x", "prog"]
    assert "HOME" not in command
    assert command[command.index("MPIPS_RUN_DIR") - 1] == "-x"
    slurm = build(OPENMPI, layout, {**env, "SLURM_JOB_ID": "7"}, path, [], ["prog"])
    assert slurm[3:5] == ["--host", "a:2,b:2"]
    assert build(MPICH, layout, env, path, [], ["prog"]) == [
        *("/opt/mpirun", "-n", "4", "-f", str(path), "prog")
    ]
    write_hostfile(OPENMPI, layout.hosts, path)
    assert path.read_text() == "a slots=2\nb slots=2\n"
    write_hostfile(MPICH, layout.hosts, path)
    assert path.read_text() == "a:2\nb:2\n"
    # One rank needs no launcher.
    assert build(OPENMPI, Layout(1), env, path, [], ["prog"]) == ["prog"]


def test_a_silent_host_is_noticed_and_an_allocation_not_blocked() -> None:
    env = environment(OPENMPI, {"MPIPS_RUN_DIR": "/r"}, {"SLURM_JOB_ID": "7"})
    assert env["SLURM_OVERLAP"] == "1"
    assert env["PRTE_MCA_oob_tcp_keepalive_time"] == "4"
    assert env["MPIPS_RUN_DIR"] == "/r"
    mine = environment(OPENMPI, {}, {"PRTE_MCA_oob_tcp_keepalive_time": "60"})
    assert mine["PRTE_MCA_oob_tcp_keepalive_time"] == "60"


def started(run: Path, generation: int) -> subprocess.Popen[bytes]:
    env = {**os.environ, "MPIPS_RUN_DIR": str(run), "MPIPS_GENERATION": str(generation)}
    return subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)


def test_only_processes_of_the_run_and_of_old_generations_are_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    old, stopped, new = started(run, 1), started(run, 2), started(run, 3)
    other = started(tmp_path / "run2", 1)
    stopped.send_signal(signal.SIGSTOP)
    try:
        assert reap.reap(run, 2) == 2
        assert old.wait(5) == stopped.wait(5) == -signal.SIGKILL
        assert new.poll() is None
        assert other.poll() is None
        assert reap.reap(run, 2) == 0
    finally:
        for process in (old, stopped, new, other):
            process.kill()
            process.wait()


def test_a_killed_process_without_an_environment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A dying process has no environment any more while its files, and so its locks, are still open.
    process = started(tmp_path, 1)
    searches, kills, kill = [[process.pid]], [], os.kill

    def late(pid: int, signum: int) -> None:
        kills.append(pid)
        if len(kills) == 3:
            kill(pid, signum)

    monkeypatch.setattr(reap, "processes_of", lambda *_: searches.pop() if searches else [])
    monkeypatch.setattr(reap.os, "kill", late)
    try:
        assert reap.reap(tmp_path, 1) == 1
        assert reap.state_of(process.pid) in "ZX"
        assert kills[:3] == [process.pid] * 3
    finally:
        monkeypatch.undo()
        process.kill()
        process.wait()


# Its first thread ends, as the first one of a killed process does, and another one holds the lock.
WITHOUT_FIRST_THREAD = """
import ctypes, fcntl, os, sys, threading, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
threading.Thread(target=time.sleep, args=(600,)).start()
os.write(1, b"!")
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def test_a_process_is_waited_for_until_its_last_thread_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", WITHOUT_FIRST_THREAD, str(path)]
    reader, writer = os.pipe()
    process = subprocess.Popen(command, stdout=writer, start_new_session=True)
    os.close(writer)
    searches, kills, kill = [[process.pid]], [], os.kill

    def late(pid: int, signum: int) -> None:
        kills.append(pid)
        if len(kills) == 3:
            kill(pid, signum)

    try:
        assert os.read(reader, 1) == b"!"
        while reap.state_of(process.pid) != "Z":
            assert process.poll() is None
        assert not reap.is_dead(process.pid)
        monkeypatch.setattr(reap, "processes_of", lambda *_: searches.pop() if searches else [])
        monkeypatch.setattr(reap.os, "kill", late)
        assert reap.reap(tmp_path, 1) == 1
        assert kills[:3] == [process.pid] * 3
        assert reap.is_dead(process.pid)
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        monkeypatch.undo()
        os.close(reader)
        process.kill()
        process.wait()


def test_a_process_that_has_no_environment_yet_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Within exec a process has none; this one has none for good.
    process = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    try:
        monkeypatch.setattr(reap, "_UNCLEAR_S", 0.0)
        assert reap.reap(tmp_path, 1) == 0
        monkeypatch.setattr(reap, "_UNCLEAR_S", 60.0)
        searches = [[process.pid], []]
        monkeypatch.setattr(reap, "processes_of", lambda *_: searches.pop() if searches else [])
        assert reap.reap(tmp_path, 1) == 1
        assert process.wait(5) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_processes_of_a_run_are_found_by_whatever_way_it_was_started(tmp_path: Path) -> None:
    run, link = tmp_path / "run", tmp_path / "link"
    run.mkdir()
    link.symlink_to(run)
    for way, other in ((link, run), (run, link), (tmp_path / "x" / ".." / "run", run)):
        (tmp_path / "x").mkdir(exist_ok=True)
        process = started(way, 1)
        try:
            assert reap.reap(other, 1) == 1
            assert process.wait(5) == -signal.SIGKILL
        finally:
            process.kill()
            process.wait()


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


def test_reaping_is_a_program_of_its_own(tmp_path: Path) -> None:
    # On other hosts reap.py runs without mpips and its libraries.
    command = [sys.executable, "-I", "-S", reap.__file__, str(tmp_path), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    found = {"processes": 0, "removed": 0, "remaining_bytes": 0, "foreign": []}
    assert json.loads(done.stdout) == found


NOBODY = 65534


@pytest.mark.parametrize("what", ["--forget", "--keep"])
def test_files_of_another_user_are_named_and_stay(tmp_path: Path, what: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    program = Path(tempfile.mkdtemp()) / "reap.py"  # where another user may read it
    program.parent.chmod(0o755)
    shutil.copy(reap.__file__, program)
    program.chmod(0o644)
    token = uuid.uuid4().hex
    prefix = f"/dev/shm/mpips-kept-{NOBODY}-{token}"
    foreign = [Path(f"{prefix}.abc-s0"), Path(f"{prefix}-s0-mark"), Path(f"{prefix}-w0-7")]
    own = Path(f"{prefix}.12-s0-journal")
    try:
        for path in (*foreign, own):
            path.write_text("3")
        os.chown(own, NOBODY, NOBODY)
        command = ["/usr/bin/python3", "-I", "-S", str(program), "/nowhere", "0", what, token]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, user=NOBODY, group=NOBODY, cwd="/"
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        # A mark of another user does not make the memory complete.
        assert (found["removed"], found["remaining_bytes"]) == (1, 0)
        assert set(found["foreign"]) == {str(path) for path in foreign}
        assert all(path.read_text() == "3" for path in foreign)
        assert not own.exists()
    finally:
        for path in (*foreign, own):
            path.unlink(missing_ok=True)
        shutil.rmtree(program.parent)


def test_memory_is_kept_only_where_a_launch_can_go_on_in_it() -> None:
    token = uuid.uuid4().hex
    uid = os.geteuid()
    names = [f"mpips-kept-{uid}-{token}.1a-s0", f"mpips-kept-{uid}-{token}.1a-s0-mark"]
    plain = Path(f"/dev/shm/mpips-{uid}-{token}-w0")
    kept = [Path("/dev/shm", name) for name in names]
    try:
        for path in (*kept, plain):
            path.write_bytes(b"3" * 4096)
            os.utime(path, (1, 1))
        assert reap.keep(token) == reap.LeftMemory(1, 2 * 4096)
        assert not plain.exists()
        assert all(path.stat().st_mtime > 1 for path in kept)
        kept[1].unlink()
        assert reap.keep(token) == reap.LeftMemory(1)
        assert not kept[0].exists()
    finally:
        for path in (*kept, plain):
            path.unlink(missing_ok=True)
