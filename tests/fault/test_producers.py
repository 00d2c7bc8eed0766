"""Programs of [producers]: samples count once whichever side ends, and nothing is left of them."""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import launcher
import processes
import program_rig
import pytest
from compiled_examples import EXAMPLES, compile_example

from mpips.rundir.directory import RunFolder
from mpips.rundir.producers import MEMBER_OF, read_producers

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs")
PAGE = (ROOT / "docs/howto/insitu.md").read_text()
N = 120
EXPECTED = {
    "numbers": [[number, n] for number in range(2) for n in range(N)],
    "sum": float(sum(300 * (1000 * number + n) for number in range(2) for n in range(N))),
    "counts": [2 * N, 2 * N, 0, 2],
}


def program(pause_s: float, kills_at: int) -> list[str]:
    """Options for two programs that push 120 samples each."""
    rig = str(Path(program_rig.__file__).parent)
    words = [sys.executable, str(PROGRAMS / "started_program.py"), rig, str(pause_s), str(kills_at)]
    return ["--set", f"producers.command={json.dumps(words)}", "--set", "producers.members=2"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "mpips", "run", "--progress", "none", *words]


def run_of(folder: Path) -> RunFolder:
    (path,) = (folder / "runs").iterdir()
    return RunFolder(path)


def result(job: launcher.Launch) -> dict[str, Any]:
    assert job.wait() == 0, job.tail(60)
    found: dict[str, Any] = json.loads(job.stdout().strip().splitlines()[-1])
    return found


def test_kills_of_the_worker_and_of_a_program_change_no_sum(tmp_path: Path) -> None:
    words = command("-n", "5", *program(0.0, 60), str(PROGRAMS / "queued.py"))
    with launcher.Launch(words, launcher.site_environment(), 150.0, tmp_path) as job:
        found = result(job)
        assert found.pop("attempt") == 2
        assert found == EXPECTED
        record = read_producers(run_of(tmp_path))
        assert record is not None
        # The programs go on while the ranks start again; the killed one starts once more.
        assert [each.starts for each in record.members] == [1, 2], job.tail(60)
        assert [each.state for each in record.members] == ["ended", "ended"]
        assert "member 1 of the producers was killed by SIGKILL on " in job.stderr()
        assert not processes.marked(f"{MEMBER_OF}={run_of(tmp_path).path}")


def test_a_cancelled_run_continues_with_every_sample(tmp_path: Path) -> None:
    queued = [str(PROGRAMS / "queued.py"), "", "quiet"]
    words = command("-n", "5", *program(0.02, -1), *queued)
    env = launcher.site_environment()
    with launcher.Launch(words, env, 150.0, tmp_path) as job:
        assert processes.until(lambda: (tmp_path / "runs").exists(), 60)

        def has_some() -> bool:
            assert job.poll() is None, job.tail(60)
            record = read_producers(run_of(tmp_path))
            return record is not None and all(sum(m.produced) > 9 for m in record.members)

        assert processes.until(has_some, 90), job.tail(60)
        job.send_signal(signal.SIGTERM)
        assert job.wait() == 75, job.tail(60)
        run = run_of(tmp_path)
        assert not processes.marked(f"{MEMBER_OF}={run.path}")
        record = read_producers(run)
        assert record is not None
        assert [each.state for each in record.members] == ["stopped", "stopped"]
    with launcher.Launch(command(str(run.path)), env, 150.0, tmp_path) as job:
        found = result(job)
        assert found.pop("attempt") == 1
        assert found == EXPECTED
        record = read_producers(run)
        assert record is not None
        assert [each.starts for each in record.members] == [2, 2]


