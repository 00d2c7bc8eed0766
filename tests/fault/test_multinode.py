"""What the imitated cluster promises to the tests that use it, in plain MPI."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import launcher
import processes
import pytest
from multinode import Nodes

# Every rank says where it is. Then each rank puts its number into the window of the next rank,
# which lies on another node for some, and reads it back; the targets only poll.
RANKS = textwrap.dedent("""
    import json
    import sys

    import mpi4py
    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI
    import numpy as np

    world = MPI.COMM_WORLD
    local = world.Split_type(MPI.COMM_TYPE_SHARED)
    places = world.allgather((MPI.Get_processor_name(), local.size))

    memory = np.full(1024, -1.0)
    window = MPI.Win.Create(memory, disp_unit=8, comm=world)
    window.Lock_all(MPI.MODE_NOCHECK)
    seen = []
    for turn in range(world.size):
        if turn == world.rank:
            target = (turn + 1) % world.size
            sent, got = np.full(1024, float(turn)), np.empty(1024)
            window.Put(sent, target)
            window.Flush(target)
            window.Get(got, target)
            window.Flush(target)
            seen = got.tolist()
        over = world.Ibarrier()
        while not over.Test():
            world.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
    window.Unlock_all()
    window.Free()
    right = world.allgather(set(seen) == {float(world.rank)})
    arrived = world.allgather(set(memory.tolist()) == {float((world.rank - 1) % world.size)})
    if world.rank == 0:
        print(json.dumps({"places": places, "right": right, "arrived": arrived}))
""")

# Every rank writes its pid to a file and stays.
SLEEPERS = textwrap.dedent("""
    import os
    import sys
    import time

    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    path = f"{sys.argv[1]}/rank{MPI.COMM_WORLD.rank}"
    with open(path + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".new", path)
    time.sleep(600)
""")


def check_ranks(nodes: Nodes) -> None:
    n = len(nodes)
    done = nodes.mpirun([2] * n, [sys.executable, "-c", RANKS], timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["places"] == [[host, 2] for host in nodes.hosts for _ in range(2)]
    assert found["right"] == [True] * 2 * n
    assert found["arrived"] == [True] * 2 * n


@pytest.mark.long
@pytest.mark.multinode
def test_two_nodes_share_no_memory_and_reach_each_others_windows(nodes2: Nodes) -> None:
    check_ranks(nodes2)


@pytest.mark.multinode
def test_three_nodes_share_no_memory_and_reach_each_others_windows(nodes3: Nodes) -> None:
    check_ranks(nodes3)


@pytest.mark.multinode
def test_environment_reaches_the_ranks_of_every_node(nodes2: Nodes) -> None:
    program = "import os; print(os.environ['MPIPS_TEST_WORD'], os.environ.get('MPIPS_NODES'))"
    done = nodes2.mpirun([1, 1], [sys.executable, "-c", program], env={"MPIPS_TEST_WORD": "across"})
    assert done.stdout.splitlines() == ["across None"] * 2, done.stderr


@pytest.mark.multinode
def test_a_killed_node_takes_its_processes_along_and_no_others(
    nodes2: Nodes, tmp_path: Path
) -> None:
    started = nodes2.start([1, 1], [sys.executable, "-c", SLEEPERS, str(tmp_path)])
    pids = [
        nodes2.outer_pid(node, int(launcher.wait_for_file(tmp_path / f"rank{node}", 30, started)))
        for node in range(2)
    ]
    assert all(launcher.is_alive(pid) for pid in pids)
    nodes2.kill(1)
    assert not launcher.is_alive(pids[1])
    assert nodes2.pids(1) == []
    # The head lives on: it can start another job on what is left.
    started.wait(30)
    where = "import socket; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); print(socket.gethostname())"
    done = nodes2.mpirun([2, 0], [sys.executable, "-c", where])
    assert done.stdout.split() == nodes2.hosts[:1] * 2, done.stderr


@pytest.mark.multinode
def test_nodes_have_a_dev_shm_of_their_own(nodes2: Nodes) -> None:
    nodes2.run(0, ["touch", "/dev/shm/mpips-test"])
    assert [nodes2.segments(0), nodes2.segments(1)] == [{"mpips-test"}, set()]
    assert not Path("/dev/shm/mpips-test").exists()
    nodes2.run(0, ["rm", "/dev/shm/mpips-test"])


def test_launch_kills_ranks_and_launcher(
    launch: Callable[..., launcher.Launch], tmp_path: Path
) -> None:
    started = launch(2, [sys.executable, "-c", SLEEPERS, str(tmp_path)])
    pids = [int(launcher.wait_for_file(tmp_path / f"rank{i}", 30, started)) for i in range(2)]
    assert set(pids) <= set(started.pids())
    started.kill()
    assert started.returncode == -signal.SIGKILL
    assert not any(launcher.is_alive(pid) for pid in pids)
    assert started.pids() == []


def test_a_launch_that_hangs_is_killed_and_its_output_shown(
    launch: Callable[..., launcher.Launch],
) -> None:
    started = launch(1, ["sh", "-c", "echo stuck; sleep 600"], timeout=2)
    with pytest.raises(AssertionError, match=r"still running after(.|\n)*stuck"):
        started.wait()
    assert started.pids() == []


def test_waiting_for_a_file_of_a_dead_process_fails_at_once(
    launch: Callable[..., launcher.Launch], tmp_path: Path
) -> None:
    started = launch(1, ["sh", "-c", "echo no luck >&2; exit 3"])
    with pytest.raises(AssertionError, match=r"ended with 3 (.|\n)*no luck"):
        launcher.wait_for_file(tmp_path / "never", 30, started)


def test_output_can_be_read_after_the_end(launch: Callable[..., launcher.Launch]) -> None:
    started = launch(1, ["sh", "-c", 'echo "$WORD"'], env={"WORD": "said"})
    assert started.wait() == 0
    started.kill()
    assert started.stdout() == "said\n"


@pytest.mark.multinode
def test_nodes_end_with_the_process_that_made_them(nodes2: Nodes, tmp_path: Path) -> None:
    # A cluster of its own; `nodes2` is there for its reasons to skip.
    program = textwrap.dedent("""
        import os
        import signal
        import sys
        from pathlib import Path

        sys.path.insert(0, sys.argv[1])
        import launcher
        from multinode import Nodes

        nodes = Nodes(2)
        job = nodes.start([1, 1], ["sh", "-c", "echo up > $0; sleep 600", sys.argv[2]])
        launcher.wait_for_file(Path(sys.argv[2]), 30, job)
        print(*nodes.pids(0), *nodes.pids(1), *job.pids(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    tests = str(Path(launcher.__file__).parent)
    command = [sys.executable, "-c", program, tests, str(tmp_path / "ready")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) > 4, done.stderr
    ended = processes.until(lambda: not any(launcher.is_alive(pid) for pid in pids))
    assert ended, processes.describe(pids)
