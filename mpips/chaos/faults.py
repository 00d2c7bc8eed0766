"""The kinds of faults: how each is injected, and how it is taken back.

A kind is a class with an attribute `name`, and a line in `KINDS`. `why_not` returns, before anything happens,
why a kind is impossible in a run; `inject` makes one fault happen; `hold` is called again and again while it
lasts; `end` takes it back. `links.py` and `storage.py` have further kinds.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Protocol

import msgspec

from mpips.chaos.errors import NotNowError
from mpips.chaos.observing import Observation
from mpips.chaos.processes import has_role, pids_of_ranks, rank_process
from mpips.chaos.schedule import PlannedFault, between, chosen
from mpips.chaos.undo import FaultGuard, Undo
from mpips.rundir.files import RankPlace

_SHORTEST_S = 0.5  # seconds of the shortest pause


class Injected(msgspec.Struct, kw_only=True):
    """A fault that has happened.

    Attributes:
        what: Description for people, such as "kill server 0 (rank 1, pid 4242)".
        length_s: Seconds until it is taken back; 0: it does not last.
        ends_attempt: The attempt ends by it for certain.
        spares_memory: The shared memory of the run survives it.
        damaged: Path of a checkpoint that it has damaged; "": none.
        broken: Why a promise is broken already; "": none is.
    """

    what: str
    length_s: float = 0.0
    ends_attempt: bool = False
    spares_memory: bool = True
    damaged: str = ""
    broken: str = ""


class FaultKind(Protocol):
    """A kind of fault in one run."""

    name: str
    hits_process: bool  # True: it hits a rank of a role

    def why_not(self, seen: Observation) -> str:
        """Return why the kind is impossible in the run, with the way out; "" if it is possible."""

    def inject(self, fault: PlannedFault, seen: Observation) -> Injected:
        """Make a fault happen.

        Raises:
            NotNowError: It is impossible at this moment.
        """

    def hold(self) -> None:
        """Keep the fault up. Called several times a second while it lasts."""

    def end(self) -> None:
        """Take back what `inject` did until it ended or was interrupted; no effect if that was taken back."""


def described(place: RankPlace, pid: int) -> str:
    """Return the text for a rank: "server 0 (rank 1, pid 4242)"."""
    return f"{place.role} (rank {place.rank}, pid {pid})"


def choose_rank(run_dir: Path, fault: PlannedFault, seen: Observation) -> RankPlace:
    """Return the place of the rank that a fault hits.

    Raises:
        NotNowError: This machine shows no rank with the role.
    """
    here = pids_of_ranks(seen.places, run_dir, seen.generation)
    places = sorted((p for p in seen.places if p.rank in here), key=lambda p: p.rank)
    among = [place for place in places if has_role(place, fault.role)]
    if not among:
        raise NotNowError(f"no {fault.role} of attempt {seen.generation} runs on this machine")
    return chosen(among, fault.which)


class KilledRank:
    """SIGKILL to one rank."""

    name = "kill"
    hits_process = True

    def __init__(self, run_dir: Path) -> None:
        """`run_dir`: the run directory."""
        self._run_dir = run_dir

    def why_not(self, seen: Observation) -> str:
        """Return "": a rank can be killed in every run."""
        return ""

    def inject(self, fault: PlannedFault, seen: Observation) -> Injected:
        """Kill the rank that the fault chooses.

        Raises:
            NotNowError: No such rank runs on this machine.
        """
        place = choose_rank(self._run_dir, fault, seen)
        with rank_process(seen.places, self._run_dir, seen.generation, place.rank) as process:
            if process is None or not process.send(signal.SIGKILL):
                raise NotNowError(f"{place.role} ended before it could be killed")
            return Injected(what=f"kill {described(place, process.pid)}", ends_attempt=True)

    def hold(self) -> None:
        """Do nothing: the fault does not last."""

    def end(self) -> None:
        """Do nothing: there is nothing to take back."""


class PausedRank:
    """SIGSTOP to one rank, and SIGCONT some time later."""

    name = "pause"
    hits_process = True

    def __init__(self, run_dir: Path, guard: FaultGuard, longest_s: float) -> None:
        """Take the run.

        Args:
            run_dir: The run directory.
            guard: Continues the rank if this process is killed.
            longest_s: Seconds of the longest pause.
        """
        self._run_dir, self._guard, self._longest_s = run_dir, guard, longest_s

    def why_not(self, seen: Observation) -> str:
        """Return "": a rank can be paused in every run."""
        return ""

    def inject(self, fault: PlannedFault, seen: Observation) -> Injected:
        """Stop the rank that the fault chooses.

        Raises:
            NotNowError: No such rank runs on this machine.
        """
        place = choose_rank(self._run_dir, fault, seen)
        length_s = between(min(_SHORTEST_S, self._longest_s), self._longest_s, fault.how_long)
        with rank_process(seen.places, self._run_dir, seen.generation, place.rank) as process:
            if process is None:
                raise NotNowError(f"{place.role} ended before it could be paused")
            number = self._guard.add(Undo(kind="continue"), process.fd)
            if not process.send(signal.SIGSTOP):
                self._guard.undo(number)
                raise NotNowError(f"{place.role} ended before it could be paused")
            what = f"pause {described(place, process.pid)} for {length_s:.1f} s"
            return Injected(what=what, length_s=length_s)

    def hold(self) -> None:
        """Do nothing: a stopped process stays stopped."""

    def end(self) -> None:
        """Continue the rank."""
        self._guard.undo_faults()
