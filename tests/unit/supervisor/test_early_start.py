"""After the death of a rank at work the others are killed and the next ranks begin; else all is as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest

from mpips.config.schema import load_config
from mpips.errors import StallError
from mpips.rundir.directory import RunFolder, Supervised, replace_json
from mpips.rundir.files import Lease, Progress, RankPlace, Status
from mpips.session import job
from mpips.supervisor.attempt import Attempt, Ended, start_launcher
from mpips.supervisor.early_start import EarlyStart
from mpips.supervisor.hosts import HostPool
from mpips.supervisor.launcher import Launcher
from mpips.supervisor.plan import SupervisionPlan
from mpips.supervisor.reap import is_dead
from mpips.supervisor.restarts import Restarts
from mpips.supervisor.verdict import CRASHED, Verdict

# Starts ranks that have a child each, and waits for one; then for the end of its own stdin.
LAUNCHER = """
import os, pathlib, subprocess, sys
folder = pathlib.Path(sys.argv[1])
ranks = [subprocess.Popen(["sh", "-c", "sleep 600 & exec sleep 600"]) for _ in range(3)]
(folder / "new").write_text(" ".join(str(rank.pid) for rank in ranks))
os.rename(folder / "new", folder / "pids")
os.waitpid(-1, 0)
sys.stdin.read()
"""


class Job:
    """An attempt with three ranks on this host, and a standby launch that may be ready.

    Attributes:
        begun: For each begin of the standby launch, the old ranks that had not ended.
    """

    def __init__(self, folder: Path) -> None:
        self.run = RunFolder.create(folder, "r")
        self.run.attempt(0).mkdir()
        env = {
            **os.environ,
            "MPIPS_RUN_DIR": str(self.run.path),
            "MPIPS_GENERATION": "0",
        }
        command = [sys.executable, "-c", LAUNCHER, str(folder)]
        self.process = start_launcher(command, env, str(folder), False, stdin=subprocess.PIPE)
        self.attempt = Attempt(self.run, 0, command, env, str(folder), process=self.process)
        assert processes.until((folder / "pids").exists, 20.0)
        self.pids = [int(text) for text in (folder / "pids").read_text().split()]
        self.supervised = Supervised(self.run, "r", "t", 0)
        self.write_status(os.uname().nodename)
        self.supervised.show_at_work(True)
        self.ready = True
        self.begun: list[list[int]] = []
        self.early = EarlyStart(self.attempt, lambda: self.ready, self._begin)

    def write_status(self, last_host: str) -> None:
        here = os.uname().nodename
        places = tuple(
            RankPlace(rank=r, role=f"worker {r}", host=last_host if r == 2 else here, pid=pid)
            for r, pid in enumerate(self.pids)
        )
        status = Status(state="running", generation=0, time_s=0.0, ranks=places)
        self.run.write_status(status)

    def _begin(self) -> None:
        self.begun.append(self.left())

    def left(self) -> list[int]:
        """The ranks that have not ended."""
        return [pid for pid in self.pids if not is_dead(pid)]

    def kill(self) -> None:
        """Let the supervisor see the ranks, and kill the second one."""
        self.attempt.look()
        self.early.look()
        os.kill(self.pids[1], signal.SIGKILL)
        assert processes.until(lambda: not self.attempt.wait(0.02) and bool(self.attempt.gone))

    def drive(self) -> None:
        """Look for a while, as `stopping.drive` does."""
        for _ in range(20):
            assert not self.attempt.wait(0.02)
            self.early.look()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.attempt.kill()
        self.attempt.close()


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.end()


def test_the_others_are_killed_and_then_the_next_ranks_begin_while_the_launcher_still_ends(
    at_work: Job,
) -> None:
    at_work.kill()
    at_work.drive()
    # Once, and behind the end of all ranks. Their children have lost their ranks, and are ended.
    assert at_work.begun == [[]]
    assert processes.until(lambda: not processes.marked(f"MPIPS_RUN_DIR={at_work.run.path}")[1:])
    assert at_work.process.poll() is None
    assert at_work.attempt.gone[0] == 1


def no_file(made: Job) -> None:
    made.supervised.show_at_work(False)


def with_report(made: Job) -> None:
    (made.run.attempt(0) / "words-1.json").write_text("{}")


def finished(made: Job) -> None:
    made.run.finished_file.write_text("{}")


def asked(made: Job) -> None:
    made.attempt.signal = lambda number: None  # type: ignore[method-assign]
    made.attempt.ask_to_leave("SIGTERM")


def not_ready(made: Job) -> None:
    made.ready = False


def elsewhere(made: Job) -> None:
    made.write_status("another")


@pytest.mark.parametrize("spoil", [no_file, with_report, finished, asked, not_ready, elsewhere])
def test_without_certainty_or_a_standby_launch_the_launcher_ends_the_ranks(
    at_work: Job, spoil: Callable[[Job], None]
) -> None:
    spoil(at_work)
    at_work.kill()
    at_work.ready = at_work.ready and spoil is not not_ready
    at_work.drive()
    # Once decided, it stays so: a rank that was seen to end may make the others end by themselves.
    at_work.ready = True
    at_work.drive()
    assert not at_work.begun
    assert len(at_work.left()) == 2


class Ranks:
    """The scheduler's rank alone."""

    is_scheduler = True

    def agree(self, what: str, work: Callable[[], None], lengthy: bool = False) -> None:
        assert lengthy
        work()


