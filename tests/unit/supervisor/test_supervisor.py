"""The loop of the supervisor, with a launcher that fails in every way on demand."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpips.config.schema import JobConfig, load_config
from mpips.errors import CapabilityError, ConfigError, MpipsError
from mpips.rundir.directory import Lease, RunFolder, replace_json, version_of
from mpips.supervisor import lease as lease_module
from mpips.supervisor import supervise as supervise_module
from mpips.supervisor.attempt import Attempt
from mpips.supervisor.hosts import Host, HostPool, HostsError
from mpips.supervisor.launcher import Launcher, find_launcher
from mpips.supervisor.lease import LeaseHolder, LeaseLostError
from mpips.supervisor.reap import state_of
from mpips.supervisor.stopping import Signals
from mpips.supervisor.supervise import SupervisionPlan, Supervisor, make_run

FAKE = Path(__file__).parents[2] / "support/fake_mpirun.py"
RULE = "-" * 74
KILLED = f"""{RULE}
prterun noticed that process rank 3 with PID 931 on node node2 exited on
signal 9 (Killed).
{RULE}
"""
FIRST = f"""{RULE}
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-977@1,1]
   Exit code:    3
{RULE}
"""
TABLE = [{"rank": 3, "role": "worker 1", "host": "node2", "pid": 931}]


class Case:
    """A run with a fake launcher."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self._patch = monkeypatch
        self.config: JobConfig = load_config(
            None, [("task", "mlp"), ("data.train", "digits"), ("cluster.timeout_s", 30.0)]
        )
        self.run_folder = make_run(self.config, folder, "job")
        program = folder / "mpirun"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
        program.chmod(0o700)
        self.launcher = Launcher(str(program), "openmpi", "fake")
        self.pool = HostPool([], 4, 0, 1, 0)
        self.max_restarts = 3
        self.more: tuple[str, ...] = ()

    def run(self, *script: dict[str, Any]) -> int:
        self._patch.setenv("FAKE_MPIRUN", json.dumps(script))
        plan = SupervisionPlan(
            self.run_folder, self.config, self.pool, self.launcher, self.max_restarts, self.more
        )
        grace_s = next((act["grace_s"] for act in script if "grace_s" in act), 1.0)
        with Signals(grace_s) as signals:
            return Supervisor(plan, signals, self.said.append).run()

    @property
    def text(self) -> str:
        return "\n".join(self.said)

    @property
    def attempts(self) -> int:
        return len(list(self.run_folder.logs.iterdir()))

    @property
    def state(self) -> str:
        status = self.run_folder.status()
        assert status is not None
        return status.state


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def test_only_the_durable_mark_makes_a_run_done(case: Case) -> None:
    # Exit code 0 without it is a failure; another code with it is none.
    assert case.run({"code": 0}, {"code": 7, "finish": True}) == 0
    assert case.attempts == 2
    assert "the launcher ended with code 0 and nobody said why" in case.text
    assert "is done after 1 restart" in case.text
    assert case.state == "done"


def test_a_finished_run_is_not_run_again(case: Case) -> None:
    assert case.run({"finish": True}) == 0
    assert case.run({"code": 1}) == 0
    assert case.attempts == 1
    assert "is finished since" in case.text


@pytest.mark.parametrize(
    ("kind", "code", "text"), [("ConfigError", 2, "configuration"), ("RegionError", 69, "missing")]
)
def test_what_would_fail_again_is_not_retried(case: Case, kind: str, code: int, text: str) -> None:
    words = {"kind": kind, "message": "servers = 9: no", "exit_code": code}
    assert case.run({"words": [words], "code": code}) == code
    assert case.attempts == 1
    assert "servers = 9: no" in case.text
    assert text in case.text
    assert case.state == "failed"


def test_an_exit_code_alone_is_no_configuration_error(case: Case) -> None:
    assert case.run({"code": 2}, {"finish": True}) == 0
    assert case.attempts == 2


