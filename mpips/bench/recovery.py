"""The suite `recovery`: failures under `mpips run`, and the cost of what survives them.

* Seconds from the kill of a server to the first step after it. mpips cannot change the time that mpirun needs
  to start as many ranks, so this time is measured alternately and subtracted.
* The cost of a journal (journal.py), of a record (recording.py) and of replicas (rank/partners.py).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from mpips.bench import journal, recording
from mpips.bench.launching import Options, empty_launch_s, on_nodes, why_not_on_nodes
from mpips.bench.measure import Figure, Findings
from mpips.bench.rank.recovering import FIRST_STEP
from mpips.chaos.processes import kill_role
from mpips.mpi.mpirun import mpi_environment
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Status
from mpips.testing.errors import BenchError
from mpips.testing.nodes import Nodes

Found = TypeVar("Found")

BAR_S = 3.0
PARTNER_COST = "partner_cost_sync"
_RANKS = 4
_LIMIT_S = 120.0


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure on this machine. `nodes` above 1 skips the suite.

    Raises:
        BenchError: A launch failed.
    """
    name = "server_kill_beyond_launch_s"
    if nodes > 1:
        return Findings(skipped={name: "needs only this machine: run it without --nodes"})
    launches, recoveries = [], []
    for _ in range(1 if options.quick else options.repetitions):
        launches.append(empty_launch_s(_RANKS))
        recoveries.append(_recovery_s())
    beyond = [a - b for a, b in zip(recoveries, launches, strict=True)]
    figures = [
        Figure(
            name=name,
            what="from the kill of a server to the first step after it, less a launch of mpirun",
            unit="s",
            values=beyond,
        ),
        Figure(
            name="empty_launch_s",
            what="from the start of mpirun until all ranks are in MPI",
            unit="s",
            values=launches,
        ),
    ]
    found = Findings(figures=figures)
    verdict = "met" if figures[0].median <= BAR_S else "NOT met"
    found.notes.append(f"{name}: {figures[0].median:.2f}, bar <= {BAR_S:g} {verdict}")
    found.add(journal.run(options))
    found.add(recording.run(options))
    found.add(_partners(options))
    return found


def _partners(options: Options) -> Findings:
    """Measure replicas on two imitated nodes with one server each."""
    if reason := why_not_on_nodes():
        return Findings(skipped={PARTNER_COST: reason})
    with Nodes(2) as imitated:
        return on_nodes("mpips.bench.rank.partners:run", imitated, [2, 2], options, _LIMIT_S)


def _recovery_s() -> float:
    """Return the seconds from SIGKILL of server 0 to the end of worker 0's first step after it."""
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        data = Path(folder) / "data.npz"
        np.savez(data, x=np.ones((20_000, 4), np.float32), y=np.arange(20_000) % 2)
        job = ["mpips.bench.rank.recovering:Recovering", "--train", str(data)]
        settings = ["train.epochs=1", "train.batch_size=8", "checkpoint.every_steps=25"]
        sets = [word for text in settings for word in ("--set", text)]
        where = ["--folder", folder, "-n", str(_RANKS), "--servers", "1"]
        command = [sys.executable, "-m", "mpips", "run", "--quiet", *where, *job, *sets]
        with subprocess.Popen(
            command,
            env=mpi_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                return _kill_and_wait(process, Path(folder))
            finally:
                process.send_signal(signal.SIGTERM)
                process.communicate()


def _kill_and_wait(process: subprocess.Popen[str], folder: Path) -> float:
    """Kill server 0 after the first checkpoint; return the seconds until the next attempt made a step."""

    def look() -> tuple[RunFolder, Status] | None:
        for path in folder.glob("*/run.json"):
            status = RunFolder(path.parent).status()
            if status is not None and status.ranks and status.checkpoint:
                return RunFolder(path.parent), status
        return None

    run, status = _until(look, process)
    if kill_role(status.ranks, run.path, status.generation, "server 0") is None:
        raise BenchError(f"attempt {status.generation} has no server 0 on this machine")
    killed = time.time()
    mark = run.attempt(1) / FIRST_STEP
    text = _until(lambda: mark.read_text() if mark.is_file() else None, process)
    return float(text) - killed


def _until(look: Callable[[], Found | None], process: subprocess.Popen[str]) -> Found:
    """Poll `look` and return its first result that is not None.

    Raises:
        BenchError: `mpips run` ended, or there was no result in time.
    """
    deadline = time.monotonic() + _LIMIT_S
    while (found := look()) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            log = process.communicate()[1]
            raise BenchError(f"mpips run did not recover within {_LIMIT_S:g} s; its log:\n{log}")
        time.sleep(0.01)
    return found
