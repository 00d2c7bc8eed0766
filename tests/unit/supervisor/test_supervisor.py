"""Ends of attempts of a launcher that fails in every way on demand, and what the supervisor prints."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from supervisor_rig import Case, running

from mpips.errors import CapabilityError
from mpips.supervisor import conclusion, restarts, supervise, verdict
from mpips.supervisor.attempt import LAUNCHER_LOG, Ended
from mpips.supervisor.hosts import Host, HostPool, HostsError
from mpips.supervisor.launcher import Launcher
from mpips.supervisor.plan import SupervisionPlan
from mpips.supervisor.supervise import Supervisor
from mpips.supervisor.verdict import Verdict
from mpips.terminal import elapsed, screen
from mpips.terminal.passing import MARK, PassedRow

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


def test_only_the_durable_mark_makes_a_run_done(case: Case) -> None:
    # Exit code 0 without the mark is a failure; another code with the mark is none.
    assert case.run({"code": 0}, {"code": 7, "finish": True}) == 0
    assert case.attempts == 2
    assert "the launcher ended with code 0, and no rank reported a failure" in case.text
    assert "is done after 1 restart" in case.text
    assert case.state == "done"


def test_a_process_that_does_not_end_is_one_sentence_at_the_end_of_a_run_too(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert case.run({"finish": True}) == 0

    def hang(*arguments: object, **more: object) -> None:
        raise TimeoutError("processes [7] did not end within 10 s of SIGKILL")

    monkeypatch.setattr("mpips.supervisor.conclusion.Conclusion.settle", hang)
    with pytest.raises(HostsError, match=r": processes \[7\] did not end"):
        case.run({"finish": True})


def test_a_log_on_a_full_disk_ends_no_run(case: Case) -> None:
    class FullLog(list[str]):
        """Lines that cannot be written."""

        refused = 0

        def append(self, text: str) -> None:
            self.refused += 1
            raise OSError(28, "No space left on device")

    log = FullLog()
    case.printed = log
    assert case.run({"code": 1}, {"finish": True}) == 0
    assert case.attempts == 2
    assert log.refused >= 2


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
    assert f"continue with: mpips run {case.run_folder.path}" in case.text
    assert case.state == "preempted"


def test_the_earliest_failure_report_names_the_first_rank_to_fail(case: Case) -> None:
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


def test_a_rank_that_left_no_report_is_named_with_the_end_of_its_log(case: Case) -> None:
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
    assert not running(case.run_folder)


def test_a_stopped_rank_makes_a_stall(case: Case) -> None:
    case.max_restarts = 0
    assert case.run({"code": 1, "spawn": 2, "stop": True, "sleep": 1.5}) == 124
    assert "worker 0 (rank 0" in case.text
    assert "stopped by a signal (SIGSTOP)" in case.text
    assert case.state == "stalled"
    assert not running(case.run_folder)


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


def test_the_only_rank_of_a_run_is_named(case: Case) -> None:
    # One rank needs no mpirun: the killed process is the rank.
    assert case.run({"signal": int(signal.SIGSEGV)}, {"finish": True}) == 0
    assert "worker 0 (rank 0, pid " in case.text
    assert "killed by SIGSEGV" in case.text


def test_memory_does_not_grow_with_the_text_of_the_ranks(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Ended] = []

    def judge(ended: Ended, *rest: Any) -> Verdict:
        ends.append(ended)
        return verdict.judge(ended, *rest)

    monkeypatch.setattr(supervise, "judge", judge)
    script = {"chatter": 30_000, "say": KILLED, "code": 137, "ranks": TABLE}
    assert case.run(script, {"finish": True}) == 0
    assert len(ends[0].stderr) <= 1 << 20
    # The end is found behind the text, and the log has all of it.
    assert "killed by SIGKILL (signal 9)" in case.text
    assert (case.run_folder.attempt(0) / LAUNCHER_LOG).stat().st_size > 3_000_000


def test_text_that_a_rank_passes_on_is_on_the_terminal_alone_up_to_the_error(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passed(text: str) -> str:
        return f"{MARK}{json.dumps(text)}\n"

    monkeypatch.setattr(PassedRow, "at_terminal", classmethod(lambda cls: cls({"TERM": "xterm"})))
    monkeypatch.setattr(sys, "stderr", terminal := io.StringIO())
    texts = [
        passed("\r50%"),
        "of rank 0\n",
        passed("\r99%"),
        passed("mpips: error: x\n"),
        passed("y"),
    ]
    assert case.run({"say": "".join(texts), "code": 3}, {"finish": True}) == 0
    assert terminal.getvalue() == "\r50%\r\x1b[Kof rank 0\n\r50%\r99%\n"
    assert (case.run_folder.attempt(0) / LAUNCHER_LOG).read_text() == "of rank 0\n"
    assert sys.stderr is terminal


def test_too_few_hosts_end_the_run_with_their_reasons(case: Case) -> None:
    # The hosts do not answer, because the agent fails.
    case.pool = HostPool([Host("nohost-a", 2), Host("nohost-b", 2)], 4, 0, 1, 0)
    case.patch.setenv("PRTE_MCA_plm_ssh_agent", "/bin/false")
    with pytest.raises(
        HostsError, match=r"0 of 2 hosts are left(.|\n)*nohost-a,nohost-b are left out"
    ):
        case.run({"finish": True})
    assert case.state == "failed"


def test_the_columns_of_the_terminal_reach_the_block_and_the_ranks(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "columns", lambda stream, env=os.environ: 50)
    monkeypatch.setattr(conclusion, "columns", lambda stream: 50)
    case.max_restarts = 0
    assert case.run({"code": 3}) != 0
    assert "-" * 50 in case.text.splitlines()
    plan = SupervisionPlan(case.run_folder, case.config, case.pool, case.launcher, 0)
    assert plan.environment(0)[screen.OF_RANKS] == "50 50"
    monkeypatch.setattr(screen, "columns", lambda stream, env=os.environ: 0)
    assert screen.OF_RANKS not in plan.environment(0)


def test_a_start_that_takes_long_prints_its_elapsed_time(
    case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Printed(list[str]):
        def append(self, text: str) -> None:
            super().append(text)
            if text.startswith("mpips run: starting the ranks ... "):
                (tmp_path / "printed").touch()

    monkeypatch.setattr(elapsed, "FIRST_S", 0.0)
    case.printed = Printed()
    # The ranks are at work when that line is printed.
    assert case.run({"finish": True, "awaits": str(tmp_path / "printed")}) == 0
    assert (tmp_path / "printed").exists()


def test_an_attempt_that_is_done_between_two_looks_was_at_work(case: Case) -> None:
    assert case.run({"words": [{}]}, {"finish": True}) == 0
    assert "attempt 1 is at work" in case.text


def test_a_launcher_that_cannot_be_started_ends_the_run(case: Case) -> None:
    case.launcher = Launcher("/nowhere/mpirun", "openmpi", "fake")
    with pytest.raises(CapabilityError, match="/nowhere/mpirun cannot be started"):
        case.run({"finish": True})


def test_restarts_are_bounded(case: Case) -> None:
    case.max_restarts = 2
    script = [{"code": 1, "recoverable": 10 * (i + 1)} for i in range(9)]
    assert case.run(*script) == 1
    assert case.attempts == 3
    assert "all 2 restarts are used up" in case.text


def test_what_memory_has_is_not_lost(case: Case) -> None:
    # The first attempt has steps in memory alone, the second one in nothing.
    script = [{"code": 1, "recoverable": 90}, {"code": 1}, {"finish": True}]
    assert case.run(*script) == 0
    first, second = (case.text.split("failed after")[n] for n in (1, 2))
    assert "nothing if memory survived; else about" in " ".join(first.split())
    assert "restart 1 of 3, from memory if it survived, else from the beginning" in first
    assert "survived" not in second
    assert "restart 2 of 3, from the beginning" in second


def test_two_attempts_without_progress_are_the_last(case: Case) -> None:
    case.max_restarts = 50
    script = [{"code": 1, "recoverable": n} for n in (10, 20, 20, 20, 30)]
    assert case.run(*script) == 1
    assert case.attempts == 4
    assert "2 attempts in a row have brought the run no further" in case.text


KILL = {"mute": True, "signal": signal.SIGKILL}


def test_starts_that_are_killed_from_outside_are_counted_apart(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storm of preemptions spends no restart, and two in a row do not end the run."""
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.001)
    case.max_restarts = 1
    script = [KILL, KILL, KILL, {"code": 1, "recoverable": 10}, KILL, KILL, {"finish": True}]
    assert case.run(*script) == 0
    assert case.attempts == 7
    text = " ".join(case.text.split())
    assert "it is no restart of --max-restarts, since no rank was at work (start 4 of 10)" in text
    assert "restart 1 of 1" in text


