"""The sources of hosts of an elastic run: its own list, hostfile or allocation, and the joins.

Nothing here blocks: Slurm and new hosts are asked by child processes, whose results are taken later.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from mpips.errors import ConfigError
from mpips.process.patience import is_over, running_s
from mpips.rundir.directory import STALE_S, RunFolder, version_of
from mpips.rundir.members import JoinFolder, JoinRecord
from mpips.supervisor.clearing import LIMITS, reach
from mpips.supervisor.hosts import Host, read_hostfile
from mpips.supervisor.membership import Offer

_ALLOCATION_S = 15.0  # seconds between two questions to Slurm
_HOSTFILE_S = 1.0  # seconds between two looks at the hostfile
_ANSWER_BYTES = 1 << 20
_ANSWER_S = 60.0  # s in which a child process must end
# Fails on a host that does not see the run directory or cannot load mpips; prints the name of the host.
_CHECK = "import socket, sys; open(sys.argv[1]).close(); import mpips.process; print(socket.gethostname())"


class HostQuestion:
    """A child process with a short answer, which is never waited for.

    Its output goes to files: a process that it leaves (a connection that ssh shares, for example) would hold
    pipes open.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it. A program that cannot be started is an answer."""
        self._since = running_s()
        self._error = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `end`
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self._error = f"{argv[0]} cannot be started: {error.strerror}"

    def answer(self) -> tuple[str, str] | None:
        """Return what it printed and why it failed ("": it did not); None while it runs. Not blocking.

        The object is of no use after an answer.
        """
        code = 0
        if self._process is not None and not self._error:
            if self._process.poll() is None and not is_over(self._since, _ANSWER_S):
                return None
            if self._process.poll() is None:
                self._error = f"no answer within {_ANSWER_S:g} s"
            code = self._process.returncode or 0
        out, errors = _end_of(self._out), _end_of(self._errors).strip().splitlines()
        if code and not self._error:
            self._error = errors[-1] if errors else f"ended with code {code}"
        self.end()
        return out, self._error

    def end(self) -> None:
        """Kill the process if it still runs, and close its files."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._out.close()
        self._errors.close()


def _end_of(file: IO[bytes]) -> str:
    """Return the end of what a process has written into a file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - _ANSWER_BYTES, 0))
    return file.read().decode(errors="replace")


class OwnHosts(Protocol):
    """The hosts that the options of a run name."""

    def hosts(self) -> tuple[Host, ...]:
        """Return them as they are now. Not blocking."""
        ...

    def end(self) -> None:
        """End a question that is under way."""
        ...


def with_slots(hosts: Sequence[Host], slots: int = 1) -> tuple[Host, ...]:
    """Return hosts with their numbers of slots, or this number where none is given."""
    return tuple(Host(host.name, host.slots or slots) for host in hosts)


class FixedHosts:
    """A list that stays."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        """Take the list."""
        self._hosts = with_slots(hosts)

    def hosts(self) -> tuple[Host, ...]:
        """Return the list."""
        return self._hosts

    def end(self) -> None:
        """Do nothing: no question is ever under way."""


class HostfileHosts:
    """A hostfile, which is read again when it has changed."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        """Read it.

        Args:
            path: The file.
            tell: Receives a line for people when a changed file cannot be used.

        Raises:
            ConfigError: It cannot be read.
        """
        self._path, self._tell = path.absolute(), tell
        self._version = version_of(self._path)
        self._hosts = with_slots(read_hostfile(self._path))
        self._looked_at = running_s()

    def hosts(self) -> tuple[Host, ...]:
        """Return its hosts; those of the last valid content, if it is damaged or missing now."""
        now = running_s()
        if now - self._looked_at < _HOSTFILE_S:
            return self._hosts
        self._looked_at = now
        version = version_of(self._path)
        if version != self._version:
            self._version = version
            try:
                self._hosts = with_slots(read_hostfile(self._path))
            except ConfigError as error:
                self._tell(f"mpips run: {error}; the run keeps its hosts")
        return self._hosts

    def end(self) -> None:
        """Do nothing: no question is ever under way."""


class AllocationHosts:
    """The Slurm allocation of this process, whose hosts change when it shrinks or grows."""

    def __init__(self, job: str, hosts: Sequence[Host], env: Mapping[str, str]) -> None:
        """Take the hosts at the start.

        Args:
            job: Number of the job.
            hosts: Its hosts.
            env: Environment of the commands of Slurm.
        """
        self._job, self._env = job, env
        self._slots = {host.name: host.slots or 1 for host in hosts}
        # A new host has as many slots as most others.
        self._usual = Counter(self._slots.values()).most_common(1)[0][0]
        self._hosts = with_slots(hosts)
        self._list = ""
        self._new_list = ""
        self._question: HostQuestion | None = None
        self._asked_at = running_s()

    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts by the last answer of Slurm."""
        now = running_s()
        if self._question is None:
            if now - self._asked_at >= _ALLOCATION_S:
                self._asked_at, self._new_list = now, ""
                self._ask("squeue", "--noheader", "--jobs", self._job, "--format", "%N")
            return self._hosts
        answer = self._question.answer()
        if answer is None:
            return self._hosts
        self._question = None
        out, error = answer
        words = out.split()
        if error or not words:
            # The controller may be busy: it is asked again.
            return self._hosts
        if not self._new_list:
            if words[0] != self._list:
                self._new_list = words[0]
                self._ask("scontrol", "show", "hostnames", self._new_list)
            return self._hosts
        self._list = self._new_list
        self._hosts = tuple(Host(name, self._slots.get(name, self._usual)) for name in words)
        return self._hosts

    def end(self) -> None:
        """End a question that is under way."""
        if self._question is not None:
            self._question.end()
            self._question = None

    def _ask(self, *argv: str) -> None:
        self._question = HostQuestion(argv, self._env)


