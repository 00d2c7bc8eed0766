"""Remove the shared memory of a run when its supervisor ends, or leave it for the next one.

The memory contains acknowledged updates, which a checkpoint may lack. It is removed when a checkpoint
contains them, or when the user asks for it. Otherwise it stays for the next `mpips run RUN`, and the
supervisor prints where it is, for how long it stays, how to continue from it and how to remove it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from mpips.errors import MpipsError
from mpips.rundir.directory import RunFolder
from mpips.supervisor.clearing import clear
from mpips.supervisor.host_names import by_reason, compact
from mpips.supervisor.hosts import is_here
from mpips.supervisor.lease import LeaseHolder
from mpips.supervisor.reap import LeftMemory, exchanges, forget, is_complete, keep, reap, segments
from mpips.transport.region import KEEP_S, MARK


class Settled(msgspec.Struct, frozen=True):
    """The shared memory of a run on its hosts after the end.

    Attributes:
        memory: Memory that was removed and memory that stays, by host.
        silent: The error of each host that did not answer; memory on these hosts stays.
    """

    memory: dict[str, LeftMemory]
    silent: dict[str, str]

    @property
    def remaining_bytes(self) -> int:
        """Bytes that stay, on all hosts that answered."""
        return sum(memory.remaining_bytes for memory in self.memory.values())

    def describe(self, run: Path, step: int) -> str:
        """Return what stays and what to do with it, for people; "" if nothing stays.

        Args:
            run: The run directory.
            step: Step of the run that the memory contains at least; 0: unknown.
        """
        hosts = [host for host, memory in self.memory.items() if memory.remaining_bytes]
        until = f"until no process has used it for {KEEP_S / 3600:.0f} hours or the host restarts"
        parts = []
        if hosts:
            what = f"step {step} or later, " if step else ""
            parts.append(
                f"{what}in /dev/shm of {compact(hosts)} ({self.remaining_bytes / 2**20:.1f} MiB); it stays "
                + until
            )
        for silent, why in by_reason(self.silent):
            parts.append(f"{compact(silent)} did not answer ({why}): memory there stays {until}")
        if parts:
            parts.append(f"continue from it: mpips run {run}")
            parts.append(f"remove it: mpips run --discard-memory {run}")
        return "\n".join(parts)

    def foreign(self) -> list[str]:
        """Return a line for each file of another user that has the name of a segment."""
        hosts: dict[str, list[str]] = {}
        for host, memory in self.memory.items():
            for name in memory.foreign:
                hosts.setdefault(name, []).append(host)
        return [foreign_line(name, compact(where)) for name, where in hosts.items()]


def foreign_line(name: str, hosts: str) -> str:
    """Return a warning about a file of another user that has the name of a segment."""
    return (
        f"mpips run: warning: {name} on {hosts} belongs to another user: it is not used and stays"
    )


def foreign_here(token: str) -> list[str]:
    """Return the lines of `Settled.foreign` for this host, at any time."""
    host = socket.gethostname()
    return [foreign_line(str(path), host) for path in segments(token)[1]]


def is_memory_here(token: str) -> bool:
    """Return True if this host has shared memory from which a launch can continue."""
    marked = any(path.name.endswith(MARK) for path in segments(token)[0])
    return marked or any(is_complete(folder) for folder in exchanges(token))


def settle(
    names: Sequence[str],
    run: Path,
    generation: int,
    token: str,
    saved: bool,
    warm: bool = True,
    *,
    but_exchange: bool = False,
    tell: Callable[[str], None],
    hurry: Callable[[], bool] = lambda: False,
    env: Mapping[str, str] = os.environ,
) -> Settled:
    """End every process of a run, and remove its shared memory except what must stay. Blocks.

    Args:
        names: Hosts of the run.
        run: The run directory.
        generation: Generation number of the last attempt; processes of later ones are left alone.
        token: Names the shared memory of the run.
        saved: A checkpoint contains what the memory contains.
        warm: Launches of this run can continue from memory.
        but_exchange: With `saved`: the exchange of this host stays, because it is what has been saved.
        tell: Receives lines for people, if most hosts are slow.
        hurry: True: hosts that have not answered are not waited for.
        env: Environment in which the hosts are reached.

    Raises:
        TimeoutError: A process of this host does not end.
    """
    holds = warm and not saved
    reap(run, generation)
    here = keep(token) if holds else forget(token, but_exchange)
    away = [name for name in names if not is_here(name)]
    cleared = clear(away, run, generation, token, env=env, keep=holds, tell=tell, hurry=hurry)
    return Settled({socket.gethostname(): here, **cleared.memory}, cleared.failed)


def discard(run: RunFolder, names: Sequence[str], tell: Callable[[str], None]) -> bool:
    """Remove the shared memory of a run on this host and the named ones. Blocks.

    Args:
        run: The run directory.
        names: Hosts of the run.
        tell: Receives lines for people.

    Returns:
        True if all hosts have answered.

    Raises:
        ConfigError: A supervisor is at work on the run.
        MpipsError: The lease cannot be written, or another supervisor has taken the run meanwhile.
    """
    with LeaseHolder(run, tell) as lease:
        info = run.info()
        # From here on a supervisor on another host sees that the run is taken.
        try:
            generation = lease.advance()
        except OSError as error:
            raise MpipsError(
                f"{error.filename or run.path}: cannot be written: {error.strerror}; make it writable, "
                f"then repeat: mpips run --discard-memory {run.path}"
            ) from None

        def hurry() -> bool:
            lease.renew()
            return False

        settled = settle(
            names, run.path, generation, info.token, saved=True, tell=tell, hurry=hurry
        )
    removed: dict[int, list[str]] = {}
    for host, memory in settled.memory.items():
        removed.setdefault(memory.removed, []).append(host)
    for n, hosts in removed.items():
        each = "each of " if len(hosts) > 1 else ""
        tell(
            f"mpips run: {n} segments of {info.run_id} removed from /dev/shm of {each}{compact(hosts)}"
        )
    for line in settled.foreign():
        tell(line)
    for hosts, why in by_reason(settled.silent):
        tell(
            f"mpips run: {compact(hosts)} did not answer ({why}): memory there stays; run this again later"
        )
    return not settled.silent
