"""Training, failures and restarts under each MPI: by day MPICH, in the long run all others that were tried.

Open MPI 5 is that of all other tests. Environments of the other MPIs: tests/support/mpis.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import mpis
import processes
import pytest
from launcher import Launch
from supervised import ENVIRONMENT, PROGRAMS, Run, alive, check_counts, job
from training import content

from mpips.checkpoint import list_checkpoints

OTHERS = ["intel", "openmpi4", "system", "openmpi5"]
ALL = ["mpich", *OTHERS]
EACH = pytest.mark.parametrize("mpi", ALL)
BY_DAY = pytest.mark.parametrize(
    "mpi", ["mpich", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
)


def start(mpi: str, folder: Path, *arguments: str, timeout: float = 280.0) -> Launch:
    """`python ARGUMENTS` in the background, with this MPI."""
    env = {**mpis.environment(mpi), **ENVIRONMENT}
    return Launch([str(mpis.python_of(mpi)), *arguments], env, timeout, folder)


def mpirun(mpi: str, folder: Path, n: int, *arguments: str) -> Launch:
    """`python ARGUMENTS` on n ranks, with the flags by which `mpips demo` starts them."""
    python, env = str(mpis.python_of(mpi)), {**mpis.environment(mpi), **ENVIRONMENT}
    script = f"from mpips.mpi.mpirun import mpirun_command as c; print(*c({n}), sep='\\n')"
    found = subprocess.run(
        [python, "-c", script], env=env, capture_output=True, text=True, check=True, timeout=100
    )
    return Launch([*found.stdout.split("\n")[:-1], python, *arguments], env, 280.0, folder)


def is_loaded(mpi: str, text: str) -> bool:
    """Return True if a summary names this MPI: a test with another one would prove nothing."""
    return mpis.library(mpi) in text


@BY_DAY
@pytest.mark.timeout(600)
def test_a_run_survives_deaths_signals_and_another_size(mpi: str, tmp_path: Path) -> None:
    folder = tmp_path / "Läufe mit Zwischenraum"
    folder.mkdir()
    gate = tmp_path / "gate"
    options = ["pause_s=0.0", "fitted=false", "pulls=true", f"gate={gate}"]
    settings = [f"options.{option}" for option in options]
    settings += ["table.consistency=ssp", "run.standby_after_s=0"]
    task = job(folder, "slow_counts:Slow", *settings)
    shape = ["-n", "4", "--servers", "1"]
    arguments = ["-m", "mpips", "run", "--progress", "none", *shape, *task]
    run = Run(folder, start(mpi, folder, *arguments))
    with run.launched as launched:
        # A signal that ends Hydra goes to the ranks.
        first = run.until(lambda s: bool(s["ranks"]) and s["progress"]["step"] >= 1)
        launched.send_signal(signal.SIGUSR2)
        log = run.path / "logs/attempt-0/rank-0.log"
        assert processes.until(lambda: "Current thread 0x" in log.read_text(), 60.0), (
            launched.tail()
        )

        # The launch that waits takes over, in memory.
        assert processes.until((run.path / "standby-1").exists, 100.0), launched.tail(60)
        killed = next(p for p in first["ranks"] if p["role"] == "server 0")
        os.kill(killed["pid"], signal.SIGKILL)
        second = run.until(lambda s: s["generation"] == 1 and bool(s["ranks"]), 100.0)
        command = Path(f"/proc/{second['ranks'][0]['pid']}/cmdline").read_bytes()
        assert b"standby_rank" in command

        # Another size, and then the end after a checkpoint.
        size = ("-m", "mpips", "scale", str(run.path), "--workers", "+1")
        with start(mpi, folder, *size) as scale:
            assert scale.wait() == 0, scale.tail() + launched.tail(60)
        run.until(lambda s: s["generation"] == 2 and len(s["ranks"]) == 5, 100.0)
        launched.send_signal(signal.SIGTERM)
        assert launched.wait() == 75, launched.tail(60)
        said = launched.stderr()
        assert launched.stdout() == ""
    assert f"server 0 (rank 1, pid {killed['pid']})" in said
    assert "killed by SIGKILL (signal 9)" in said
    assert "from memory" in said
    assert processes.until(lambda: not alive(run), 10.0)

    # What was saved continues, and every sample has counted once.
    gate.touch()
    with start(mpi, folder, "-m", "mpips", "run", str(run.path), "-n", "5") as again:
        assert again.wait() == 0, again.tail(60)
        assert is_loaded(mpi, again.stdout() + again.stderr())
    check_counts(run, folder)
    assert processes.until(lambda: not alive(run), 10.0)


@pytest.mark.long
@EACH
def test_a_death_in_the_start_of_a_launch_ends_it(mpi: str, tmp_path: Path) -> None:
    # Only rank 1 has the wrong option: the others wait for it in the start of MPI.
    script = tmp_path / "one.py"
    script.write_text(
        "import sys\nfrom mpips.mpi.launch import launched_rank\nfrom mpips.__main__ import main\n"
        "sys.argv += ['--epochs', 'x' if launched_rank() == 1 else '1']\nmain()\n"
    )
    with mpirun(mpi, tmp_path, 3, str(script), "train", "mlp", "--train", "digits") as launched:
        assert launched.wait(100.0) == 2, launched.tail()
        assert "rank 1: Invalid value for '--epochs'" in launched.stderr()


@pytest.mark.long
@EACH
def test_training_saves_and_continues(mpi: str, tmp_path: Path) -> None:
    train = ["-m", "mpips", "train", "mlp", "--train", "digits", "--json", "--progress", "none"]
    train += ["--save", str(tmp_path / "run")]
    with mpirun(mpi, tmp_path, 4, *train, "--servers", "2", "--epochs", "2") as launched:
        assert launched.wait() == 0, launched.tail()
    (entry,) = list_checkpoints(tmp_path / "run")
    # One server reads what two have written.
    with mpirun(mpi, tmp_path, 3, *train, "--servers", "1", "--epochs", "3") as launched:
        assert launched.wait() == 0, launched.tail()
        assert f"starting from {entry.path}" in launched.stderr()
        assert json.loads(launched.stdout().splitlines()[-1])["epochs"] == 3
    content(list_checkpoints(tmp_path / "run")[-1].path)  # verifies it


def digest(mpi: str, folder: Path, transport: str) -> str:
    """Return the bits of a script with a dense table and rows on 5 ranks."""
    script = str(PROGRAMS / "digest.py")
    options = json.dumps({"servers": 2, "transport": transport})
    with mpirun(mpi, folder, 5, script, options) as launched:
        assert launched.wait() == 0, launched.tail()
        found = json.loads(launched.stdout().splitlines()[-1])
    assert set(found["transports"]) == {transport}
    return str(found["digest"])


@pytest.mark.long
@pytest.mark.parametrize("mpi", [name for name in ALL if name != "openmpi5"])
def test_the_bits_are_those_of_open_mpi(mpi: str, tmp_path: Path) -> None:
    assert digest(mpi, tmp_path, "shm") == digest("openmpi5", tmp_path, "shm")
    assert digest(mpi, tmp_path, "p2p") == digest("openmpi5", tmp_path, "shm")


@pytest.mark.long
@EACH
def test_a_torch_script_survives_the_deaths_of_a_server_and_a_worker(
    mpi: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    program = [str(PROGRAMS / "torch_script.py"), "--kill", "3:server,5"]
    run = ["-m", "mpips", "run", "--progress", "none", "-n", "4"]
    with start(mpi, tmp_path, *run, *program) as launched:
        assert launched.wait() == 0, launched.tail(60)
        lines = [json.loads(x) for x in launched.stdout().splitlines() if x.startswith("{")]
        said = launched.stderr()
    with start(mpi, tmp_path, *run, program[0]) as launched:
        assert launched.wait() == 0, launched.tail(60)
        undisturbed = [json.loads(x) for x in launched.stdout().splitlines() if x.startswith("{")]
    assert {x["digest"] for x in lines} == {x["digest"] for x in undisturbed}
    assert "server 0 (rank 1" in said
    assert "worker 0 (rank 2" in said
    assert "2 restarts" in said


@pytest.mark.long
@EACH
def test_doctor_finds_no_fault_and_gives_no_advice_that_breaks_the_installation(
    mpi: str, tmp_path: Path
) -> None:
    for more in ((), ("--mpi", "-n", "3")):
        with start(mpi, tmp_path, "-m", "mpips", "doctor", *more) as launched:
            assert launched.wait() == 0, launched.tail(60)
            said = launched.stdout()
        assert said.splitlines()[-1].endswith(" 0 FAIL"), said
        own = str(mpis.python_of(mpi).parent / "mpicc")
        built = [word[3:] for word in said.split() if word.startswith("CC=")]
        # h5py may be built with the compiler of the MPI that the job uses, and with no other.
        assert set(built) <= {own, "/usr/bin/mpicc"} if mpi in ("system", "openmpi5") else {own}
