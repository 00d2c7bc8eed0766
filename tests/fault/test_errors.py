"""Errors on one rank end the whole job at once, with one message and nothing left behind."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launcher import Launch, launch, site_environment

ABOUT_THE_LAUNCHER = "mpips: what the launcher prints after this"
PROGRAMS = Path(__file__).with_name("programs")


@pytest.mark.parametrize(
    ("how", "code", "parts"),
    [
        ("raise", 1, ["worker 1 (rank 3 on", "ValueError: the user's own mistake", "broken.py"]),
        ("nan", 1, ["table 'dense' contains nan at position 7 of 10", "nothing was sent"]),
        pytest.param("shape", 1, ["shape (11,), expected (10,)"], marks=pytest.mark.long),
        ("exit", 3, ["main called sys.exit(3)"]),
    ],
)
def test_an_error_in_a_worker_ends_the_job(how: str, code: int, parts: list[str]) -> None:
    argv = [sys.executable, str(PROGRAMS / "broken.py"), how, json.dumps({"timeout_s": 30})]
    with launch(4, argv, timeout=30.0) as job:
        assert job.wait() == code, job.stderr()
        text = job.stderr()
    for part in parts:
        assert part in text
    assert text.count("mpips: error:") == len(parts[:1]), text
    after = text.split("mpips: error:")[1]
    assert after.count(ABOUT_THE_LAUNCHER) == 1, text
    assert after.index(ABOUT_THE_LAUNCHER) > after.index(parts[-1])


def test_a_signal_while_a_class_is_made_is_no_error_of_the_worker() -> None:
    argv = [sys.executable, str(PROGRAMS / "broken.py"), "class", json.dumps({"timeout_s": 30})]
    with launch(4, argv, timeout=30.0) as job:
        assert job.wait() == 143, job.stderr()
        assert "mpips: error:" not in job.stderr()


def test_an_error_before_mpi_is_followed_by_one_line_about_the_launcher() -> None:
    with launch(3, [sys.executable, "-m", "mpips", "train", "mlpp"], timeout=30.0) as job:
        assert job.wait() == 2, job.stderr()
        lines = job.stderr().splitlines()
    error = next(i for i, line in enumerate(lines) if line.startswith("mpips: error:"))
    assert lines[error + 1].startswith(ABOUT_THE_LAUNCHER)
    assert sum(line.startswith(ABOUT_THE_LAUNCHER) for line in lines) == 1


WRONG = {
    "option": ("tables, timeout=3", "unknown option 'timeout'"),
    "servers": ("tables, servers=4", "servers = 4 is too many for 3 ranks"),
    "twice": ("tables * 2", "'w'"),
    "generator": ("tables", "contains yield"),
    "trigger": ("tables, save='x', on_usr1='stop'", "on_usr1 = 'stop'"),
}


BEGIN = """
import mpips

def main(worker):
    pass

def generator(worker):
    yield

