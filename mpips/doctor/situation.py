"""All that checks look at: environment, files, commands, and what a child process finds of MPI and HDF5.

Tests replace parts of it, so that every check is seen to fail.
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

from mpips.transport.region import SHM


class Completed(NamedTuple):
    """A command that has ended: its exit code (124: it took too long, 127: not there) and its output."""

    code: int
    output: str


class Space(NamedTuple):
    """Bytes of a file system."""

    total: int
    free: int


class Stack(msgspec.Struct, kw_only=True):
    """What a child process found of the libraries below mpips; see mpips.doctor.rank.stack.

    Attributes:
        import_s: Seconds that `import mpips` took.
        quiet: Whether importing mpips and h5py left MPI alone.
        hdf5: "parallel", "serial" or "none".
        hdf5_version: Of the HDF5 library; empty without one.
        h5py_path: Where h5py was found.
        mpi: First line of what the MPI library calls itself; empty where it cannot be loaded.
        mpi_error: Why it cannot.
        libraries: Paths of all libmpi that the process has loaded.
        initialized: Whether MPI could be initialised without a launcher.
        ended: How the child ended: empty if well.
    """

    import_s: float = 0.0
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
    """This machine, as it is."""

    def __init__(
        self,
        folder: Path,
        n_ranks: int = 2,
        env: Mapping[str, str] | None = None,
        shm: Path = SHM,
        temporary: Path | None = None,
    ) -> None:
        """`folder`: where checkpoints shall go; `n_ranks`: that a job on this node would have."""
        self.env: Mapping[str, str] = os.environ if env is None else env
        self.folder = folder
        self.n_ranks = n_ranks
        self.shm = shm
        self.temporary = temporary or Path(self.env.get("TMPDIR") or "/tmp")

    def run(self, *command: str, timeout_s: float = 20.0) -> Completed:
        """A command's exit code, and its stdout and stderr together. Blocks."""
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
                env=dict(self.env),
            )
        except subprocess.TimeoutExpired:
            return Completed(124, f"{command[0]} took longer than {timeout_s:g} s")
        except OSError as error:
            return Completed(127, str(error.strerror))
        return Completed(done.returncode, done.stdout.decode(errors="replace"))

    def which(self, program: str) -> str | None:
        """The path of a program; that of this Python's environment counts, too."""
        found = shutil.which(program, path=self.env.get("PATH"))
        beside = Path(sys.executable).with_name(program)
        return found or (str(beside) if os.access(beside, os.X_OK) else None)

    def read(self, path: str) -> str:
        """A small file's text; empty where it cannot be read."""
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            return ""

    def space(self, path: Path) -> Space | None:
        """Of the file system that holds `path`; None where there is none."""
        try:
            found = os.statvfs(path)
        except OSError:
            return None
        return Space(found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail)

    def version(self, package: str) -> tuple[int, ...] | None:
        """The numbers of an installed package's version; None without it."""
        try:
            return numbers(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            return None

    @property
    def is_root(self) -> bool:
        """Whether this is root, whom Open MPI refuses unless told."""
        return os.geteuid() == 0

    @property
    def cores(self) -> tuple[int, int]:
        """Cores that this process may use, and that are online."""
        return len(os.sched_getaffinity(0)), os.cpu_count() or 1

    @functools.cached_property
    def file_system(self) -> str:
        """Type of the file system of `folder`, as the kernel calls it."""
        return file_system(self.read("/proc/self/mountinfo"), self.folder.resolve())

    @functools.cached_property
    def mpirun_version(self) -> str:
        """What mpirun says of itself; empty where there is none."""
        path = self.which("mpirun")
        return self.run(path, "--version").output if path else ""

    @functools.cached_property
    def open_mpi(self) -> tuple[int, ...]:
        """Version of Open MPI, by its mpirun or the library; () for another MPI."""
        for text in (self.stack.mpi, self.mpirun_version):
            if "Open MPI" in text:
                return numbers(text.partition("Open MPI")[2])
        return ()

    @functools.cached_property
    def stack(self) -> Stack:
        """MPI and HDF5, as a child process finds them: it may crash, or hang, where we must not."""
        command = [sys.executable, "-m", "mpips.doctor.rank.stack"]
        done = self.run(*command, timeout_s=60.0)
        stack = Stack(ended="the child process said nothing")
        for line in done.output.splitlines():
            if line.startswith("stack: "):
                stack = msgspec.json.decode(line.removeprefix("stack: "), type=Stack)
        if done.code:
            last = done.output.strip().splitlines()[-1:] or [""]
            stack.ended = f"it ended with code {done.code}: {last[0]}"
        return stack


def numbers(text: str) -> tuple[int, ...]:
    """The first version number in a text: "v5.0.11rc1" is (5, 0, 11)."""
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
    """What an MPI library calls itself, in short: "Open MPI v5.0.11", "MPICH Version: 5.0.2"."""
    line = text.splitlines()[0].partition(",")[0]
    return " ".join(line.rstrip("\0").split())


def dotted(version: tuple[int, ...]) -> str:
    """The version as text."""
    return ".".join(map(str, version))


def file_system(mountinfo: str, path: Path) -> str:
    """Type of the file system that holds an absolute path, by /proc/self/mountinfo."""
    best, kind = -1, "unknown"
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = Path(fields[4].replace("\\040", " "))
        if (point == path or point in path.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), right.split()[0]
    return kind
