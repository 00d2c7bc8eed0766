"""Run a job under `mpips run` and end its launches as planned (matrix.py) until the job is done.

A launch is ended in one of two ways:

* From outside, by a signal of this process: when the workers have made some steps, or while the launch is
  starting. The run directory and /proc show both.
* From inside: a process ends itself when it passes a fault point for the n-th time. The environment variable
  MPIPS_FAULT contains the point and n for each launch.

This process starts a supervisor that has ended again, as a user would.
"""

from __future__ import annotations

import contextlib
import functools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from mpips.chaos.processes import environment_of, signal_all
from mpips.mpi.launch import launched_rank
from mpips.mpi.mpirun import mpi_environment
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Status
from mpips.supervisor.reap import processes_of, state_of
from mpips.testing.beside import Beside
from mpips.testing.counted import read_steps
from mpips.testing.damage import Damage
from mpips.testing.errors import BenchError
from mpips.testing.faults import RECOVERY
from mpips.testing.matrix import PlannedDeath

LIMIT_S = 120.0  # seconds in which an attempt must make steps, or end after a kill
# Seconds of the longest sleep before a kill: about two steps, so that the kill hits any part of a step.
_MOMENT_S = 0.03
_STOPPED_S = 0.5  # seconds; the longest stop before a process is killed
_LOOK_S = 0.02  # seconds between two polls
_OVERDUE_STEPS = 120  # steps after which a launch is expected not to pass its fault point any more
_TRIES = 3  # starts of a supervisor without a kill before the run counts as failed
# Parts of the causes that the supervisor records for launches that were ended here.
_OURS = ("SIGKILL", "SIGSTOP", "no rank reported a failure", "ended with code 143")
_TAIL = 60  # lines of the log in an error

