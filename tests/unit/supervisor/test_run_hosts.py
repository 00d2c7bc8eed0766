"""Hosts of a run: read and chosen, and the commands of launchers for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mpips.errors import ConfigError
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
from mpips.supervisor.launcher import Launcher, build, write_hostfile

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
