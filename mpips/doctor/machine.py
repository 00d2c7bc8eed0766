"""Checks of the machine: shared memory, memory, cores, limits, and the restrictions of a container."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import socket
import subprocess
import sys

from mpips.config.options import SessionOptions
from mpips.doctor.cleaning import leftovers
from mpips.doctor.finding import Judgement, failed, passed, warned
from mpips.doctor.situation import Situation
from mpips.errors import RegionError
from mpips.model.table import EmbeddingTable
from mpips.mpi.launch import local_size
from mpips.mpi.roles import alone, assign
from mpips.transport.region import MOST_RESERVED, Regions, new_token
from mpips.worker.buffers import JobBuffers

_SMALL_SHM = 1 << 30  # bytes; less free space than this is a warning
_SOCKET_PATH = 107  # greatest number of characters in the path of a Unix socket
_SESSION_PATH = 60  # characters that an MPI appends to the folder for temporary files
_MOUNT_SHM = "mount -t tmpfs shm /dev/shm"
_GROW_SHM = (
    "mount -o remount,size=8G /dev/shm   # in Docker: docker run --shm-size=8g (or --ipc=host)"
)
# Seconds of a round trip of a flag. Cores that share a cache take up to 0.15 us, tiles of a mesh 0.3 us,
# chiplets and sockets 0.4 us and more.
_FAR_S = 0.25e-6
_FEW_FILES = 1024  # open files per process; a lower limit is a warning


def mailboxes(n_ranks: int) -> int:
    """Return the bytes of shared memory that a job of `n_ranks` ranks on one node needs for empty tables."""
    a = alone("") if n_ranks == 1 else assign([0] * n_ranks, [""], None)
    tables = [EmbeddingTable("rows", 1)]
    buffers = JobBuffers(tables, tables, SessionOptions(), a, ((), ()))
    return buffers.of_node(0, buffers.shares()).rings


def shared_memory(here: Situation) -> Judgement:
    """Check that /dev/shm has room for the regions of a job."""
    space = here.space(here.shm)
    if space is None or not os.access(here.shm, os.W_OK | os.X_OK):
        return failed(f"{here.shm} does not exist or is not writable", _MOUNT_SHM)
    needed = mailboxes(here.n_ranks)
    text = f"{space.free / 2**30:.2f} of {space.total / 2**30:.2f} GiB of {here.shm} are free"
    if space.free < needed:
        return failed(
            f"{text}; {here.n_ranks} ranks need {needed / 2**20:.0f} MiB before any parameter",
            _GROW_SHM,
        )
    if space.free < _SMALL_SHM:
        return warned(
            f"{text}; tables of servers are stored there (mpips plan computes their size)",
            _GROW_SHM,
        )
    return passed(text)


def regions(here: Situation) -> Judgement:
    """Check that shared memory with the address space of an embedding table can be made."""
    made = Regions(new_token(), shared=True)
    try:
        memory = made.create("doctor", 1 << 20, MOST_RESERVED)
        memory.view(0, 1, True)[0] = 1
        # Make the buffers of a table, too: unlike rows they cannot do with less address space.
        made.create_sparse("doctor-buffers", MOST_RESERVED)
    except RegionError as error:
        return failed(str(error), _fix_of_region(str(error)))
    finally:
        made.unlink()
    return passed(f"shared memory with {MOST_RESERVED >> 40} TiB of addresses can be made")


def _fix_of_region(text: str) -> str:
    """Return the command that fixes an error about shared memory, by the reason of the system in its text."""
    fixes = (
        (errno.ENOMEM, "ulimit -v unlimited"),
        (errno.EFBIG, "ulimit -f unlimited"),
        (errno.ENOSPC, _GROW_SHM),
        (errno.ENOENT, _MOUNT_SHM),
        (errno.EROFS, _MOUNT_SHM),
        (errno.EACCES, _MOUNT_SHM),
    )
    found = (fix for number, fix in fixes if os.strerror(number) in text)
    return next(found, "mpips doctor --clean   # removes the memory of ended runs")


def clean(here: Situation) -> Judgement:
    """Check that ended runs have left no files."""
    found = leftovers(here.shm, here.temporary, here.folder)
    dead = [left for left in found if left.dead]
    if not dead:
        others = f"; {len(found)} that may be in use" if found else ""
        return passed(f"no files of ended runs in {here.shm} and {here.temporary}{others}")
    total = sum(left.n_bytes for left in dead)
    has_rows = any(left.path.parent == here.folder for left in dead)
    return warned(
        f"files and folders of ended runs: {len(dead)}, {total / 2**20:.0f} MiB",
        "mpips doctor --clean" + (f" --folder {here.folder}" if has_rows else ""),
    )


def cores(here: Situation) -> Judgement:
    """Check that this process and its children may use as many cores as there are ranks."""
    mine, online = here.cores
    if mine < online and mine < here.n_ranks:
        return warned(
            f"this process is bound to {mine} of {online} cores, so {here.n_ranks} ranks started from it "
            "share them",
            "mpirun --bind-to none ...   # under Slurm: srun --cpu-bind=none",
        )
    return passed(f"{mine} of {online} cores{_distance(here)}")


def _distance(here: Situation) -> str:
    """Return how long a changed cache line takes between cores, and what that means; empty for one core."""
    try:
        found = here.round_trips
    except (RuntimeError, OSError) as error:
        return f"; their distance was not measured: {error}"
    if not found:
        return ""
    times = ", ".join(f"{a} to {b} in {s * 1e6:.2f} us" for (a, b), s in found.items())
    far = [pair for pair, s in found.items() if s > _FAR_S]
    meaning = ""
    if far:
        meaning = ", far apart: values go past the caches"
    if far and len(far) < len(found):
        meaning = ": workers are best on cores near their server's"
    return f"; a flag goes there and back from core {times}{meaning}"


def threads(here: Situation) -> Judgement:
    """Check that the NumPy threads of all ranks fit on the cores."""
    value = here.env.get("OMP_NUM_THREADS", "")
    n_ranks = max(local_size(here.env), here.n_ranks)
    cores = here.cores[0]
    if not value:
        return warned(
            f"OMP_NUM_THREADS is not set: each of {n_ranks} ranks may start {cores} threads for NumPy",
            "export OMP_NUM_THREADS=1",
        )
    if value.isdigit() and int(value) > 1 and int(value) * n_ranks > cores:
        return warned(
            f"OMP_NUM_THREADS={value} times {n_ranks} ranks is more than {cores} cores",
            f"export OMP_NUM_THREADS={max(1, cores // n_ranks)}",
        )
    return passed(f"OMP_NUM_THREADS={value}")


def limits(here: Situation) -> Judgement:
    """Check the limits of this process on open files and on the size of files."""
    n_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if size != resource.RLIM_INFINITY:
        return warned(
            f"files are limited to {size / 2**20:.0f} MiB, also those of shared memory and checkpoints",
            "ulimit -f unlimited",
        )
    if n_files != resource.RLIM_INFINITY and n_files < _FEW_FILES:
        return warned(f"a process may open only {n_files} files", f"ulimit -n {_FEW_FILES}")
    return passed(f"{n_files} open files, files of any size")


def single_copy(here: Situation) -> Judgement:
    """Check that a process may read another's memory, as an MPI does for large messages within a node."""
    error = read_other_process()
    if not error:
        return passed("processes may read each other's memory (CMA)")
    version = here.open_mpi
    name = "OMPI_MCA_smsc=^cma" if version >= (5,) else ""
    if version and version < (5,):
        name = "OMPI_MCA_btl_vader_single_copy_mechanism=emulated"
    if name and here.env.get(name.partition("=")[0]) == name.partition("=")[2]:
        return passed(
            "processes may not read each other's memory (CMA), and the environment switches CMA off"
        )
    return warned(
        f"process_vm_readv: {error}; as in Docker, MPI then prints 'Read -1, expected N, errno = 1'",
        f"export {name}" if name else "docker run --cap-add=SYS_PTRACE ...",
    )