Found = TypeVar("Found")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Victim:
    """A child process `mpips run` and all processes of its job. Use it in a `with` block."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        deaths: Sequence[PlannedDeath] = (),
        environment: Mapping[str, str] | None = None,
        beside: Beside | None = None,
    ) -> None:
        """Start `mpips run`.

        Args:
            folder: An empty folder; receives the run directory.
            arguments: Arguments of `mpips run`.
            deaths: Planned ends of the first launches, by generation.
            environment: Variables added to those of this process.
            beside: An event during the run.
        """
        self._deaths = deaths
        self._beside = beside or Beside()
        self._seen = folder  # the path in the run's processes
        self._folder = self._beside.path(folder)  # the path in this process
        self._log = folder.parent / f"{folder.name}.log"
        self._environment = {**mpi_environment(), **(environment or {}), **self._beside.environment}
        self._environment["MPIPS_FAULT"] = ",".join(death.fault for death in deaths)
        self._command = [*self._beside.wrapper, sys.executable, "-m", "mpips", "run", "--quiet"]
        self._process = self._start(["--folder", str(folder), *arguments])
        self._roles: dict[int, str] = {}
        self._warm: set[int] = set()  # generations that continued in memory

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
        """Return this object; the run ends at the end of the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the run, its processes and the event. Waits up to 30 s for the supervisor."""
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
        """Wait for the run directory and return it."""

        def look() -> RunFolder | None:
            found = next(self._folder.glob("*/run.json"), None)
            return RunFolder(found.parent) if found is not None else None

        return self._until(look)

    @property
    def _own_path(self) -> Path:
        """Return the path of the run directory in the run's processes."""
        return self._seen / self.run.path.name

    def suffer(self, rng: random.Random) -> Damage:
        """End launches as planned and wait until the run is done. Blocks.

        Args:
            rng: Chooses the moment and the process of kills.

        Raises:
            BenchError: A launch hung, or the run did not finish although nothing was killed.
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
                generation = (
                    status.generation
                )  # the launches in between ended without a planned end
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
            damage.causes.append(f"{more} launches ended without a planned end")
        damage.warm = len(self._warm)
        return damage

    def _end(
        self, death: PlannedDeath, generation: int, damage: Damage, rng: random.Random
    ) -> bool:
        """End a launch as planned; return False if the run was done before."""
        who = death.fault.partition(":")[0]
        if not death.fault:
            self._until(lambda: self._has_made(death.after_steps, generation))
            time.sleep(rng.random() * _MOMENT_S)
            who = self._kill(death, generation, rng)
            if not who:
                return not self._is_done()
        elif self._until(lambda: self._overdue(death, generation)) == "overdue":
            # Kill all ranks: the launch does not pass its point, for example a point of the recovery if the
            # launch before left no memory.
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
                # Wait for its lease: until then the files describe the launch that it replaces.
                self._until(functools.partial(self._is_over, generation))
            else:
                self._again(damage)
        return True

    def _overdue(self, death: PlannedDeath, generation: int) -> str | None:
        """Return "over" if a launch has ended, "overdue" if it continues without passing its fault point."""
        if self._is_over(generation):
            return "over"
        most = 0 if death.fault.partition(":")[0] in RECOVERY else _OVERDUE_STEPS
        made = max(self._steps(generation).values(), default=0)
        return "overdue" if made > most else None

    def _wait_done(self, damage: Damage) -> None:
        """Wait until the run is done; start the supervisor again if the last kills made it give up."""
        for _ in range(_TRIES):
            code = self._wait_ended()
            if self._is_done():
                return
            self._again(damage)
        raise self._failed(f"exited with code {code} {_TRIES} times, although nothing was killed")

    def _wait_ended(self) -> int:
        """Wait until the supervisor has ended, and return its exit code.

        Raises:
            BenchError: The workers made no step for LIMIT_S.
        """
        deadline, before = time.monotonic() + LIMIT_S, (0, {0: 0})
        while (code := self._process.poll()) is None:
            lease = self.run.lease()
            generation = lease.generation if lease is not None else 0
            now = generation, self._steps(generation)
            if now != before:
                deadline, before = time.monotonic() + LIMIT_S, now
            if time.monotonic() > deadline:
                raise self._failed(f"made no step for {LIMIT_S:g} s")
            time.sleep(_LOOK_S)
        return code

    def _causes(self) -> list[str]:
        events = [event for event in self.run.events() if event.event == "failed"]
        return [event.cause for event in events if not any(text in event.cause for text in _OURS)]

    def _is_done(self) -> bool:
        found = next(self._folder.glob("*/run.json"), None)
        return found is not None and RunFolder(found.parent).finished() is not None

    def _again(self, damage: Damage) -> None:
        """Start the supervisor again after it has given up."""
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
        """Wait until the newest attempt runs; return its status, or None if the supervisor has ended."""

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
        """Wait for a rank's process; return the status of its attempt, None if the supervisor has ended."""

        def look() -> Status | bool | None:
            if self._process.poll() is not None:
                return False
            status = self.run.status()
            return status if status is not None and self._ranks(status.generation) else None

        found = self._until(look)
        return found if isinstance(found, Status) else None

    def _ranks(self, generation: int) -> dict[int, int]:
        """Return the pids of an attempt's ranks, by rank."""
        found: dict[int, int] = {}
        for pid in sorted(processes_of(self._own_path, generation)):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                env = environment_of(pid)
                # Skip children of ranks, which have the same command line and environment.
                if b"train" in words and "PMIX_RANK" in env and _parent(pid) not in found.values():
                    found[launched_rank(env)] = pid
        return found

    def _kill(self, death: PlannedDeath, generation: int, rng: random.Random) -> str:
        """Send SIGKILL; return the role that received it, "" if no such process exists."""
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
        """Stop a process; return after two more steps of all workers, at the latest after _STOPPED_S."""
        signal_all([pid], self._own_path, generation, signal.SIGSTOP)
        self._until(lambda: True if state_of(pid) in "TXZ" else None)
        before = self._steps(generation)
        deadline = time.monotonic() + _STOPPED_S
        while time.monotonic() < deadline:
            now = self._steps(generation)
            if now and all(now[w] >= before.get(w, 0) + 2 for w in now):
                return
            time.sleep(_LOOK_S)

    def _has_made(self, steps: int, generation: int) -> bool | None:
        """Return True if a worker has made so many steps or the launch is over, else None."""
        made = max(self._steps(generation).values(), default=0)
        return True if made >= steps or self._is_over(generation) else None

    def _steps(self, generation: int) -> dict[int, int]:
        """Return the steps so far of an attempt's workers, by index."""
        return read_steps(self.run.attempt(generation))

    def _children(self) -> list[int]:
        """Return the pids of the supervisor's child processes."""
        pid = self._process.pid
        try:
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        except OSError:
            return []  # the supervisor has ended
        return [int(word) for word in text.split()]

    def _kill_all(self, pids: Sequence[int], generation: int) -> str:
        return "killed" if signal_all(pids, self._own_path, generation, signal.SIGKILL) else ""

    def _until(self, look: Callable[[], Found | None]) -> Found:
        """Poll `look` and return its first result that is not None.

        Raises:
            BenchError: There was no result for LIMIT_S.
        """
        deadline = time.monotonic() + LIMIT_S
        while (found := look()) is None:
            self._note_start()
            if time.monotonic() > deadline:
                raise self._failed(f"hung for {LIMIT_S:g} s")
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
