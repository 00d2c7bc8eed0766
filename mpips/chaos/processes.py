"""The processes of a run, found and signalled so that no other process can be hit.

A process is addressed by a descriptor (pidfd) and not by its number. First the descriptor is opened. Then the
owner of the process, its environment (run directory, generation, rank) and its number are compared with the
records of the run. Signals go to the descriptor. The kernel may give the number to another process at any
time in between:

* before the descriptor is opened: the comparison reads the other process and refuses it;
* afterwards: the descriptor still means the process that has ended, and the signal has no effect.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mpips.errors import CapabilityError
from mpips.mpi.launch import launched_rank
from mpips.rundir.files import RankPlace
from mpips.supervisor.reap import belongs, processes_of, state_of

ANY = "any"


class RunProcess:
    """A process of a run. The object owns the descriptor; use it in a `with` block or close it.

    Attributes:
        pid: Its number, as this process sees it.
        fd: Its descriptor.
    """

    def __init__(self, pid: int) -> None:
        """Open the descriptor of a process, whatever it is; `open_process` compares it with a run.

        Raises:
            ProcessLookupError: There is no such process.
            CapabilityError: The kernel has no descriptors of processes.
        """
        self.pid = pid
        try:
            self.fd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (OSError, AttributeError) as error:
            raise CapabilityError(
                f"the kernel gives no descriptor of process {pid} ({error}): Linux 5.3 or newer is needed to "
                "signal processes of a run safely"
            ) from None

    def __enter__(self) -> RunProcess:
        """Return this object; the descriptor is closed at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the descriptor."""
        self.close()

    def close(self) -> None:
        """Close the descriptor. Further calls have no effect."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return False if the process has ended."""
        try:
            signal.pidfd_send_signal(self.fd, number)
        except ProcessLookupError:
            return False
        return True

    @property
    def state(self) -> str:
        """The kernel's letter for the state of the process; see `state_of`."""
        return state_of(self.pid)


def open_process(pid: int, run_dir: Path, generation: int) -> RunProcess | None:
    """Open a process if it belongs to a run, to this attempt or an earlier one; else return None.

    Args:
        pid: Its number.
        run_dir: The run directory, as the processes of the run name it.
        generation: Generation number of the attempt.

    Raises:
        CapabilityError: The kernel has no descriptors of processes.
    """
    try:
        process = RunProcess(pid)
    except ProcessLookupError:
        return None
    with contextlib.suppress(OSError):
        is_own = Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
        if is_own and belongs(pid, run_dir, generation):
            return process
    process.close()
    return None


def signal_all(
    pids: Iterable[int], run_dir: Path, generation: int, number: signal.Signals
) -> list[int]:
    """Signal those of the processes that belong to a run; return their numbers. See `open_process`."""
    hit = []
    for pid in pids:
        process = open_process(pid, run_dir, generation)
        if process is not None:
            with process:
                if process.send(number):
                    hit.append(pid)
    return hit


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started; empty if it cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return {}
    return dict(line.partition("=")[::2] for line in lines.split("\0") if line)


def inner_pid(pid: int) -> int:
    """Return the number of a process in its own namespace of processes; 0 if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
        return pid
    return 0


def pids_of_ranks(places: Sequence[RankPlace], run_dir: Path, generation: int) -> dict[int, int]:
    """Return the pids of the ranks of an attempt that this machine shows, by rank.

    A rank is a process of the run whose environment names this attempt and the rank, and whose number in its
    own namespace is the recorded one. Its forked children have the same environment, but other numbers.

    Args:
        places: The recorded places of the ranks.
        run_dir: The run directory.
        generation: Generation number of the attempt.
    """
    recorded = {(place.rank, place.pid) for place in places}
    found: dict[int, int] = {}
    for pid in processes_of(run_dir, generation):
        environment = environment_of(pid)
        if environment.get("MPIPS_GENERATION") != str(generation):
            continue
        rank = launched_rank(environment)
        if (rank, inner_pid(pid)) in recorded:
            found[rank] = pid
    return found


def has_role(place: RankPlace, role: str) -> bool:
    """Return True if a rank has a role such as "worker" or "worker 2", or if `role` is `ANY`."""
    parts = place.role.split(" + ")
    return role == ANY or any(role in (part, part.split()[0]) for part in parts)


@contextlib.contextmanager
def rank_process(
    places: Sequence[RankPlace], run_dir: Path, generation: int, rank: int
) -> Iterator[RunProcess | None]:
    """Open the process of a rank for the block; None if this machine does not show it. See the module."""
    pid = pids_of_ranks(places, run_dir, generation).get(rank)
    process = open_process(pid, run_dir, generation) if pid is not None else None
    # Compare once more, now that the descriptor is open.
    if process is not None and pids_of_ranks(places, run_dir, generation).get(rank) != pid:
        process.close()
        process = None
    try:
        yield process
    finally:
        if process is not None:
            process.close()


def kill_role(
    places: Sequence[RankPlace], run_dir: Path, generation: int, role: str
) -> RankPlace | None:
    """Send SIGKILL to the first rank with a role; return its place, None if this machine shows none.

    Args:
        places: The recorded places of the ranks.
        run_dir: The run directory.
        generation: Generation number of the attempt.
        role: Such as "worker 2"; see `has_role`.
    """
    for place in places:
        if has_role(place, role):
            with rank_process(places, run_dir, generation, place.rank) as process:
                if process is not None and process.send(signal.SIGKILL):
                    return place
    return None


def by_rank(places: Sequence[RankPlace]) -> Mapping[int, RankPlace]:
    """Return the places by rank."""
    return {place.rank: place for place in places}
