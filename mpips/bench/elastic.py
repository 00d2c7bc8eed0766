"""The suite `elastic`: the pauses of a run whose ranks die, and whose size changes.

One run has a standby launch and another one has none. In each of them a worker is killed and then a server;
in the first one the numbers of workers and servers then change (`mpips scale`); at last ranks are killed
again and again. A pause is the longest step of a worker that is there before and after. Beside it are the
longest step of the same run while nothing happens, and launches of mpirun with as many ranks that only meet
in MPI, which mpips cannot make shorter.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mpips.bench.launching import Options, empty_launch_s
from mpips.bench.measure import Comparison, Figure, Findings
from mpips.bench.rank.stepping import read_steps
from mpips.chaos.processes import kill_role
from mpips.chaos.schedule import FaultChoice, make_schedule
from mpips.mpi.mpirun import mpi_environment
from mpips.rundir.directory import RunFolder
from mpips.rundir.files import Status
from mpips.supervisor.standby import marker
from mpips.testing.errors import BenchError

Found = TypeVar("Found")

# name -> most seconds, on two cores without other load
BARS_S = {"survivor_gap_s": 0.5, "server_gap_s": 1.5, "scale_beyond_launch_s": 1.0}
GOODPUT = "goodput_mtbf_10s"
_WORKERS = 3
_RANKS = 2 + _WORKERS
_LIMIT_S = 120.0
_READY_S = 30.0  # s that an event waits for a standby launch
_SEED = 11  # of the kills
_STEPS = 20  # steps of worker 0 in an attempt, after which it counts as being at work


class ElasticPlan:
    """The lengths of the parts of a run.

    Attributes:
        quiet_s: Seconds without an event, which are the baseline.
        between_s: Seconds between two kills.
        kills: Number of these kills.
    """

    def __init__(self, options: Options) -> None:
        """Choose them; a quick run only shows that the suite works."""
        self.quiet_s = 0.5 if options.quick else 5.0
        self.between_s = 4.0 if options.quick else 10.0
        self.kills = 1 if options.quick else 6


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure on this machine. `nodes` above 1 skips the suite.

    Raises:
        BenchError: A launch failed, or did not come back.
    """
    if nodes > 1:
        return Findings(skipped={suite: "needs only this machine: run it without --nodes"})
    found, plan = _Results(), ElasticPlan(options)
    for _ in range(1 if options.quick else options.repetitions):
        with _running(standby=True) as job:
            found.quiet(job, plan)
            found.add("survivor_gap_s", job.gap_of_kill("worker 1"))
            found.add("server_gap_s", job.gap_of_kill("server 0"))
            for name, arguments in _CHANGES.items():
                launch_s = empty_launch_s(_RANKS + (name != "workers_down"))
                pause_s, request_s = job.scale(*arguments)
                found.add(f"scale_{name}_gap_s", pause_s)
                found.add(f"scale_{name}_request_s", request_s)
                found.add(f"scale_{name}_beyond_launch_s", pause_s - launch_s)
                found.add("empty_launch_s", launch_s)
            found.goodput(GOODPUT, job, plan)
        with _running(standby=False) as job:
            found.add("survivor_gap_without_standby_s", job.gap_of_kill("worker 1"))
            found.add("server_gap_without_standby_s", job.gap_of_kill("server 0"))
            found.goodput(f"{GOODPUT}_without_standby", job, plan)
    return found.findings()


# name -> arguments of `mpips scale`; each leaves as many ranks as the baseline launch has
_CHANGES = {
    "workers_up": ("--workers", "+1"),
    "workers_down": ("--workers", "-1"),
    "servers_up": ("--servers", "2"),
}
_WHAT = {
    "quiet_step_s": "longest step of worker 0 while nothing happens",
    "survivor_gap_s": "longest step of a worker when another one is killed; a standby launch waits",
    "server_gap_s": "longest step of a worker when the server is killed; a standby launch waits",
    "survivor_gap_without_standby_s": "the same without a standby launch, for a worker",
    "server_gap_without_standby_s": "the same without a standby launch, for the server",
    "empty_launch_s": "from the start of mpirun until all ranks of such a job are in MPI",
    "scale_beyond_launch_s": "longest step when the size changes, less such a launch; worst of three",
}


