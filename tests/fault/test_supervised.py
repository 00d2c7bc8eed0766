"""`mpips run` with a real mpirun: every way to die, and the same bits afterwards.

By day the tests of one kind take turns: every second commit runs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path

import launcher
import multinode
import processes
import pytest
import supervised
from supervised import Run, alive, content, made_data, start

from mpips.checkpoint import find_newest, list_checkpoints
from mpips.checkpoint.writer import SWITCH
from mpips.rundir.directory import replace_json

# 5 ranks: scheduler, two servers, two workers. 22 clocks an epoch, a checkpoint every 30.
SHAPE = ["-n", "5", "--servers", "2"]
SETTINGS = [
    "--set",
    "checkpoint.every_steps=30",
    "--set",
    "checkpoint.keep_last=100",
    "--set",
    "train.epochs=8",
    "--set",
    "redundancy.warm=false",
]


def job(folder: Path, *more: str) -> list[str]:
    """The task on its data."""
    return ["faulty_task:Faulty", "--train", str(made_data(folder)), *SETTINGS, *more]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the job gives when nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = start(folder, *SHAPE, *job(folder, "--set", "options.pause_s=0"))
    with run.launched:
        assert run.launched.wait() == 0, run.launched.tail()
    assert run.attempts == 1
    return run.final()


def finish(run: Run, undisturbed: dict[str, bytes], attempts: int = 2) -> str:
    """Wait for the end; what was said. The result has the same bits, and nothing is left."""
    assert run.launched.wait() == 0, run.launched.tail(80)
    said = run.launched.stderr()
    assert run.attempts == attempts, said
    assert run.final() == undisturbed
    assert not alive(run)
    token = json.loads((run.path / "run.json").read_text())["token"]
    assert not list(Path("/dev/shm").glob(f"*{token}*"))
    status = run.read("status.json")
    assert status is not None
    assert status["state"] == "done"
    return said


@pytest.mark.parametrize(
    "role",
    [
        "scheduler",
        *(pytest.param(role, marks=pytest.mark.long) for role in ("server 1", "worker 0")),
    ],
)
def test_a_killed_rank_is_survived_with_the_same_bits(
    tmp_path: Path, undisturbed: dict[str, bytes], role: str
) -> None:
    run = start(tmp_path, *SHAPE, *job(tmp_path))
    with run.launched:
        pid = run.pid_of(role)
        os.kill(pid, signal.SIGKILL)
        said = finish(run, undisturbed)
    assert f"{role} (rank" in said
    assert f"pid {pid})" in said
    assert "killed by SIGKILL (signal 9)" in said
    assert "attempt 1 is at work" in said
    assert "from checkpoint step-" in said


def test_dying_while_checkpoints_are_made_leaves_none_that_is_bad(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    # Without MPI-IO, as with the wheel of h5py; test_warm has the same points with it.
    without = {SWITCH: "0"}
    # Complete without its name, without the link to it, half written; and when all is done but said.
    points = ["synced:1", "named:1", "block-written:1", "named:1", "unmarked:1"]
    fault = ",".join(points)
    arguments = ["--max-restarts", "9", *job(tmp_path, "--set", "options.pause_s=0.005")]
    run = start(tmp_path, *SHAPE, *arguments, fault=fault, timeout=200.0, **without)
    with run.launched:
        said = finish(run, undisturbed, attempts=len(points) + 1)
    # Said by each attempt itself: the supervisor need not see one at work that ends within a second.
    steps = [int(step) for step in re.findall(r"starting from .*/step-0*(\d+), ", said)]
    # What has no name yet and what is half written is not gone on from; what is named is.
    assert len(steps) == 4, said
    assert 30 <= steps[0] == steps[1] < steps[2] < steps[3] == 8 * 22, said
    assert find_newest(run.path / "checkpoints").refused == ()


@pytest.mark.parametrize(
    ("fault", "texts"),
    [
        pytest.param(
            "raise", ["ValueError: planted", "self.go_wrong()", "it was"], marks=pytest.mark.long
        ),
        pytest.param(
            "memory", ["MemoryError", "np.empty(1 << 60, np.uint8)"], marks=pytest.mark.long
        ),
        ("crash", ["killed by SIGSEGV (signal 11)", "in go_wrong", "Segmentation fault"]),
        ("leave", ["ended with code 3, without a failure report"]),
    ],
)
def test_a_worker_that_fails_is_named_with_its_reason(
    tmp_path: Path, undisturbed: dict[str, bytes], fault: str, texts: list[str]
) -> None:
    options = [f"options.fault={fault}", "options.at=70", f"options.once={tmp_path / 'once'}"]
    sets = [word for text in options for word in ("--set", text)]
    run = start(tmp_path, *SHAPE, *job(tmp_path, *sets))
    with run.launched:
        said = finish(run, undisturbed)
    pid = (tmp_path / "once").read_text()
    assert f"worker 1 (rank 4, pid {pid})" in said
    for text in texts:
        assert text in said
    assert said.count("failed after") == 1


def test_a_stopped_worker_is_a_named_stall(tmp_path: Path) -> None:
    options = ["options.fault=stop", "options.at=70", "cluster.timeout_s=8"]
    sets = [word for text in options for word in ("--set", text)]
    run = start(tmp_path, *SHAPE, "--max-restarts", "0", *job(tmp_path, *sets))
    with run.launched:
        assert run.launched.wait() == 124, run.launched.tail()
        said = run.launched.stderr()
    assert "(stalled)" in said
    assert "worker 1 (rank 4" in said
    assert "stopped by a signal" in said
    assert "restarts are used up" in said
    assert not alive(run)


def test_a_killed_mpirun_with_a_stopped_rank_is_survived(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    run = start(tmp_path, *SHAPE, *job(tmp_path))
    with run.launched:
        stopped = run.pid_of("worker 1")
        os.kill(stopped, signal.SIGSTOP)
        os.kill(mpirun_of(run), signal.SIGKILL)
        said = finish(run, undisturbed)
    assert not launcher.is_alive(stopped)
    assert "stopped by a signal" in said or "the launcher was killed by SIGKILL" in said


def mpirun_of(run: Run) -> int:
    """The launcher: the supervisor's only child."""
    children = Path(f"/proc/{run.launched.pid}/task/{run.launched.pid}/children").read_text()
    return int(children.split()[0])


