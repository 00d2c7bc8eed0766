"""Functions for train.on_epoch_end that write down their calls, and a task whose workers die in a step."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from mpips.data import Batch
from mpips.tasks.base import StepResult, Worker
from mpips.tasks.softmax import Softmax

CALLS = Path(os.environ.get("CALLS", "calls.jsonl"))


def first(name: str) -> bool:
    """Return True in the first process that asks for this name."""
    try:
        (CALLS.parent / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def note(row: dict[str, float]) -> None:
    """Write a row down, with the process."""
    with CALLS.open("a") as file:
        file.write(json.dumps({**row, "pid": os.getpid()}) + "\n")


def ends(row: dict[str, float]) -> bool:
    """End training after the second epoch."""
    note(row)
    return row["epoch"] == 2


def breaks(row: dict[str, float]) -> None:
    """Raise an exception after the second epoch."""
    note(row)
    if row["epoch"] == 2:
        raise KeyError("no such column")


def breaks_at_last(row: dict[str, float]) -> None:
    """Raise an exception after the last epoch, the third."""
    note(row)
    if row["epoch"] == 3:
        raise ValueError("at the end")


def leaves(row: dict[str, float]) -> None:
    """Exit after the second epoch, as if all were well."""
    note(row)
    if row["epoch"] == 2:
        sys.exit(0)


def hangs(row: dict[str, float]) -> None:
    """Do not return after the second epoch."""
    note(row)
    if row["epoch"] == 2:
        threading.Event().wait(600)


def dies(row: dict[str, float]) -> None:
    """Die after the second epoch, before the call returns."""
    note(row)
    if row["epoch"] == 2 and first("died-in-call"):
        os.kill(os.getpid(), signal.SIGKILL)


class Dying(Softmax):
    """Worker 1 dies in the third epoch, in the step of which the file `dies-at` has the number."""

    name = "dying"

    def begin_step(self, epoch: int, step: int, n_steps: int) -> None:
        """Store the place."""
        self._at = epoch, step

    def step(self, worker: Worker, batch: Batch) -> StepResult:
        """Die, or do the step."""
        order = CALLS.parent / "dies-at"
        due = worker.index == 1 and self._at[0] == 2 and order.exists()
        if due and self._at[1] == int(order.read_text()) and first("died-in-step"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(worker, batch)
