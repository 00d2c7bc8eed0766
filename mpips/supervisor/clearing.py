"""End what is left of a run on other hosts: run `reap.py` on each of them by srun, ssh or an agent."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mpips.supervisor import reap
from mpips.supervisor.asking import AskingLimits, ask_hosts
from mpips.supervisor.host_names import compact
from mpips.supervisor.host_step import ProcessLauncher, wrapped
from mpips.supervisor.hosts import is_here

# Environment variables that name the program by which mpirun starts processes on other hosts.
_AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC")
# One task on each host, beside the tasks of the job, without MPI. A lost node or a task that fails does not
# end the tasks on other hosts.
_SRUN = ("srun", "--overlap", "--no-kill", "--kill-on-bad-exit=0", "--mpi=none", "--quiet")
LIMITS = AskingLimits()


class Cleared(NamedTuple):
    """The answers of hosts that were asked to end what is left of a run.

    Attributes:
        failed: Why each host is bad that did not answer, or could not end what is left.
        memory: The run's shared memory on each other host.
    """

    failed: dict[str, str]
    memory: dict[str, reap.LeftMemory]


def clear(
    names: Sequence[str],
    run_dir: Path,
    generation: int,
    token: str = "",
    *,
    env: Mapping[str, str] = os.environ,
    limits: AskingLimits = LIMITS,
    keep: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    hurry: Callable[[], bool] = lambda: False,
) -> Cleared:
    """End what is left of a run on some hosts. Blocks until each has answered or is bad; see asking.py.

    Args:
        names: The hosts.
        run_dir: The run directory.
        generation: Generation number of the last attempt to end; processes of later ones are left alone.
        token: Names the run's shared memory, which is removed as well; "": it is left alone.
        env: Environment of the commands, and where an agent is looked up.
        limits: Limits of time and tries.
        keep: Leave the memory from which a launch can continue.
        tell: Receives lines for people, if most hosts are slow.
        hurry: Called several times a second; True: hosts that have not answered are not waited for.
    """
    command = [sys.executable, str(Path(reap.__file__)), str(run_dir), str(generation)]
    command += ["--keep" if keep else "--forget", token] if token else []

    def argv_of(hosts: Sequence[str]) -> list[str]:
        return reach(hosts, wrapped(command), env, limits)

    agent = _agent(env)
    has_wide_steps = not agent and bool(env.get("SLURM_JOB_ID"))
    with ProcessLauncher(argv_of, env, has_wide_steps) as launcher:
        found = ask_hosts(names, launcher, limits, tell, hurry)
    failed, memory = dict(found.failed), {}
    for name, answer in found.answers.items() if token else ():
        left = _memory_of(answer)
        if left is None:
            failed[name] = "its answer cannot be read"
        else:
            memory[name] = left
    return Cleared(failed, memory)


def _agent(env: Mapping[str, str]) -> str:
    """Return the command that reaches a host for mpirun; "": none is set."""
    agent = next((env[name] for name in _AGENTS if env.get(name)), "")
    # Open MPI accepts a list such as "ssh : rsh".
    return agent.partition(":")[0].strip()


def reach(
    hosts: Sequence[str], command: Sequence[str], env: Mapping[str, str], limits: AskingLimits
) -> list[str]:
    """Return the command that runs `command` on hosts: by mpirun's agent, srun or ssh.

    Args:
        hosts: The hosts; only srun reaches several.
        command: The program and its arguments.
        env: Where an agent and the Slurm allocation are looked up.
        limits: Limits of time.
    """
    if len(hosts) == 1 and is_here(hosts[0]):
        return list(command)
    if agent := _agent(env):
        return [*shlex.split(agent), hosts[0], shlex.join(command)]
    if env.get("SLURM_JOB_ID"):
        n = str(len(hosts))
        # Slurm reads no name with a domain after brackets.
        names = ",".join(hosts) if any("." in host for host in hosts) else compact(hosts)
        places = ["-N", n, "-n", n, "--ntasks-per-node=1", "-w", names]
        return [*_SRUN, *places, *command]
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(limits.start_s / 2))}"]
    return ["ssh", *options, hosts[0], shlex.join(command)]


def _memory_of(answer: str) -> reap.LeftMemory | None:
    """Return the memory that an answer of reap.py names; None: the answer cannot be read."""
    try:
        found = json.loads(answer)
        return reap.LeftMemory(found["removed"], found["remaining_bytes"], tuple(found["foreign"]))
    except (KeyError, TypeError, ValueError):
        return None