@pytest.mark.parametrize("script", [{"code": 75}, {"words": [{"exit_code": 75}], "code": 1}])
def test_preempted_is_passed_on(case: Case, script: dict[str, Any]) -> None:
    assert case.run(script) == 75
    assert case.attempts == 1
    assert f"go on with: mpips run {case.run_folder.path}" in case.text
    assert case.state == "preempted"


def test_the_earliest_last_words_tell_who_died_first(case: Case) -> None:
    first = {"time_s": 5.0, "about": 2, "rank": 2, "role": "worker 1", "traceback": "Trace: here"}
    later = {"time_s": 6.0, "message": "a consequence"}
    suffered = {"time_s": 1.0, "secondary": True, "message": "TERM"}
    assert case.run({"words": [later, suffered, first], "code": 1}, {"finish": True}) == 0
    assert "worker 1 (rank 2, pid 102) on node1" in case.text
    assert "ValueError: it broke" in case.text
    assert "Trace: here" in case.text
    assert "consequence" not in case.text


def test_the_launcher_tells_of_a_killed_rank(case: Case) -> None:
    assert case.run({"say": KILLED, "code": 137, "ranks": TABLE}, {"finish": True}) == 0
    assert "worker 1 (rank 3, pid 931) on node2" in case.text
    assert "killed by SIGKILL (signal 9)" in case.text


def test_the_stacks_of_a_crash_come_from_the_ranks_log(case: Case) -> None:
    log = (
        "hello\nFatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n"
        '  File "watch.py", line 1 in run\n\nCurrent thread 0x2 (most recent call first):\n'
        '  File "step.py", line 7 in step\n\nExtension modules: numpy (total: 1)\n'
    )
    say = KILLED.replace("signal 9 (Killed)", "signal 11 (Segmentation fault)")
    assert case.run({"say": say, "code": 139, "log": {3: log}}, {"finish": True}) == 0
    assert "killed by SIGSEGV (signal 11)" in case.text
    assert 'File "step.py", line 7 in step' in case.text
    assert "Fatal Python error: Segmentation fault" in case.text
    assert "numpy" not in case.text


def test_a_rank_that_left_without_words_is_named_with_the_end_of_its_log(case: Case) -> None:
    script = {"say": FIRST, "code": 3, "log": {1: "ImportError: no module\n"}}
    assert case.run(script, {"finish": True}) == 0
    assert "rank 1" in case.text
    assert "ended with code 3" in case.text
    assert "ImportError: no module" in case.text


def test_a_lost_host_is_named(case: Case) -> None:
    say = (
        f"{RULE}\nPRTE has lost communication with a remote daemon.\n\n"
        "  HNP daemon   : [prterun-head-12@0,0] on node head\n"
        "  Remote daemon: [prterun-head-12@0,2] on node node7\n\nThis is usually due\n"
    )
    assert case.run({"say": say, "code": 0}, {"finish": True}) == 0
    assert "host node7" in case.text
    assert "connection to the host was lost" in case.text


def test_a_killed_launcher_is_named_and_its_processes_are_ended(case: Case) -> None:
    script = {"signal": int(signal.SIGKILL), "spawn": 3, "stop": True, "ranks": []}
    assert case.run(script, {"finish": True}) == 0
    assert "the launcher was killed by SIGKILL" in case.text
    assert not living(case.run_folder)


def living(run: RunFolder) -> list[int]:
    """Processes that belong to a run, also stopped ones."""
    mark = f"MPIPS_RUN_DIR={run.path}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return [pid for pid in found if state_of(pid) not in "ZX"]


def test_a_stopped_rank_makes_a_stall(case: Case) -> None:
    case.max_restarts = 0
    assert case.run({"code": 1, "spawn": 2, "stop": True, "sleep": 1.5}) == 124
    assert "worker 0 (rank 0" in case.text
    assert "stopped by a signal (SIGSTOP)" in case.text
    assert case.state == "stalled"
    assert not living(case.run_folder)


