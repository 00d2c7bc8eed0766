"""jobs/batch.sh without a batch system: signals on their way from the batch script to its command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

BATCH = Path(__file__).parents[2] / "jobs/batch.sh"
WATCH_JOB = BATCH.with_name("watch.sh")
SCRIPT = 'source "$1"; start_s=$2; term_as=USR1; shift 2; launch "$@"; exit "$code"'
# A launcher that is not ready for a warning before the file "go" is there, and a rank, which until then ends
# by one: a launcher gives its ranks the default of these signals again.
COMMAND = """
import os, signal, sys, time
ready = lambda *arguments: os._exit(75)
assert signal.getsignal(signal.SIGUSR1) == signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
open("started", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
signal.signal(signal.SIGUSR1, ready)
open("ready", "w").close()
time.sleep(60)
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


@contextmanager
def begun(folder: Path, start_s: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        "bash",
        "-c",
        SCRIPT,
        "batch",
        str(BATCH),
        str(start_s),
        sys.executable,
        "-c",
        COMMAND,
    ]
    with subprocess.Popen(command, cwd=folder, start_new_session=True) as job:
        try:
            wait_for(folder / "started")
            yield job
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)


def test_a_warning_before_a_rank_has_its_handler_is_sent_later(tmp_path):
    with begun(tmp_path, 8) as job:
        os.kill(job.pid, signal.SIGUSR1)
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(1)
        (tmp_path / "go").touch()
        assert job.wait(40) == 75


def test_a_warning_after_the_first_seconds_is_passed_on_at_once(tmp_path):
    with begun(tmp_path, 0) as job:
        (tmp_path / "go").touch()
        wait_for(tmp_path / "ready")
        os.kill(job.pid, signal.SIGUSR1)
        assert job.wait(40) == 75


@pytest.mark.parametrize("start_s", [8, 0], ids=["before-its-handler", "at-work"])
def test_a_first_term_warns_the_command(tmp_path, start_s):
    """On TERM itself mpirun and srun kill their ranks, which then save nothing."""
    with begun(tmp_path, start_s) as job:
        if start_s:
            os.kill(job.pid, signal.SIGTERM)
            (tmp_path / "go").touch()
        else:
            (tmp_path / "go").touch()
            wait_for(tmp_path / "ready")
            os.kill(job.pid, signal.SIGTERM)
        assert job.wait(40) == 75


def functions(folder: Path, script: str, squeue: str, **env: str) -> tuple[int, str, str]:
    """Run functions of the batch scripts where squeue prints this; return code, output, calls of scontrol."""
    for name, text in {"squeue": f"echo '{squeue}'", "scontrol": 'echo "$@" >>calls'}.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    batch = folder / "script"
    batch.write_text(f'set -euo pipefail\nsource "{BATCH}"\n{script}\n')
    done = subprocess.run(
        ["bash", str(batch)],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", **env},
        capture_output=True,
        text=True,
        timeout=100,
    )
    calls = folder / "calls"
    return done.returncode, done.stdout + done.stderr, calls.read_text() if calls.exists() else ""


TWICE = """trap '' USR1
sleep 60 & child=$!
term_as=USR1 start_s=0
terminate "$child" 0
kill -0 "$child" && terminate "$child" 0
wait "$child"
"""


def test_a_second_term_ends_the_command(tmp_path):
    assert functions(tmp_path, TWICE, "")[0] == 128 + signal.SIGTERM


AT_ONCE = f"""trap '' USR1
{sys.executable} -c 'import os, signal, time
signal.signal(signal.SIGUSR1, lambda *arguments: os._exit(75))
open("ready", "w").close()
time.sleep(60)' & child=$!
until [[ -e ready ]]; do sleep 0.01; done
term_as=USR1 start_s=3600
terminate "$child" "$SECONDS"
wait "$child"
"""


def test_a_term_of_a_cancelled_job_does_not_wait(tmp_path):
    """Slurm kills the script some seconds later."""
    assert functions(tmp_path, AT_ONCE, "COMPLETING None")[0] == 75


BEFORE = f"""job=7 folder=/run run=/run
trap 'warned=1' USR1
kill -USR1 $$
start_s=2
launch {sys.executable} -c 'import os, signal, time
signal.signal(signal.SIGUSR1, lambda *arguments: os._exit(75))
time.sleep(60)'
exit "$code"
"""


