"""The mark of a rank, and the programs that a rank starts.

A launcher describes a rank to its process in environment variables, and `mpips run` adds the run directory.
A program that a rank starts (`mpips predict` by `subprocess`, for example) inherits them all, but it is not
the rank: MPI would wait for it in vain, and its files would replace those of the run. So a process that
becomes a rank adds a mark to its environment: its pid, and a checksum of these variables. A process that
finds the mark of another process under the same variables is such a program. It removes the variables when
it imports mpips, and is a process of its own from then on. Under other variables a launcher has started a
rank anew, and the mark is without effect.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Mapping, MutableMapping

MARK = "MPIPS_RANK"
# Variables whose values differ between two launches, or between two ranks of a launch.
_DESCRIBING = (
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_SIZE",
    "PMI_RANK",
    "PMI_FD",
    "PMI_PORT",
    "PMI_JOBID",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "MPIPS_RUN_DIR",
    "MPIPS_GENERATION",
)
# Prefixes of the variables that make a process a rank. Settings of a library (..._MCA_...) are none of them.
_OF_RANK = (
    "OMPI_COMM_WORLD_",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_APP_CTX_NUM_PROCS",
    "OMPI_FIRST_RANKS",
    "OMPI_MCA_ess_",
    "OMPI_MCA_orte_",
    "PRTE_MCA_ess_",
    "PMI_",
    "PMIX_",
    "MPI_LOCAL",
    "HYDI_",
    "HYDRA_",
    "SLURM_STEP_",
    "SLURM_STEPID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "MPIPS_RUN_DIR",
    "MPIPS_GENERATION",
    "MPIPS_TERMINAL",
    MARK,
)
_KEPT = ("PMIX_MCA_",)


def mark() -> None:
    """Mark the environment of this process, which is a rank from here on; no effect without a launcher."""
    if any(os.environ.get(name) for name in _DESCRIBING if not name.startswith("SLURM_JOB")):
        os.environ[MARK] = f"{os.getpid()}:{_checksum(os.environ)}"


def is_beside_rank(env: Mapping[str, str], pid: int) -> bool:
    """Return True if a rank has started process `pid`, whose environment is `env`, as another program."""
    owner, _, checksum = env.get(MARK, "").partition(":")
    return owner.isdigit() and int(owner) != pid and checksum == _checksum(env)


def leave(env: MutableMapping[str, str] = os.environ) -> None:
    """Remove the description of a rank from the environment of a program that the rank has started."""
    if is_beside_rank(env, os.getpid()):
        for name in [name for name in env if name.startswith(_OF_RANK)]:
            if not name.startswith(_KEPT):
                del env[name]


def _checksum(env: Mapping[str, str]) -> str:
    text = "\0".join(env.get(name, "") for name in _DESCRIBING)
    return f"{binascii.crc32(text.encode(errors='surrogateescape')):08x}"