def test_the_scheduler_names_the_silent_rank(case: Case) -> None:
    waiting = {"exit_code": 124, "kind": "StallError", "message": "server 0 waits", "time_s": 1.0}
    silent = {
        "exit_code": 124,
        "kind": "silent",
        "about": 3,
        "role": "worker 1",
        "message": "worker 1 has sent no heartbeat for 2.0 s",
        "time_s": 2.0,
    }
    case.max_restarts = 0
    assert case.run({"words": [waiting, silent], "code": 124, "ranks": TABLE}) == 124
    assert "worker 1 (rank 3, pid 931) on node2" in case.text
    assert "no heartbeat" in case.text


def test_restarts_are_bounded(case: Case) -> None:
    case.max_restarts = 2
    script = [{"code": 1, "recoverable": 10 * (i + 1)} for i in range(9)]
    assert case.run(*script) == 1
    assert case.attempts == 3
    assert "all 2 restarts are spent" in case.text


def test_two_attempts_without_progress_are_the_last(case: Case) -> None:
    case.max_restarts = 50
    script = [{"code": 1, "recoverable": n} for n in (10, 20, 20, 20, 30)]
    assert case.run(*script) == 1
    assert case.attempts == 4
    assert "2 attempts in a row have brought the run no further" in case.text


def test_steps_count_again_if_memory_was_lost(case: Case) -> None:
    case.max_restarts = 50
    script = [
        {"code": 1, "recoverable": n, "start": s} for n, s in ((90, 0), (20, 5), (40, 5), (40, 40))
    ]
    assert case.run(*script) == 1
    # The second and third began at a checkpoint and came further than it each time. Of the fourth, the
    # first one from step 40, which died at once, nobody knows how far it came; then two came no further.
    assert case.attempts == 6


def test_an_attempt_that_worked_for_a_moment_is_no_failed_start(case: Case) -> None:
    case.max_restarts = 50
    # The third begins where the first had come to and dies before its status tells of its steps. The
    # second and the fourth die while they start.
    script = [
        {"code": 1, "recoverable": 10, "start": 0},
        {"code": 1, "mute": True},
        {"code": 1, "recoverable": 10, "start": 10},
        {"code": 1, "mute": True},
        {"finish": True},
    ]
    assert case.run(*script) == 0
    assert case.attempts == 5


def test_generations_count_over_the_life_of_the_directory(case: Case) -> None:
    case.max_restarts = 0
    assert case.run({"code": 1}) == 1
    assert case.run({}, {"code": 75}) == 75
    assert case.run({}, {}, {"finish": True}) == 0
    assert sorted(path.name for path in case.run_folder.logs.iterdir()) == [
        "attempt-0",
        "attempt-1",
        "attempt-2",
    ]
    lease = case.run_folder.lease()
    assert lease is not None
    assert lease.generation == 2
    assert lease.released


def test_the_users_own_arguments_reach_mpirun(case: Case) -> None:
    case.more = ("--map-by", "numa")
    assert case.run({"finish": True}) == 0
    argv = json.loads((case.run_folder.attempt(0) / "argv.json").read_text())
    assert argv[1:3] == ["-n", "4"]
    assert argv[argv.index("--map-by") + 1] == "numa"
    assert argv.index("--map-by") < argv.index("train")
    assert "MPIPS_RUN_DIR" in argv


