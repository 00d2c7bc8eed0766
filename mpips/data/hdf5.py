"""h5py, loaded when it is needed and without starting MPI."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

from mpips.errors import CapabilityError
from mpips.process import forked


def keep_mpi_asleep() -> None:
    """Let a library that imports mpi4py (h5py built with MPI) not start MPI, if nobody has yet.

    MPI's library is loaded, but not initialised.

    `mpips.mpi.launch.load_mpi` still can, later.
    """
    if "mpi4py.MPI" in sys.modules:
        return
    try:
        import mpi4py
    except ImportError:
        return
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    forked.finalize_mpi_at_exit()
    # HDF5 asks for "libmpi" by its short name and takes one that is loaded already, else the system's:
    # let mpi4py be first, which knows the right one. (mpirun sets a path for both, srun does not.)
    with contextlib.suppress(ImportError, RuntimeError):
        importlib.import_module("mpi4py.MPI")


def load_hdf5(what: str) -> Any:
    """The module h5py. A build with MPI is kept from initialising MPI where nobody has.

    Args:
        what: What needs it, for the error: "reading HDF5".

    Raises:
        CapabilityError: It cannot be imported.
    """
    try:
        if "h5py" not in sys.modules:
            keep_mpi_asleep()
        import h5py
    except (ImportError, RuntimeError) as error:
        raise CapabilityError(f"{what} needs h5py (pip install h5py): {error}") from None
    return h5py
