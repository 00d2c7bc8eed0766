"""A run with programs of [producers], whose queues the test serves in place of workers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import program_rig

from mpips.config.schema import load_config
from mpips.rundir.producers import MEMBER_OF, ProducersRecord, member_log, read_producers
from mpips.supervisor.hosts import HostPool
from mpips.supervisor.launcher import Launcher
from mpips.supervisor.plan import SupervisionPlan, make_run
from mpips.supervisor.producers import Producers


def shell(text: str) -> list[str]:
    """The command of a program in the shell."""
    return ["sh", "-c", _with_braces(text)]


# Pushes samples from mpips_produced up to a number; does not end its producer.
PUSHER = f"""
import sys
sys.path.insert(0, {str(Path(program_rig.__file__).parent)!r})
import numpy as np
from program_rig import Program
program = Program(None)
program.declare("x", "float32", (3,))
for n in range(program.produced, int(sys.argv[1])):
    program.push(np.full(3, n, np.float32))
"""


def pusher(n: int, then: str = "") -> list[str]:
    """The command of a program that pushes samples up to the n-th one."""
    return [sys.executable, "-c", _with_braces(PUSHER + then), str(n)]


def _with_braces(text: str) -> str:
    """Text as [producers] takes it for this text."""
    return text.replace("{", "{{").replace("}", "}}")


class ServedPrograms:
    """The programs of a run under `Producers`.

    Attributes:
        printed: What the supervisor would print.
        workers: The worker's ends of the queues, by producer.
    """

    def __init__(self, place: Path, **options: Any) -> None:
        """Make the run in a folder; `options`: of [producers], none without any."""
        job = [("task", "mlp"), ("data.train", "digits"), ("producers", options)]
        self.config = load_config(None, job)
        self.run = make_run(self.config, place / "runs", "job")
        self.place = place
        self.printed: list[str] = []
        self.workers: dict[int, Any] = {}
        launcher = Launcher("/nowhere/mpirun", "openmpi", "fake")
        self.plan = SupervisionPlan(self.run, self.config, HostPool([], 4, 0, 1, 0), launcher, 0)
        self.producers = Producers(self.plan, self.printed.append)

    def serve(self, *numbers: int, produced: int = 0, slots: int = 8) -> None:
        """Serve queues, as the worker of an attempt does."""
        for number in numbers:
            self.workers[number] = program_rig.serve(
                self.plan.queues, number=number, produced=produced, slots=slots
            )

    @property
    def text(self) -> str:
        return "\n".join(self.printed)

    @property
    def record(self) -> ProducersRecord | None:
        return read_producers(self.run)

    @property
    def states(self) -> list[str]:
        record = self.record
        return [each.state for each in record.members] if record is not None else []

    def log(self, member: int = 0) -> str:
        return member_log(self.run, member).read_text()

    def left(self) -> list[int]:
        """Processes of programs."""
        return processes.marked(f"{MEMBER_OF}={self.run.path}")

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass as the supervisor does until a condition holds."""

        def holds() -> bool:
            self.producers.look()
            return condition()

        assert processes.until(holds, 20.0), f"{self.states}\n{self.text}"

    def until_states(self, *states: str) -> None:
        self.until(lambda: self.states == [*states])

    def until_ready(self) -> None:
        """Wait until the only member runs and has printed "ready"."""
        self.until(lambda: self.states == ["running"] and self.log().endswith("ready\n"))

    def end(self, is_done: bool = False, signals: int = 0) -> None:
        """End them as at the end of a run; `signals`: ending ones that come meanwhile."""
        left = [True] * signals
        self.producers.end(is_done, lambda: bool(left) and left.pop())

    def close(self) -> None:
        """Kill what a test has left."""
        for pid in [*self.left(), *processes.marked(f"TEST_PRODUCERS={self.place}")]:
            os.kill(pid, signal.SIGKILL)
        for worker in self.workers.values():
            worker.unlink()