def test_two_supervisors_on_one_run_are_refused(case: Case) -> None:
    with pytest.raises(ConfigError, match=r"is being run by process \d+ on "), Background(case):
        case.run({"finish": True})


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Background:
    """The same run in another process, until it sleeps in its first attempt."""

    def __init__(self, case: Case, **more: object) -> None:
        program = (
            "import sys; from pathlib import Path; import test_supervisor as t, pytest\n"
            "case = t.Case.__new__(t.Case); case.said = []; case._patch = pytest.MonkeyPatch()\n"
            "case.run_folder = t.RunFolder(Path(sys.argv[1]))\n"
            "case.config = t.load_config(str(case.run_folder.config_file), [])\n"
            "case.launcher = t.Launcher(sys.argv[2], 'openmpi', 'fake'); case.more = ()\n"
            "case.pool = t.HostPool([], 4, 0, 1, 0); case.max_restarts = 0\n"
            "code = case.run(__import__('json').loads(sys.argv[3]))\n"
            "print(case.text); sys.exit(code)\n"
        )
        self.run = case.run_folder
        # Not a pipe: what a killed supervisor leaves would keep it open.
        self.output = self.run.path / "told"
        script = {"sleep": 60, "spawn": 2, **more}
        arguments = [str(self.run.path), case.launcher.path, json.dumps(script)]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                cwd=Path(__file__).parent,
                stdout=output,
            )

    def text(self) -> str:
        """What it said."""
        return self.output.read_text()

    def __enter__(self) -> Background:
        ready = self.run.attempt(0) / "asleep"
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(10)
        for pid in living(self.run):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "more", "told"),
    [
        (signal.SIGTERM, {"ranks": []}, "stopped by SIGTERM before there was anything to save"),
        (signal.SIGINT, {}, "interrupted by SIGINT: the ranks ended before they had saved"),
        (signal.SIGTERM, {"ignore": [signal.SIGUSR1]}, "SIGTERM: no checkpoint within 1 s"),
    ],
)
def test_a_signal_ends_the_run_and_all_its_processes(
    case: Case, number: signal.Signals, more: dict[str, Any], told: str
) -> None:
    with Background(case, **more) as other:
        other.process.send_signal(number)
        assert other.process.wait(20) == 128 + number, other.text()
        expected = f"mpips run: {told}, exit {128 + number}; newest checkpoint: none; go on with"
        assert expected in other.text()
        assert not living(case.run_folder)
        assert case.state == "interrupted"


def test_a_second_signal_ends_the_run_without_waiting_for_a_checkpoint(case: Case) -> None:
    with Background(case, ignore=[signal.SIGUSR1], grace_s=60.0) as other:
        other.process.send_signal(signal.SIGTERM)
        wait_for(case.run_folder.leave_file(0))
        time.sleep(0.35)  # what comes within 0.3 s is one signal
        other.process.send_signal(signal.SIGINT)
        assert other.process.wait(20) == 130, other.text()
        assert "stopped at once by a second SIGINT, exit 130; newest" in other.text()
        assert not living(case.run_folder)


def test_usr1_waits_for_the_ranks(case: Case) -> None:
    with Background(case, ranks=[]) as other:
        other.process.send_signal(signal.SIGUSR1)
        assert other.process.poll() is None
        # Passed on, it would have ended the launcher, which is no rank of mpips.
        time.sleep(0.1)
        assert len(living(case.run_folder)) >= 3


