"""One run under `mpips run` whose launches are ended as planned (matrix.py), until it is done.

A death from outside comes when the workers of a launch have made some steps, or while it is still starting;
both are told from the run directory and /proc. One from inside comes where a process passes a point for the
n-th time; MPIPS_FAULT says so for each launch. A supervisor that has ended is started again, as a user would.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from mpips.mpi.launch import launched_rank
from mpips.mpi.mpirun import mpi_environment
from mpips.rundir.directory import RunFolder, Status
from mpips.supervisor.reap import belongs, processes_of, state_of
from mpips.testing.beside import Beside
from mpips.testing.counted import read_steps
from mpips.testing.errors import BenchError
from mpips.testing.matrix import RECOVERY, PlannedDeath

LIMIT_S = 120.0  # for an attempt to be at work, or to end after a kill
_MOMENT_S = (
    0.03  # about two steps: the longest sleep before a kill, so that it comes anywhere in a step
)
_STOPPED_S = 0.5  # for which a process is stopped at most, before it is killed
_LOOK_S = 0.02
_OVERDUE_STEPS = 120  # of a launch that does not pass its point
_TRIES = 3  # of a supervisor in a row, when nothing is killed any more
# What the supervisor says of launches that are ended here.
_OURS = ("SIGKILL", "SIGSTOP", "nobody said why", "ended with code 143")
_TAIL = 60  # lines of the log in an error

Found = TypeVar("Found")


@dataclass
class Damage:
    """What became of a run whose launches were ended.

    Attributes:
        kills: How often who was killed, or ended at which point.
        early: Kills of attempts that were not at work yet.
        missed: Deaths that did not come, since the run was done before.
        causes: Why launches ended where nothing had ended them.
        warm: Attempts that went on in memory.
        back_s: Seconds from each kill to the next attempt being at work.
        given_up: How often the supervisor gave up and was started again.
    """

    kills: Counter[str] = field(default_factory=Counter)
    early: int = 0
    missed: int = 0
    causes: list[str] = field(default_factory=list)
    warm: int = 0
    back_s: list[float] = field(default_factory=list)
    given_up: int = 0


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Victim:
    """`mpips run` as a child, and all its processes. Use it in a `with` block."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        deaths: Sequence[PlannedDeath] = (),
        environment: Mapping[str, str] | None = None,
        beside: Beside | None = None,
    ) -> None:
        """Start it.

        Args:
            folder: Empty; gets the run directory.
            arguments: Of `mpips run`.
            deaths: The end of the first launches, by generation.
            environment: Added to this process's own.
            beside: What else goes on.
        """
        self._deaths = deaths
        self._beside = beside or Beside()
        self._seen = folder  # by the run
        self._folder = self._beside.path(folder)  # from here
        self._log = folder.parent / f"{folder.name}.log"
        self._environment = {**mpi_environment(), **(environment or {}), **self._beside.environment}
        self._environment["MPIPS_FAULT"] = ",".join(death.fault for death in deaths)
        self._command = [*self._beside.wrapper, sys.executable, "-m", "mpips", "run", "--quiet"]
        self._process = self._start(["--folder", str(folder), *arguments])
        self._roles: dict[int, str] = {}
        self._warm: set[int] = set()  # launches that went on in memory

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*self._command, *arguments],
                env=self._environment,
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
        self._beside.end()

    @property
    def run(self) -> RunFolder:
        """The run directory, once it is there."""

        def look() -> RunFolder | None:
            found = next(self._folder.glob("*/run.json"), None)
            return RunFolder(found.parent) if found is not None else None

        return self._until(look)

    @property
    def _own_path(self) -> Path:
        """The run directory as the run's processes call it."""
        return self._seen / self.run.path.name

    def suffer(self, rng: random.Random) -> Damage:
        """End launches as planned, and wait until the run is done.

        Raises:
            BenchError: A launch hung, or the run ended again and again although nothing was killed.
        """
        damage = Damage()
        generation, killed_at, begun = 0, 0.0, False
        while generation < len(self._deaths):
            death = self._deaths[generation]
            if death.fault:
                if not self._end(death, generation, damage, rng):
                    break
                generation, killed_at = generation + 1, 0.0
                continue
            status = self._attempt_starts() if death.early else self._at_work()
            if status is None:
                if self._is_done():
                    break
                if self._process.poll() is not None:
                    self._again(damage)
                lease = self.run.lease()
                generation = lease.generation if lease is not None else generation
                self._until(functools.partial(self._has_begun, generation))
                continue
            if status.generation != generation:
                generation = status.generation  # launches in between ended by themselves
                continue
            if not death.early:
                damage.back_s += [time.time() - killed_at] if killed_at else []
            if not begun:
                self._beside.begin(lambda: self._steps(0))
                begun = True
            if not self._end(death, generation, damage, rng):
                break
            killed_at = time.time()
            generation += 1
        damage.missed = len(self._deaths) - sum(damage.kills.values())
        self._wait_done(damage)
        damage.causes = self._causes()
        last = self.run.finished()
        more = last.generation - sum(damage.kills.values()) if last is not None else 0
        if more > len(damage.causes):
            damage.causes.append(f"{more} launches more than were ended")
        damage.warm = len(self._warm)
        return damage

    def _end(
        self, death: PlannedDeath, generation: int, damage: Damage, rng: random.Random
    ) -> bool:
        """End a launch; False if the run was done before."""
        who = death.fault.partition(":")[0]
        if not death.fault:
            self._until(lambda: self._has_made(death.after_steps, generation))
            time.sleep(rng.random() * _MOMENT_S)
            who = self._kill(death, generation, rng)
            if not who:
                return not self._is_done()
        elif self._until(lambda: self._overdue(death, generation)) == "overdue":
            # Such as a point of the recovery, where the launch before has left no memory.
            who = self._kill_all(list(self._ranks(generation).values()), generation) and "all ranks"
        self._until(functools.partial(self._is_over, generation))
        if self._is_done():
            return False
        damage.kills[who] += 1
        damage.early += death.early
        if self._process.poll() is not None:
            if who == "supervisor":
                self._process.wait()
                self._process = self._start([str(self._own_path)])
                # Until it holds the lease, what the files say is about the launch that it is to replace.
                self._until(functools.partial(self._is_over, generation))
            else:
                self._again(damage)
        return True

    def _overdue(self, death: PlannedDeath, generation: int) -> str | None:
        """ "over" once a launch has ended, "overdue" if it goes on without passing its point."""
        if self._is_over(generation):
            return "over"
        most = 0 if death.fault.partition(":")[0] in RECOVERY else _OVERDUE_STEPS
        made = max(self._steps(generation).values(), default=0)
        return "overdue" if made > most else None

    def _wait_done(self, damage: Damage) -> None:
        """Wait until the run is done; the last kills may have made the supervisor give up."""
        for _ in range(_TRIES):
            code = self._wait_ended()
            if self._is_done():
                return
            self._again(damage)
        raise self._failed(f"ended with code {code} again and again, although nothing was killed")

    def _wait_ended(self) -> int:
        """Wait until the supervisor has ended, as long as workers make steps; its exit code."""
        deadline, before = time.monotonic() + LIMIT_S, (0, {0: 0})
        while (code := self._process.poll()) is None:
            lease = self.run.lease()
            generation = lease.generation if lease is not None else 0
            now = generation, self._steps(generation)
            if now != before:
                deadline, before = time.monotonic() + LIMIT_S, now
            if time.monotonic() > deadline:
                raise self._failed(f"has made no step for {LIMIT_S:g} s")
            time.sleep(_LOOK_S)
        return code

    def _causes(self) -> list[str]:
        events = [event for event in self.run.events() if event.event == "failed"]
        return [event.cause for event in events if not any(text in event.cause for text in _OURS)]

    def _is_done(self) -> bool:
        found = next(self._folder.glob("*/run.json"), None)
        return found is not None and RunFolder(found.parent).finished() is not None

    def _again(self, damage: Damage) -> None:
        """Start the supervisor that has given up once more."""
        damage.given_up += 1
        self._process = self._start([str(self._own_path)])

    def _is_over(self, generation: int) -> bool | None:
        lease = self.run.lease()
        later = lease is not None and lease.generation > generation
        return True if later or self._process.poll() is not None else None

    def _has_begun(self, generation: int) -> bool | None:
        lease = self.run.lease()
        return True if lease is not None and lease.generation >= generation else None

    def _at_work(self) -> Status | None:
        """The status of the newest attempt once its ranks are there; None: the supervisor has ended."""

        def look() -> Status | bool | None:
            if self._process.poll() is not None:
                return False
            status, lease = self.run.status(), self.run.lease()
            if status is None or lease is None or not status.ranks:
                return None
            there = (status.state, status.generation) == ("running", lease.generation)
            return status if there else None

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
        found: dict[int, int] = {}
        for pid in sorted(processes_of(self._own_path, generation)):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                lines = (
                    Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
                )
                env = dict(line.partition("=")[::2] for line in lines)
                # A rank may have children that look like it.
                if b"train" in words and "PMIX_RANK" in env and _parent(pid) not in found.values():
                    found[launched_rank(env)] = pid
        return found

    def _kill(self, death: PlannedDeath, generation: int, rng: random.Random) -> str:
        """Send SIGKILL; who got it, "" if nobody was there."""
        who = death.who
        if who == "supervisor":
            self._process.kill()
            return who
        if who == "mpirun":
            return self._kill_all(self._children(), generation) and who
        ranks = self._ranks(generation)
        if who == "all ranks":
            return self._kill_all(list(ranks.values()), generation) and who
        chosen = [
            rank for rank in ranks if who == "any rank" or self._roles.get(rank, "").startswith(who)
        ]
        if not chosen:
            return ""
        rank = rng.choice(sorted(chosen))
        if death.stops:
            self._stop(ranks[rank], generation)
        return self._kill_all([ranks[rank]], generation) and self._roles.get(rank, who)

    def _stop(self, pid: int, generation: int) -> None:
        """Stop a process; return when it stands and workers have gone on as far as they can without it."""
        with contextlib.suppress(OSError):
            if belongs(pid, self._own_path, generation):
                os.kill(pid, signal.SIGSTOP)
        self._until(lambda: True if state_of(pid) in "TXZ" else None)
        before = self._steps(generation)
        deadline = time.monotonic() + _STOPPED_S
        while time.monotonic() < deadline:
            now = self._steps(generation)
            if now and all(now[w] >= before.get(w, 0) + 2 for w in now):
                return
            time.sleep(_LOOK_S)

    def _has_made(self, steps: int, generation: int) -> bool | None:
        """Whether a worker has made so many steps, or never will in this launch."""
        made = max(self._steps(generation).values(), default=0)
        return True if made >= steps or self._is_over(generation) else None

    def _steps(self, generation: int) -> dict[int, int]:
        """Steps of an attempt's workers so far."""
        return read_steps(self.run.attempt(generation))

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
                if belongs(pid, self._own_path, generation):
                    os.kill(pid, signal.SIGKILL)
                    killed = "somebody"
        return killed

    def _until(self, look: Callable[[], Found | None]) -> Found:
        """What `look` finds, as soon as it finds something."""
        deadline = time.monotonic() + LIMIT_S
        while (found := look()) is None:
            self._note_start()
            if time.monotonic() > deadline:
                raise self._failed(f"has hung for {LIMIT_S:g} s")
            time.sleep(_LOOK_S)
        return found

    def _note_start(self) -> None:
        path = next(self._folder.glob("*/run.json"), None)
        status = RunFolder(path.parent).status() if path is not None else None
        if status is not None and status.start.source == "memory":
            self._warm.add(status.generation)

    def _failed(self, what: str) -> BenchError:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-_TAIL:])
        return BenchError(f"the run in {self._seen} {what}:\n{tail}")
