"""A private Slurm on this machine: a controller and several nodes, for the tests of the batch scripts.

Nodes are those of multinode.py, each with an slurmd of its own; slurmctld and munged run on their head.
Key, socket, spool and state lie in one temporary folder, ports in the imitated network: nothing of this
machine's own Slurm or munge is touched. Every process hangs on this one and ends with it.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import launcher
import multinode
import processes
from patience import PATIENCE

from mpips.testing.nodes import HEAD_ADDRESS

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")
CPUS = 8

# Nodes declare more CPUs than this machine has. A job may start again as soon as credentials of its last
# start have expired, and nothing waits for the next turn of a scheduler.
_CONFIGURATION = """
ClusterName=mpips
SlurmctldHost={controller}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=0,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=1
SlurmdTimeout=20
MessageTimeout=20
KillWait=5
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
"""


@functools.cache
def why_not() -> str:
    """What keeps this machine from running a private Slurm; empty if nothing does."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    lacking = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    if lacking:
        return f"a private Slurm needs {', '.join(lacking)} (Debian: slurm-wlm, munge)"
    return multinode.why_not()


class Slurm:
    """A controller and `n` nodes of `CPUS` CPUs each. Use it in a `with` block.

    Attributes:
        nodes: The imitated nodes; their hosts are the names that Slurm uses.
        folder: Configuration, logs and state.
    """

    def __init__(self, n: int = 4, without_plugins: Sequence[str] = ()) -> None:
        """Start it and wait until all nodes are idle.

        Args:
            n: Number of nodes.
            without_plugins: Patterns of plug-in files that this Slurm shall lack, as "mpi_pmix*".

        Raises:
            OSError: The kernel or a daemon refused; the message has the end of the logs.
        """
        self.folder = Path(tempfile.mkdtemp(prefix=f"{launcher.PREFIX}{os.getpid()}-slurm-"))
        self._daemons: list[launcher.Launch] = []
        self.nodes = multinode.Nodes(n)
        try:
            self._configure(without_plugins)
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Configuration and daemons.

    def _configure(self, without_plugins: Sequence[str]) -> None:
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        controller = f"head-{self.nodes.hosts[0].partition('-')[2]}"
        text = _CONFIGURATION.format(
            controller=controller,
            address=HEAD_ADDRESS,
            folder=self.folder,
            plugins=self._plugins(without_plugins),
        )
        for host, address in zip(self.nodes.hosts, self.nodes.addresses, strict=True):
            text += f"NodeName={host} NodeAddr={address} CPUs={CPUS} State=UNKNOWN\n"
        text += f"PartitionName=main Nodes={','.join(self.nodes.hosts)} Default=YES State=UP\n"
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        # Sockets of ranks lie where nodes share nothing.
        (self.folder / "mpi.conf").write_text("PMIxCliTmpDirBase=/dev/shm/session\n")

    def _plugins(self, without: Sequence[str]) -> Path:
        installed = _plugin_folder()
        if not without:
            return installed
        folder = self.folder / "plugins"
        folder.mkdir()
        missing = {path.name for pattern in without for path in installed.glob(pattern)}
        for path in installed.iterdir():
            if path.name not in missing:
                (folder / path.name).symlink_to(path)
        return folder

    def _start(self) -> None:
        munged = ["munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket"]
        munged += [
            f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "seed", "log")
        ]
        self._daemon(self._on_head(munged))
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged has no socket")
        self._daemon(self._on_head(["slurmctld", "-D"]))
        for node in range(len(self.nodes)):
            self.boot(node)
        self._until(lambda: self.states() == ["idle"] * len(self.nodes), "nodes are not idle")

    def _on_head(self, argv: Sequence[str]) -> list[str]:
        # nsenter and env only execute the next one, so the daemon is this process's child.
        return self.nodes.on_head(["setpriv", "--pdeathsig", "KILL", *argv])

    def _daemon(self, command: list[str]) -> None:
        self._daemons.append(launcher.Launch(command, self.environment()))

    def boot(self, node: int) -> None:
        """Start the slurmd of a node; it ends with the node."""
        init = self.nodes.inits[node]
        self._daemon(["nsenter", f"--target={init}", "--all", "slurmd", "-D"])

    def environment(self) -> dict[str, str]:
        """What a login shell has on this cluster: nothing of mpips."""
        path = [
            p for p in os.environ["PATH"].split(":") if not p.startswith(str(launcher.REPOSITORY))
        ]
        # What decides on the last bits of a product must be the same everywhere.
        kept = ("MPIPS_TEST", "OPENBLAS_", "MKL_", "NPY_")
        marks = {name: value for name, value in os.environ.items() if name.startswith(kept)}
        return marks | {
            "PATH": ":".join([*path, "/usr/sbin", "/sbin"]),
            "HOME": os.environ.get("HOME", "/root"),
            "USER": "root",
            "LANG": "C.UTF-8",
            "TMPDIR": "/dev/shm/session",
            # Nodes declare more CPUs than there are: nothing may be bound to one.
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }

    def _until(self, condition: object, what: str, timeout_s: float = 60.0) -> None:
        def holds() -> bool:
            return all(d.poll() is None for d in self._daemons) and bool(condition())  # type: ignore[operator]

        if not processes.until(holds, timeout_s):
            raise OSError(f"{what}:\n{self.logs()}")

    # What users do.

    def run(
        self,
        *argv: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the head, the cluster's login node."""
        return subprocess.run(
            self.nodes.on_head([str(a) for a in argv], cwd),
            env={**self.environment(), **(env or {})},
            capture_output=True,
            text=True,
            timeout=PATIENCE * timeout_s,
            stdin=subprocess.DEVNULL,
        )

    def submit(
        self, *argv: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> int:
        """`sbatch` with these arguments; the job's number.

        Raises:
            AssertionError: It was refused.
        """
        done = self.run("sbatch", "--parsable", *argv, cwd=cwd or launcher.REPOSITORY, env=env)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split(";")[0])

    def show(self, job: int | str) -> dict[str, str]:
        """What `scontrol show job` says of a job; of an array's first task, if it is one."""
        done = self.run("scontrol", "--oneliner", "show", "job", str(job))
        assert done.returncode == 0, done.stderr
        line = done.stdout.splitlines()[0]
        return dict(re.findall(r"(?:^| )([A-Z]\w*)=(\S*)", line))

    def wait(self, job: int | str, timeout_s: float = 60.0) -> dict[str, str]:
        """Wait until a job has ended; what `show` says then.

        Raises:
            AssertionError: It takes longer; the message has its output.
        """
        return self.wait_for(job, ENDED, timeout_s)

    def wait_for(
        self, job: int | str, states: Sequence[str], timeout_s: float = 60.0
    ) -> dict[str, str]:
        """Wait until a job is in one of these states; what `show` says then."""
        deadline = time.monotonic() + PATIENCE * timeout_s
        while (found := self.show(job))["JobState"] not in states:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"job {job} is {found['JobState']} ({found['Reason']}) after {timeout_s:g} s\n"
                    f"{self.output(found)}\n{self.logs()}"
                )
            time.sleep(0.1)
        return found

    def hosts_of(self, job: int) -> list[str]:
        """The nodes of a running job, in Slurm's order."""
        done = self.run("scontrol", "show", "hostnames", self.show(job)["NodeList"])
        return done.stdout.split()

    def output(self, shown: Mapping[str, str]) -> str:
        """What a job has written, by what `show` said of it."""
        path = Path(shown.get("StdOut", ""))
        return path.read_text(errors="replace") if path.is_file() else ""

    def states(self) -> list[str]:
        """State of every node, in their order."""
        done = self.run("sinfo", "--noheader", "--Node", "--format=%N %T")
        found = dict(line.split() for line in done.stdout.splitlines())
        return [found.get(host, "unknown") for host in self.nodes.hosts]

    def cancel_all(self) -> None:
        """End every job, and wait until none is left.

        Raises:
            AssertionError: Some are left.
        """
        self.run("scancel", "--user=root", "--quiet")
        gone = processes.until(lambda: not self.run("squeue", "--noheader").stdout, 60.0)
        assert gone, self.run("squeue").stdout

    def lose(self, node: int) -> None:
        """End a node at once, with its slurmd and all ranks on it, and tell the controller.

        Told it is, because finding out by itself takes it `SlurmdTimeout` seconds.
        """
        self.nodes.kill(node)
        host = self.nodes.hosts[node]
        done = self.run("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=lost")
        assert done.returncode == 0, done.stderr

    def logs(self, n_lines: int = 15) -> str:
        """The ends of the daemons' logs."""
        parts = [f"--- {d.args[-2:]} ended with {d.poll()}" for d in self._daemons if d.poll()]
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-n_lines:]
            parts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(parts)

    def close(self) -> None:
        """End all jobs, daemons and nodes. May be repeated."""
        self.nodes.close()
        for daemon in self._daemons:
            daemon.kill()
        self._daemons.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


@functools.cache
def _plugin_folder() -> Path:
    """Where the plug-ins of the installed Slurm are."""
    folders = Path("/usr/lib").glob("*/slurm-wlm")
    found = next((f for f in folders if (f / "auth_munge.so").exists()), None)
    return found or Path("/usr/lib64/slurm")


__all__ = ["CPUS", "ENDED", "Slurm", "why_not"]