def test_a_warning_before_there_are_ranks_reaches_them(tmp_path):
    assert functions(tmp_path, BEFORE, "RUNNING None")[0] == 75


EARLY = "job=7 folder=/run; trap 'terminated=1' TERM; kill -TERM $$; launch touch started"


def test_a_term_before_there_are_ranks_puts_the_job_back(tmp_path):
    code, said, calls = functions(tmp_path, EARLY, "RUNNING None")
    assert (code, calls) == (75, "requeue 7\n")
    assert "TERM came before the ranks were started" in said
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("squeue", "env", "reason"),
    [
        ("COMPLETING None", {}, "Slurm has cancelled the job: submit it again with MPIPS_FOLDER"),
        ("RUNNING None", {"SLURM_RESTART_COUNT": "50"}, "requeued 50 times already"),
    ],
)
def test_a_job_that_must_not_be_requeued_is_not(tmp_path, squeue, env, reason):
    code, said, calls = functions(tmp_path, EARLY, squeue, **env)
    assert (code, calls) == (75, "")
    assert reason in said


SAVED = "mkdir -p run/checkpoints; ln -s step-1 run/checkpoints/latest; job=7 run=run folder=run; finish 75"


@pytest.mark.parametrize(
    ("squeue", "calls"),
    [
        ("RUNNING None", "requeue 7\n"),
        # Over the time limit, which is why the job shall go on later.
        ("COMPLETING TimeLimit", "requeue 7\n"),
        ("COMPLETING None", ""),
    ],
)
def test_only_a_cancelled_job_that_has_saved_stays_out_of_the_queue(tmp_path, squeue, calls):
    code, said, called = functions(tmp_path, SAVED, squeue)
    assert (code, called) == (75, calls), said
    assert ("not requeued" in said) == (not calls)


@pytest.mark.parametrize(
    ("limit", "env", "refused"),
    [
        ("3:00", {}, True),
        ("3:01", {}, False),
        ("1:00:00", {}, False),
        ("1-00:00:00", {}, False),
        ("UNLIMITED", {}, False),
        ("3:00", {"MPIPS_WARNING_S": "60"}, False),
        ("1:00:00", {"MPIPS_WARNING_S": "3600"}, True),
    ],
)
def test_a_time_limit_must_leave_time_before_the_warning(tmp_path, limit, env, refused):
    script = "#SBATCH --signal=B:USR1@180\ncheck_time\necho passed"
    code, said, _ = functions(tmp_path, script, limit, **env)
    assert code == (2 if refused else 0), said
    assert ("the warning would come before" in said) == refused


MODULES = 'module() { echo module "$@"; [[ $* != *bad* ]]; }\nload_modules\nset -o | grep errexit'


@pytest.mark.parametrize(
    ("names", "code", "said"),
    [
        ("", 0, "errexit"),
        ("gcc/13 openmpi/5", 0, "module purge\nmodule load gcc/13 openmpi/5\nerrexit"),
        ("bad", 69, "the modules 'bad' cannot be loaded on"),
    ],
)
def test_modules_of_the_site_are_loaded(tmp_path, names, code, said):
    found, output, _ = functions(tmp_path, MODULES, "", MPIPS_MODULES=names)
    assert (found, said in output) == (code, True), output
    assert code or "errexit        \ton" in output


NO_NEWER = """mkdir -p run/checkpoints
ln -s step-1 run/checkpoints/latest
echo step-1 >run/requeued-at
job=7 run=run folder=/mine
"""


@pytest.mark.parametrize(
    ("script", "code", "advice"),
    [
        (f"{NO_NEWER}finish 75", 1, "wrote nothing newer than step-1. Use more --time"),
        (f"{NO_NEWER}failed=124; finish 75", 124, "submit it again with MPIPS_FOLDER=/mine"),
        (
            "job=7 run=run folder=/mine failed=1; finish 75",
            1,
            "begin again. It has failed, see above: remove the cause",
        ),
        ("job=7 run=run folder=/mine; finish 75", 1, "begin again. Use more --time"),
    ],
)
def test_what_to_do_depends_on_why_there_is_no_newer_checkpoint(tmp_path, script, code, advice):
    found, said, calls = functions(tmp_path, script, "RUNNING None")
    assert (found, calls, advice in said) == (code, "", True), said
    assert ("Use more --time" in said) == ("failed=" not in script)


