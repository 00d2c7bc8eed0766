"""The end of a launch before MPI has started in a rank.

Open MPI's mpirun and srun end all ranks when one of them exits with a code other than 0. Hydra, the launcher
of MPICH and Intel MPI, does so only for a rank that has started MPI: the others would wait for it in the
start of MPI. But Hydra accepts the order to abort on the connection that each rank has to it from its start
(wire protocol of PMI 1), and then exits with the code of the order.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping

_PRINTED_S = 0.1  # s in which Hydra passes on what this process has printed


def end_launch(code: int, env: Mapping[str, str] = os.environ) -> None:
    """End all ranks of this launch with an exit code, if Hydra would not do it when this process exits.

    Call it just before this process exits, and before it has started MPI. No effect under other launchers and
    in a launch of one rank. Blocks for a moment.

    Args:
        code: Exit code of the launch, not 0.
        env: Environment of this process.
    """
    fd = env.get("PMI_FD", "")
    is_hydra = "MPI_LOCALNRANKS" in env and fd.isdigit() and env.get("PMI_SIZE", "1") != "1"
    if not is_hydra or not _is_connection(int(fd)):
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    time.sleep(_PRINTED_S)
    with contextlib.suppress(OSError):
        os.write(int(fd), f"cmd=abort exitcode={code}\n".encode())


def _is_connection(fd: int) -> bool:
    """Return True if a descriptor is a connection without an address, as a launcher's socket pair is."""
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            return connection.family == socket.AF_UNIX and not connection.getpeername()
    except OSError:
        return False