def test_a_killed_supervisor_leaves_a_run_that_goes_on(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    run = start(tmp_path, *SHAPE, *job(tmp_path))
    with run.launched:
        run.pid_of("worker 0")
        os.kill(run.launched.pid, signal.SIGKILL)
        run.launched.wait(10)
        again = start(tmp_path, str(run.path), "-n", "5")
        with again.launched:
            finish(again, undisturbed)


def assert_nothing_is_left(run: Run) -> None:
    assert not alive(run)
    token = json.loads((run.path / "run.json").read_text())["token"]
    assert not list(Path("/dev/shm").glob(f"*{token}*"))


def test_sigterm_ends_everything_after_a_checkpoint(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    run = start(tmp_path, *SHAPE, *job(tmp_path))
    with run.launched:
        run.pid_of("worker 0")
        run.launched.send_signal(signal.SIGTERM)
        assert run.launched.wait(30) == 75, run.launched.tail()
        assert_nothing_is_left(run)
        newest = list_checkpoints(run.path / "checkpoints")[-1].path.name
        said = f"SIGTERM: wrote checkpoint {newest}, exit 75; continue with: mpips run {run.path}"
        assert said in run.launched.stderr()
    again = start(tmp_path, str(run.path), "-n", "5")
    with again.launched:
        finish(again, undisturbed)


def test_a_second_sigterm_ends_everything_at_once(tmp_path: Path) -> None:
    run = start(tmp_path, *SHAPE, *job(tmp_path, "--set", "checkpoint.every_steps=0"))
    with run.launched:
        # One checkpoint, by request; then a worker that stands still lets nobody save.
        run.until(lambda status: bool(status["ranks"]))
        run.launched.send_signal(signal.SIGUSR1)
        os.kill(run.pid_of("worker 1"), signal.SIGSTOP)
        run.launched.send_signal(signal.SIGTERM)
        asked = run.path / "logs/attempt-0/leave.json"
        assert processes.until(asked.exists, 20.0)
        assert processes.until(lambda: time.time() - asked.stat().st_mtime > 0.5, 20.0)
        run.launched.send_signal(signal.SIGTERM)
        assert run.launched.wait(10) == 143, run.launched.tail()
        assert_nothing_is_left(run)
        newest = list_checkpoints(run.path / "checkpoints")[-1].path
        said = f"stopped at once by a second SIGTERM, exit 143; newest checkpoint: {newest.name}"
        assert said in run.launched.stderr()
    content(newest)  # verifies it


def test_usr1_ends_with_75_and_the_run_goes_on(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    run = start(tmp_path, *SHAPE, *job(tmp_path, "--set", "checkpoint.on_usr1=exit"))
    with run.launched:
        run.pid_of("worker 0")
        run.launched.send_signal(signal.SIGUSR1)
        assert run.launched.wait(30) == 75, run.launched.tail()
        assert "continue with: mpips run" in run.launched.stderr()
    again = start(tmp_path, str(run.path), "-n", "5")
    with again.launched:
        finish(again, undisturbed)


def test_what_always_fails_is_given_up(tmp_path: Path) -> None:
    sets = ["--set", "options.fault=raise", "--set", "options.at=5"]
    run = start(tmp_path, *SHAPE, "--max-restarts", "9", *job(tmp_path, *sets))
    with run.launched:
        assert run.launched.wait() == 1, run.launched.tail()
        said = run.launched.stderr()
    assert run.attempts == 2
    assert "2 attempts in a row have brought the run no further" in said


def test_wrong_data_is_not_tried_again(tmp_path: Path) -> None:
    broken = tmp_path / "broken.svm"
    broken.write_text("1 5:1\n0 nonsense\n")
    run = start(tmp_path, *SHAPE, "faulty_task:Faulty", "--train", str(broken))
    with run.launched:
        assert run.launched.wait() == 2, run.launched.tail()
        said = run.launched.stderr()
    assert run.attempts == 1
    assert "(configuration error)" in said
    assert "nonsense" in said


def test_metrics_and_status_tell_the_whole_story(tmp_path: Path) -> None:
    run = start(tmp_path, *SHAPE, *job(tmp_path))
    with run.launched:
        os.kill(run.pid_of("server 0"), signal.SIGKILL)
        assert run.launched.wait() == 0, run.launched.tail()
    lines = [json.loads(x) for x in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert {line["generation"] for line in lines} == {0, 1}
    assert all(line["samples"] > 0 and line["loss"] >= 0 for line in lines)
    status = run.read("status.json")
    assert status is not None
    assert status["restarts"] == 1
    assert status["start"]["source"] == "checkpoint"
    assert status["progress"]["step"] == 8 * 22
    result = run.read("result.json")
    assert result is not None
    assert result["epochs"] == 8


@pytest.mark.multinode
def test_a_lost_node_is_replaced_by_the_spare(
    nodes3: multinode.Nodes, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    hosts = ",".join(f"{host}:{n}" for host, n in zip(nodes3.hosts, (3, 2, 2), strict=True))
    arguments = ["--hosts", hosts, "--spares", "1", *SHAPE, *job(tmp_path)]
    launched = nodes3.start_on_head(
        supervised.command(*arguments), supervised.ENVIRONMENT, 110.0, tmp_path
    )
    run = Run(tmp_path, launched)
    with launched:
        run.until(lambda s: bool(s["ranks"] and s["checkpoint"]))
        nodes3.kill(1)
        assert launched.wait() == 0, launched.tail(80)
    said = launched.stderr()
    assert f"{nodes3.hosts[1]} is left out" in said
    assert f"spare {nodes3.hosts[2]} is used" in said
    assert run.attempts == 2
    assert run.final() == undisturbed
    assert nodes3.segments(0) == set() == nodes3.segments(2)


@pytest.mark.multinode
def test_a_lost_node_without_a_spare_means_fewer_workers_and_every_push_counts_once(
    nodes2: multinode.Nodes, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    hosts = f"{nodes2.hosts[0]}:4,{nodes2.hosts[1]}:1"
    # Servers share out over the nodes by their ranks: the second node has a worker.
    arguments = ["--hosts", hosts, "-n", "5", "--servers", "1", "--min-workers", "2"]
    settings = ["options.pause_s=0.0", "options.fitted=false", "options.pulls=true"]
    settings += ["table.consistency=ssp", f"options.gate={gate}", "run.standby=false"]
    arguments += supervised.job(tmp_path, "slow_counts:Slow", *settings)
    launched = nodes2.start_on_head(
        supervised.command(*arguments), supervised.ENVIRONMENT, 110.0, tmp_path
    )
    run = Run(tmp_path, launched)
    with launched:
        run.until(lambda s: bool(s["ranks"] and s["progress"]["step"] > 6))
        nodes2.kill(1)
        # All five ranks continue in memory on the slots of four, and end their clocks; then four do.
        run.until(lambda s: s["generation"] == 2 and len(s["ranks"]) == 4)
        gate.touch()
        assert launched.wait() == 0, launched.tail(80)
        supervised.check_counts(run, tmp_path)
    said = launched.stderr()
    assert "2 workers instead of 3" in said
    assert "5 ranks on the slots of 4 first, to continue in memory" in said
    assert "from memory: step" in said
    assert run.attempts == 3


def test_a_second_supervisor_is_refused(tmp_path: Path) -> None:
    run = start(tmp_path, *SHAPE, *job(tmp_path, "--set", "options.pause_s=0.3"))
    with run.launched:
        run.pid_of("worker 0")
        second = start(tmp_path, str(run.path), "-n", "5")
        with second.launched:
            assert second.launched.wait(20) == 2
            assert "is being run by process" in second.launched.stderr()
        os.kill(run.launched.pid, signal.SIGINT)
        assert run.launched.wait(30) == 75, run.launched.tail()
    assert processes.until(lambda: not alive(run), 5.0)
    assert time.time() - os.stat(run.path / "status.json").st_mtime < 60


def test_ranks_of_a_replaced_attempt_publish_nothing_and_end(tmp_path: Path) -> None:
    # A second attempt elsewhere has taken the run while this one trains: its lease says so.
    # Ranks that wait for the end of the attempt would be counted.
    settings = [
        word for text in ("options.pause_s=0.1", "run.standby=false") for word in ("--set", text)
    ]
    run = start(tmp_path, *SHAPE, *job(tmp_path, *settings))
    with run.launched:
        run.pid_of("worker 0")
        # Frozen, it cannot see that: its ranks must.
        os.kill(run.launched.pid, signal.SIGSTOP)
        lease = run.read("lease.json")
        assert lease is not None
        replace_json(run.path / "lease.json", {**lease, "generation": 1, "host": "elsewhere"})
        before = {path.name for path in (run.path / "checkpoints").glob("step-*")}
        words = run.path / "logs/attempt-0/words-0.json"
        told = json.loads(launcher.wait_for_file(words, 30.0, run.launched))
        assert told["kind"] == "ReplacedError"
        # They end, but for what waits for the frozen supervisor to be waited for.
        assert processes.until(lambda: ranks_of(run) == [], 20.0)
        # One may have been past its look at the lease; no more than that.
        after = {path.name for path in (run.path / "checkpoints").glob("step-*")}
        assert len(after - before) <= 1
        os.kill(run.launched.pid, signal.SIGCONT)
        assert run.launched.wait(30) == 1
        assert "has been taken over by process" in run.launched.stderr()
    lease = run.read("lease.json")
    assert lease is not None
    assert lease["generation"] == 1


def ranks_of(run: Run) -> list[int]:
    """Ranks that are at work."""
    found = []
    for pid in alive(run):
        with contextlib.suppress(
            FileNotFoundError, ProcessLookupError
        ):  # it may have ended meanwhile
            if b"train" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
