"""A worker ends, or stops, between the claim of rows and their publication; another one waits for them.

usage: claimed_rows.py HOW FOLDER   HOW: kill or stop, in the first launch, at clock AT.

The workers wait for each other by marks in FOLDER. Worker 0, on the node of the server, prints a row and the
first clock of the last launch.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import mpips
from mpips.worker.worker import connection_of

CLOCKS, AT = 6, 3
CLAIMS, WAITS = 1, 2  # workers of the node without the server
ABSENT, CLAIMED = 0, 2  # states of keys
KEYS = np.arange(20)
HOW, FOLDER = sys.argv[1], Path(sys.argv[2])
IS_FIRST = os.environ.get("MPIPS_GENERATION", "0") == "0"


def wait_for(mark: str) -> None:
    """Wait until the other worker has made a mark."""
    deadline = time.monotonic() + 20.0
    while not (FOLDER / mark).exists():
        assert time.monotonic() < deadline, mark
        time.sleep(0.001)


class Claims:
    """The memory of a node's rows as a worker sees it, with what happens between its calls."""

    def __init__(self, rows: Any, worker: mpips.Worker) -> None:
        self._rows, self._worker = rows, worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def look(self, *arguments: Any) -> Any:
        """Look for rows, and claim them. The first worker ends when the second one has found its claims."""
        is_here = IS_FIRST and self._worker.now == AT
        if is_here and self._worker.index == WAITS:
            wait_for("claimed")
        found = self._rows.look(*arguments)
        states = found[0]
        if is_here and self._worker.index == WAITS and not (FOLDER / "waits").exists():
            assert (states == CLAIMED).all()
            (FOLDER / "waits").touch()
        if is_here and self._worker.index == CLAIMS:
            assert (states == ABSENT).all()
            (FOLDER / "claimed").touch()
            wait_for("waits")
            os.kill(os.getpid(), signal.SIGKILL if HOW == "kill" else signal.SIGSTOP)
        return found


def main(worker: mpips.Worker) -> dict[str, float]:
    table, first = worker.table("e"), int(worker.cursor.get("clock", 0))
    grouped = connection_of(worker).grouped
    assert (grouped is not None) == (worker.index > 0)
    if grouped is not None:
        part = connection_of(worker).node_rows
        assert part is not None
        part.rows = Claims(part.rows, worker)  # type: ignore[assignment]
    for clock in range(first, CLOCKS):
        assert (table.pull(KEYS) == -6.0 * clock).all()
        table.push(KEYS, np.full((len(KEYS), 4), worker.index + 1, np.float32))
        worker.set_cursor({"clock": clock + 1})
        worker.clock()
    return {"row": float(table.pull(KEYS)[0, 0]), "first": first}


outcome = mpips.run(
    main,
    [mpips.EmbeddingTable("e", 4, mpips.SGD(1.0), consistency=mpips.BSP(reduce="sum"))],
    servers=1,
    topology="node",
    timeout_s=5.0 if HOW == "stop" else 20.0,
)
if outcome.is_first_worker:
    print(json.dumps(outcome.value), flush=True)
