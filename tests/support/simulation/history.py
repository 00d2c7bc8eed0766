"""One history: launches of a job, killed and changed, until a last one ends undisturbed.

`python -m simulation.history SEED` runs one, and `--count N` so many from this seed on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np

from mpips import EmbeddingTable
from mpips.transport.region import SHM
from simulation.disk import Checkpoint, Disk
from simulation.launch import Launch
from simulation.memory import Node, small_tables
from simulation.planted import PLANTED, planted
from simulation.program import KEYS, Contents, Era, Watch, draw_shape, lengths
from simulation.world import World


class Outcome(NamedTuple):
    """Numbers of launches, deaths, copies that lagged, eras, checkpoints and turns of a history."""

    launches: int
    deaths: int
    copies: int
    eras: int
    checkpoints: int
    turns: int


def run(seed: int, clocks: int = 30) -> Outcome:
    """Run one history.

    Raises:
        AssertionError: mpips does not keep a promise, or does not come to an end.
    """
    history = History(seed, clocks)
    try:
        with history.world.as_time(), small_tables():
            return history.run()
    finally:
        history.node.remove()


class History:
    """A run of one job."""

    def __init__(self, seed: int, clocks: int) -> None:
        self.seed, self.draws = seed, random.Random(f"history {seed}")
        self.world = World(seed)
        self.node, self.disk = Node(), Disk(self.world)
        self.sizes = lengths(self.draws)
        # Residuals of checkpoints lie in files, which the simulation does not have.
        self.keeps_memory = self.draws.random() < 0.3
        self.clocks, self.copies = clocks, 0
        self.eras: list[Era] = []

    def run(self) -> Outcome:
        """Run launches until the job has ended."""
        launches, start = 0, None
        deaths_left = self.draws.choice((0, 1, 1, 2, 3, 6))
        changes_left = self.draws.choice((0, 0, 1, 2))
        memory = None
        while True:
            if memory is None:
                self._begin(start)
            era = self.eras[-1]
            self.disk.forget()
            self.disk.fails = era.shape.fails
            launch = Launch(
                self.world, self.node, self.disk, era, self.watches, launches, memory, start
            )
            launches += 1
            dies_at, within = None, False
            if deaths_left:
                dies_at = int(self.draws.expovariate(1 / (8 * self.clocks)))
                within = self.draws.random() < 0.6
            stride = self.draws.choice((0, 400, 60)) if not within else 40
            before = self.world.deaths
            self.world.run(stride, dies_at, within)
            if self.world.deaths > before:
                deaths_left -= 1
                memory = launch.memory
                if launch.copy and self.draws.random() < 0.5:
                    # The server's node is lost, and its partner's copy lags.
                    self.node.restore(launch.copy)
                    self.copies += 1
                    for watch in self.watches:
                        watch.has_lagged = True
                elif not era.has_residuals and self.draws.random() < 0.25:
                    memory, start = None, self._checkpoint()
                    self.node.remove()
                continue
            launch.check_end()
            self._check_last()
            if not changes_left or era.has_residuals:
                break
            changes_left -= 1
            memory, start = None, self._checkpoint()
            self.node.remove()
        return Outcome(
            launches,
            self.world.deaths,
            self.copies,
            len(self.eras),
            len(self.disk.written),
            self.world.turns,
        )

    def _begin(self, start: Checkpoint | None) -> None:
        """Begin an era."""
        shape = draw_shape(self.draws, self.sizes, self.clocks, self.keeps_memory)
        base = self._base(start) if start is not None else None
        era = Era(self.seed, len(self.eras), shape, base)
        self.eras.append(era)
        self.disk.era = era.number
        self.watches: Sequence[Watch] = [Watch(era, w) for w in range(shape.n_workers)]

    def _checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint."""
        return self.disk.written[-1] if self.disk.written else None

    def _base(self, start: Checkpoint) -> Contents:
        """Return what the program says of the tables at a checkpoint, and check the checkpoint by it."""
        cursors, era = [worker.cursor for worker in start.head.workers], self.eras[start.era]
        # Without a cursor of its own era a worker has not ended a clock.
        clocks = [c["clock"] if c.get("era") == era.number else 0 for c in cursors]
        expected = era.contents(clocks)
        for i, table in enumerate(era.shape.tables):
            if isinstance(table, EmbeddingTable):
                found = np.zeros((KEYS, 8), np.float32)
                for key, row in start.rows.get(table.name, {}).items():
                    found[key] = row
            else:
                found = start.dense[table.name]
            assert np.array_equal(found, expected.of(i)), (
                f"the checkpoint at clocks {clocks} has {found} in table {i}, not {expected.of(i)}"
            )
        return expected

    def _check_last(self) -> None:
        """Check the checkpoint at the end of a job."""
        start = self._checkpoint()
        if start is not None and not self.eras[-1].has_residuals and not self.disk.fails:
            self._base(start)


N_COUNTS = 1 + len(Outcome._fields)
BATCH = 25  # histories of one process: actors that died in native code keep their memory


class FoundError(AssertionError):
    """A history has failed; the text has its seed."""


def batch(seeds: Sequence[int], until: float) -> tuple[list[int], str]:
    """Run histories in a process of its own until a time, monotonic s.

    Returns:
        Numbers of histories, and as in Outcome; the failure, or "".
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        failure, total, seed = "", np.zeros(N_COUNTS, int), -1
        try:
            os.close(reader)
            for seed in seeds:
                if time.monotonic() > until:
                    break
                total += (1, *run(seed))
        except BaseException:
            failure = f"seed {seed}: " + traceback.format_exc()
        finally:
            with os.fdopen(writer, "w") as pipe:
                json.dump([total.tolist(), failure], pipe)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    for path in SHM.glob(f"mpips-simulation-{pid}-*"):
        path.unlink()
    if not text:
        return [
            0
        ] * N_COUNTS, f"one of the seeds {seeds[0]} to {seeds[-1]} ended its process: {status}"
    total, failure = json.loads(text)
    return total, failure


def search(first: int, count: int, seconds: float) -> tuple[list[int], float]:
    """Run the histories of `count` seeds from `first` on, for so many seconds at most.

    Returns:
        Numbers of histories, and as in Outcome; seconds.

    Raises:
        FoundError: A history has failed.
    """
    began = time.monotonic()
    total = [0] * N_COUNTS
    for seed in range(first, first + count, BATCH):
        if time.monotonic() > began + seconds:
            break
        seeds = range(seed, min(seed + BATCH, first + count))
        counts, failure = batch(seeds, began + seconds)
        total = [a + b for a, b in zip(total, counts, strict=True)]
        if failure:
            took = time.monotonic() - began
            raise FoundError(f"after {sum(total[:1])} histories in {took:.1f} s: {failure}")
    return total, time.monotonic() - began


def main() -> int:
    """Run histories as the command line says."""
    parser = argparse.ArgumentParser(description="Simulate jobs; see docs/design/simulation.md.")
    parser.add_argument("first", type=int, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="number of seeds")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after so long")
    parser.add_argument("--planted", choices=sorted(PLANTED), help="with this defect in mpips")
    options = parser.parse_args()
    defect = planted(options.planted) if options.planted else nullcontext()
    try:
        with defect:
            total, took = search(options.first, options.count, options.seconds)
    except FoundError as error:
        print(error)
        return 1
    names = ("histories", *Outcome._fields)
    print(
        ", ".join(f"{n} {name}" for n, name in zip(total, names, strict=True)), f"in {took:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
