"""The hosts of a run: read their list, and choose those of the next attempt."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from mpips.errors import ConfigError, MpipsError
from mpips.monitor.progress import plural
from mpips.mpi.roles import check_servers, default_servers
from mpips.supervisor.host_names import be, by_reason, compact


class HostsError(MpipsError):
    """Too few hosts are left for the run."""


class Host(msgspec.Struct, frozen=True):
    """A host.

    Attributes:
        name: Its name, as for ssh.
        slots: Ranks that it takes; 0: an equal share of them.
    """

    name: str
    slots: int = 0


def parse_hosts(text: str) -> list[Host]:
    """Parse a list of hosts such as "node1:4,node2".

    Raises:
        ConfigError: An entry is not a host, or a host occurs twice.
    """
    return _unique([_host(part.strip()) for part in text.split(",") if part.strip()], text)


def read_hostfile(path: Path) -> list[Host]:
    """Read a hostfile: "node1 slots=4" (Open MPI) or "node1:4" (MPICH), one host per line, # comments.

    Raises:
        ConfigError: The file cannot be read, or a line is not a host.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = [word for word in words[1:] if word.startswith("slots=")]
        try:
            found.append(_host(f"{words[0]}:{slots[0][6:]}" if slots else words[0]))
        except ConfigError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
    return _unique(found, str(path))


def _host(text: str) -> Host:
    """Parse "node1" or "node1:4".

    Raises:
        ConfigError: The text is neither.
    """
    match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?::([1-9]\d{0,5}))?", text)
    if match is None:
        raise ConfigError(f"{text!r} is not a host: write node1 or node1:4 (four ranks)")
    return Host(match[1], int(match[2] or 0))


def _unique(hosts: list[Host], where: str) -> list[Host]:
    """Return `hosts`, of which there must be at least one and each only once.

    Raises:
        ConfigError: No host is given, or one occurs twice.
    """
    if not hosts:
        raise ConfigError(f"{where!r} names no host: write node1 or node1:4 for each")
    name, n = Counter(host.name for host in hosts).most_common(1)[0]
    if n > 1:
        raise ConfigError(
            f"{where!r} names host {name} more than once: name it once, with all its slots"
        )
    return hosts


def slurm_hosts(env: Mapping[str, str] = os.environ) -> list[Host]:
    """Return the hosts of the Slurm allocation that this process is in; [] outside an allocation.

    Raises:
        ConfigError: Slurm does not expand the names of the hosts.
    """
    names = env.get("SLURM_JOB_NODELIST", "")
    if not env.get("SLURM_JOB_ID") or not names:
        return []
    command = ["scontrol", "show", "hostnames", names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"{shlex.join(command)} failed: {error}; name the hosts with --hosts"
        ) from None
    # Slurm writes 4(x2),3 for two nodes with four ranks and one with three.
    text = env.get("SLURM_TASKS_PER_NODE") or env.get("SLURM_JOB_CPUS_PER_NODE", "")
    slots = []
    for count, _, repeat in re.findall(r"(\d+)(\(x(\d+)\))?", text):
        slots += [int(count)] * int(repeat or 1)
    hosts = done.stdout.split()
    if len(slots) != len(hosts):
        slots = [0] * len(hosts)
    return [Host(name, n) for name, n in zip(hosts, slots, strict=True)]


def is_here(name: str) -> bool:
    """Return True if this process runs on the host `name`."""
    here = socket.gethostname()
    return name in ("localhost", "127.0.0.1", here, here.partition(".")[0])


class Layout(msgspec.Struct, frozen=True):
    """The ranks and hosts of an attempt.

    Attributes:
        n_ranks: Number of processes.
        hosts: Hosts with their slots; empty: mpirun places the ranks on this machine.
        notes: Sentences on what differs from the user's choice.
        is_crowded: The hosts have more ranks than slots, see `mpips.supervisor.crowding`; `slots` of each are
            its ranks.
    """

    n_ranks: int
    hosts: tuple[Host, ...] = ()
    notes: tuple[str, ...] = ()
    is_crowded: bool = False


def n_workers(n_ranks: int, n_servers: int, n_hosts: int) -> int:
    """Return the number of workers of a job. `n_servers` 0: mpips chooses the number of servers."""
    if n_ranks <= 2:
        return 1
    return n_ranks - 1 - (n_servers or default_servers(n_ranks, max(n_hosts, 1)))