@pytest.mark.long
def test_programs_go_on_while_the_job_changes_its_size(tmp_path: Path) -> None:
    words = [sys.executable, str(PROGRAMS / "attached_program.py")]
    options = ["--set", f"producers.command={json.dumps(words)}", "--set", "producers.members=2"]
    queued = [str(PROGRAMS / "queued.py"), "", "quiet"]
    env = launcher.site_environment()
    with launcher.Launch(command("-n", "5", *options, *queued), env, 250.0, tmp_path) as job:
        assert processes.until(lambda: (tmp_path / "runs").exists(), 60)

        def is_at(samples: int, n_ranks: int) -> bool:
            assert job.poll() is None, job.tail(60)
            run = run_of(tmp_path)
            status, record = run.status(), read_producers(run)
            at_work = status is not None and len(status.ranks) == n_ranks
            return at_work and record is not None and {*record.members[0].produced} == {samples}

        for change, before, after, samples in (("+1", 5, 6, 40), ("-1", 6, 5, 80)):
            assert processes.until(functools.partial(is_at, samples, before), 90), job.tail(60)
            scale = [sys.executable, "-m", "mpips", "scale", str(run_of(tmp_path).path)]
            done = subprocess.run(
                [*scale, "--workers", change], env=env, capture_output=True, text=True, timeout=100
            )
            assert done.returncode == 0, done.stdout + done.stderr + job.tail(60)
            assert processes.until(functools.partial(is_at, samples, after), 90), job.tail(60)
            (tmp_path / f"gate-{samples}").touch()
        found = result(job)
        assert found.pop("attempt") == 2
        assert found == EXPECTED
        record = read_producers(run_of(tmp_path))
        assert record is not None
        # The same processes have pushed to workers of three sizes.
        assert [(each.state, each.starts, each.failures) for each in record.members] == [
            ("ended", 1, 0)
        ] * 2


@pytest.mark.long
def test_the_job_of_the_page_learns_from_its_solvers(tmp_path: Path) -> None:
    compile_example("heat", "cc", tmp_path)
    shutil.copy(EXAMPLES / "heat.py", tmp_path)
    first = re.search(r'```toml\n(\[run\]\nscript = "heat.py".*?)```', PAGE, re.S)
    assert first is not None
    (tmp_path / "heat.toml").write_text(first[1])
    with launcher.Launch(command("heat.toml"), launcher.site_environment(), 150.0, tmp_path) as job:
        assert job.wait() == 0, job.tail(60)
        counts, error = job.stdout().splitlines()[-2:]
    assert re.fullmatch(r"samples: \d+, producers: 2", counts)
    assert error == "error of the learned step: below 10 % of a change"
    log = (run_of(tmp_path).path / "producers/member-1.log").read_text()
    assert "heat: producer 1 has pushed" in log


def test_the_ensemble_of_the_page_learns_the_step_of_lorenz_96(tmp_path: Path) -> None:
    for name in ("lorenz.py", "lorenz_program.py", "lorenz.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    words = [sys.executable, "lorenz_program.py", "{member}", "{forcing}"]
    options = ["--set", f"producers.command={json.dumps(words)}", "lorenz.toml"]
    with launcher.Launch(command(*options), launcher.site_environment(), 150.0, tmp_path) as job:
        assert job.wait() == 0, job.tail(60)
        line = next(each for each in job.stdout().splitlines() if each.startswith("error of the"))
    found = re.fullmatch(r"error of the learned step: (0\.\d{4}) of a change", line)
    assert found is not None
    assert 0 < float(found[1]) < 0.1
    forcings = set()
    for member in range(4):
        log = (run_of(tmp_path).path / f"producers/member-{member}.log").read_text()
        pushed = re.search(rf"lorenz: member {member} has pushed 500 samples, forcing (\S+)", log)
        assert pushed is not None, log
        forcings.add(int(float(pushed[1])))
    assert forcings == {6, 7, 8, 9}  # one member in each quarter of the range


@pytest.mark.parametrize("language", ["c", pytest.param("python", marks=pytest.mark.long)])
def test_an_mpi_solver_has_a_producer_on_each_rank(tmp_path: Path, language: str) -> None:
    solver = f"{sys.executable} {EXAMPLES}/heat_mpi_program.py"
    if language == "c":
        compile_example("heat_mpi", "mpicc", tmp_path)
        solver = "./heat_mpi"
    shutil.copy(EXAMPLES / "heat_mpi.py", tmp_path)
    line = re.search(r"^mpips run (-n 4 .*heat_mpi.py 2)$", PAGE, re.M)
    assert line is not None
    words = [word.replace("./heat_mpi 8", f"{solver} 4") for word in shlex.split(line[1])]
    flags = " ".join(launcher.mpirun_flags(2))
    words = [word.replace("mpirun -n 2", f"mpirun -n 2 {flags}") for word in words]
    with launcher.Launch(command(*words), launcher.site_environment(), 150.0, tmp_path) as job:
        assert job.wait() == 0, job.tail(60)
        assert job.stdout().splitlines()[-2:] == [
            "samples: 320, producers: 2",
            "error of the learned step: below 10 % of a change",
        ]
    log = (run_of(tmp_path).path / "producers/member-0.log").read_text()
    assert sorted(re.findall(r"heat_mpi: rank (\d) of 2 has pushed 160 samples", log)) == ["0", "1"]