def test_a_killed_supervisor_takes_its_launcher_along_and_leaves_the_run_usable(
    case: Case,
) -> None:
    with Background(case) as other:
        other.process.kill()
        other.process.wait(10)
        # The children of the launcher stay: it had no time. The next supervisor ends them.
        assert case.run({}, {"finish": True}) == 0
        assert not living(case.run_folder)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is stale after half a second."""
    monkeypatch.setattr(lease_module, "STALE_S", 0.5)
    monkeypatch.setattr(lease_module, "_WATCH_S", 0.02)


def elsewhere(generation: int, **fields: Any) -> Lease:
    return Lease(
        **{"generation": generation, "host": "elsewhere", "pid": 7, "time_s": time.time(), **fields}
    )


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("ahead", [0.0, 1e6, -1e6])
def test_a_lease_that_another_host_renews_is_respected_whatever_its_clock(
    case: Case, ahead: float
) -> None:
    path = case.run_folder.lease_file
    first = elsewhere(4, time_s=time.time() + ahead)
    replace_json(path, first)
    case.said.clear()
    renewed = threading.Event()

    def renew() -> None:
        while not case.said:  # it has begun to watch
            if renewed.wait(0.005):
                return
        replace_json(path, elsewhere(4, time_s=first.time_s, renewals=1))

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with pytest.raises(ConfigError, match="is being run by process 7 on elsewhere"):
            case.run({"finish": True})
    finally:
        renewed.set()
        renewing.join()
    assert not case.run_folder.attempt(5).exists()


@pytest.mark.usefixtures("short_lease")
@pytest.mark.parametrize("ahead", [0.0, 1e6, -1e6])
def test_a_lease_that_nobody_renews_is_taken_whatever_its_clock(case: Case, ahead: float) -> None:
    replace_json(case.run_folder.lease_file, elsewhere(4, time_s=time.time() + ahead))
    assert case.run({"finish": True}) == 0
    assert case.run_folder.attempt(5).is_dir()
    assert "was not given back by process 7 on elsewhere: waiting" in case.said[0]


def test_on_a_full_disk_a_lease_is_renewed_by_its_time(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LeaseHolder(case.run_folder) as lease:
        lease.advance()
        os.utime(case.run_folder.lease_file, (1, 1))
        before = version_of(case.run_folder.lease_file)
        lease._next = 0.0
        with monkeypatch.context() as patch:
            patch.setattr(lease_module, "replace_json", no_room)
            assert "No space left" in lease.renew()
        assert version_of(case.run_folder.lease_file) != before
        assert case.run_folder.lease() is not None


def no_room(path: Path, *arguments: object) -> None:
    """Write a file on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


class Room:
    """A disk that is full for the first few writes after an attempt."""

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSPC):
        self.case, self.left, self.number = case, 3, number
        for module in (lease_module, supervise_module):
            monkeypatch.setattr(module, "replace_json", self.write)
        monkeypatch.setattr(supervise_module, "_ROOM_S", 0.01)

    def write(self, path: Path, *arguments: object, **more: object) -> None:
        if self.left and (self.case.run_folder.attempt(0) / "argv.json").exists():
            self.left -= 1
            raise OSError(self.number, os.strerror(self.number), str(path))
        replace_json(path, *arguments, **more)  # type: ignore[arg-type]


