"""The suite `monitor`: samples per second of a run that is observed, and of the same run without.

Each repetition starts `mpips run` three times in turn: as it is by default; with /metrics read once a second
and all forms of the metrics; and with a trace of every step. The model is an MLP whose step takes over 1 ms.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
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

_RANKS = ("-n", "4", "--servers", "1")  # a scheduler, a server, two workers
_EPOCHS, _EPOCHS_QUICK = 200, 2
_TIMEOUT_S = 600.0
_SCRAPE_S = 1.0
_ALL_STEPS = 1_000_000
_SIDES = {
    "off": (),
    "metrics": ("monitor.port=0", "monitor.log=csv,tensorboard"),
    "trace": (f"monitor.trace_steps={_ALL_STEPS}",),
}


def run(suite: str, options: Options, nodes: int) -> Findings:
    """Measure on this machine. `nodes` has no effect.

    Raises:
        BenchError: A run failed.
    """
    found = Findings()
    lacking = [n for n in ("prometheus_client", "tensorboardX", "sklearn") if find_spec(n) is None]
    if lacking:
        found.skipped["monitor_metrics"] = f"not installed: {', '.join(lacking)}"
        return found
    rates: dict[str, list[float]] = {side: [] for side in _SIDES}
    steps_ms: list[float] = []
    # One more repetition before the others warms up.
    for repetition in range(1 + options.repetitions):
        for side, settings in _SIDES.items():
            samples_per_s, step_ms = _train(settings, options.quick)
            if repetition:
                rates[side].append(samples_per_s)
                steps_ms.append(step_ms)
    for side, what in (("metrics", "with metrics and logs"), ("trace", "with every step traced")):
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
    found.figures.append(
        Figure(name="monitor_step", what="a step of this job", unit="ms", values=steps_ms)
    )
    return found


def _train(settings: tuple[str, ...], quick: bool) -> tuple[float, float]:
    """Run the job in a folder of its own; return samples per second and milliseconds per step. Blocks."""
    epochs = _EPOCHS_QUICK if quick else _EPOCHS
    job = ("mlp", "--train", "digits")
    sizes = (f"train.epochs={epochs}", "train.batch_size=256", "options.hidden=[768,768]")
    sets = [word for text in (*sizes, *settings) for word in ("--set", text)]
    with tempfile.TemporaryDirectory(prefix="mpips-bench-") as folder:
        where = ("--folder", folder, "--name", "monitor")
        command = [sys.executable, "-m", "mpips", "run", "--quiet", *_RANKS, *where, *job, *sets]
        with _scraped(Path(folder)):
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
        if done.returncode != 0:
            raise BenchError(
                f"{' '.join(command)} exited with code {done.returncode}: {done.stderr}"
            )
        path = next(Path(folder).glob("*/result.json"))
        result: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    seconds = float(result["seconds"])
    return float(result["samples_per_s"]), 1000 * seconds / max(int(result["steps"]), 1)


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