def test_an_attempt_that_was_at_work_for_a_moment_is_none_of_them() -> None:
    """The supervisor may see its status only after its end, and with no step in it."""
    judged: Any = SimpleNamespace(death=SimpleNamespace(outside=True))
    status: Any = SimpleNamespace(progress=SimpleNamespace(step=0), start=SimpleNamespace(step=0))
    killed = Ended(-signal.SIGKILL, 1, 0.5, "")
    assert restarts.was_killed_start(judged, killed)
    assert not restarts.was_killed_start(judged, replace(killed, status=status))


def test_ten_of_them_in_a_row_are_the_last_and_pauses_double(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(Supervisor, "_pause", lambda self, s: pauses.append(s))
    case.max_restarts = 1000
    assert case.run(KILL) == 1
    assert case.attempts == 10
    assert "10 attempts in a row were killed from outside before their work began" in case.text
    longest = [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(most / 2 <= s <= most for s, most in zip(pauses, longest, strict=True))


def test_a_fault_of_the_program_is_none_of_them(case: Case) -> None:
    case.max_restarts = 1000
    assert case.run({"mute": True, "signal": signal.SIGSEGV}) == 1
    assert case.attempts == 2
    assert "2 attempts in a row have brought the run no further" in case.text


def test_a_signal_ends_the_wait_before_a_start(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 1000.0)
    real = Supervisor._pause

    def pause(self: Supervisor, seconds: float) -> None:
        if seconds:
            os.kill(os.getpid(), signal.SIGTERM)
        real(self, seconds)

    monkeypatch.setattr(Supervisor, "_pause", pause)
    assert case.run(KILL) == 128 + signal.SIGTERM
    assert case.attempts == 1
    assert "stopped by SIGTERM while it waited for the next attempt, exit 143" in case.text


def test_steps_count_again_if_memory_was_lost(case: Case) -> None:
    case.max_restarts = 50
    script = [
        {"code": 1, "recoverable": n, "start": s} for n, s in ((90, 0), (20, 5), (40, 5), (40, 40))
    ]
    assert case.run(*script) == 1
    # The second and the third attempt started at a checkpoint and came further than it. How far the fourth
    # came, the first one from step 40, is unknown because it ended at once; then two came no further.
    assert case.attempts == 6


def test_an_attempt_that_worked_for_a_moment_is_no_failed_start(case: Case) -> None:
    case.max_restarts = 50
    # The third starts at the last step of the first and ends before its status contains its steps. The
    # second and the fourth end while they start.
    script = [
        {"code": 1, "recoverable": 10, "start": 0},
        {"code": 1, "mute": True},
        {"code": 1, "recoverable": 10, "start": 10},
        {"code": 1, "mute": True},
        {"finish": True},
    ]
    assert case.run(*script) == 0
    assert case.attempts == 5


def test_generations_count_over_all_calls_for_one_directory(case: Case) -> None:
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