def write_lease(run: RunFolder, generation: int) -> None:
    replace_json(run.lease_file, Lease(generation=generation, host="h", pid=1, time_s=0.0))


def test_a_rank_that_is_early_waits_for_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder.create(tmp_path, "r")
    supervised, waits = Supervised(run, "r", "t", 4), []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            write_lease(run, 4)

    monkeypatch.setattr(job.time, "sleep", pause)
    write_lease(run, 3)
    job._await_lease(Ranks(), supervised, 1.0)  # type: ignore[arg-type]
    assert len(waits) == 3
    # Without a lease, or with that of its own or of a later attempt, nothing is awaited.
    job._await_lease(Ranks(), supervised, 1.0)  # type: ignore[arg-type]
    write_lease(run, 5)
    job._await_lease(Ranks(), supervised, 1.0)  # type: ignore[arg-type]
    run.lease_file.unlink()
    job._await_lease(Ranks(), supervised, 1.0)  # type: ignore[arg-type]
    assert len(waits) == 3


def test_a_supervisor_that_does_not_begin_the_attempt_is_named(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "r")
    write_lease(run, 3)
    with pytest.raises(StallError, match=r"has not begun attempt 4 of .* within 0\.01 s"):
        job._await_lease(Ranks(), Supervised(run, "r", "t", 4), 0.01)  # type: ignore[arg-type]


class DyingSlowly:
    """An attempt whose other ranks end some time after SIGKILL: the kernel frees their memory."""

    gone = (1,)
    has_lost_rank = True
    has_only_launcher = False

    def __init__(self) -> None:
        self.noticed = iter((False, True))
        self.did: list[str] = []

    @property
    def is_noticed(self) -> bool:
        self.did.append("look at the launcher")
        return next(self.noticed)

    def kill_ranks(self) -> None:
        self.did.append("kill ranks")

    def kill_orphans(self) -> None:
        self.did.append("kill orphans")


def test_the_next_ranks_wait_for_the_end_of_slow_ones_and_those_for_the_launcher() -> None:
    attempt = DyingSlowly()
    early = EarlyStart(attempt, lambda: True, lambda: attempt.did.append("begin"))  # type: ignore[arg-type]
    killed = ["look at the launcher", "look at the launcher", "kill ranks"]
    for _ in range(3):
        early.look()
        assert attempt.did == killed
    attempt.has_only_launcher = True
    for _ in range(2):
        early.look()
        assert attempt.did == [*killed, "kill orphans", "begin"]


def test_after_a_failure_without_progress_no_attempt_is_taken_for_granted(tmp_path: Path) -> None:
    config = load_config(None, [("task", "mlp"), ("data.train", "digits")])
    pool, launcher = HostPool([], 4, 0, 1, 0), Launcher("/opt/mpirun", "openmpi", "5")
    plan = SupervisionPlan(RunFolder.create(tmp_path, "r"), config, pool, launcher, 3)
    restarts = Restarts(plan)
    restarts.begin()
    assert not restarts.is_futile
    for recoverable, is_futile in ((0, True), (5, False)):
        status = Status(
            state="running",
            generation=0,
            time_s=0.0,
            progress=Progress(step=9, recoverable=recoverable),
        )
        ended = Ended(1, 1, 100.0, "", status=status, worked_s=100.0)
        restarts.why_stop(Verdict(CRASHED, 1), ended, 0)
        assert restarts.is_futile == is_futile
