"""Reach hosts of several Slurm jobs: the agent by which mpirun starts its daemons in jobs that were lent.

Slurm starts processes only in the allocation that a command names, and mpirun names its own one. When a run
has hosts of other jobs, mpirun therefore starts its daemons as by ssh, with this file as the agent:

    slurm_agent.py HOST COMMAND...

It runs the command by srun in the job that has the host, and by the agent of the user, or by ssh, on hosts of
no job. The file is a program of its own and imports nothing of mpips, so that it starts quickly.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

JOBS = "MPIPS_HOST_JOBS"  # environment: "node1=17,node2=18", the Slurm job of each host
OUTER = "MPIPS_OUTER_AGENT"  # environment: the agent for hosts of no job; unset: ssh
AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC")
_KEPT = "SLURM_CONF"
# Processes must not take the variables of a job step for those of their own launch.
_UNSET = "unset $(env | sed -n 's/^\\(SLURM_[A-Za-z0-9_]*\\)=.*/\\1/p'); "


def environment(jobs: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which mpirun reaches hosts of several Slurm jobs; `env` if it need not.

    Args:
        jobs: The Slurm job of each host; "": of none, or of the job of `env` itself.
        env: The environment of the supervisor.

    Raises:
        ValueError: The path of Python or of this file cannot be part of the name of an agent.
    """
    if not any(job and job != env.get("SLURM_JOB_ID") for job in jobs.values()):
        return dict(env)
    program = f"{sys.executable} {Path(__file__).resolve()}"
    if len(program.split()) != 2 or ":" in program:
        raise ValueError(
            f"{program}: mpirun accepts no agent whose path has spaces or colons; install mpips elsewhere"
        )
    # mpirun must not take the hosts of one job for all there are.
    outer = {name: value for name, value in env.items() if name == _KEPT or name[:6] != "SLURM_"}
    if before := next((env[name] for name in AGENTS if env.get(name)), ""):
        outer[OUTER] = before.partition(":")[0].strip()
    outer[JOBS] = ",".join(f"{host}={job}" for host, job in jobs.items() if job)
    return {**outer, **dict.fromkeys(AGENTS, program), "HYDRA_LAUNCHER": "ssh"}


def argv_of(host: str, command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the command that runs `command`, which a shell reads, on a host.

    Args:
        host: The host.
        command: Words, which are joined by blanks as ssh joins them.
        env: Where the jobs and the outer agent are looked up.
    """
    text = " ".join(command)
    jobs = dict(pair.split("=", 1) for pair in env.get(JOBS, "").split(",") if "=" in pair)
    if job := jobs.get(host):
        step = [
            "--overlap",
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--mpi=none",
            "--quiet",
            "--input=none",
        ]
        places = [f"--jobid={job}", "-N", "1", "-n", "1", "-w", host]
        return ["srun", *step, *places, "/bin/sh", "-c", _UNSET + text]
    if outer := env.get(OUTER):
        return [*shlex.split(outer), host, text]
    return ["ssh", "-x", "-o", "BatchMode=yes", host, text]


def main() -> None:
    """Run the command; this process becomes srun, the outer agent or ssh."""
    if len(sys.argv) < 3:
        sys.exit("usage: slurm_agent.py HOST COMMAND...")
    argv = argv_of(sys.argv[1], sys.argv[2:], os.environ)
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main()
