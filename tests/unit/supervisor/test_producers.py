"""Programs of [producers] as processes: when they start, what they are given, how they and the rest end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from producers_rig import ServedPrograms, pusher, shell

from mpips.rundir.directory import RunFolder
from mpips.rundir.producers import MEMBER_OF, member_log, producers_file, read_producers
from mpips.supervisor import member_processes
from mpips.supervisor.member_processes import kill_marked
from mpips.supervisor.reap import is_dead

Make = Callable[..., ServedPrograms]
WAIT = "while :; do sleep 0.02; done"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.chdir(tmp_path)
    made: list[ServedPrograms] = []

    def one(**options: Any) -> ServedPrograms:
        made.append(ServedPrograms(tmp_path, **{"end_s": 20.0, **options}))
        return made[-1]

    yield one
    for each in made:
        each.end(signals=2)
        each.close()


def test_a_program_starts_when_a_worker_serves_all_of_its_queues(
    make: Make, tmp_path: Path
) -> None:
    names = "$MPIPS_STREAM $MPIPS_PRODUCER $MPIPS_PRODUCERS $MPIPS_MEMBER $MORE $MPIPS_RUN_DIR/{x}"
    text = f'echo "{names}" >$MPIPS_MEMBER; pwd'
    programs = make(
        command=["sh", "-c", text],
        members=2,
        queues=2,
        parameters={"x": ["a", "b"]},
        environment={"MORE": "more"},
        folder="m-{member}",
    )
    programs.producers.begin()
    programs.serve(0, 1, 2)
    programs.until_states("ended", "waiting")
    assert not (tmp_path / "m-1").exists()
    programs.serve(3)
    programs.until_states("ended", "ended")
    for member in range(2):
        found = (tmp_path / f"m-{member}" / str(member)).read_text().split()
        assert found == [
            programs.plan.queues,
            str(2 * member),
            "2",
            str(member),
            "more",
            "/" + "ab"[member],
        ]
        assert str(tmp_path / f"m-{member}") in programs.log(member)
    assert (programs.run.path / "queue").read_text() == programs.plan.queues + "\n"
    assert "all 2 members of the producers have ended" in programs.text
    assert (
        "member 1 of the producers has ended with code 0 and has pushed no sample" in programs.text
    )
    # The end of a program is that of its producers, also without mpips_close.
    programs.until(lambda: all(worker.is_closed for worker in programs.workers.values()))
    assert programs.producers.failure == ""


def test_the_log_of_a_program_is_cut_while_it_runs_and_at_its_end(make: Make) -> None:
    first = "n=0; while [ $n -lt 4000 ]; do n=$((n+1)); echo line $n; done; echo ready"
    text = f"{first}; cat wait; seq 20000; exit 3"
    programs = make(command=shell(f"mkfifo wait; {text}"), log_mib=1 / 64, max_restarts=0)
    programs.producers.begin()
    programs.serve(0)
    log = member_log(programs.run, 0)
    most = 1 << 14
    programs.until(
        lambda: log.exists() and log.stat().st_size <= most and programs.log().endswith("ready\n")
    )
    assert programs.log().startswith("--- start 1, ")
    assert "\nline 1\n" in programs.log()
    assert "\nline 4000\nready\n" in programs.log()
    assert programs.log().count(" bytes were cut here (producers.log_mib)\n") == 1
    (programs.place / "wait").write_text("")
    programs.until(lambda: programs.producers.failure != "")
    assert "exit code 3" in programs.text
    assert "it printed last: 20000; log:" in programs.text
    assert log.stat().st_size <= most
    assert programs.log().count(" bytes were cut here (producers.log_mib)\n") == 1


def test_a_program_that_pushes_finds_its_queue_and_ends_its_stream(make: Make) -> None:
    programs = make(command=pusher(3))
    programs.serve(0)
    programs.producers.begin()
    programs.until(lambda: programs.workers[0].is_closed)
    assert programs.workers[0].written == 3
    assert "pushed no sample" not in programs.text
    record = programs.record
    assert record is not None
    assert (record.members[0].produced, record.members[0].starts) == ((3,), 1)


def test_failures_are_sentences_and_restarts_are_bounded(make: Make) -> None:
    programs = make(command=shell("echo out; echo 'no mesh' >&2; exit 3"), max_restarts=1)
    programs.serve(0)
    programs.producers.begin()
    programs.until(lambda: bool(programs.producers.failure))
    log = member_log(programs.run, 0)
    said = f"member 0 of the producers ended with exit code 3 on {socket.gethostname()} after "
    assert programs.producers.failure.startswith(said)
    assert programs.producers.failure.endswith(f"; it printed last: no mesh; log: {log}")
    assert "restart 1 of 1 in 1 s" in programs.printed[1]
    lines = log.read_text().splitlines()
    assert [line.split(",")[0] for line in lines[::3]] == ["--- start 1", "--- start 2"]
    assert lines[1:3] == lines[4:6] == ["out", "no mesh"]
    programs.until_states("failed")
    # A later run may go on with it.
    assert not programs.workers[0].is_closed


def test_a_failure_that_ends_the_run_ends_the_other_members(make: Make) -> None:
    second = f"[ $MPIPS_MEMBER = 0 ] || {{ touch ready; {WAIT}; }}"
    first = "until [ -e ready ]; do sleep 0.01; done; kill -9 $$"
    programs = make(command=shell(f"{second}; {first}"), members=2, on_failure="end")
    programs.serve(0, 1)
    programs.producers.begin()
    programs.until(lambda: bool(programs.producers.failure))
    assert "member 0 of the producers was killed by SIGKILL on " in programs.producers.failure
    programs.until_states("failed", "stopped")


def test_a_member_that_is_given_up_ends_its_part_of_the_stream(make: Make) -> None:
    programs = make(command=pusher(2, "\nsys.exit(int(sys.argv[1]))"), on_failure="continue")
    programs.serve(0)
    programs.producers.begin()
    programs.until(lambda: programs.workers[0].is_closed)
    assert programs.states == ["failed"]
    assert "ended with exit code 2" in programs.text
    assert "the run goes on with the samples that it has pushed" in programs.text
    assert (programs.workers[0].written, programs.producers.failure) == (2, "")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("./no-solver", "./no-solver: No such file or directory"),
        ("/etc/passwd", "Permission denied"),
    ],
)
def test_a_command_that_cannot_be_started_is_tried_once(
    make: Make, command: str, text: str
) -> None:
    programs = make(command=command)
    programs.serve(0)
    programs.producers.begin()
    programs.until(lambda: bool(programs.producers.failure))
    assert (
        f"member 0 of the producers cannot be started on {socket.gethostname()}: " in programs.text
    )
    assert text in programs.producers.failure
    assert programs.log().count("--- start") == 1


def test_output_fills_nothing(make: Make) -> None:
    programs = make(command=[sys.executable, "-c", "print('x' * 3_000_000)"])
    programs.serve(0)
    programs.producers.begin()
    programs.until_states("ended")
    assert max(map(len, programs.log().splitlines())) == 3_000_000


def test_a_program_that_ignores_sigterm_is_killed(make: Make) -> None:
    programs = make(command=shell(f"trap '' TERM; echo ready; {WAIT}"), end_s=0.2)
    programs.serve(0)
    programs.producers.begin()
    programs.until_ready()
    programs.end()
    assert programs.states == ["stopped"]
    assert not programs.left()


def test_a_program_that_ends_on_sigterm_with_code_0_has_not_ended_its_producer(make: Make) -> None:
    programs = make(command=shell(f"trap 'echo saved; exit 0' TERM; echo ready; {WAIT}"))
    programs.serve(0)
    programs.producers.begin()
    programs.until_ready()
    programs.end()
    assert programs.states == ["stopped"]
    assert programs.log().endswith("saved\n")
    assert not programs.workers[0].is_closed


def test_a_done_run_lets_programs_end_by_themselves(make: Make) -> None:
    programs = make(command=shell("trap 'touch early' TERM; until [ -e go ]; do sleep 0.02; done"))
    programs.serve(0)
    programs.producers.begin()
    programs.until_states("running")
    asked: list[bool] = []

    def hurry() -> bool:
        asked.append(True)
        if len(asked) == 3:
            Path("go").touch()
        return False

    programs.producers.end(True, hurry)
    assert not Path("early").exists()
    assert "the run is done: waiting 20 s for members 0 of the producers to end" in programs.text
    assert programs.states == ["stopped"], "it has not ended its producer"


def test_signals_shorten_the_end(make: Make) -> None:
    programs = make(command=shell(f"trap '' TERM; echo ready; {WAIT}"), end_s=60.0)
    programs.serve(0)
    programs.producers.begin()
    programs.until_ready()
    began = time.monotonic()
    programs.end(is_done=True, signals=2)
    assert time.monotonic() - began < 30
    assert not programs.left()


def test_what_a_command_leaves_is_ended_before_its_next_start(make: Make) -> None:
    # A daemon with a session of its own, and one without the marks of its environment.
    daemon = "setsid sh -c 'trap \"\" TERM; sleep 600' &"
    unmarked = "env -i TEST_PRODUCERS=$PWD sleep 600 &"
    is_there = '[ "$(tr -d \\\\0 </proc/$!/environ)" = "TEST_PRODUCERS=$PWD" ]'
    left = f"{daemon} {unmarked} until {is_there}; do :; done; exit 1"
    programs = make(command=shell(left), on_failure="continue", end_s=0.2)
    programs.serve(0)
    programs.producers.begin()
    programs.until_states("failed")
    assert not programs.left()
    assert not processes.marked(f"TEST_PRODUCERS={os.getcwd()}")


def test_an_orphan_without_any_mark_ends_with_the_run(make: Make) -> None:
    cwd = os.getcwd()
    hidden = f"setsid env -i TEST_PRODUCERS={cwd} sh -c 'setsid sleep 600 & exit 0'; exit 0"
    programs = make(command=shell(hidden), end_s=0.2)
    programs.serve(0)
    programs.producers.begin()
    programs.until_states("ended")
    assert processes.marked(f"TEST_PRODUCERS={cwd}")
    programs.end()
    assert not processes.marked(f"TEST_PRODUCERS={cwd}")


SUPERVISOR = """
import sys, time
from pathlib import Path
from producers_rig import ServedPrograms, shell
programs = ServedPrograms(Path(sys.argv[1]), command=shell(sys.argv[2]), end_s=1.5)
programs.serve(0)
programs.producers.begin()
print(programs.run.path, flush=True)
while True:
    programs.producers.look()
    time.sleep(0.05)
