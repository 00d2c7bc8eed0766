"""The facts that checks use: environment, files, commands, and what a child process finds of MPI and HDF5.

Tests replace some of these facts, so that each check can be seen to fail.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from mpips.mpi.mpirun import beside
from mpips.process.file_systems import file_system
from mpips.process.memory import group_limit
from mpips.transport.region import SHM


class Completed(NamedTuple):
    """A finished command: exit code (124: killed at its time limit, 127: not found), stdout and stderr."""

    code: int
    output: str


class Space(NamedTuple):
    """Size of a file system, and its free part, in bytes."""

    total: int
    free: int


class Stack(msgspec.Struct, kw_only=True):
    """The libraries below mpips, as the child process `mpips.doctor.rank.stack` finds them.

    Attributes:
        import_s: Seconds from the start of the child process to the end of the imports of `mpips train`.
        waiting_s: Seconds of `import_s` in which the child process waited for a core; 0 if the system does
            not count them.
        quiet: True if importing mpips and h5py loaded and initialised no MPI.
        hdf5: Kind of h5py: "parallel", "serial" or "none".
        hdf5_version: Version of the HDF5 library; empty without one.
        h5py_path: Path of the h5py package; empty without one.
        mpi: Name and version of the MPI library; empty if it cannot be loaded.
        mpi_error: Reason why mpi4py cannot load an MPI library; empty if it can.
        libraries: Paths of all libmpi files that the process has loaded.
        initialized: True if MPI could be initialised without a launcher.
        ended: Reason why the child process ended early; empty if it did not.
    """

    import_s: float = 0.0
    waiting_s: float = 0.0
    quiet: bool = True
    hdf5: str = "none"
    hdf5_version: str = ""
    h5py_path: str = ""
    mpi: str = ""
    mpi_error: str = ""
    libraries: list[str] = []
    initialized: bool = False
    ended: str = ""


class Situation:
    """The facts about this machine."""

    def __init__(
        self,
        folder: Path,
        n_ranks: int = 2,
        env: Mapping[str, str] | None = None,
        shm: Path = SHM,
        temporary: Path | None = None,
    ) -> None:
        """Collect nothing yet; each fact is looked up when a check asks for it.

        Args:
            folder: Folder for checkpoints.
            n_ranks: Number of ranks of a job on this node.
            env: Environment variables; None: those of this process.
            shm: Folder of shared memory.
            temporary: Folder for temporary files; None: TMPDIR, or /tmp.
        """
        self.env: Mapping[str, str] = os.environ if env is None else env
        self.folder = folder
        self.n_ranks = n_ranks
        self.shm = shm
        self.temporary = temporary or Path(self.env.get("TMPDIR") or "/tmp")

    def run(
        self, *command: str, timeout_s: float = 20.0, env: Mapping[str, str] | None = None
    ) -> Completed:
        """Run a command with this or another environment, for `timeout_s` at most. Blocks."""
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
                env=dict(self.env if env is None else env),
            )
        except subprocess.TimeoutExpired:
            return Completed(124, f"{command[0]} took longer than {timeout_s:g} s")
        except OSError as error:
            return Completed(127, str(error.strerror))
        return Completed(done.returncode, done.stdout.decode(errors="replace"))

    def which(self, program: str) -> str | None:
        """Return the path of a program on PATH or beside this Python; None if it is missing."""
        found = shutil.which(program, path=self.env.get("PATH"))
        beside = Path(sys.executable).with_name(program)
        return found or (str(beside) if os.access(beside, os.X_OK) else None)

    def read(self, path: str) -> str:
        """Return the text of a small file; empty if it cannot be read."""
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            return ""

    def space(self, path: Path) -> Space | None:
        """Return the size of the file system that holds `path`; None if the path does not exist."""
        try:
            found = os.statvfs(path)
        except OSError:
            return None
        return Space(found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail)

    def version(self, package: str) -> tuple[int, ...] | None:
        """Return the version of an installed package as numbers; None if it is not installed."""
        try:
            return numbers(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            return None

    @property
    def is_root(self) -> bool:
        """True if the user is root, whose jobs Open MPI refuses by default."""
        return os.geteuid() == 0

    @property
    def cores(self) -> tuple[int, int]:
        """Number of cores that this process may use, and number of cores online."""
        return len(os.sched_getaffinity(0)), os.cpu_count() or 1

    @functools.cached_property
    def round_trips(self) -> dict[tuple[int, int], float]:
        """Seconds in which a flag goes from one core to another and back, by pair. Blocks."""
        from mpips.doctor.distance import measure

        return measure(sorted(os.sched_getaffinity(0)))

    @property
    def memory_limit(self) -> int:
        """Bytes of memory that the control groups of this process grant; 0: there is no limit."""
        return group_limit()

    @functools.cached_property
    def file_system(self) -> str:
        """Type of the file system of `folder` by its kernel name, such as "ext4"."""
        return file_system(self.read("/proc/self/mountinfo"), self.folder.resolve())

    @functools.cached_property
    def mpirun_version(self) -> str:
        """Output of `mpirun --version`; empty if there is no mpirun."""
        path = self.which("mpirun")
        return self.run(path, "--version", env=beside(path, self.env)).output if path else ""

    @functools.cached_property
    def open_mpi(self) -> tuple[int, ...]:
        """Version of Open MPI, by the library or else by mpirun; () for another MPI."""
        for text in (self.stack.mpi, self.mpirun_version):
            if "Open MPI" in text:
                return numbers(text.partition("Open MPI")[2])
        return ()

    @functools.cached_property
    def stack(self) -> Stack:
        """MPI and HDF5. A child process loads them, since that may crash or hang. Blocks for up to 60 s."""
        command = [sys.executable, "-m", "mpips.doctor.rank.stack"]
        done = self.run(*command, timeout_s=60.0)
        stack = Stack(ended="the child process printed nothing")
        for line in done.output.splitlines():
            if line.startswith("stack: "):
                stack = msgspec.json.decode(line.removeprefix("stack: "), type=Stack)
        if done.code:
            last = done.output.strip().splitlines()[-1:] or [""]
            stack.ended = f"the child process ended with code {done.code}: {last[0]}"
        return stack


def numbers(text: str) -> tuple[int, ...]:
    """Return the first version number in a text: (5, 0, 11) of "v5.0.11rc1"; () without a number."""
    found: list[str] = [""]
    for character in text:
        if character.isdigit():
            found[-1] += character
        elif character == "." and found[-1]:
            found.append("")
        elif found[0]:
            break
    return tuple(int(part) for part in found if part)


def library_name(text: str) -> str:
    """Return the short form of MPI_Get_library_version: "Open MPI v5.0.11", "MPICH Version: 5.0.2"."""
    line = text.splitlines()[0].partition(",")[0]
    return " ".join(line.rstrip("\0").split())


def dotted(version: tuple[int, ...]) -> str:
    """Return version numbers as text: "5.0.11"."""
    return ".".join(map(str, version))