tables = [mpips.DenseTable('w', (4,))]
"""


def call(what: str) -> str:
    """The call of mpips.run that is refused."""
    return f"mpips.run({'generator' if what == 'generator' else 'main'}, {WRONG[what][0]})"


def test_what_run_refuses_is_printed_once() -> None:
    with launch(3, [sys.executable, "-c", BEGIN + call("option")], timeout=30.0) as job:
        assert job.wait() == 2, job.stderr()
        text = job.stderr()
    assert text.count(WRONG["option"][1]) == 1, text
    assert "Traceback" not in text
    assert text.count("mpips: error:") == 1


def test_run_refuses_each_call_in_a_sentence_before_mpi_starts() -> None:
    """As rank 0 of three ranks, without the others."""
    tried = "try:\n    {}\nexcept SystemExit as end:\n    print(end.code)\n"
    code = "\n".join([BEGIN, *(tried.format(call(what)) for what in WRONG)])
    code += "\nfrom mpips.mpi.launch import mpi_is_up\nassert not mpi_is_up()\n"
    ranks = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}
    with Launch([sys.executable, "-c", code], {**site_environment(), **ranks}, 30.0) as job:
        assert job.wait() == 0, job.tail()
        codes, said = job.stdout().split(), job.stderr()
    assert codes == ["2"] * len(WRONG)
    assert "Traceback" not in said
    errors = [line for line in said.splitlines() if line.startswith("mpips: error: ")]
    assert len(errors) == len(WRONG), said
    for (what, (_, text)), line in zip(WRONG.items(), errors, strict=True):
        assert text in line, f"{what}: {line}"


# Other ranks wait long for the first one to end the launch: on a loaded machine it may take more than 2 s.
WITHOUT_HDF5 = (
    "import sys; sys.modules['h5py'] = None; "
    "import mpips.mpi.launch as launch; launch.FIRST_RANK_S = 20.0; "
)
SAVING = {
    "script": "import mpips; mpips.run(print, [mpips.DenseTable('w', (4,))], save='saved')",
    "train": (
        "from mpips.cli import main; sys.argv = ['mpips', 'train', 'mlp', '--train', 'digits', "
        "'--save', 'saved']; sys.exit(main())"
    ),
}


@pytest.mark.parametrize("what", ["script", pytest.param("train", marks=pytest.mark.long)])
def test_a_job_that_saves_without_h5py_ends_at_its_start(what: str) -> None:
    with launch(3, [sys.executable, "-c", WITHOUT_HDF5 + SAVING[what]], timeout=30.0) as job:
        assert job.wait() == 69, job.stderr()
        text = job.stderr()
    assert text.count("writing checkpoints needs h5py (pip install h5py)") == 1, text
    assert "Traceback" not in text


def test_what_run_refuses_on_one_rank_only_is_printed_with_the_rank() -> None:
    code = (
        "import mpips; from mpips.mpi.launch import launched_rank as r;"
        "mpips.run(print, [mpips.DenseTable('w', (4,))], **({'timeout': 3} if r() == 2 else {}))"
    )
    with launch(3, [sys.executable, "-c", code], timeout=30.0) as job:
        assert job.wait() == 2, job.stderr()
        text = job.stderr()
    assert text.count("mpips: error: rank 2: unknown option 'timeout'") == 1, text
    assert text.count("mpips: error:") == 1


def test_one_process_says_nothing_of_a_launcher() -> None:
    command = [sys.executable, "-m", "mpips", "train", "mlpp"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small /dev/shm needs root")
def test_a_small_shm_is_an_error_and_not_a_bus_error() -> None:
    mpirun = shutil.which("mpirun", path=site_environment()["PATH"])
    assert mpirun is not None
    program = [sys.executable, str(PROGRAMS / "broken.py"), "no", json.dumps({"side": 1 << 23})]
    inner = (
        "mount -t tmpfs -o size=24m shm /dev/shm && exec "
        f"{mpirun} -n 3 --oversubscribe --bind-to none {program[0]} {program[1]} no '{program[3]}'"
    )
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", inner],
        env=site_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 69, done.stderr
    assert done.stderr.count("/dev/shm is too small") == 1
    assert "enlarge it" in done.stderr
    need = re.search(r"The servers of \S+ \(1\) need ([\d,.]+) MiB of /dev/shm in all", done.stderr)
    assert need is not None, done.stderr
    # Values of 32 MiB, and rings.
    assert 32 < float(need[1].replace(",", "")) < 200


def test_ranks_with_different_tables_are_refused() -> None:
    code = (
        "import mpips; from mpips.mpi.launch import launched_rank as r;"
        "mpips.run(print, [mpips.DenseTable('a', (1 + r() // 2,))])"
    )
    with launch(4, [sys.executable, "-c", code], timeout=30.0) as job:
        assert job.wait() != 0
        assert job.returncode == 2
        assert job.stderr().count("rank 2 has other tables or options than rank 0") == 1
