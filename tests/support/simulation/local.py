"""What tables under LocalSGD and DiLoCo must hold, computed without mpips.

Synchronous outer steps. Values do not depend on the order of events, so `LocalRounds` computes all of them
beforehand, round by round: each worker makes inner steps up to its next outer step, and then servers apply
the mean of the differences of all workers that have one. The rules are SGD, in float64.

Asynchronous outer steps with SGD(1.0) as the outer rule. Each element belongs to one worker, so the servers
have its inner steps up to its last outer step, and the worker has all of them. There the rules of ASP hold
(`program.Watch`), without the pushes of the worker's own clock. Values of other workers may be as old as the
worker's last outer step, also over a restart from a checkpoint (`floors`).
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpips import ASP, SGD, DenseTable, DiLoCo, LocalSGD
from mpips.checkpoint.worker_files import read_worker
from mpips.checkpoint.worker_image import LOCAL
from mpips.model.served import fragments_of, local_tables, times_of
from mpips.model.table import Table
from mpips.worker.local.state import LocalState, load
from simulation.program import Era, Shape

# Differences of float32 from float64. A push that is lost or doubled changes an element by 1/4 at least.
CLOSE = 0.02
OUTER = 0.5  # rate of outer rules that are not SGD(1.0)


def draw_local(draws: random.Random) -> Any:
    """Draw the consistency of the tables of a history."""
    steps = draws.choice((1, 2, 3, 4))
    if draws.random() < 0.3:
        return LocalSGD(steps)
    fragments = draws.choice((1, 1, 2)) if steps > 1 else 1
    if draws.random() < 0.4:
        return DiLoCo(
            steps,
            SGD(1.0),
            fragments,
            asynchronous=True,
            bound=draws.choice((None, 0, 1)),
        )
    delay = draws.randrange(steps // fragments)
    outer = SGD(draws.choice((1.0, OUTER)))
    mix = draws.choice((0.0, 0.25, None)) if delay else None
    return DiLoCo(steps, outer, fragments, delay, mix)


def with_local(shape: Shape, consistency: Any) -> Shape:
    """Return a shape whose dense tables have this consistency, and whose embedding tables are under ASP."""
    n_dense = sum(isinstance(table, DenseTable) for table in shape.tables)
    if not n_dense:
        return shape
    if isinstance(consistency, DiLoCo) and consistency.fragments > n_dense:
        consistency = replace(consistency, fragments=1, delay=0, mix=None)
    tables: list[Table] = []
    for table in shape.tables:
        if not isinstance(table, DenseTable):
            tables.append(replace(table, consistency=ASP()))
            continue
        tables.append(
            replace(table, consistency=consistency, compression=None, placement="servers")
        )
    clocks = shape.clocks
    if isinstance(consistency, DiLoCo) and consistency.fragments > 1:
        # The end of a worker is an outer step of all its tables, while others have one of a fragment.
        clocks = (max(clocks),) * shape.n_workers
    return shape._replace(tables=tuple(tables), clocks=clocks, topology="flat")


def is_exact(consistency: Any) -> bool:
    """Return True if values on servers are whole numbers: outer steps are asynchronous, with SGD(1.0)."""
    return isinstance(consistency, DiLoCo) and consistency.asynchronous


def is_synchronous(shape: Shape) -> bool:
    """Return True if there are tables with synchronous outer steps."""
    tables = local_tables(shape.tables)
    return bool(tables) and not any(times_of(t).asynchronous for t in tables.values())


@dataclass
class _Worker:
    """One worker of the model.

    Attributes:
        values, base: By table: its values, and those of servers that it had last.
        period: Inner steps since the last period began.
        pending: Tables whose new values it has not taken.
        due: Clock at which it takes them.
        mix: Share of its own values then.
        synchronized: Clock of its last outer step of all tables together.
        n_outer: Number of its outer steps.
        ended: It has no more.
    """

    values: dict[int, np.ndarray]
    base: dict[int, np.ndarray]
    period: int = 0
    pending: tuple[int, ...] = ()
    due: int = 0
    mix: float = 0.0
    synchronized: int = 0
    n_outer: int = 0
    ended: bool = False


class LocalStart(NamedTuple):
    """What an era begins with: values on servers, by table; states of its workers, or None for new ones."""

    values: dict[int, np.ndarray]
    workers: Sequence[_Worker] | None


class LocalRounds:
    """All values of the tables with synchronous outer steps in an era.

    Attributes:
        pulls: By worker, clock and table: what pulls in this clock return; for tables of the model.
        servers: By number of outer steps and table: the values on servers.
    """

    def __init__(self, era: Era, start: LocalStart | None) -> None:
        shape = era.shape
        self._era, self._tables = era, local_tables(shape.tables)
        first = next(iter(self._tables.values()))
        self._times, self._fragments = times_of(first), fragments_of(self._tables)
        n = self._times.fragments
        self._ends = {(k + 1) * self._times.steps // n: k for k in range(n)}
        consistency: Any = first.consistency
        self._rate, self._mix = 1.0, 0.0
        if isinstance(consistency, DiLoCo):
            assert isinstance(consistency.outer, SGD)
            self._rate = consistency.outer.lr
            if consistency.delay:
                self._mix = 0.5 if consistency.mix is None else consistency.mix
        values = {i: era.base.dense[i].astype(np.float64) for i in self._tables}
        workers: Sequence[_Worker] | None = None
        if start is not None:
            values = {i: start.values.get(i, values[i]) for i in self._tables}
            workers = start.workers
        self.servers = [values]
        if workers is None:
            workers = [_Worker(dict(values), dict(values)) for _ in range(shape.n_workers)]
        self._workers = workers = [copy.deepcopy(worker) for worker in workers]
        self.pulls = [[dict[int, np.ndarray]() for _ in range(n)] for n in shape.clocks]
        # The state of each worker after so many clocks, and the number of its outer steps then.
        self._after = [[copy.deepcopy(worker)] for worker in workers]
        self._ended = [copy.deepcopy(worker) for worker in workers]  # and that after its end
        while not all(worker.ended for worker in workers):
            self._round()

    def _round(self) -> None:
        """Let each worker come to its next outer step or to its end, and apply the mean."""
        values, found = self.servers[-1], []
        for w, worker in enumerate(self._workers):
            if not worker.ended:
                pushed = self._run(w, worker)
                if pushed is not None:
                    found.append(pushed)
        if not found:
            return
        after = dict(values)
        for i in self._tables:
            differences = [each[i] for each in found if i in each]
            if differences:
                after[i] = values[i] - self._rate * sum(differences) / len(found)
        self.servers.append(after)

    def _run(self, w: int, worker: _Worker) -> dict[int, np.ndarray] | None:
        """Make the inner steps of a worker up to its next outer step; return differences, None: its end."""
        end = self._era.shape.clocks[w]
        while True:
            clock = len(self._after[w]) - 1
            if clock == end:
                return self._end(w, worker, clock)
            self._settle(worker, clock)
            self.pulls[w][clock] = dict(worker.values)
            sums = self._era.sums_of(w, self._era.ops(w, clock))
            for i in self._tables:
                worker.values[i] = worker.values[i] + sums.dense[i]
            worker.period += 1
            clock += 1
            fragment, pushed = self._ends.get(worker.period), None
            if fragment is not None:
                tables = tuple(i for i in self._tables if self._fragments[i] == fragment)
                pushed = self._push(worker, tables, clock, self._times.delay)
                if worker.period == self._times.steps:
                    worker.period = 0
            self._after[w].append(copy.deepcopy(worker))
            if pushed is not None:
                return pushed

    def _end(self, w: int, worker: _Worker, clock: int) -> dict[int, np.ndarray] | None:
        """End a worker, with an outer step of all tables unless it has just had one."""
        pushed = None
        if worker.synchronized != clock:
            # It takes new values before it pushes.
            self._settle(worker, worker.due)
            pushed = self._push(worker, tuple(self._tables), clock, 0)
            worker.period = 0
        worker.ended, worker.mix, worker.due = True, 0.0, clock
        self._ended[w] = copy.deepcopy(worker)
        return pushed

    def _settle(self, worker: _Worker, clock: int) -> None:
        if not worker.pending or clock < worker.due:
            return
        for i in worker.pending:
            worker.base[i] = self.servers[worker.n_outer][i]
            worker.values[i] = worker.mix * worker.values[i] + (1 - worker.mix) * worker.base[i]
        worker.pending = ()

    def _push(
        self, worker: _Worker, tables: tuple[int, ...], clock: int, delay: int
    ) -> dict[int, np.ndarray]:
        worker.pending, worker.due, worker.mix = tables, clock + delay, self._mix
        worker.n_outer += 1
        if len(tables) == len(self._tables):
            worker.synchronized = clock
        return {i: worker.base[i] - worker.values[i] for i in tables}

    def check_pull(self, worker: int, clock: int, table: int, found: np.ndarray) -> None:
        """Check what a worker's pull has returned."""
        expected = self.pulls[worker][clock][table]
        assert np.allclose(found, expected, 0, CLOSE), (
            f"table {table} at clock {clock} of worker {worker}: {found} is not {expected}"
        )

    def check_end(self, table: int, found: np.ndarray) -> None:
        """Check the values on servers at the end of the era."""
        expected = self.servers[-1][table]
        assert np.allclose(found, expected, 0, CLOSE), (
            f"table {table} ends with {found}, not {expected}"
        )

    def start_from(self, clocks: Sequence[int], found: dict[int, np.ndarray]) -> LocalStart:
        """Return what an era begins with from a checkpoint, and check its values.

        Args:
            clocks: The workers' clocks in it.
            found: The values on servers in it.
        """
        # A worker at its last clock has ended, or not yet.
        ends = [
            (self._ended[w], self._after[w][clock])
            if clock == self._era.shape.clocks[w]
            else (self._after[w][clock],)
            for w, clock in enumerate(clocks)
        ]
        for chosen in itertools.product(*ends):
            # Servers have all outer steps that any worker has made.
            n = max(worker.n_outer for worker in chosen)
            if n < len(self.servers) and self._are_values(n, found):
                break
        else:
            raise AssertionError(
                f"the checkpoint at clocks {clocks} has {found}, not {self.servers}"
            )
        values, workers = self.servers[n], [copy.deepcopy(worker) for worker in chosen]
        for w, worker in enumerate(workers):
            clock = clocks[w]
            worker.due, worker.synchronized = worker.due - clock, worker.synchronized - clock
            worker.n_outer, worker.ended = 0, False
            for i in self._tables:
                worker.base[i] = values[i]
        return LocalStart(dict(values), workers)

    def _are_values(self, n: int, found: dict[int, np.ndarray]) -> bool:
        """Return True if these are the values on servers after so many outer steps."""
        values = self.servers[n]
        return all(np.allclose(found[i], values[i], 0, CLOSE) for i in self._tables)


def floors(path: Path, states: Sequence[Any], tables: Sequence[Table]) -> list[dict[int, Any]]:
    """Return the images of workers in a checkpoint with asynchronous outer steps.

    Args:
        path: Folder of the checkpoint.
        states: States of the workers in it.
        tables: All tables of the job.

    Returns:
        By worker and index of a table: values, and the part of them that servers lack.
    """
    found = []
    local = local_tables(tables)
    for state in states:
        of_worker: dict[int, Any] = {}
        if state.files and local:
            image = read_worker(path, state)[LOCAL]
            arrays = {i: LocalState.of(table) for i, table in local.items()}
            load(image, list(arrays.values()), False)
            for i, each in arrays.items():
                unsent = np.zeros_like(each.values)
                # New: it has not used the table, and has the values of the servers.
                if each.base is not None and not each.pending:
                    unsent = each.values - each.base
                of_worker[i] = each.values, unsent
        found.append(of_worker)
    return found
