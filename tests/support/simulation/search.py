"""Many histories, each batch in a process of its own; and the command line of the simulator."""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import signal
import time
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NoReturn

import numpy as np

from mpips.transport.region import SHM
from simulation.history import Outcome, run
from simulation.kinds import NAMES, has
from simulation.memory import files_of
from simulation.planted import PLANTED, planted

N_COUNTS = 1 + len(Outcome._fields)
HANG_S = 60  # of one history: an actor does not give up its turn
BATCH = 25  # histories of one process: actors that died in native code keep their memory


class FoundError(AssertionError):
    """A history has failed; the text has its seed."""


def _hangs(signal: int, frame: object) -> None:
    raise AssertionError("an actor does not give up its turn")


class Batch:
    """Histories that run in a process of their own."""

    def __init__(self, seeds: Sequence[int], until: float) -> None:
        """Begin. `until`: time from which on no further history begins, monotonic s."""
        reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(reader)
            self._run(seeds, until, writer)
        os.close(writer)
        self._reader = reader

    @staticmethod
    def _run(seeds: Sequence[int], until: float, writer: int) -> NoReturn:
        failure, total, seed = "", np.zeros(N_COUNTS, int), -1
        # Most objects live to the end of a launch.
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        pipe = os.fdopen(writer, "w")
        signal.signal(signal.SIGALRM, _hangs)
        try:
            for seed in seeds:
                if time.monotonic() > until:
                    break
                pipe.write(f"{seed}\n")
                pipe.flush()
                signal.alarm(HANG_S)
                total += (1, *run(seed))
        except BaseException:
            failure = f"seed {seed}: " + traceback.format_exc()
        finally:
            json.dump([total.tolist(), failure], pipe)
            pipe.close()
            os._exit(0)

    def end(self) -> tuple[list[int], str]:
        """Wait for its end.

        Returns:
            Numbers of histories, and as in Outcome; the failure, or "".
        """
        with os.fdopen(self._reader) as pipe:
            *begun, text = pipe.read().split("\n")
        _, status = os.waitpid(self._pid, 0)
        for path in files_of(self._pid):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in SHM.glob(f"mpips-simulation-{self._pid}-*"):
            shutil.rmtree(path)
        if not text:
            return [0] * N_COUNTS, f"seed {begun[-1]} ended its process with status {status}"
        total, failure = json.loads(text)
        return total, failure


def search(
    first: int, count: int, seconds: float, jobs: int = 1, feature: str | None = None
) -> tuple[list[int], float]:
    """Run the histories of `count` seeds from `first` on, for so many seconds at most, in `jobs` processes.

    `feature`: only those with this one; None: all.

    Returns:
        Numbers of histories, and as in Outcome; seconds.

    Raises:
        FoundError: A history has failed; of several the one of the lowest seeds.
    """
    began = time.monotonic()
    total, running, seed = [0] * N_COUNTS, deque[Batch](), first
    while True:
        while len(running) < jobs and seed < first + count and time.monotonic() < began + seconds:
            seeds: Sequence[int] = range(seed, min(seed + BATCH, first + count))
            if feature is not None:
                seeds = [each for each in seeds if has(each, feature)]
            running.append(Batch(seeds, began + seconds))
            seed += BATCH
        if not running:
            return total, time.monotonic() - began
        counts, failure = running.popleft().end()
        total = [a + b for a, b in zip(total, counts, strict=True)]
        if failure:
            took = time.monotonic() - began
            for other in running:
                other.end()
            raise FoundError(f"after {sum(total[:1])} histories in {took:.1f} s: {failure}")


def main() -> int:
    """Run histories as the command line says."""
    parser = argparse.ArgumentParser(description="Simulate jobs; see docs/design/simulation.md.")
    parser.add_argument("first", type=int, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="number of seeds")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after so long")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--feature", choices=NAMES, help="only such histories")
    parser.add_argument("--planted", choices=sorted(PLANTED), help="with this defect in mpips")
    options = parser.parse_args()
    defect = planted(options.planted) if options.planted else nullcontext()
    try:
        with defect:
            total, took = search(
                options.first, options.count, options.seconds, options.jobs, options.feature
            )
    except FoundError as error:
        print(error)
        return 1
    names = ("histories", *Outcome._fields)
    print(
        ", ".join(f"{n} {name}" for n, name in zip(total, names, strict=True)), f"in {took:.1f} s"
    )
    return 0