def _what_of_change(name: str) -> str:
    """Return the description of a figure about one change of the size."""
    change = next(each for each in _CHANGES if each in name)
    how = " ".join(("mpips scale", *_CHANGES[change]))
    if name.endswith("_request_s"):
        return f"{how}: from the request to the first step of the new size"
    less = ", less an empty launch" if name.endswith("_beyond_launch_s") else ""
    return f"{how}: longest step of a worker{less}"


class _Results:
    """The values of all repetitions, by name."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}
        self._rates: dict[str, tuple[list[float], list[float]]] = {}

    def add(self, name: str, value: float) -> None:
        """Store one value."""
        self._values.setdefault(name, []).append(value)

    def quiet(self, job: _Job, plan: ElasticPlan) -> None:
        """Measure the longest step while nothing happens."""
        begin = time.time()
        time.sleep(plan.quiet_s)
        self.add("quiet_step_s", _longest(job.steps(0), begin, time.time()))

    def goodput(self, name: str, job: _Job, plan: ElasticPlan) -> None:
        """Measure the steps per second with kills, and before them."""
        job.await_standby()
        begin = time.time()
        time.sleep(plan.quiet_s)
        quiet = job.rate(begin, time.time())
        with_kills = job.rate_under_kills(plan)
        ours, baseline = self._rates.setdefault(name, ([], []))
        ours.append(with_kills)
        baseline.append(quiet)

    def findings(self) -> Findings:
        """Return the figures, the ratios and what the bars say."""
        beyond = [self._values[f"scale_{name}_beyond_launch_s"] for name in _CHANGES]
        self._values["scale_beyond_launch_s"] = [
            max(values) for values in zip(*beyond, strict=True)
        ]
        found = Findings()
        for name, values in self._values.items():
            what = _WHAT.get(name) or _what_of_change(name)
            found.figures.append(Figure(name=name, what=what, unit="s", values=values))
        for figure in found.figures:
            if (bar := BARS_S.get(figure.name)) is not None:
                verdict = "met" if figure.median <= bar else "NOT met"
                found.notes.append(f"{figure.name}: {figure.median:.2f}, bar <= {bar:g} {verdict}")
        for name, (ours, baseline) in self._rates.items():
            found.comparisons.append(
                Comparison(
                    name=name,
                    what="steps while a rank is killed every 10 s",
                    unit="/s",
                    ours=ours,
                    baseline=baseline,
                    baseline_name="the same run before",
                )
            )
        return found


def _longest(times: NDArray[np.float64], begin: float, end: float) -> float:
    """Return the longest time between two steps that touches [begin, end]; 0.0 without two steps there.

    Args:
        times: Unix times of the ends of steps, sorted.
        begin: Unix time.
        end: Unix time.
    """
    first = max(int(np.searchsorted(times, begin)) - 1, 0)
    last = int(np.searchsorted(times, end)) + 1
    inside = times[first:last]
    return float(np.diff(inside).max()) if len(inside) > 1 else 0.0


@contextmanager
def _running(standby: bool) -> Iterator[_Job]:
    """Start a run, whose first attempt is at work within the block; end it after the block."""
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        data = Path(folder) / "data.npz"
        np.savez(data, x=np.ones((20_000, 4), np.float32), y=np.arange(20_000) % 2)
        settings = ["train.epochs=500", "train.batch_size=8", "run.standby_after_s=0"]
        settings += [f"run.standby={str(standby).lower()}"]
        sets = [word for text in settings for word in ("--set", text)]
        where = ["--folder", folder, "-n", str(_RANKS), "--servers", "1", "--max-restarts", "1000"]
        job = ["mpips.bench.rank.stepping:SteppingTask", "--train", str(data)]
        command = [sys.executable, "-m", "mpips", "run", "--quiet", *where, *job, *sets]
        log = Path(folder) / "log"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command,
                env=mpi_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            ) as process,
        ):
            try:
                yield _Job(process, Path(folder), log, standby)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()


class _Job:
    """A run at work."""

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, log: Path, standby: bool
    ) -> None:
        self._process, self._log, self._standby = process, log, standby

        def look() -> RunFolder | None:
            paths = list(folder.glob("*/run.json"))
            return RunFolder(paths[0].parent) if paths else None

        self.run = self._until(look)
        self._at_work(0)

    def _until(self, look: Callable[[], Found | None], limit_s: float = _LIMIT_S) -> Found:
        """Poll `look` and return its first result that is not None.

        Raises:
            BenchError: The run ended, or there was no result in time.
        """
        deadline = time.monotonic() + limit_s
        while (found := look()) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = self._log.read_text(errors="replace")
                raise BenchError(f"mpips run did not go on within {limit_s:g} s; its log:\n{text}")
            time.sleep(0.01)
        return found

    def _at_work(self, generation: int) -> Status:
        """Wait until worker 0 has made some steps in this attempt or a later one; return the status."""

        def look() -> Status | None:
            status = self.run.status()
            if status is None or status.generation < generation or not status.ranks:
                return None
            n = len(read_steps(self.run.attempt(status.generation), 0))
            return status if n >= _STEPS else None

        return self._until(look)

    def await_standby(self) -> None:
        """Wait until a standby launch is ready, where the run has one; not for ever."""
        status = self._at_work(0)
        if not self._standby:
            return
        path = marker(self.run, status.generation + 1)
        deadline = time.monotonic() + _READY_S
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def steps(self, worker: int) -> NDArray[np.float64]:
        """Return the times of a worker's steps in all attempts; see `read_steps`."""
        attempts = sorted(self.run.logs.glob("attempt-*"))
        return np.sort(np.concatenate([read_steps(path, worker) for path in attempts]))

    def gap_of_kill(self, role: str) -> float:
        """Kill the rank of a role; return the longest step of worker 0 from then on, in seconds."""
        self.await_standby()
        status = self._at_work(0)
        begin = time.time()
        self._kill(status, role)
        self._at_work(status.generation + 1)
        return _longest(self.steps(0), begin, time.time())

    def _kill(self, status: Status, role: str) -> None:
        if kill_role(status.ranks, self.run.path, status.generation, role) is None:
            raise BenchError(f"attempt {status.generation} has no {role} on this machine")

    def scale(self, *arguments: str) -> tuple[float, float]:
        """Change the size.

        Returns:
            The longest step of worker 0 from the request on, and the time from the request to the first step
            of the new size, in seconds.
        """
        status = self._at_work(0)
        begin = time.time()
        command = [sys.executable, "-m", "mpips", "scale", str(self.run.path), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=mpi_environment()
        )
        if done.returncode != 0:
            raise BenchError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        after = self._at_work(status.generation + 1)
        first = read_steps(self.run.attempt(after.generation), 0)[0]
        return _longest(self.steps(0), begin, time.time()), float(first) - begin

    def rate(self, begin: float, end: float) -> float:
        """Return the steps of all workers per second between two Unix times."""
        n_workers = _WORKERS
        counts = [np.sum((begin <= s) & (s < end)) for s in map(self.steps, range(n_workers))]
        return float(sum(counts)) / (end - begin)

    def rate_under_kills(self, plan: ElasticPlan) -> float:
        """Kill a rank in the middle of each period; return the steps of all workers per second.

        A step that a worker repeats after a kill counts once.
        """
        roles = (*(f"worker {w}" for w in range(_WORKERS)), "server 0")
        length_s = plan.kills * plan.between_s
        kills = make_schedule(
            [FaultChoice(kind="kill", roles=roles)],
            _SEED,
            plan.between_s,
            length_s,
            intervals="fixed",
        )
        begin = time.time()
        for kill in kills:
            time.sleep(max(0.0, begin + kill.at_s - time.time()))
            self._kill(self._until(self._with_ranks), kill.role)
        end = begin + length_s
        time.sleep(max(0.0, end - time.time()))
        return max(0.0, self.rate(begin, end) - plan.kills * _WORKERS / (end - begin))

    def _with_ranks(self) -> Status | None:
        """Return the status if all ranks are there."""
        status = self.run.status()
        return status if status is not None and status.ranks else None