def test_the_next_attempt_waits_for_room_on_the_disk(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(case, monkeypatch)
    room.left = 9
    assert case.run({"code": 1}, {"finish": True}) == 0
    assert room.left == 0
    assert case.attempts == 2
    assert (
        case.text.count("No space left on device; the next attempt starts when there is room") == 1
    )


def test_a_signal_ends_the_wait_for_room(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room(case, monkeypatch)
    room.left = 1_000_000
    waits = threading.Event()

    def tell(text: str) -> None:
        if "when there is room" in text:
            waits.set()

    def stop() -> None:
        if waits.wait(30):
            os.kill(os.getpid(), signal.SIGTERM)

    case.said = Listening(tell)
    stopper = threading.Thread(target=stop)
    stopper.start()
    assert case.run({"code": 1}, {"finish": True}) == 143
    stopper.join()
    assert "stopped by SIGTERM while it waited for room on the disk, exit 143" in case.text


class Listening(list[str]):
    """Lines, each of which is also passed on as it comes."""

    def __init__(self, pass_on: Callable[[str], None]) -> None:
        super().__init__()
        self._pass_on = pass_on

    def append(self, text: str) -> None:
        super().append(text)
        self._pass_on(text)


def test_a_run_directory_that_cannot_be_written_to_is_one_sentence(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    Room(case, monkeypatch, errno.EROFS).left = 1_000_000
    with pytest.raises(MpipsError, match=r"cannot be written: Read-only file system; when that is"):
        case.run({"code": 1}, {"finish": True})


def test_a_run_directory_that_never_could_be_written_to_is_one_sentence(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case.run_folder.path / "lease.lock").mkdir()
    with pytest.raises(ConfigError, match=r"lease.lock: cannot be written: Is a directory"):
        case.run({"finish": True})


def test_a_forward_jump_of_the_wall_clock_ends_no_attempt(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    asleep = case.run_folder.attempt(0) / "asleep"
    monkeypatch.setattr(time, "time", lambda: real() + (1e6 if asleep.exists() else 0.0))
    assert case.run({"sleep": 1.5, "finish": True}) == 0
    assert case.attempts == 1, case.text


def test_a_clock_that_is_ahead_hides_no_silence(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise_module, "silence_limit_s", lambda timeout_s: 1.0)
    case.max_restarts = 0
    assert case.run({"sleep": 6, "ahead": 1e6}) == 124
    assert "no rank has sent a heartbeat for 1 s" in case.text


def test_a_status_that_cannot_be_written_is_no_silence(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise_module, "silence_limit_s", lambda timeout_s: 1.0)
    assert case.run({"sleep": 2.5, "beats": True, "finish": True}) == 0
    assert case.attempts == 1, case.text


def test_a_supervisor_whose_lease_was_taken_ends_its_attempt(case: Case) -> None:
    def take_over() -> None:
        deadline = time.monotonic() + 20
        while not (case.run_folder.attempt(0) / "asleep").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        other = Lease(generation=9, host="elsewhere", pid=7, time_s=time.time())
        replace_json(case.run_folder.lease_file, other)

    token = case.run_folder.info().token
    region = Path(f"/dev/shm/mpips-kept-{os.geteuid()}-{token}-s0")
    region.write_text("the other's")
    thief = threading.Thread(target=take_over)
    thief.start()
    with pytest.raises(LeaseLostError, match="taken over by process 7 on elsewhere"):
        case.run({"sleep": 60, "spawn": 1})
    thief.join()
    assert not living(case.run_folder)
    lease = case.run_folder.lease()
    assert lease is not None
    assert lease.generation == 9
    assert region.exists()
    # Once it is over there, it goes.
    gone = Lease(generation=9, host="x", pid=7, time_s=0.0, released=True)
    replace_json(case.run_folder.lease_file, gone)
    assert case.run({"finish": True}) == 0
    assert not region.exists()


def test_silence_of_all_ranks_ends_an_attempt(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    import mpips.supervisor.supervise as supervise

    monkeypatch.setattr(supervise, "silence_limit_s", lambda timeout_s: 1.0)
    case.max_restarts = 0
    assert case.run({"sleep": 60, "spawn": 1}) == 124
    assert "no rank has sent a heartbeat for 1 s" in case.text


def test_a_launcher_that_does_not_end_after_its_ranks_is_ended(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mpips.supervisor import stopping

    monkeypatch.setattr(stopping, "ENDING_S", 0.5)
    began = time.monotonic()
    # After a failure, and after the last step of all.
    hangs = {"words": [{}], "spawn": 1, "sleep": 600}
    assert case.run(hangs, {"finish": True, "hang": 600, "spawn": 1}) == 0
    assert time.monotonic() - began < 60
    assert "ValueError" in case.text or "it broke" in case.text
    assert not living(case.run_folder)


@pytest.mark.parametrize(
    "line",
    [
        "[node1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,",
        "mpirun has exited due to process rank 3 with PID 0 on node node1 calling",
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    ],
)
def test_a_launcher_that_tells_of_an_end_elsewhere_and_stays_is_ended(
    case: Case, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    from mpips.supervisor import stopping

    # The ranks were on other hosts: no process is seen to end here and none leaves last words.
    ranks = [{"rank": 0, "role": "worker 0", "host": "node1", "pid": 7}]
    monkeypatch.setattr(stopping, "ENDING_S", 0.5)
    began = time.monotonic()
    hangs = {"say": f"{line}\n", "ranks": ranks, "hang": 600}
    assert case.run(hangs, {"finish": True}) == 0
    assert time.monotonic() - began < 60
    assert "a rank ended, nobody said which, and the launcher did not end" in case.text
    assert not living(case.run_folder)


def test_the_only_rank_of_a_run_is_named(case: Case) -> None:
    # One rank needs no mpirun: the process that was killed is the rank.
    assert case.run({"signal": int(signal.SIGSEGV)}, {"finish": True}) == 0
    assert "worker 0 (rank 0, pid " in case.text
    assert "killed by SIGSEGV" in case.text


def test_too_few_hosts_end_the_run_with_their_reasons(case: Case) -> None:
    # These do not answer: the agent refuses them.
    case.pool = HostPool([Host("nohost-a", 2), Host("nohost-b", 2)], 4, 0, 1, 0)
    case._patch.setenv("PRTE_MCA_plm_ssh_agent", "/bin/false")
    with pytest.raises(HostsError, match=r"0 of 2 hosts are left(.|\n)*nohost-a is left out"):
        case.run({"finish": True})
    assert case.state == "failed"


def test_an_attempt_that_is_done_between_two_looks_was_at_work(case: Case) -> None:
    assert case.run({"words": [{}]}, {"finish": True}) == 0
    assert "attempt 1 is at work" in case.text


def test_a_missing_launcher_is_a_missing_capability(tmp_path: Path) -> None:
    broken = tmp_path / "mpirun"
    broken.write_text("#!/bin/sh\necho strange\n")
    broken.chmod(0o700)
    with pytest.raises(CapabilityError, match="says 'strange'"):
        find_launcher({"PATH": str(tmp_path)}, tmp_path)
    with pytest.raises(CapabilityError, match="there is no mpirun"):
        find_launcher({"PATH": str(tmp_path / "none")}, tmp_path)


def test_the_mpirun_of_the_environment_comes_before_others(tmp_path: Path) -> None:
    found = {}
    for name in ("site", "venv/bin"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        program = folder / "mpirun"
        program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.0'\n")
        program.chmod(0o700)
        found[name] = str(program)
    env = {"PATH": str(tmp_path / "site")}
    # A folder is an environment by its pyvenv.cfg: without one this is the system's own mpirun.
    assert find_launcher(env, tmp_path / "venv").path == found["site"]
    (tmp_path / "venv/pyvenv.cfg").touch()
    assert find_launcher(env, tmp_path / "venv").path == found["venv/bin"]


def test_a_launcher_that_cannot_be_started_ends_the_run(case: Case) -> None:
    case.launcher = Launcher("/nowhere/mpirun", "openmpi", "fake")
    with pytest.raises(CapabilityError, match="/nowhere/mpirun cannot be started"):
        case.run({"finish": True})


@pytest.mark.parametrize("copied", [True, False])
def test_what_ranks_print_passes_through_a_supervisor_that_draws(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, copied: bool
) -> None:
    run = RunFolder.create(tmp_path, "job")
    run.attempt(0).mkdir(parents=True)
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    said = [sys.executable, "-c", "print('one'); print('two')"]
    attempt = Attempt(run, 0, said, os.environ, str(tmp_path), copy_stdout=copied)
    deadline = time.monotonic() + 30
    while not attempt.wait(0.05):
        assert time.monotonic() < deadline
    assert attempt.close().code == 0
    direct = capfd.readouterr().out
    assert (shown.getvalue(), direct) == (("one\ntwo\n", "") if copied else ("", "one\ntwo\n"))


def memory_of(case: Case, *parts: str) -> list[Path]:
    """Segments of a run, as its ranks leave them."""
    token = case.run_folder.info().token
    paths = [Path(f"/dev/shm/mpips-kept-{os.geteuid()}-{token}.0a1b-{part}") for part in parts]
    for path in paths:
        path.write_bytes(b"3" * 4096)
    return paths


@pytest.fixture
def memory(case: Case) -> Iterator[list[Path]]:
    """What a launch that was at work has left."""
    paths = memory_of(case, "s0", "s0-journal", "s0-mark", "w0-0")
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


RAISED = {"words": [{}], "code": 1}
ENDS = {
    "crashed": ([RAISED], 1),
    "nothing new": ([{"code": 1, "mute": True}], 1),
    "configuration": ([{"words": [{"kind": "ConfigError", "exit_code": 2}], "code": 2}], 2),
    "missing": ([{"words": [{"kind": "RegionError", "exit_code": 69}], "code": 69}], 69),
    "stalled": ([{"words": [{"kind": "StallError", "exit_code": 124}], "code": 124}], 124),
    "the task's own 75": ([{"code": 75}], 75),
}


@pytest.mark.parametrize("end", ENDS)
def test_memory_stays_at_every_end_without_a_checkpoint(
    case: Case, memory: list[Path], end: str
) -> None:
    script, code = ENDS[end]
    case.max_restarts = 0 if end != "nothing new" else 9
    assert case.run(*script) == code
    assert all(path.exists() for path in memory)
    text = " ".join(case.text.split())
    assert f"kept in /dev/shm of {os.uname().nodename} (0.0 MiB), until no process has used" in text
    assert f"go on in it: mpips run {case.run_folder.path}" in text
    assert f"throw it away: mpips run --discard-memory {case.run_folder.path}" in text
    assert case.run({"finish": True}) == 0
    assert not any(path.exists() for path in memory)


def test_the_block_says_which_step_memory_holds(case: Case, memory: list[Path]) -> None:
    case.max_restarts = 0
    assert case.run({"code": 1, "recoverable": 480}) == 1
    assert "memory          step 480 or later, kept in /dev/shm of" in case.text


@pytest.mark.parametrize(
    "script", [{"finish": True}, {"words": [{"kind": "Leaving", "exit_code": 75}]}]
)
def test_memory_goes_with_a_durable_end(
    case: Case, memory: list[Path], script: dict[str, Any]
) -> None:
    assert case.run(script) in (0, 75)
    assert not any(path.exists() for path in memory)
    assert "/dev/shm" not in case.text


def test_memory_of_launches_that_never_came_to_work_goes(case: Case) -> None:
    case.max_restarts = 0
    paths = memory_of(case, "s0", "w0-0")
    assert case.run({"code": 1}) == 1
    assert not any(path.exists() for path in paths)
    assert "/dev/shm" not in case.text


def test_memory_stays_where_the_supervisor_cannot_go_on(case: Case, memory: list[Path]) -> None:
    case.launcher = Launcher("/nowhere/mpirun", "openmpi", "fake")
    with pytest.raises(CapabilityError, match="cannot be started"):
        case.run({"finish": True})
    assert all(path.exists() for path in memory)
    assert "mpips run: memory kept in /dev/shm of" in case.text


def test_memory_survives_an_interruption(case: Case, memory: list[Path]) -> None:
    with Background(case) as other:
        other.process.send_signal(signal.SIGINT)
        assert other.process.wait(20) == 130, other.text()
        assert all(path.exists() for path in memory)
        assert "go on in it: mpips run" in other.text()


def test_memory_goes_when_a_person_says_so(case: Case, memory: list[Path]) -> None:
    command = [sys.executable, "-m", "mpips", "run", "--discard-memory", str(case.run_folder.path)]
    with Background(case):
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2
        assert "is being run by process" in refused.stderr
        assert all(path.exists() for path in memory)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "4 segments of" in done.stderr
    assert not any(path.exists() for path in memory)


def test_a_file_of_another_user_ends_no_run(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    (path,) = memory_of(case, "w0-1")
    os.chown(path, 65534, 65534)
    try:
        assert case.run({"code": 1}, {"finish": True}) == 0
        assert case.text.count(f"{path} on {os.uname().nodename} belongs to another user") == 1
        assert path.exists()
    finally:
        path.unlink()
