"""Scripts that `mpips.init` makes workers: at whatever point they end, the job ends with one message."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import launcher
import processes
import pytest

from mpips.checkpoint import find_newest

SCRIPT = str(Path(__file__).with_name("programs") / "flat.py")
Start = Callable[..., launcher.Launch]


def alone(*arguments: str, flags: tuple[str, ...] = ()) -> launcher.Launch:
    """The script in one process, without a launcher."""
    command = [sys.executable, *flags, SCRIPT, *arguments]
    return launcher.Launch(command, launcher.site_environment(), 30.0)


def errors(job: launcher.Launch) -> list[str]:
    """The lines with an error of mpips."""
    return [line for line in job.stderr().splitlines() if "mpips: error: " in line]


def done(job: launcher.Launch) -> list[str]:
    """The lines of the workers that have reached the end of the script."""
    return sorted(line for line in job.stdout().splitlines() if line.startswith("worker "))


ENDS = {
    "mid=raise": (1, "worker 0 (rank 2 on", "raised ValueError: at mid"),
    "mid=raise:1": (1, "worker 1 (rank 3 on", "raised ValueError: at mid"),
    "mid=exit-3": (3, "the script called sys.exit(3)"),
    "mid=end:1": (2, "worker 1 ended its script before its first pull"),
    "start=other-table:1": (2, "worker 1 (rank 3 on", "only this worker has the parameter 'other'"),
    "values=raise": (1, "worker 0 (rank 2 on", "ValueError: at values"),
    "step=raise:0": (1, "worker 0 (rank 2 on", "raised ValueError: at step"),
    "step=quit:1": (3, "worker 1 (rank 3 on", "the script called sys.exit(3)"),
    "step=init:1": (2, "worker 1 (rank 3 on", "mpips.init was called a second time"),
    "step=run:0": (2, "worker 0 (rank 2 on", "mpips.run was called in a script"),
    "last=exit-5:1": (5, "worker 1 (rank 3 on", "the script called sys.exit(5)"),
}


# By day: each point of the script, each way to fail and each worker once. What the script calls wrongly is
# an exception of mpips; test_errors.py has exceptions of `mpips.run`.
BY_DAY = (
    "mid=raise",
    "mid=end:1",
    "start=other-table:1",
    "values=raise",
    "step=quit:1",
    "last=exit-5:1",
)


@pytest.mark.parametrize(
    "where", [w if w in BY_DAY else pytest.param(w, marks=pytest.mark.long) for w in ENDS]
)
def test_a_script_that_fails_ends_the_job_with_its_code_and_one_message(
    launch: Start, where: str
) -> None:
    code, *said = ENDS[where]
    job = launch(4, [sys.executable, SCRIPT, "servers=1", where])
    assert job.wait() == code, job.tail()
    (line,) = errors(job)
    assert all(text in line for text in said), line
    assert job.stderr().count("Traceback (most recent call last)") == ("raise" in where)


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("mid=SIGTERM:1", 143),
        ("step=interrupt:1", 130),
        ("step=class:0", 143),
        pytest.param("mid=class:1", 143, marks=pytest.mark.long),
        pytest.param("mid=SIGTERM", 143, marks=pytest.mark.long),
        pytest.param("values=SIGTERM", 143, marks=pytest.mark.long),
        pytest.param("step=SIGTERM:0", 143, marks=pytest.mark.long),
        pytest.param("mid=interrupt:0", 130, marks=pytest.mark.long),
    ],
)
def test_a_script_that_is_told_to_end_has_the_code_of_the_signal_and_no_error(
    launch: Start, where: str, code: int
) -> None:
    job = launch(4, [sys.executable, SCRIPT, "servers=1", where])
    assert job.wait() == code, job.tail()
    assert not errors(job)
    assert "Traceback" not in job.stderr()


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_server_that_is_told_to_end_before_the_first_pull_ends_the_job_at_once(
    launch: Start, rank: int
) -> None:
    job = launch(4, [sys.executable, SCRIPT, "servers=1", "mid=ready"])
    assert processes.until(lambda: job.stdout().count("ready") == 2, 30.0), job.tail()
    began = time.monotonic()
    for pid in job.pids():
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"OMPI_COMM_WORLD_RANK={rank}".encode() in words:
            os.kill(pid, signal.SIGTERM)
    assert job.wait() == 143, job.tail()
    assert time.monotonic() - began < 10.0
    assert not errors(job)


def test_an_exit_that_is_caught_or_ends_a_thread_or_a_child_ends_no_script(launch: Start) -> None:
    places = ["mid=caught", "step=fork:0", "child=exit-3", "last=thread"]
    job = launch(4, [sys.executable, SCRIPT, "servers=1", *places])
    assert job.wait() == 0, job.tail()
    assert done(job) == ["worker 0 of 2: steps 0 to 4", "worker 1 of 2: steps 0 to 4"]
    assert "child 3" in job.stdout()
    assert not job.stderr()


def test_an_exception_ends_the_job_although_the_script_has_replaced_the_hook(launch: Start) -> None:
    job = launch(3, [sys.executable, SCRIPT, "mid=hook", "step=raise"])
    assert job.wait() == 1, job.tail()
    assert "raised ValueError: at step" in errors(job)[0]
    with alone("mid=hook", "step=raise") as one:
        assert one.wait() == 1
        assert not one.stderr()


def test_tables_begin_with_the_values_of_worker_0_on_all_servers(launch: Start) -> None:
    # The second table goes to one server in two pieces.
    for n, sizes in ((4, "1000,17000000,3"), (4, ",".join(["9"] * 150))):
        job = launch(n, [sys.executable, SCRIPT, "servers=2", f"sizes={sizes}", "steps=1"])
        assert job.wait() == 0, job.tail()
        assert done(job) == ["worker 0 of 1: steps 0 to 1"]


def test_before_the_first_pull_a_worker_may_compute_for_long_but_not_sleep(launch: Start) -> None:
    arguments = [sys.executable, SCRIPT, "servers=1", "timeout=2"]
    idle, busy = (launch(4, [*arguments, f"mid={how}:1"]) for how in ("idle", "busy"))
    assert busy.wait() == 0, busy.tail()
    assert len(done(busy)) == 2
    assert idle.wait() == 124, idle.tail()
    (line,) = errors(idle)
    assert "worker 1 (rank 3 on" in line
    assert "has not come within 2 s" in line


def test_a_script_that_never_pulls_ends_without_a_job(launch: Start) -> None:
    job = launch(4, [sys.executable, SCRIPT, "servers=1", "mid=end"])
    assert job.wait() == 0, job.tail()
    assert not job.stdout() + job.stderr()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["step=raise"], 1, "ValueError: at step\n"),
        (["step=quit"], 3, ""),
        (["step=SIGTERM"], 143, ""),
        (
            ["step=run"],
            1,
            "ConfigError: mpips.run was called in a script that mpips.init has begun",
        ),
    ],
)
def test_in_one_process_a_script_ends_as_any_program(
    arguments: list[str], code: int, said: str
) -> None:
    with alone(*arguments) as job:
        assert job.wait() == code, job.tail()
        assert said in job.stderr()
        assert job.stderr().count("Traceback") == bool(said)


def test_a_prompt_after_the_script_is_for_one_process_only(launch: Start) -> None:
    with alone("last=exit-0", flags=("-i",)) as job:
        assert job.wait() == 0, job.tail()
        assert done(job) == ["worker 0 of 1: steps 0 to 4"]
        assert ">>> " in job.stderr()
    job = launch(3, [sys.executable, "-i", SCRIPT])
    assert job.wait() == 2, job.tail()
    assert "python -i opens a prompt on each of 3 ranks" in errors(job)[0]


def test_a_script_leaves_after_a_requested_checkpoint_and_continues_from_it(
    launch: Start, tmp_path: Path
) -> None:
    arguments = [sys.executable, SCRIPT, "servers=1", f"save={tmp_path}"]
    job = launch(4, [*arguments, "steps=2000", "step=SIGUSR1:0", "on_usr1=exit", "pace=0.01"])
    assert job.wait() == 75, job.tail()
    assert "mpips: leaving: SIGUSR1: wrote checkpoint" in job.stderr()
    assert not errors(job)
    newest = find_newest(tmp_path).checkpoint
    assert newest is not None
    with newest:
        step = newest.manifest.step
    assert 2 < step < 2000
    job = launch(4, [*arguments, f"steps={step + 3}"])
    assert job.wait() == 0, job.tail()
    assert done(job) == [f"worker {w} of 2: steps {step} to {step + 3}" for w in (0, 1)]


def test_initial_values_are_sent_again_only_if_the_launch_before_had_not_all_of_them(
    tmp_path: Path,
) -> None:
    # Launch 0 ends while values are sent, launch 1 in the third step.
    command = [sys.executable, "-m", "mpips", "run", "--progress", "none", "-n", "4", SCRIPT]
    command += ["servers=1", "values=deadly", "step=second-launch:1"]
    with launcher.Launch(command, launcher.site_environment(), 60.0, tmp_path) as job:
        assert job.wait() == 0, job.tail()
        assert "attempt 2 is at work" in job.stderr()
        assert ", from memory: step 2" in job.stderr()
        assert [line.rpartition(" to ")[2] for line in done(job)] == ["4", "4"]
