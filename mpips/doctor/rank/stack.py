"""One process without a launcher that loads MPI and HDF5 step by step.

It prints its findings again after each step, because the next step may end the process.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from mpips.doctor.situation import Stack, library_name


def _print(stack: Stack) -> None:
    print("stack: " + msgspec.json.encode(stack).decode(), flush=True)


def _loaded() -> list[str]:
    """Return the paths of all MPI libraries that this process has loaded."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(p for p in paths if Path(p).name.startswith(("libmpi.so", "libmpich.so")))


def _age_s() -> float:
    """Return the seconds since the start of this process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def _waiting_s() -> float:
    """Return the seconds in which this process had no core to run on; 0.0 if Linux does not count them."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _initialized() -> bool:
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and bool(module.Is_initialized())


def main() -> None:
    """Import mpips, load HDF5, load MPI, and initialise MPI; print the findings after each step."""
    stack = Stack(ended="the process ended while it loaded h5py")
    # Import what `mpips train` imports. The start of Python and the imports of this module count, too.
    import mpips.training.train  # noqa: F401

    stack.import_s, stack.waiting_s = _age_s(), _waiting_s()
    stack.quiet = "mpi4py" not in sys.modules
    _print(stack)
    from mpips.checkpoint.structure import hdf5_kind
    from mpips.data.hdf5 import load_hdf5

    stack.hdf5 = hdf5_kind()
    if stack.hdf5 != "none":
        h5py = load_hdf5("writing checkpoints")
        stack.hdf5_version, stack.h5py_path = h5py.version.hdf5_version, str(h5py.__file__)
    stack.quiet = stack.quiet and not _initialized()
    stack.ended = "the process ended while it loaded MPI"
    _print(stack)
    import mpi4py

    mpi4py.rc.initialize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        stack.mpi_error, stack.ended = str(error), ""
        _print(stack)
        return
    stack.mpi = library_name(MPI.Get_library_version())
    stack.libraries = _loaded()
    stack.ended = "the process ended while it initialised MPI"
    _print(stack)
    from mpips.mpi.launch import load_mpi

    load_mpi()
    stack.initialized, stack.libraries, stack.ended = True, _loaded(), ""
    _print(stack)


main()
