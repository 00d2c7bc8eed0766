"""One run under `mpips run` whose processes are killed at random, until it is done.

Who is killed next is drawn evenly from the ranks, all ranks at once, mpirun and the supervisor, which is then
started again as a user would. A kill comes a random time after the attempt is at work, or now and then
while it is still starting; both are told from the run directory and /proc. Two attempts that die before
they are at work are what the supervisor gives up on, so no two kills in a row come that early.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from mpips.bench.launching import BenchError, mpi_environment
from mpips.cluster.launch import launched_rank
from mpips.rundir import RunFolder, Status
from mpips.supervisor.reap import belongs, processes_of

N_RANKS = 5
LIMIT_S = 120.0  # for an attempt to be at work, or to end after a kill
LONGEST_S = 1.0  # of work before a kill
_EARLY = 0.25  # share of kills that come before an attempt is at work
_WHO = (*range(N_RANKS), "all ranks", "mpirun", "supervisor")
_LOOK_S = 0.02
_TRIES = 3  # of a supervisor in a row, when nobody is killed any more

Found = TypeVar("Found")


@dataclass
class Told:
    """What became of a run that was killed at.

    Attributes:
        kills: How often who was killed.
        early: Kills of attempts that were not at work yet.
        warm: Attempts that went on in memory.
        back_s: Seconds from each kill to the next attempt being at work.
        given_up: How often the supervisor gave up and was started again.
    """

    kills: Counter[str] = field(default_factory=Counter)
    early: int = 0
    warm: int = 0
    back_s: list[float] = field(default_factory=list)
    given_up: int = 0


class Victim:
    """`mpips run` as a child, and all its processes. Use it in a `with` block."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        """Start it; `folder` is empty and gets the run directory."""
        self._folder = folder
        self._command = [sys.executable, "-m", "mpips", "run", "--quiet"]
        self._process = self._start(["--folder", str(folder), *arguments])
        self._roles: dict[int, str] = {}

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self._folder.parent / f"{self._folder.name}.log").open("ab") as log:
            return subprocess.Popen(
                [*self._command, *arguments],
                env=mpi_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def __enter__(self) -> Victim:
        """Nothing more."""
        return self

    def __exit__(self, *error: object) -> None:
        """End all of it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def run(self) -> RunFolder:
        """The run directory, once it is there."""

        def look() -> RunFolder | None:
            found = next(self._folder.glob("*/run.json"), None)
            return RunFolder(found.parent) if found is not None else None

        return self._until(look)

    def wait_done(self, told: Told) -> None:
        """Wait until the run is done; the last kills may have made the supervisor give up."""
        for _ in range(_TRIES):
            try:
                code = self._process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                raise self._failed(f"was not done after {LIMIT_S:g} s") from None
            if self.run.finished() is not None:
                return
            self._again(told)
        raise self._failed(f"ended with code {code} again and again, although nobody was killed")

    def kill_at_random(self, n: int, rng: random.Random) -> Told:
        """Kill up to `n` times, less often if the run is done before; it may still be at work then."""
        told = Told()
        calm = False  # the attempt before was at work
        killed_at = 0.0
        while sum(told.kills.values()) < n:
            early = calm and rng.random() < _EARLY
            status = self._attempt_starts() if early else self._at_work()
            if status is None:
                if self._process.returncode == 0:
                    break
                self._again(told)
                continue
            if not early:
                told.warm += status.start.source == "memory"
                told.back_s += [time.time() - killed_at] if killed_at else []
            time.sleep(rng.random() * LONGEST_S)
            generation = status.generation
            who = self._kill(rng.choice(_WHO), generation)
            if not who:
                continue  # the run has ended meanwhile, well or not
            killed_at = time.time()
            told.kills[who] += 1
            told.early += early
            calm = not early
            if who == "supervisor":
                self._process.wait()
                self._process = self._start([str(self.run.path)])
            self._until(functools.partial(self._is_over, generation))
        return told

    def _again(self, told: Told) -> None:
        """Start the supervisor that has given up once more."""
        told.given_up += 1
        self._process = self._start([str(self.run.path)])

    def _is_over(self, generation: int) -> bool | None:
        lease = self.run.lease()
        later = lease is not None and lease.generation > generation
        return True if later or self._process.poll() is not None else None

    def _at_work(self) -> Status | None:
        """The status of the newest attempt once its ranks are there; None: the supervisor has ended."""

        def look() -> Status | bool | None:
            if self._process.poll() is not None:
                return False
            status, lease = self.run.status(), self.run.lease()
            if status is None or lease is None or not status.ranks:
                return None
            return (
                status
                if (status.state, status.generation) == ("running", lease.generation)
                else None
            )

        found = self._until(look)
        if isinstance(found, Status):
            self._roles = {place.rank: place.role for place in found.ranks}
            return found
        return None

    def _attempt_starts(self) -> Status | None:
        """A status with the number of the newest attempt, once it has a process of a rank."""

        def look() -> Status | bool | None:
            if self._process.poll() is not None:
                return False
            status = self.run.status()
            return status if status is not None and self._ranks(status.generation) else None

        found = self._until(look)
        return found if isinstance(found, Status) else None

    def _ranks(self, generation: int) -> dict[int, int]:
        """Pids of an attempt's ranks."""
        found = {}
        for pid in processes_of(self.run.path, generation):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                lines = (
                    Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
                )
                env = dict(line.partition("=")[::2] for line in lines)
                if b"train" in words and "PMIX_RANK" in env:
                    found[launched_rank(env)] = pid
        return found

    def _kill(self, who: int | str, generation: int) -> str:
        """Send SIGKILL; who got it, "" if nobody was there."""
        if who == "supervisor":
            self._process.kill()
            return "supervisor"
        if who == "mpirun":
            return self._kill_all(self._children(), generation) and "mpirun"
        ranks = self._ranks(generation)
        if who == "all ranks":
            return self._kill_all(list(ranks.values()), generation) and "all ranks"
        assert isinstance(who, int)
        role = self._roles.get(who, f"rank {who}")
        return self._kill_all([ranks[who]] if who in ranks else [], generation) and role

    def _children(self) -> list[int]:
        """Pids of what the supervisor has started."""
        pid = self._process.pid
        try:
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            return []  # it has ended
        return [int(word) for word in text.split()]

    def _kill_all(self, pids: Sequence[int], generation: int) -> str:
        killed = ""
        for pid in pids:
            with contextlib.suppress(OSError):
                if belongs(pid, self.run.path, generation):
                    os.kill(pid, signal.SIGKILL)
                    killed = "somebody"
        return killed

    def _until(self, look: Callable[[], Found | None]) -> Found:
        """What `look` finds, as soon as it finds something."""
        deadline = time.monotonic() + LIMIT_S
        while (found := look()) is None:
            if time.monotonic() > deadline:
                raise self._failed(f"has hung for {LIMIT_S:g} s")
            time.sleep(_LOOK_S)
        return found

    def _failed(self, what: str) -> BenchError:
        log = self._folder.parent / f"{self._folder.name}.log"
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-60:])
        return BenchError(f"the run in {self._folder} {what}:\n{tail}")