class _Vector(ctypes.Structure):
    """The iovec of process_vm_readv."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_other_process() -> str:
    """Read some bytes of a child's memory. Return "" on success, else the reason of the system. Blocks."""
    program = (
        "import ctypes, sys\n"
        "b = ctypes.create_string_buffer(b'mpips')\n"
        "print(ctypes.addressof(b), flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-S", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        address = int(child.stdout.readline() or 0)
        buffer = ctypes.create_string_buffer(5)
        here = _Vector(ctypes.addressof(buffer), 5)
        there = _Vector(address, 5)
        libc = ctypes.CDLL(None, use_errno=True)
        n = libc.process_vm_readv(child.pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        error = os.strerror(ctypes.get_errno())
        child.communicate(timeout=10)
    return "" if n == 5 and buffer.raw == b"mpips" else error


def temporary(here: Situation) -> Judgement:
    """Check that the folder for temporary files is writable and its path short enough for MPI's sockets."""
    path = here.temporary
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        return failed(f"TMPDIR: {path} is not a writable folder", "export TMPDIR=/tmp")
    if len(str(path)) + _SESSION_PATH > _SOCKET_PATH:
        return warned(
            f"TMPDIR has {len(str(path))} characters, but paths of MPI's sockets in it may have only "
            f"{_SOCKET_PATH} in all",
            "export TMPDIR=/tmp",
        )
    return passed(str(path))


def host_name(here: Situation) -> Judgement:
    """Check that the name of this host has an address, which launchers look up."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return warned(
            f"the host name {name!r} has no address: {error}",
            f"echo 127.0.1.1 {name} >> /etc/hosts",
        )
    return passed(name)


def memory(here: Situation) -> Judgement:
    """Check that a container or batch system does not grant much less memory than the machine has."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    granted = here.memory_limit or machine
    if granted < machine / 8 and granted < 2 << 30:
        return warned(
            f"only {granted / 2**30:.1f} of the machine's {machine / 2**30:.0f} GiB are granted, including "
            "/dev/shm",
            "docker run --memory=8g ...   # under Slurm: sbatch --mem=8G",
        )
    return passed(f"{min(granted, machine) / 2**30:.1f} GiB")


CHECKS = {
    "shm": shared_memory,
    "regions": regions,
    "leftovers": clean,
    "memory": memory,
    "cores": cores,
    "threads": threads,
    "limits": limits,
    "single-copy": single_copy,
    "tmpdir": temporary,
    "host-name": host_name,
}
