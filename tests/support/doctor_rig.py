"""A machine on which every check of `mpips doctor` passes, and changes that break it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mpips.doctor.situation import Completed, Situation, Space, Stack

GOOD_STACK = {
    "import_s": 0.3,
    "hdf5": "parallel",
    "hdf5_version": "1.14.3",
    "h5py_path": "/venv/h5py",
    "mpi": "Open MPI v5.0.11",
    "libraries": ["/venv/lib/libmpi.so.40"],
    "initialized": True,
}
VERSIONS = {
    "numpy": (2, 1),
    "mpi4py": (4, 1, 2),
    "msgspec": (0, 22),
    "click": (8, 1, 7),
    "rich": (13, 9),
    "threadpoolctl": (3, 5),
    "h5py": (3, 16),
    "setuptools": (80, 1),
}
STEP = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}


class Fake(Situation):
    """A machine on which every check passes, until a test changes it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 2, {"OMP_NUM_THREADS": "1", "PATH": "/bin"}, folder, folder)
        self.stack = Stack(**GOOD_STACK)
        self.mpirun_version = "mpirun (Open MPI) 5.0.11"
        self.file_system = "ext4"
        self.versions: dict = dict(VERSIONS)
        self.commands: dict[str, Completed] = {}
        self.programs = {"mpirun": "/venv/bin/mpirun"}
        self.files: dict[str, str] = {}
        self.room = Space(64 << 30, 32 << 30)
        self.root = False
        self.core_counts = (8, 8)
        self.round_trips = {(0, 1): 1e-7, (0, 7): 1e-7}
        self.granted = 0

    def run(self, *command: str, timeout_s: float = 20.0) -> Completed:
        return self.commands.get(" ".join(command), Completed(127, "no such command"))

    def which(self, program: str) -> str | None:
        return self.programs.get(program)

    def read(self, path: str) -> str:
        return self.files.get(path, "")

    def space(self, path: Path) -> Space | None:
        return self.room

    def version(self, package: str) -> tuple[int, ...] | None:
        return self.versions.get(package)

    @property
    def is_root(self) -> bool:
        return self.root

    @property
    def memory_limit(self) -> int:
        return self.granted

    @property
    def cores(self) -> tuple[int, int]:
        return self.core_counts


def stack(**changes: object) -> Callable[[Fake, pytest.MonkeyPatch], None]:
    """Return a change of what the child process finds."""

    def apply(here: Fake, patch: pytest.MonkeyPatch) -> None:
        here.stack = Stack(**{**GOOD_STACK, **changes})

    return apply


def attributes(**changes: object) -> Callable[[Fake, pytest.MonkeyPatch], None]:
    """Return a change of the machine; dictionaries are added to the present ones."""

    def apply(here: Fake, patch: pytest.MonkeyPatch) -> None:
        for name, value in changes.items():
            if name in ("env", "versions", "commands", "programs", "files"):
                value = {**getattr(here, name), **value}
            setattr(here, name, value)

    return apply


def env(**changes: str) -> Callable[[Fake, pytest.MonkeyPatch], None]:
    """Return a change of the environment."""
    return attributes(env=changes)


def old_open_mpi(version: str, **environment: str) -> Callable[[Fake, pytest.MonkeyPatch], None]:
    def apply(here: Fake, patch: pytest.MonkeyPatch) -> None:
        stack(mpi=f"Open MPI v{version}")(here, patch)
        here.mpirun_version = f"mpirun (Open MPI) {version}"
        here.env = {**here.env, **environment}

    return apply
