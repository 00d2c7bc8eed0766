"""What becomes of a run's shared memory when its supervisor ends.

Memory holds updates that were acknowledged and that no checkpoint may hold. It goes when a checkpoint holds
them, or when a person says so; else it stays where it is for the next `mpips run RUN`, and people are told
where, for how long, and how to go on or to throw it away.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpips.rundir.directory import RunFolder
from mpips.supervisor.hosts import clear, is_here
from mpips.supervisor.lease import LeaseHolder
from mpips.supervisor.reap import LeftMemory, forget, keep, reap, segments
from mpips.transport.region import KEEP_S, MARK


@dataclass(frozen=True)
class Settled:
    """The shared memory of a run on its hosts after the end.

    Attributes:
        memory: By host.
        silent: Why, of each host that did not answer; what is there stays as it is.
    """

    memory: dict[str, LeftMemory]
    silent: dict[str, str]

    @property
    def remaining_bytes(self) -> int:
        """Size of what stays, on all hosts that answered."""
        return sum(memory.remaining_bytes for memory in self.memory.values())

    def describe(self, run: Path, step: int) -> str:
        """What stays and what to do with it, for people; "" if nothing does.

        Args:
            run: The run directory.
            step: That the memory holds at least; 0: unknown.
        """
        hosts = [host for host, memory in self.memory.items() if memory.remaining_bytes]
        parts = []
        if hosts:
            what = f"step {step} or later, " if step else ""
            parts.append(
                f"{what}kept in /dev/shm of {', '.join(hosts)} ({self.remaining_bytes / 2**20:.1f} MiB), "
                f"until no process has used it for {KEEP_S / 3600:.0f} hours or the host restarts"
            )
        for host, why in self.silent.items():
            parts.append(f"{host} did not answer ({why}): what is there stays as long")
        if parts:
            parts.append(f"go on in it: mpips run {run}")
            parts.append(f"throw it away: mpips run --discard-memory {run}")
        return "\n".join(parts)

    def foreign(self) -> list[str]:
        """One line for each file of another user that bears the name of a segment."""
        return [foreign_line(name, host) for host, m in self.memory.items() for name in m.foreign]


def foreign_line(name: str, host: str) -> str:
    """Say that a file of another user is in the way."""
    return f"mpips run: warning: {name} on {host} belongs to another user: it is not used and stays"


def foreign_here(token: str) -> list[str]:
    """`Settled.foreign` for this host, at any time."""
    host = socket.gethostname()
    return [foreign_line(str(path), host) for path in segments(token)[1]]


def is_memory_here(token: str) -> bool:
    """Whether memory in which a launch can go on is on this host."""
    return any(path.name.endswith(MARK) for path in segments(token)[0])


def settle(
    names: Sequence[str], run: Path, generation: int, token: str, saved: bool, warm: bool = True
) -> Settled:
    """End what is left of a run and remove its shared memory, or what need not be kept of it. Blocks.

    Args:
        names: Hosts beside this one.
        run: The run directory.
        generation: The last one; later ones are left alone.
        token: Names the memory.
        saved: A checkpoint holds what the memory holds.
        warm: Launches of this run can go on in memory.

    Raises:
        TimeoutError: A process of this host does not end.
    """
    holds = warm and not saved
    reap(run, generation)
    here = keep(token) if holds else forget(token)
    away = [name for name in names if not is_here(name)]
    cleared = clear(away, run, generation, token, keep=holds)
    return Settled({socket.gethostname(): here, **cleared.memory}, cleared.failed)


def discard(run: RunFolder, names: Sequence[str], tell: Callable[[str], None]) -> bool:
    """Throw a run's shared memory away, on this host and the named ones; whether all have answered. Blocks.

    Args:
        run: The run directory.
        names: Hosts beside this one.
        tell: Receives a line for each host.

    Raises:
        ConfigError: A supervisor is at work on the run.
    """
    with LeaseHolder(run, tell) as lease:
        info = run.info()
        settled = settle(names, run.path, lease.generation, info.token, saved=True)
    for host, memory in settled.memory.items():
        tell(
            f"mpips run: {memory.removed} segments of {info.run_id} removed from /dev/shm of {host}"
        )
    for line in settled.foreign():
        tell(line)
    for host, why in settled.silent.items():
        tell(f"mpips run: {host} did not answer ({why}): what is there stays")
    return not settled.silent
