"""The only import of h5py: when it is needed, and without initialising MPI."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

from mpips.errors import CapabilityError
from mpips.process import forked


def keep_mpi_asleep() -> None:
    """Prevent a library that imports mpi4py (h5py built with MPI) from initialising MPI.

    The MPI library is loaded, but not initialised; `mpips.mpi.launch.load_mpi` can initialise it later. If
    mpi4py.MPI is loaded already, nothing changes.
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
    # Load MPI through mpi4py, which knows the right library. HDF5 asks for "libmpi" by its short name and
    # gets the one that is loaded already, else that of the system. (mpirun sets a path for both, srun does
    # not.)
    with contextlib.suppress(ImportError, RuntimeError):
        importlib.import_module("mpi4py.MPI")


def load_hdf5(what: str) -> Any:
    """Import h5py. A build with MPI does not initialise MPI.

    Args:
        what: The purpose, for the error: "reading HDF5".

    Returns:
        The module h5py.

    Raises:
        CapabilityError: The module cannot be imported.
    """
    try:
        if "h5py" not in sys.modules:
            keep_mpi_asleep()
        import h5py
    except (ImportError, RuntimeError) as error:
        raise CapabilityError(f"{what} needs h5py (pip install h5py): {error}") from None
    return h5py
