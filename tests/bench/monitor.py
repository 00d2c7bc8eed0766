"""The suite `monitor`: samples per second of a run that is observed, and of the same run without.

Each repetition starts `mpips run` in several ways, in another order each time: as it is by default; with
/metrics read once a second and all forms of the metrics; with a page of `mpips web` that is open; and with a
trace of every step. The model is an MLP whose steps take several ms. All processes share the cores of this
machine, so what an observer costs is missing to the workers: of the page's server the processor time is
measured, too.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from mpips.bench.launching import Options
from mpips.bench.measure import Comparison, Figure, Findings
from mpips.mpi.mpirun import mpi_environment
from mpips.testing.errors import BenchError
from tests.bench.processes import cpu_seconds

_RANKS = ("-n", "4", "--servers", "1")  # a scheduler, a server, two workers
_EPOCHS, _EPOCHS_QUICK = 200, 2
_TIMEOUT_S = 600.0
_SCRAPE_S = 1.0
_START_S = 60.0  # s within which the page's server answers
_ALL_STEPS = 1_000_000
_SIDES = {
    "off": (),
    "metrics": ("monitor.port=0", "monitor.log=csv,tensorboard"),
    "page": (),
    "trace": (f"monitor.trace_steps={_ALL_STEPS}",),
}
_TEXTS = {
    "metrics": "with metrics and logs",
    "page": "with an open page",
    "trace": "with every step traced",
}
LIBRARIES = ("prometheus_client", "tensorboardX", "starlette", "uvicorn", "sklearn")


class Observed(msgspec.Struct, frozen=True):
    """A run that was measured.

    Attributes:
        samples_per_s: Samples per second of all workers.
        step_ms: Milliseconds per step.
        page_cpu: Seconds of processor time per second that the page's server took; None: there was none.
    """

    samples_per_s: float
    step_ms: float
    page_cpu: float | None


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure on this machine. `nodes` has no effect.

    Raises:
        BenchError: A run failed.
    """
    found = Findings()
    lacking = [name for name in LIBRARIES if find_spec(name) is None]
    if lacking:
        found.skipped["monitor_metrics"] = f"not installed: {', '.join(lacking)}"
        return found
    runs: dict[str, list[Observed]] = {side: [] for side in _SIDES}
    sides = list(_SIDES)
    # One more repetition before the others warms up.
    for repetition in range(1 + options.repetitions):
        for side in sides:
            observed = _train(side, options.quick)
            if repetition:
                runs[side].append(observed)
        sides.append(sides.pop(0))
    rates = {side: [r.samples_per_s for r in found] for side, found in runs.items()}
    for side, what in _TEXTS.items():
        found.comparisons.append(
            Comparison(
                name=f"monitor_{side}",
                what=f"mlp on digits {what}, 1 server and 2 workers under BSP",
                unit="samples/s",
                ours=rates[side],
                baseline=rates["off"],
                baseline_name="without",
            )
        )
    steps_ms = [r.step_ms for found in runs.values() for r in found]
    cpu = [r.page_cpu for r in runs["page"] if r.page_cpu is not None]
    found.figures += [
        Figure(name="monitor_step", what="a step of this job", unit="ms", values=steps_ms),
        Figure(name="page_cpu", what="of a core for the server of the page", unit="", values=cpu),
    ]
    return found


def _train(side: str, quick: bool) -> Observed:
    """Run the job in a folder of its own. Blocks."""
    epochs = _EPOCHS_QUICK if quick else _EPOCHS
    job = ("mlp", "--train", "digits")
    sizes = (f"train.epochs={epochs}", "train.batch_size=256", "options.hidden=[768,768]")
    sets = [word for text in (*sizes, *_SIDES[side]) for word in ("--set", text)]
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        where = ("--folder", folder, "--name", "monitor")
        command = [sys.executable, "-m", "mpips", "run", "--quiet", *_RANKS, *where, *job, *sets]
        page = _page(Path(folder)) if side == "page" else contextlib.nullcontext(None)
        with _scraped(Path(folder)), page as server:
            begin, before = time.monotonic(), cpu_seconds(server) if server else 0.0
            done = subprocess.run(
                command,
                env=mpi_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
            seconds = time.monotonic() - begin
            page_cpu = (cpu_seconds(server) - before) / seconds if server else None
        if done.returncode != 0:
            raise BenchError(
                f"{' '.join(command)} exited with code {done.returncode}: {done.stderr}"
            )
        path = next(Path(folder).glob("*/result.json"))
        result: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return Observed(
        samples_per_s=float(result["samples_per_s"]),
        step_ms=1000 * float(result["seconds"]) / max(int(result["steps"]), 1),
        page_cpu=page_cpu,
    )


@contextlib.contextmanager
def _page(folder: Path) -> Iterator[int]:
    """Serve the runs of `folder` for the block, and read the events of its first run as a browser does.

    Yields:
        Process id of the server.

    Raises:
        BenchError: The server has not printed its address.
    """
    command = [sys.executable, "-m", "mpips", "web", str(folder), "--port", "0"]
    over = threading.Event()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as server:
        try:
            address = _address(server)
            thread = threading.Thread(target=_browse, args=(address, folder, over), daemon=True)
            thread.start()
            yield server.pid
        finally:
            over.set()
            server.terminate()


def _address(server: subprocess.Popen[bytes]) -> str:
    """Return the address that the page's server prints."""
    assert server.stdout is not None
    timer = threading.Timer(_START_S, server.kill)
    timer.start()
    try:
        for line in server.stdout:
            found = re.search(r"http://\S+/", line.decode(errors="replace"))
            if found:
                return found[0]
    finally:
        timer.cancel()
    raise BenchError(f"mpips web has printed no address within {_START_S:g} s")


def _browse(address: str, folder: Path, over: threading.Event) -> None:
    """Read the events of the first run until the server ends."""
    while not over.wait(0.1):
        for path in folder.glob("*/run.json"):
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{address}events?run={path.parent.name}") as events,
            ):
                while events.read1(1 << 16):
                    pass


@contextlib.contextmanager
def _scraped(folder: Path) -> Iterator[None]:
    """Read the metrics of a run in `folder` once a second for the block, if it has an address."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(_SCRAPE_S):
            with contextlib.suppress(OSError, StopIteration, msgspec.DecodeError):
                path = next(folder.glob("*/status.json"))
                address = msgspec.json.decode(path.read_bytes()).get("metrics")
                if address:
                    with urllib.request.urlopen(address, timeout=_SCRAPE_S) as answer:
                        answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