# A step on each node: it compares its arguments, notes the line that it reads, and ends.
WATCH = """
[[ $* == *"--overlap"*"--nodes=2"*"--ntasks=2"*"mpips.supervisor.cancelled run" ]] || exit 1
trap 'echo ended >>watched' EXIT
touch watched up; read -r line && echo "$line" >>watched
"""
# The command shows its open files: one more would keep the step of a killed script from its end.
WATCHED = """run=run folder=run job=7
launch bash -c 'until [[ -e up ]]; do sleep 0.01; done
echo "watched: $MPIPS_NODES_WATCHED"; ls /proc/self/fd'
echo "code $code"
"""


def watched_until_ended(folder: Path) -> str:
    """Return what the step has noted, once it has ended."""
    deadline = time.monotonic() + 30
    while "ended" not in (watched := (folder / "watched").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return watched


@pytest.mark.parametrize(
    ("squeue", "read"), [("RUNNING None", "end\nended\n"), ("COMPLETING None", "ended\n")]
)
def test_the_nodes_are_watched_until_the_job_ends_or_is_cancelled(tmp_path, squeue, read):
    (tmp_path / "srun").write_text(f"#!/bin/bash\n{WATCH}")
    (tmp_path / "srun").chmod(0o755)
    code, said, _ = functions(tmp_path, WATCHED, squeue, SLURM_JOB_NUM_NODES="2")
    lines = said.splitlines()
    assert (code, lines[-1]) == (0, "code 0"), said
    assert lines[lines.index("watched: 1") + 1 : -1] == ["0", "1", "2", "3"], said
    assert watched_until_ended(tmp_path) == read


def test_a_step_that_fails_or_hangs_does_not_change_the_end_of_the_job(tmp_path):
    (tmp_path / "srun").write_text("#!/bin/bash\nexit 1\n")
    (tmp_path / "srun").chmod(0o755)
    script = "run=run folder=run job=7; launch sleep 0.2; echo code $code"
    code, said, _ = functions(tmp_path, script, "RUNNING None", SLURM_JOB_NUM_NODES="2")
    assert (code, said.splitlines()[-1]) == (0, "code 0")
    (tmp_path / "srun").write_text("#!/bin/bash\ntouch up; exec sleep 50\n")
    script = "run=run folder=run job=7 watch_tries=3; launch bash -c 'until [[ -e up ]]; do sleep 0.01; done'"
    began = time.monotonic()
    code, said, _ = functions(
        tmp_path, f"{script}; exit $code", "RUNNING None", SLURM_JOB_NUM_NODES="2"
    )
    assert code == 0
    assert time.monotonic() - began < 40


# A script of a user, which ends by itself after its command or is killed while the command runs.
OWN = """set -eu
run=own
source "$1" && watch_job "$run"
bash -c 'until [[ -e up ]]; do sleep 0.01; done; echo $$ >pid; mv pid at-work; exec sleep "$0"' "$2"
[[ $run == own ]]
exit 7
"""


@pytest.mark.parametrize(
    ("seconds", "squeue", "code", "read"),
    [
        (0, "RUNNING None", 7, "end\nended\n"),
        (60, "COMPLETING None", -signal.SIGTERM, "ended\n"),
        (60, "RUNNING None", -signal.SIGTERM, "end\nended\n"),
    ],
    ids=["ends", "cancelled", "terminated"],
)
def test_a_script_of_a_user_watches_the_nodes_by_one_line(tmp_path, seconds, squeue, code, read):
    step = WATCH.replace("cancelled run", f"cancelled {tmp_path}/own")
    for name, text in {"srun": step, "squeue": f"echo '{squeue}'"}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
    command = ["bash", "-c", OWN, "own", str(WATCH_JOB), str(seconds)]
    with subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True) as job:
        try:
            wait_for(tmp_path / "at-work")
            if seconds:
                os.kill(job.pid, signal.SIGTERM)
            assert job.wait(40) == code
            if seconds:  # Slurm ends the command of a cancelled job
                os.kill(int((tmp_path / "at-work").read_text()), signal.SIGKILL)
            assert watched_until_ended(tmp_path) == read
        finally:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
