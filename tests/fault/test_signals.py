"""Processes that are stopped, killed or told to end: a named error in time, and nothing left."""

import json
import os
import signal
import sys
from pathlib import Path

import processes
import pytest
from launcher import Launch, launch, wait_for_file

PROGRAMS = Path(__file__).with_name("programs")
# 5 ranks with 2 servers: rank 0 scheduler, 1 and 2 servers, 3 and 4 workers.
ROLES = {0: "scheduler", 1: "server 0", 3: "worker 0", 4: "worker 1"}


def start(
    folder: Path, model: str, timeout_s: float = 2.0, **options: object
) -> tuple[Launch, dict[int, int]]:
    """Five ranks at work, and the pid of each."""
    ready = folder / "ready"
    settings = {"model": model, "timeout_s": timeout_s, "servers": 2, **options}
    argv = [sys.executable, str(PROGRAMS / "endless.py"), str(ready), json.dumps(settings)]
    job = launch(5, argv, timeout=60.0)
    pids = dict(map(int, line.split()) for line in wait_for_file(ready, 40.0, job).splitlines())
    assert sorted(pids) == [0, 1, 2, 3, 4]
    return job, pids


def regions_of(pids: dict[int, int]) -> set[Path]:
    """The segments of mpips that these processes have mapped."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids.values())
    found = {Path(line.split()[-1]) for line in maps.splitlines() if "/dev/shm/mpips-" in line}
    assert len(found) >= 4, "two servers and two workers have a region each"
    return found


def existing(paths: set[Path]) -> list[Path]:
    """Those that are still there."""
    return [path for path in paths if path.exists()]


@pytest.mark.parametrize(
    ("rank", "model", "transport"),
    [
        (0, "bsp", "auto"),
        (1, "asp", "auto"),
        (3, "ssp", "rma"),
        (1, "bsp", "p2p"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                (1, "bsp", "auto"),
                (3, "bsp", "auto"),
                (4, "asp", "auto"),
                (1, "bsp", "rma"),
                (1, "asp", "p2p"),
                (3, "bsp", "p2p"),
            )
        ),
    ],
)
def test_a_stopped_rank_ends_the_job_with_its_name(
    tmp_path: Path, rank: int, model: str, transport: str
) -> None:
    job, pids = start(tmp_path, model, transport=transport)
    with job:
        regions = regions_of(pids)
        os.kill(pids[rank], signal.SIGSTOP)
        code = job.wait(25.0)
        text = job.stderr()
    assert code == 124, text
    first = next(line for line in text.splitlines() if "mpips: error:" in line)
    # A worker that waits for the stopped rank, a flush or a message to it may be the first to notice; these
    # know the role or the rank only.
    names = (
        f"{ROLES[rank]} (rank {rank} on",
        f"{ROLES[rank]} has not",
        f"a flush to rank {rank}",
        f"the server on rank {rank}",
    )
    assert any(name in first for name in names), text
    assert not existing(regions)


def test_a_stopped_worker_is_named_by_the_worker_that_waits_for_it(tmp_path: Path) -> None:
    job, pids = start(tmp_path, "bsp")
    with job:
        os.kill(pids[4], signal.SIGSTOP)
        assert job.wait(25.0) == 124
        assert "worker 1 (rank 4 on" in job.stderr()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_ending_mpirun_by_a_signal_leaves_no_segment(
    tmp_path: Path, number: signal.Signals
) -> None:
    job, pids = start(tmp_path, "asp", timeout_s=60.0)
    with job:
        regions = regions_of(pids)
        job.send_signal(number)
        assert job.wait(10.0) != 0
        # mpirun does not wait for the ranks that it has killed.
        assert processes.until(lambda: not job.pids()), processes.describe(job.pids())
    assert not existing(regions)


def test_sigusr2_to_mpirun_shows_what_every_rank_does_and_ends_none(tmp_path: Path) -> None:
    job, pids = start(tmp_path, "bsp", timeout_s=60.0)
    with job:
        job.send_signal(signal.SIGUSR2)
        # Each rank begins its stacks with this line once, however many threads it has.
        shown = processes.until(lambda: job.stderr().count("Current thread 0x") == len(pids), 20.0)
        assert shown, job.tail()
        assert "endless.py" in job.stderr()
        assert job.poll() is None
        assert set(pids.values()) <= set(job.pids())
        # Killed, they would leave their shared memory.
        job.send_signal(signal.SIGTERM)
        job.wait(10.0)


@pytest.mark.parametrize("rank", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3))])
def test_sigterm_to_one_rank_leaves_no_segment(tmp_path: Path, rank: int) -> None:
    job, pids = start(tmp_path, "bsp", timeout_s=60.0)
    with job:
        regions = regions_of(pids)
        os.kill(pids[rank], signal.SIGTERM)
        assert job.wait(10.0) == 143
    assert not existing(regions)


def test_the_next_start_removes_what_killed_processes_left(tmp_path: Path) -> None:
    job, pids = start(tmp_path, "bsp", timeout_s=60.0)
    with job:
        regions = regions_of(pids)
        for pid in [job.pid, *pids.values()]:
            os.kill(pid, signal.SIGKILL)
    assert existing(regions), "nothing was left to remove: the test proves nothing"
    # A dead job's segments go; those of a job that lives stay.
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    living, pids = start(tmp_path / "first", "bsp", timeout_s=60.0)
    with living:
        assert not existing(regions)
        mine = regions_of(pids)
        other, _ = start(tmp_path / "second", "bsp", timeout_s=60.0)
        with other:
            assert sorted(existing(mine)) == sorted(mine)
            other.send_signal(signal.SIGTERM)
            other.wait(10.0)
        living.send_signal(signal.SIGTERM)
        living.wait(10.0)
    assert not existing(mine)


@pytest.mark.parametrize("kind", ["put", "control"])
def test_a_message_of_which_only_the_beginning_comes_ends_the_job(kind: str) -> None:
    # Over TCP the rest of a large message needs its sender; on a node it may be fetched without.
    argv = [sys.executable, str(PROGRAMS / "unfinished.py"), kind]
    with launch(2, argv, env={"OMPI_MCA_btl": "tcp,self"}, timeout=40.0) as job:
        assert job.wait(30.0) == 124, job.stderr()
        text = job.stderr()
    assert text.count("mpips: error: rank 0: receiving a message from rank 1 has not returned") == 1
