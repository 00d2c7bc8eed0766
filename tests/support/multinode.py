"""Imitated nodes (mpips/testing/nodes.py) with what tests do to them: start, look, kill, cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import launcher

from mpips.testing import nodes
from mpips.testing.nodes import checked, is_alive, why_not

__all__ = ["Nodes", "why_not"]


class Nodes(nodes.Nodes):
    """A head and `n` nodes for a test. Use it in a `with` block; all launches end with it."""

    def __init__(self, n: int) -> None:
        """Start the nodes.

        Raises:
            OSError: The kernel or a missing tool forbids it.
        """
        self._launches: list[launcher.Launch] = []
        super().__init__(n, launcher.PREFIX)
        self._pid_namespaces = [os.stat(f"/proc/{pid}/ns/pid").st_ino for pid in self.inits]

    def __enter__(self) -> Nodes:
        return self

    def start_on_head(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        cwd: Path | None = None,
    ) -> launcher.Launch:
        """Start a command on the head, as a batch script does; any mpirun in it knows the nodes.

        Args:
            argv: Program and arguments. Files are shared, like on a cluster.
            env: Added to its environment; ranks on the nodes see of it what mpirun carries there.
            timeout: Seconds it may take until `wait` calls it hung.
            cwd: Folder to run in.
        """
        command = self.on_head(argv, cwd)
        environment = {**launcher.site_environment(), **self.environment, **(env or {})}
        launched = launcher.Launch(command, environment, timeout)
        self._launches.append(launched)
        return launched

    def start(
        self,
        ranks_per_node: Sequence[int],
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        extra_mpirun: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> launcher.Launch:
        """Start `argv` by mpirun, with so many ranks on each node.

        Args:
            ranks_per_node: Number of ranks per node; 0 leaves a node out.
            argv: Program and arguments.
            env: For the ranks of all nodes (`mpirun -x`).
            timeout: Seconds the launch may take until `wait` calls it hung.
            extra_mpirun: More arguments of mpirun.
            cwd: Folder of the ranks.
        """
        mpirun = shutil.which("mpirun", path=launcher.site_environment()["PATH"]) or "mpirun"
        flags = self.mpirun_flags(ranks_per_node, list(env or {}))
        return self.start_on_head([mpirun, *flags, *extra_mpirun, *argv], env, timeout, cwd)

    def mpirun(
        self,
        ranks_per_node: Sequence[int],
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        extra_mpirun: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Do as `start` does, wait for the end and return exit code and output.

        Raises:
            AssertionError: It took longer than `timeout` seconds.
        """
        with self.start(ranks_per_node, argv, env, timeout, extra_mpirun, cwd) as launched:
            code = launched.wait()
        return subprocess.CompletedProcess(
            launched.args, code, launched.stdout(), launched.stderr()
        )

    def run(self, node: int, argv: Sequence[str], timeout: float = 10.0) -> str:
        """Run a command on a node, without MPI, and return its stdout."""
        command = ["nsenter", f"--target={self.inits[node]}", "--all", *argv]
        return checked(*command, timeout_s=timeout)

    def pids(self, node: int) -> list[int]:
        """Pids, as this process sees them, of everything on a node but its init."""
        own = self._pid_namespaces[node]
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                inside = os.stat(folder / "ns/pid").st_ino == own
                if inside and is_alive(int(folder.name)):
                    found.append(int(folder.name))
        return [pid for pid in found if pid != self.inits[node]]

    def outer_pid(self, node: int, pid: int) -> int:
        """Translate a pid that a process on `node` calls its own into the one to kill it by.

        Raises:
            ProcessLookupError: There is none.
        """
        for outer in self.pids(node):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{outer}/status").read_text()
                line = next(x for x in status.splitlines() if x.startswith("NSpid:"))
                if int(line.split()[-1]) == pid:
                    return outer
        raise ProcessLookupError(f"no process {pid} on {self.hosts[node]}")

    def segments(self, node: int) -> set[str]:
        """Names of the shared-memory segments of mpips on a node."""
        return {path.name for path in Path(f"/proc/{self.inits[node]}/root/dev/shm").glob("mpips*")}

    def kill(self, node: int) -> None:
        """End a node at once: all its processes and its shared memory are gone, its link is dead."""
        os.kill(self.inits[node], signal.SIGKILL)
        self.wait_killed(node)

    def cut(self, node: int) -> None:
        """Take a node's link down: everything on it lives, and nothing reaches it."""
        checked(
            "nsenter", f"--target={self.inits[node]}", "--net", "ip", "link", "set", "eth0", "down"
        )

    def mend(self, node: int) -> None:
        """Bring a link up again that was cut."""
        checked(
            "nsenter", f"--target={self.inits[node]}", "--net", "ip", "link", "set", "eth0", "up"
        )

    def close(self) -> None:
        """End all nodes and all that runs on them. May be repeated."""
        for launched in self._launches:
            launched.kill()
        super().close()
