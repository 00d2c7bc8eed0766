"""A machine made up of a PATH and an environment, for the tests of shell scripts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = """bash cat cut date dirname env find flock grep head ls lscpu mkdir mv nproc paste rm sha256sum
    sort tail touch tr uname wc xargs"""


class Machine:
    """A copy of jobs/ and a PATH that holds some basic tools and what a test adds."""

    def __init__(self, folder: Path, uid: int = 1000) -> None:
        self.root = folder / "repository"
        shutil.copytree(ROOT / "jobs", self.root / "jobs")
        self.bin = folder / "usr/bin"
        self.bin.mkdir(parents=True)
        for tool in TOOLS.split():
            if path := shutil.which(tool):
                (self.bin / tool).symlink_to(path)
        self.add("id", f"echo {uid}")
        self.env = {"PATH": str(self.bin), "HOME": str(folder)}

    def add(self, name: str, script: str, folder: Path | None = None) -> Path:
        """Put a command on the machine."""
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # A link leads to the command of the real machine.
        path.unlink(missing_ok=True)
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        path.chmod(0o755)
        return path

    def add_compiler(self) -> None:
        self.add("c++", "cat >/dev/null")

    def add_python(self) -> None:
        """The interpreter under test; a link would lose its prefix."""
        self.add("python3", f'exec {sys._base_executable} "$@"')  # type: ignore[attr-defined]

    def add_hdf5(self, parallel: bool, folder: Path) -> Path:
        """An HDF5 with the compiler wrapper of the parallel kind."""
        (folder / "include").mkdir(parents=True)
        switch = "#define H5_HAVE_PARALLEL 1" if parallel else "/* #undef H5_HAVE_PARALLEL */"
        (folder / "include/H5pubconf.h").write_text(f"{switch}\n")
        return folder

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**self.env, **env},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def setup(self, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("bash", "jobs/setup.sh", **env)

    def call(self, function: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Call one function of setup.sh."""
        return self.run("bash", "-c", f"source jobs/setup.sh; {function}", **env)
