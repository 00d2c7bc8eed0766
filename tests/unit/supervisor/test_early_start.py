"""After the death of a rank at work the others are killed and the next ranks begin; else all is as before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from supervisor_rig import Case

from mpips.config.schema import load_config
from mpips.errors import MpipsError, StallError
from mpips.rundir.directory import RunFolder, Supervised, replace_json
from mpips.rundir.files import Lease, Progress, RankPlace, Status
from mpips.rundir.requests import JobSize
from mpips.session import job
from mpips.supervisor import supervise
from mpips.supervisor.attempt import STARTING, Attempt, Ended, start_launcher
from mpips.supervisor.early_start import EarlyStart
from mpips.supervisor.hosts import HostPool
from mpips.supervisor.launcher import Launcher
from mpips.supervisor.plan import SupervisionPlan
from mpips.supervisor.reap import is_dead
from mpips.supervisor.record import RunRecord
from mpips.supervisor.restarts import Restarts
from mpips.supervisor.standby import Standbys
from mpips.supervisor.supervise import Supervisor
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


def write_lease(run: RunFolder, generation: int, pid: int = 1) -> None:
    replace_json(run.lease_file, Lease(generation=generation, host="h", pid=pid, time_s=0.0))


class Early:
    """A rank of attempt 4 that waits, and what happens during its pauses.

    Attributes:
        waits: Number of its pauses.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.run = RunFolder.create(folder, "r")
        self.run.attempt(4).mkdir()
        self.waits = 0
        self._events: list[Callable[[], None]] = []
        patch.setattr(job.time, "sleep", self._pause)

    def _pause(self, seconds: float) -> None:
        self.waits += 1
        self._events.pop(0)()

    def begun(self) -> None:
        self.run.alive_file(4).touch()

    def wait(self, *events: Callable[[], None]) -> None:
        self._events = list(events)
        job._await_lease(Ranks(), Supervised(self.run, "r", "t", 4), 60.0)  # type: ignore[arg-type]


@pytest.fixture
def early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Early:
    return Early(tmp_path, monkeypatch)


def test_a_rank_that_is_early_waits_until_the_supervisor_has_begun_its_attempt(
    early: Early,
) -> None:
    write_lease(early.run, 3)
    # With the number in the lease, the supervisor may still choose other hosts, or be asked to end the run.
    early.wait(lambda: None, lambda: write_lease(early.run, 4), lambda: None, early.begun)
    assert early.waits == 4
    # Without a lease, or in an attempt that has begun, nothing is awaited.
    early.wait()
    early.run.lease_file.unlink()
    early.wait()
    assert early.waits == 4


def test_a_rank_does_not_begin_for_another_supervisor_or_behind_a_later_attempt(
    early: Early,
) -> None:
    def taken_over() -> None:
        write_lease(early.run, 4, pid=2)
        early.begun()

    write_lease(early.run, 3)
    text = r"ranks of attempt 4 of .* were replaced before they began: process 2 on h has started attempt 4"
    with pytest.raises(MpipsError, match=text):
        early.wait(taken_over)
    write_lease(early.run, 3)
    with pytest.raises(MpipsError, match="process 1 on h has started attempt 5"):
        early.wait(lambda: write_lease(early.run, 5))


@pytest.mark.parametrize("lease", [3, 4])
def test_a_supervisor_that_does_not_begin_the_attempt_is_named(tmp_path: Path, lease: int) -> None:
    run = RunFolder.create(tmp_path, "r")
    write_lease(run, lease)
    with pytest.raises(StallError, match=r"has not begun attempt 4 of .* within 0\.01 s"):
        job._await_lease(Ranks(), Supervised(run, "r", "t", 4), 0.01)  # type: ignore[arg-type]


def test_an_attempt_begins_after_the_choice_of_its_ranks_and_behind_its_first_status(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []

    def see(kind: type, name: str, what: Callable[..., str | None]) -> None:
        method = getattr(kind, name)

        def seeing(*args: Any, **named: Any) -> Any:
            if label := what(*args[1:]):
                lease = case.run_folder.lease()
                assert lease is not None
                early = Supervised(case.run_folder, "r", "t", lease.generation).is_early()
                seen.append((f"{label} {lease.generation}", early))
            return method(*args, **named)

        monkeypatch.setattr(kind, name, seeing)

    see(Supervisor, "_layout", lambda *args: "layout")
    see(Standbys, "keep", lambda *args: "keep")
    see(RunRecord, "write_status", lambda state, *args: state if state == STARTING else None)
    see(Standbys, "release", lambda *args: "release")
    assert case.run({"code": 1, "words": [{}], "recoverable": 9}, {"finish": True}) == 0
    steps = [("layout", True), ("keep", True), (STARTING, True), ("release", False)]
    assert seen == [(f"{what} {n}", early) for n in (0, 1) for what, early in steps]


class Begun:
    """A standby launch that has begun, and must be left alone."""

    has_begun = True

    def end(self, lost: bool = False) -> None:
        """The run has ended."""


def test_nothing_changes_the_next_launch_once_it_has_begun(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisors: list[Supervisor] = []
    make = Supervisor.__init__

    def note(self: Supervisor, *args: Any) -> None:
        make(self, *args)
        supervisors.append(self)

    def drive(attempt: Attempt, requests: object, limit_s: float, tick: Any, look: object) -> str:
        status = Status(state="running", generation=0, time_s=0.0)
        supervisors[0]._signals._shapes.append(JobSize(ranks=5, servers=1))
        with monkeypatch.context() as patch:
            patch.setattr(supervisors[0], "_standbys", Begun())
            tick(status)
        assert not supervisors[0]._scaling.is_asked
        # The request is there for the next attempt.
        assert supervisors[0]._signals.take_shapes() == [JobSize(ranks=5, servers=1)]
        attempt.kill()
        return "ended by the test"

    monkeypatch.setattr(Supervisor, "__init__", note)
    monkeypatch.setattr(supervise, "drive", drive)
    case.max_restarts = 0
    assert case.run({"sleep": 60}) == 124


def test_a_number_with_which_ranks_have_begun_is_not_used_again(case: Case) -> None:
    # A launch that has begun early, and has ended with its supervisor, leaves its reports.
    report = {"rank": 0, "about": 0, "host": "h", "pid": 9, "kind": "StallError", "message": "late"}
    used = [case.run_folder.attempt(n) for n in (1, 2)]
    for folder in used:
        folder.mkdir()
        (folder / "words-0.json").write_text(json.dumps({**report, "exit_code": 2, "time_s": 0.5}))
    failing = {"code": 1, "words": [{}], "recoverable": 9}
    assert case.run(failing, failing, failing, {"finish": True}) == 0
    assert [path.name for folder in used for path in folder.iterdir()] == 2 * ["words-0.json"]
    assert "late" not in case.text
    status = case.run_folder.status()
    assert status is not None
    assert (case.attempts, status.generation) == (4, 3)


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