class JoinedHosts:
    """The joins of a run that show signs of life."""

    def __init__(self, run: RunFolder) -> None:
        """Look at the joins of `run`."""
        self._folder = JoinFolder(run)
        self._seen: dict[str, tuple[int, float]] = {}  # renewals, running time of the last change
        self._alive: set[str] = set()

    def read(self) -> dict[str, JoinRecord]:
        """Return the records of the joins that were renewed within `STALE_S`, by name.

        A record counts from its first renewal on: that of a join which died earlier is never renewed.
        """
        now = running_s()
        found = self._folder.read()
        for name, record in found.items():
            before = self._seen.get(name)
            if before is None or before[0] != record.renewals:
                self._seen[name] = (record.renewals, now)
                if before is not None:
                    self._alive.add(name)
            elif is_over(before[1], STALE_S):
                self._alive.discard(name)
                self._folder.remove(name)
        self._alive &= set(found)
        self._seen = {name: seen for name, seen in self._seen.items() if name in found}
        return {name: record for name, record in found.items() if name in self._alive}


def offer_of(name: str, record: JoinRecord, refused: str) -> Offer:
    """Return the offer of a join. `refused`: see `Offer`."""
    return Offer(
        name,
        tuple(Host(host, slots) for host, slots in record.hosts),
        record.leaving,
        math.inf if record.left_s is None else record.left_s,
        refused,
    )


class HostChecks:
    """Checks of hosts before their first use: are they reachable, and do they see the run directory?"""

    def __init__(self, run: RunFolder) -> None:
        """Check nothing yet."""
        self._run = run
        self._questions: dict[str, HostQuestion] = {}

    def start(self, name: str, env: Mapping[str, str]) -> None:
        """Check a host. `env`: the environment in which it is reached."""
        command = [sys.executable, "-c", _CHECK, str(self._run.info_file)]
        self._questions[name] = HostQuestion(reach([name], command, env, LIMITS), env)

    def answers(self) -> dict[str, tuple[str, str]]:
        """Return the hosts that have answered since the last call: the host's own name and an error or ""."""
        found = {}
        for name, question in list(self._questions.items()):
            if (answer := question.answer()) is not None:
                del self._questions[name]
                out, error = answer
                # A site's shell may print text before it.
                found[name] = (out.split()[-1] if out.split() else "", error)
        return found

    def end(self) -> None:
        """End the checks that are under way."""
        for question in self._questions.values():
            question.end()
        self._questions.clear()
