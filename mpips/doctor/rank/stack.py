"""One process, no launcher: what of MPI and HDF5 can be loaded, told line by line as far as it comes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from mpips.doctor.situation import Stack, library_name


def _say(stack: Stack) -> None:
    print("stack: " + msgspec.json.encode(stack).decode(), flush=True)


def _loaded() -> list[str]:
    """Paths of all libmpi in this process."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(p for p in paths if Path(p).name.startswith(("libmpi.so", "libmpich.so")))


def _initialized() -> bool:
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and bool(module.Is_initialized())


def main() -> None:
    """Look; each step is told before the next, which may end the process."""
    stack = Stack(ended="it ended while it looked at h5py")
    # What Python itself had to load before this module counts as well.
    start = time.perf_counter()
    import mpips.training.train  # noqa: F401

    stack.import_s = time.perf_counter() - start
    stack.quiet = "mpi4py" not in sys.modules
    _say(stack)
    from mpips.checkpoint.structure import hdf5_kind
    from mpips.data.hdf5 import load_hdf5

    stack.hdf5 = hdf5_kind()
    if stack.hdf5 != "none":
        h5py = load_hdf5("writing checkpoints")
        stack.hdf5_version, stack.h5py_path = h5py.version.hdf5_version, str(h5py.__file__)
    stack.quiet = stack.quiet and not _initialized()
    stack.ended = "it ended while it loaded MPI"
    _say(stack)
    import mpi4py

    mpi4py.rc.initialize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        stack.mpi_error, stack.ended = str(error), ""
        _say(stack)
        return
    stack.mpi = library_name(MPI.Get_library_version())
    stack.libraries = _loaded()
    stack.ended = "it ended while it initialised MPI"
    _say(stack)
    from mpips.mpi.launch import load_mpi

    load_mpi()
    stack.initialized, stack.libraries, stack.ended = True, _loaded(), ""
    _say(stack)


main()