"""


@pytest.mark.parametrize("killed", ["supervisor", "supervisor and runner"])
def test_nothing_is_left_of_a_killed_supervisor(tmp_path: Path, killed: str) -> None:
    ready, asked = tmp_path / "ready", tmp_path / "asked"
    # A shell cannot trap a signal that was ignored at its start, so the child begins first.
    begun = tmp_path / "begun"
    child = f"trap 'touch {asked}' TERM; touch {begun}; {WAIT}"
    text = f"setsid sh -c \"{child}\" & trap '' TERM; until [ -e {begun} ]; do :; done; touch {ready}; {WAIT}"
    support = str(Path(processes.__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path), text],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": support},
    ) as supervisor:
        assert supervisor.stdout is not None
        run = supervisor.stdout.readline().strip()
        try:
            assert processes.until(ready.exists, 20.0)
            assert len(processes.marked(f"{MEMBER_OF}={run}")) >= 2
            assert processes.until(lambda: read_producers(RunFolder(Path(run))) is not None, 20.0)
            record = read_producers(RunFolder(Path(run)))
            assert record is not None
            if killed != "supervisor":
                os.kill(record.pid, signal.SIGSTOP)
        finally:
            supervisor.kill()
    try:
        if killed != "supervisor":
            os.kill(record.pid, signal.SIGKILL)
        assert processes.until(lambda: not processes.marked(f"{MEMBER_OF}={run}"), 20.0)
        assert asked.exists()  # there was time to end by itself
    finally:
        kill_marked(Path(run))
        name = (Path(run) / "queue").read_text().strip()
        for path in Path("/dev/shm").glob(f"mpips_queue.*.{name}.*"):
            path.unlink()


def test_the_end_of_the_process_that_runs_them_ends_the_run(make: Make) -> None:
    programs = make(command=shell(f"trap '' TERM; echo ready; {WAIT}"))
    programs.serve(0)
    programs.producers.begin()
    programs.until_ready()
    record = programs.record
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    programs.until(lambda: bool(programs.producers.failure))
    assert f"the process that runs the producers ({record.pid} on " in programs.producers.failure
    assert "has ended with signal 9" in programs.producers.failure
    assert programs.left()
    programs.end()
    assert not programs.left()


def watchers(runner: int) -> list[int]:
    """The watchers of a process that runs programs: its forked children."""
    command = Path(f"/proc/{runner}/cmdline").read_bytes()
    return [
        row.pid
        for row in member_processes.processes()
        if row.parent == runner and Path(f"/proc/{row.pid}/cmdline").read_bytes() == command
    ]


def test_another_watcher_follows_a_killed_one(make: Make) -> None:
    programs = make(command=shell(f"trap '' TERM; echo ready; {WAIT}"), end_s=0.2)
    programs.serve(0)
    programs.producers.begin()
    programs.until_ready()
    record = programs.record
    assert record is not None
    (first,) = watchers(record.pid)
    os.kill(first, signal.SIGKILL)
    programs.until(lambda: watchers(record.pid) not in ([], [first]))
    os.kill(record.pid, signal.SIGKILL)
    assert processes.until(lambda: not programs.left(), 20.0)


def test_a_program_without_any_mark_ends_when_the_process_that_runs_it_is_killed(
    make: Make,
) -> None:
    # Containers and sudo clear the environment of what they start.
    hidden = (
        f"env -i TEST_PRODUCERS={os.getcwd()} sh -c \"trap '' TERM; echo ready; {WAIT}\"; exit 0"
    )
    programs = make(command=shell(hidden), end_s=0.2)
    programs.serve(0)
    programs.producers.begin()
    programs.until_ready()
    record = programs.record
    assert record is not None
    assert processes.marked(f"TEST_PRODUCERS={os.getcwd()}")
    os.kill(record.pid, signal.SIGKILL)
    assert processes.until(lambda: not processes.marked(f"TEST_PRODUCERS={os.getcwd()}"), 20.0)


@pytest.mark.parametrize("way", ["done", "stopped", "terminated", "killed"])
def test_no_watcher_is_left_however_a_run_ends(make: Make, way: str) -> None:
    programs = make(command=shell(f"echo ready; {WAIT}"), end_s=0.2)
    programs.serve(0)
    programs.producers.begin()
    programs.until_ready()
    record = programs.record
    assert record is not None
    (watcher,) = watchers(record.pid)
    if way in ("terminated", "killed"):
        os.kill(record.pid, signal.SIGTERM if way == "terminated" else signal.SIGKILL)
        programs.until(lambda: bool(programs.producers.failure))
    programs.end(is_done=way == "done")
    assert processes.until(lambda: is_dead(watcher))
    assert not programs.left()


def test_many_members_end_together(make: Make) -> None:
    n = 64
    programs = make(command=shell("read gate <gate; exit 0"), members=n)
    os.mkfifo("gate")
    programs.serve(*range(n))
    programs.producers.begin()
    programs.until_states(*["running"] * n)
    gate = os.open("gate", os.O_RDWR)  # opens whether or not a program has come so far
    try:
        os.write(gate, b"\n" * n)  # a line for each
        programs.until_states(*["ended"] * n)
    finally:
        os.close(gate)
    programs.end(is_done=True)
    assert not programs.left()


def test_the_next_supervisor_kills_what_was_left_and_repeats_what_has_not_ended(make: Make) -> None:
    programs = make(command=shell(f"[ $MPIPS_MEMBER = 0 ] || {{ {WAIT}; }}"), members=2)
    programs.serve(0, 1)
    programs.producers.begin()
    programs.until_states("ended", "running")
    record = programs.record
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    assert processes.until(lambda: not programs.left()), "the kernel sends SIGTERM to its children"
    # A program that ignores SIGTERM stays until the next supervisor comes.
    earlier = subprocess.Popen(["sleep", "600"], env={MEMBER_OF: str(programs.run.path)})
    try:
        again = ServedPrograms.__new__(ServedPrograms)
        again.__dict__.update(programs.__dict__)
        again.producers = type(programs.producers)(programs.plan, programs.printed.append)
        again.producers.begin()
        assert earlier.wait(20) == -signal.SIGKILL
        again.until(lambda: again.record is not None and again.record.pid != record.pid)
        again.until_states("ended", "running")
        assert again.record is not None
        assert [each.starts for each in again.record.members] == [1, 2]
        again.end()
    finally:
        earlier.kill()
        earlier.wait()
    programs.producers.end(False, lambda: False)


def test_a_job_that_goes_back_gets_the_samples_of_a_member_that_had_ended_again(make: Make) -> None:
    programs = make(command=pusher(5))
    programs.serve(0)
    programs.producers.begin()
    programs.until(lambda: programs.workers[0].is_closed)
    # The next launch of the job has all samples: only the end is missing.
    programs.workers.pop(0).unlink()
    programs.serve(0, produced=5)
    programs.until(lambda: programs.workers[0].is_closed)
    assert programs.workers[0].written == 5
    # A later one starts from a checkpoint with two.
    programs.workers.pop(0).unlink()
    programs.serve(0, produced=2)
    programs.until(lambda: programs.workers[0].is_closed)
    assert programs.workers[0].written == 5
    assert "member 0 of the producers starts again: the job has gone back" in programs.text
    record = programs.record
    assert record is not None
    assert record.members[0].starts == 2


def test_a_program_that_a_replaced_queue_ends_costs_no_restart(make: Make) -> None:
    # It fails once its queue has another one in its place; the next start finds that one.
    fails = "\nimport time, pathlib\npathlib.Path('pushed').touch()\n"
    fails += "while not pathlib.Path('go').exists(): time.sleep(0.02)\n"
    fails += "sys.exit(0 if program.produced == 4 else 5)"
    programs = make(command=pusher(2, fails), on_failure="end")
    programs.serve(0)
    programs.producers.begin()
    programs.until(Path("pushed").exists)
    programs.workers.pop(0).unlink()
    programs.serve(0, produced=4)
    Path("go").touch()
    programs.until_states("ended")
    assert "ended with exit code 5" in programs.text
    assert "it starts again, since the job has gone back to an earlier state" in programs.text
    assert programs.producers.failure == ""


def test_a_record_that_cannot_be_written_ends_no_program(make: Make) -> None:
    programs = make(command=shell(WAIT))
    producers_file(programs.run).mkdir()
    programs.serve(0)
    programs.producers.begin()
    programs.until(lambda: "the producers are started" in programs.text)
    assert programs.left()
    programs.end()
    assert not programs.left()


def test_marks_of_other_runs_are_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], env={MEMBER_OF: str(tmp_path / "other")}) as other:
        assert kill_marked(tmp_path / "mine") == 0
        assert other.poll() is None
        assert kill_marked(tmp_path / "other") == 1


def test_without_the_section_nothing_is_started(tmp_path: Path) -> None:
    programs = ServedPrograms(tmp_path)
    programs.producers.begin()
    programs.producers.look()
    programs.producers.stop()
    programs.end()
    assert (programs.run.path / "queue").read_text() == programs.plan.queues + "\n"
    assert programs.record is None