class HostPool:
    """The hosts of a run over its attempts.

    Attributes:
        n_ranks: Ranks of a full attempt.
        bad: Why each host that must not be used is bad; the supervisor sets it before each attempt.
        suspects: The failure on each host that was lost in the last attempt although it answers now.
        former: Hosts that earlier attempts of an elastic run used and that the next one does not use; what is
            left there must be ended.
        jobs: Slurm job of each host that another job lends.
    """

    def __init__(
        self, hosts: Sequence[Host], n_ranks: int, spares: int, servers: int, min_workers: int
    ) -> None:
        """Plan the hosts.

        Args:
            hosts: All hosts; the last `spares` of them replace others.
            n_ranks: Ranks; 0: one per slot.
            spares: Number of spare hosts.
            servers: Number of servers; 0: mpips chooses it.
            min_workers: Least number of workers of an attempt; 0: as many as in a full one.

        Raises:
            ConfigError: The numbers do not fit together.
        """
        self._hosts = list(hosts)
        self._servers = servers
        self._spares = spares
        self._asked_workers = min_workers
        self.bad: dict[str, str] = {}
        self.suspects: dict[str, str] = {}
        self.former: tuple[str, ...] = ()
        self.jobs: Mapping[str, str] = {}
        if spares and spares >= len(hosts):
            raise ConfigError(
                f"spares = {spares} of {len(hosts)} hosts: at least one host must work"
            )
        n_active = len(hosts) - spares
        share = -(-n_ranks // n_active) if hosts and n_ranks else 1
        self._hosts = [Host(h.name, h.slots or share) for h in self._hosts]
        slots = sum(h.slots for h in self._hosts[:n_active])
        self.n_ranks = n_ranks or slots
        if hosts and self.n_ranks > slots:
            raise ConfigError(
                f"{self.n_ranks} ranks on hosts with {slots} slots ({self.describe(n_active)}); "
                "give them more slots (node1:8) or start fewer ranks"
            )
        self._full = n_workers(self.n_ranks, servers, n_active)
        self._min_workers = min_workers or self._full
        n_servers = servers or default_servers(self.n_ranks, max(n_active, 1))
        with_servers = f"{plural(self.n_ranks, 'rank')} with {plural(n_servers, 'server')}"
        if self._full < 1:
            raise ConfigError(
                f"{with_servers} and a scheduler leave none for a worker; start more ranks or fewer servers"
            )
        if self._min_workers > self._full:
            raise ConfigError(
                f"{with_servers} have {plural(self._full, 'worker')}; min_workers = {min_workers}: must be "
                "at most that"
            )

    def resized(self, n_ranks: int, servers: int) -> HostPool:
        """Return the same hosts for other numbers of ranks and servers.

        Args:
            n_ranks: Number of ranks.
            servers: Number of servers; 0: mpips chooses it.

        Raises:
            ConfigError: The numbers do not fit together, or not on the hosts.
        """
        if n_ranks > 1:
            check_servers(servers or default_servers(n_ranks, max(len(self._hosts), 1)), n_ranks)
        pool = HostPool(self._hosts, n_ranks, self._spares, servers, self._asked_workers)
        pool.bad, pool.suspects = self.bad, self.suspects
        return pool

    def describe(self, n: int) -> str:
        """Return the first `n` hosts with their slots, for people."""
        names: dict[int, list[str]] = {}
        for host in self._hosts[:n]:
            names.setdefault(host.slots, []).append(host.name)
        return ", ".join(f"{compact(group)}:{slots}" for slots, group in names.items())

    @property
    def names(self) -> list[str]:
        """Names of all hosts."""
        return [host.name for host in self._hosts]

    @property
    def usable(self) -> list[str]:
        """Names of the hosts that are not bad, with the former ones."""
        return [name for name in (*self.names, *self.former) if name not in self.bad]

    def layout(self) -> Layout:
        """Choose the ranks and hosts of the next attempt: the first good hosts, with as many ranks as fit.

        Suspects are used only if a full attempt does not fit on the other hosts.

        Raises:
            HostsError: Too few hosts are left.
        """
        if not self._hosts:
            return Layout(self.n_ranks)
        if self.suspects:
            try:
                layout = self._layout({**self.suspects, **self.bad})
            except HostsError:
                return self._layout(self.bad)
            if layout.n_ranks == self.n_ranks:
                return layout
        return self._layout(self.bad)

    def crowded(self, layout: Layout) -> Layout:
        """Return the ranks of a full attempt on the hosts of `layout`, which has fewer."""
        more, n_hosts = self.n_ranks - layout.n_ranks, len(layout.hosts)
        # Each host gets an equal part of them, the last hosts one less.
        hosts = tuple(
            Host(host.name, host.slots + (more + n_hosts - 1 - i) // n_hosts)
            for i, host in enumerate(layout.hosts)
        )
        notes = (
            *layout.notes,
            f"{plural(self.n_ranks, 'rank')} on the slots of {layout.n_ranks} first, to continue in memory",
        )
        return Layout(self.n_ranks, hosts, notes, is_crowded=True)

    def _layout(self, bad: Mapping[str, str]) -> Layout:
        """Choose ranks and hosts without the hosts in `bad`.

        Raises:
            HostsError: Too few hosts are left.
        """
        good = [host for host in self._hosts if host.name not in bad]
        chosen = good[: len(self._hosts) - self._spares]
        slots = sum(host.slots for host in chosen)
        n = min(self.n_ranks, slots)
        workers = n_workers(n, self._servers, len(chosen)) if n else 0
        # Name hosts in the order of the allocation, not in the order in which they turned out bad.
        ordered = {name: bad[name] for name in self.names if name in bad}
        notes = [f"{be(names)} left out: {why}" for names, why in by_reason(ordered)]
        first = set(self._hosts[: len(self._hosts) - self._spares])
        used = [host.name for host in chosen if host not in first]
        if used:
            notes.append(f"{'spare' if len(used) == 1 else 'spares'} {be(used)} used")
        if workers < max(self._min_workers, 1):
            raise HostsError(
                f"{len(good)} of {len(self._hosts)} hosts are left, enough for "
                f"{plural(max(workers, 0), 'worker')}; "
                f"{self._min_workers} are needed: bring hosts back, add spares, or lower --min-workers"
                + "".join(f"; {note}" for note in notes)
            )
        if n < self.n_ranks:
            notes.append(f"{plural(workers, 'worker')} instead of {self._full}")
        return Layout(n, tuple(chosen), tuple(notes))
